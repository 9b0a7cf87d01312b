"""The thread that makes a run's lines durable, so that no disk holds up the event loop."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from remote.generate.disk import Disk, DiskBrokenError, DiskFullError
from remote.generate.ledger import Entry, Ledger
from remote.generate.records import Batch


class Writer:
    """The thread that owns a :class:`Ledger`.

    Entries are taken in groups, one sync for all that came within :data:`GROUP_S`. What became
    durable is told by ``on_durable(acked, sealed)``, a trouble by ``on_problem(text)`` (empty
    when it is over) and ``on_broken(text)`` (the writer has stopped); all called in the thread.
    """

    GROUP_S = 0.05
    RETRY_S = 1.0

    def __init__(
        self,
        ledger: Ledger,
        *,
        on_durable: Callable[[list[Entry], list[Batch]], None],
        on_problem: Callable[[str], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._disk = Disk()
        self._on_durable, self._on_problem, self._on_broken = on_durable, on_problem, on_broken
        self._jobs: deque[Entry | Batch | Callable[[Ledger], None]] = deque()
        self._files: dict[str, tuple[bytes, bool]] = {}
        self._wake = threading.Event()
        self._closing = self._hurry = False
        self.stuck = False
        """The disk is full: nothing becomes durable until there is space."""
        self.broken = ""
        self.backlog = 0
        """Bytes handed over and not yet durable (approximately, for admission)."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._main, name="ledger", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Hand over a line."""
        with self._lock:
            self.backlog += len(entry.line)
        self._jobs.append(entry)
        self._wake.set()

    def list_batch(self, batch: Batch) -> None:
        """Hand over a manifest line."""
        self._jobs.append(batch)
        self._wake.set()

    def hurry(self) -> None:
        """Somebody waits for what was handed over: no more is gathered before it is written."""
        self._hurry = True
        self._wake.set()

    def seal(self) -> None:
        """Seal the open batch short once all that was handed over is in it."""
        self._jobs.append(Ledger.seal)
        self._wake.set()

    def delete_local(self, batch: Batch) -> None:
        """Delete a batch's file here once ``batch``, its manifest line that says so, is durable."""
        self.list_batch(batch)
        self._jobs.append(lambda ledger: ledger.delete_local(batch))
        self._wake.set()

    def replace_pending(self, lines: list[bytes]) -> None:
        """Rewrite ``pending.jsonl`` once all that was handed over is durable."""
        self._jobs.append(lambda ledger: ledger.replace_pending(lines))
        self._wake.set()

    def file(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Replace a whole small file once all lines that were handed over before are written; only
        the newest content of a name is."""
        self._files[name] = (data, durable)
        self._wake.set()

    def flush(self, timeout: float) -> bool:
        """Wait until all that was handed over is durable (and told); False after ``timeout``."""
        done = threading.Event()
        self._jobs.append(lambda _: done.set())
        self._wake.set()
        return done.wait(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Finish what was handed over and end; False where that did not come to its end."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout)
        return not self._thread.is_alive() and not self.broken and not self._ledger.queued()

    def _main(self) -> None:
        try:
            while True:
                self._wake.wait(self.RETRY_S if self.stuck or self._files else None)
                self._wake.clear()
                if not (self._closing or self._hurry):
                    time.sleep(self.GROUP_S)
                self._hurry = False
                closing = self._closing
                self._work()
                if closing and (self.stuck or not self._jobs):
                    return
        except (DiskBrokenError, OSError) as error:
            self.broken = str(error)
            self._on_broken(self.broken)
        except Exception as error:  # whatever it is, the run must hear of it
            self.broken = f"{type(error).__name__}: {error}"
            self._on_broken(self.broken)
            raise
        finally:
            self._ledger.close()

    def _work(self) -> None:
        ledger = self._ledger
        # Before the lines: none tells of what was handed over before it and is not written yet.
        files = [(name, self._files.pop(name)) for name in list(self._files)]
        try:
            ledger.flush()
            while self._jobs:
                job = self._jobs.popleft()
                if isinstance(job, Entry):
                    ledger.add((job,))
                elif isinstance(job, Batch):
                    ledger.list_batch(job)
                else:
                    try:
                        ledger.flush()
                        self._tell()
                        job(ledger)
                    except DiskFullError:
                        self._jobs.appendleft(job)
                        raise
            ledger.flush()
        except DiskFullError as error:
            if not self.stuck:
                self.stuck = True
                self._on_problem(f"disk full ({error}): make room, the run goes on by itself")
        else:
            if self.stuck:
                self.stuck = False
                self._on_problem("")
        finally:
            with self._lock:
                self.backlog = sum(len(e.line) for e in list(self._jobs) if isinstance(e, Entry))
                self.backlog += sum(len(e.line) for e in ledger.queued())
            self._tell()
        for name, (data, durable) in files:
            try:
                self._disk.replace(ledger.folder / name, data, durable=durable)
            except DiskFullError:
                if durable:
                    self._files.setdefault(name, (data, durable))

    def _tell(self) -> None:
        """Hand on what the ledger has made durable."""
        ledger = self._ledger
        if ledger.acked or ledger.sealed:
            acked, sealed = ledger.acked, ledger.sealed
            ledger.acked, ledger.sealed = [], []
            self._on_durable(acked, sealed)
