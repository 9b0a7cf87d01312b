"""What happened, in SQLite: samples, events, config epochs, swap plans, actions.

The journal helps and never hinders: when the disk is full or the file is damaged it says so
once, goes on in memory and tries again later. All file work is done by one thread, which only
:meth:`Journal.save_swap` and the readers wait for, and never on the loop: a swap's next step must
not begin before its plan is durable, while everything else goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from remote import samples
from remote.marks import thin
from remote.protocol import Epoch, Event, History, RunState, Swap
from remote.samples import Sample

T = TypeVar("T")

SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (
  step INTEGER, time INTEGER, gpus INTEGER, data BLOB, PRIMARY KEY (step, time)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (time INTEGER PRIMARY KEY, data BLOB);
CREATE TABLE IF NOT EXISTS events (
  id INTEGER PRIMARY KEY, time REAL, kind TEXT, level TEXT, text TEXT, gpu INTEGER, who TEXT);
CREATE TABLE IF NOT EXISTS epochs (id INTEGER PRIMARY KEY, data TEXT);
CREATE TABLE IF NOT EXISTS swaps (id INTEGER PRIMARY KEY, state TEXT, data TEXT);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, data TEXT);
CREATE TABLE IF NOT EXISTS actions (
  id INTEGER PRIMARY KEY, began REAL, ended REAL, who TEXT, what TEXT, result TEXT);
"""
PUT_EPOCH = "INSERT OR REPLACE INTO epochs VALUES (?,?)"
PUT_SWAP = "INSERT OR REPLACE INTO swaps VALUES (?,?,?)"
PUT_NOTE = "INSERT OR REPLACE INTO notes VALUES (?,?)"
LAYOUT = 1
RUN_S = 10
"""So often the run's own numbers are kept."""
RUN_KEEP: tuple[tuple[int, float], ...] = ((60, 2 * 3600.0), (600, 48 * 3600.0))
"""Seconds between the run's numbers that are left once they are so old; for as long as samples."""
TARGET, CLOCK, ID = "target", "clock", "id"
"""Notes for one who plays the journal: the spec, and seconds of the logs' clock east of UTC; and
what the journal is told from others by."""
RING = 2000
"""Events kept in memory; older ones are read from the file. While that fails, only these."""
BACKLOG = 600
"""Writes that may wait for the disk; with more of them samples go to memory alone."""
RETRY_S = 10.0
UPKEEP_S = 60.0
DURABLE_S = 20.0


MOST_MARKED = 100_000
"""Events that are looked through for the marks of a chart."""


class Journal:
    """One agent's journal; ``path`` may be None for one that is only in memory.

    ``on_problem`` is called (from the loop or the journal's thread) with one line when the file
    begins to fail and when it is well again.
    """

    def __init__(self, path: Path | None, on_problem: Callable[[str], None] = print) -> None:
        self.path = path
        self.problem = ""
        self.epochs: dict[int, Epoch] = {}
        self.swaps: dict[int, Swap] = {}
        self._notes: dict[str, bytes] = {}
        self.recent: deque[Event] = deque(maxlen=RING)
        self._on_problem = on_problem
        self._samples: deque[Sample] = deque(maxlen=int(samples.KEEP[1]))
        self._pool = ThreadPoolExecutor(1, "journal")
        self._db: sqlite3.Connection | None = None
        self._waiting = 0
        self._first_event = 0
        self._last_event = 0
        self._written_event = 0
        self._last_action = 0
        self._retry_at = 0.0
        self._upkeep_at = 0.0
        self._run_at = 0.0
        self._run_was = b""

    # --- life ---

    async def open(self) -> None:
        """Open the file and read back what a new agent needs. Never raises."""
        await self._in_thread(self._open)

    async def close(self) -> None:
        """Write what waits, then close."""

        def last() -> None:
            if self._db is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._db.close()
                self._db = None

        with contextlib.suppress(TimeoutError, RuntimeError):
            async with asyncio.timeout(5):
                await self._in_thread(last)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- writing; none of these raises or waits, but save_swap ---

    def add(self, sample: Sample) -> None:
        """Keep one second's sample; now and then that starts a round of upkeep."""
        if self._samples and self._samples[-1].time >= sample.time:
            return  # two in one second, or a clock that went back
        self._samples.append(sample)
        if self._waiting > BACKLOG:
            return
        row = (1, sample.time, sample.gpus, sample.pack())
        self._submit(lambda db: db.execute("INSERT OR REPLACE INTO samples VALUES (?,?,?,?)", row))
        if time.monotonic() >= self._upkeep_at:
            self._upkeep_at = time.monotonic() + UPKEEP_S
            self._submit(self._upkeep)

    def add_run(self, run: RunState, now: float) -> None:
        """Keep the run's own numbers, every :data:`RUN_S` seconds, where they are others."""
        if now < self._run_at + RUN_S or self._waiting > BACKLOG:
            return
        data = msgspec.json.encode(run)
        if data == self._run_was:
            return
        self._run_at, self._run_was = now, data
        row = (int(now), zlib.compress(data))
        self._submit(lambda db: db.execute("INSERT OR REPLACE INTO runs VALUES (?,?)", row))

    def emit(
        self,
        kind: str,
        text: str,
        *,
        gpu: int | None = None,
        level: str = "info",
        who: str = "",
    ) -> Event:
        """Record an event and return it. Its id is above that of every earlier one."""
        self._last_event += 1
        shown: Literal["info", "warning", "error"] = (
            "error" if level == "error" else "warning" if level == "warning" else "info"
        )
        self._first_event = self._first_event or self._last_event
        event = Event(self._last_event, time.time(), kind, shown, text, gpu, who)
        self.recent.append(event)
        self._submit(self._write_events)
        return event

    def put_epoch(self, epoch: Epoch) -> None:
        """Add an epoch, or replace its numbers."""
        self.epochs[epoch.id] = epoch
        row = _epoch_row(epoch)
        self._submit(lambda db: db.execute(PUT_EPOCH, row))

    def note(self, name: str, value: Any) -> None:
        """Keep one small value under a name, for the next agent."""
        data = msgspec.json.encode(value)
        if self._notes.get(name) == data:
            return
        self._notes[name] = data
        row = (name, data.decode())
        self._submit(lambda db: db.execute(PUT_NOTE, row))

    def noted(self, name: str, kind: Any) -> Any:
        """The value kept under a name, None where there is none that fits ``kind``."""
        try:
            return msgspec.json.decode(self._notes[name], type=kind)
        except (KeyError, msgspec.DecodeError):
            return None

    @property
    def id(self) -> str:
        """What this journal is told from any other by; given once, where it is first asked for."""
        if ID not in self._notes:
            self.note(ID, secrets.token_hex(8))
        return str(self.noted(ID, str) or "")

    def next_epoch(self, seen: Iterable[int] = ()) -> int:
        """An id that no epoch had; ``seen`` are those known from elsewhere."""
        return max([0, *self.epochs, *seen]) + 1

    def next_swap(self) -> int:
        """An id that no swap had."""
        return max([0, *self.swaps]) + 1

    async def save_swap(self, swap: Swap) -> None:
        """Make a swap's state durable (``synchronous=FULL``) before returning.

        Where the file fails the swap goes on all the same: the state is kept in memory and the
        problem is told.
        """
        self.swaps[swap.id] = swap

        def write(db: sqlite3.Connection) -> None:
            db.execute("PRAGMA synchronous=FULL")
            try:
                db.execute(PUT_SWAP, _swap_row(swap))
            finally:
                db.execute("PRAGMA synchronous=NORMAL")

        # Handed over before the first wait: of two saves the later one stays. Whoever gives up
        # waiting does not undo the write.
        written = asyncio.wrap_future(self._submit(write))
        try:
            await asyncio.wait_for(asyncio.shield(written), DURABLE_S)
        except TimeoutError:
            self._on_problem(f"journal: the disk took over {DURABLE_S:.0f} s to keep a swap's step")

    def began(self, who: str, what: str) -> int:
        """Record that an action began; returns its id."""
        self._last_action += 1
        row = (self._last_action, time.time(), None, who, what, None)
        self._submit(lambda db: db.execute("INSERT INTO actions VALUES (?,?,?,?,?,?)", row))
        return self._last_action

    def ended(self, action: int, result: str) -> None:
        """Record how an action ended."""
        row = (time.time(), result, action)
        self._submit(lambda db: db.execute("UPDATE actions SET ended=?, result=? WHERE id=?", row))

    # --- reading ---

    @property
    def first_event(self) -> int:
        """Id of the oldest event, 0 where there is none."""
        return self._first_event

    @property
    def last_event(self) -> int:
        """Id of the newest event, 0 where there is none."""
        return self._last_event

    async def events(self, after: int, limit: int, before: int | None = None) -> list[Event]:
        """The newest ``limit`` events with an id above ``after`` and below ``before`` (None: up to
        the newest), oldest first."""
        end = self._last_event + 1 if before is None else before
        ring = [e for e in self.recent if after < e.id < end]
        if len(ring) >= limit or not self.recent or self.recent[0].id <= after + 1:
            return ring[-limit:] if limit else []
        first = ring[0].id if ring else end

        def read() -> list[Event]:
            return self._read_events("id > ? AND id < ?", (after, first), limit - len(ring))

        return await self._in_thread(read) + ring

    async def marks(self, since: float, until: float, points: int) -> list[Event]:
        """What is worth a mark on a chart of that time; see :func:`remote.marks.thin`."""
        ring = list(self.recent)
        first = ring[0].id if ring else self._last_event + 1

        def read() -> list[Event]:
            where = "time >= ? AND time <= ? AND id < ?"
            return self._read_events(where, (since, until, first), MOST_MARKED)

        held = await self._in_thread(read) if not ring or since < ring[0].time else []
        return thin([*held, *ring], since, until, max(1, min(points, 2000)))

    async def history(self, since: float, until: float, points: int) -> History:
        """At most ``points`` columns of averages; see :func:`remote.samples.columns`."""
        points = max(1, min(points, 2000))
        step = samples.level(since, until, time.time(), points)
        memory = list(self._samples)
        return await self._in_thread(lambda: self._history(since, until, points, step, memory))

    # --- in the thread ---

    def _open(self) -> None:
        if self.path is None:
            return
        try:
            self._db = self._connect(self.path)
            self._read_back(self._db)
        except (sqlite3.Error, OSError, ValueError, msgspec.DecodeError) as error:
            self._broken(error)
            if self._db is None and not self._retry_at:
                self._open()  # a damaged file was put aside: once more, on a fresh one

    @staticmethod
    def _connect(path: Path) -> sqlite3.Connection:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not path.exists()
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            if fresh:
                path.chmod(0o600)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute(f"PRAGMA journal_size_limit={16 << 20}")
            layout = db.execute("PRAGMA user_version").fetchone()[0]
            if layout not in (0, LAYOUT):
                raise sqlite3.DatabaseError(f"layout {layout} is of another version of Stoker")
            db.executescript(SCHEMA)
            db.execute(f"PRAGMA user_version={LAYOUT}")
        except BaseException:
            db.close()
            raise
        return db

    def _read_back(self, db: sqlite3.Connection) -> None:
        first, last = db.execute("SELECT min(id), max(id) FROM events").fetchone()
        self._first_event = first or self._first_event
        if last is None and not self._last_event:
            # Cursors of consoles outlive a lost journal: begin above every id it can have given.
            self._last_event = self._written_event = int(time.time())
        elif last is not None:
            self._written_event = last
            if not self._last_event:
                self._last_event = last
                self.recent.extend(self._read_events("1", (), 500))
        # What happened while the file failed is known here alone: a swap that has ended meanwhile
        # must not be gone on with by the next agent.
        db.executemany(PUT_EPOCH, [_epoch_row(epoch) for epoch in list(self.epochs.values())])
        db.executemany(PUT_SWAP, [_swap_row(swap) for swap in list(self.swaps.values())])
        db.executemany(
            PUT_NOTE, [(name, data.decode()) for name, data in list(self._notes.items())]
        )
        for (data,) in db.execute("SELECT data FROM epochs"):
            epoch = msgspec.json.decode(data, type=Epoch)
            self.epochs.setdefault(epoch.id, epoch)
        for (data,) in db.execute("SELECT data FROM swaps ORDER BY id DESC LIMIT 50"):
            swap = msgspec.json.decode(data, type=Swap)
            self.swaps.setdefault(swap.id, swap)
        for name, data in db.execute("SELECT name, data FROM notes"):
            self._notes.setdefault(name, data.encode())
        action = db.execute("SELECT max(id) FROM actions").fetchone()[0] or 0
        self._last_action = max(self._last_action, action)
        if not self._samples:
            since = int(time.time() - samples.KEEP[1])
            self._samples.extend(self._rows(1, since, int(time.time()) + 1))
        self._write_events(db)
        self._retry_at = 0.0

    def _submit(self, work: Callable[[sqlite3.Connection], Any]) -> Future[None]:
        self._waiting += 1

        def job() -> None:
            try:
                if self._db is None and self.path and time.monotonic() >= self._retry_at:
                    self._open()
                if self._db is not None:
                    work(self._db)
                    self._well()
            except (sqlite3.Error, OSError) as error:
                self._broken(error)
            finally:
                self._waiting -= 1

        try:
            return self._pool.submit(job)
        except RuntimeError:  # closed: an event of the last moment stays in memory
            done: Future[None] = Future()
            done.set_result(None)
            return done

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _broken(self, error: Exception) -> None:
        """Leave the file alone for a while; a damaged one is put aside for good."""
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None
        damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(
            error, sqlite3.OperationalError | sqlite3.IntegrityError
        )
        text = f"journal: {error}; going on in memory"
        self._retry_at = time.monotonic() + RETRY_S
        if damaged and self.path is not None:
            aside = self.path.with_name(self.path.name + ".damaged")
            try:
                for tail in ("-wal", "-shm"):
                    self.path.with_name(self.path.name + tail).unlink(missing_ok=True)
                self.path.replace(aside)
                self._retry_at = 0.0
                text = f"journal: {error}; the damaged file is now {aside.name}, a new one begun"
            except OSError:
                pass
        if text != self.problem:
            self.problem = text
            self._on_problem(text)

    def _well(self) -> None:
        if self.problem:
            self.problem = ""
            self._on_problem("journal: written to disk again")

    def _write_events(self, db: sqlite3.Connection) -> None:
        fresh = [e for e in list(self.recent) if e.id > self._written_event]
        if not fresh:
            return
        db.execute("BEGIN")
        try:
            db.executemany(
                "INSERT OR IGNORE INTO events VALUES (?,?,?,?,?,?,?)",
                [(e.id, e.time, e.kind, e.level, e.text, e.gpu, e.who) for e in fresh],
            )
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise
        self._written_event = fresh[-1].id

    def _read_events(self, where: str, values: tuple[float, ...], limit: int) -> list[Event]:
        if self._db is None or limit <= 0:
            return []
        query = (
            "SELECT id, time, kind, level, text, gpu, who FROM events"
            f" WHERE {where} ORDER BY id DESC LIMIT ?"
        )
        try:
            rows = self._db.execute(query, (*values, limit)).fetchall()
        except sqlite3.Error as error:
            self._broken(error)
            return []
        return [Event(*row) for row in reversed(rows)]

    def _rows(self, step: int, since: float, until: float) -> list[Sample]:
        if self._db is None:
            return []
        query = "SELECT time, gpus, data FROM samples WHERE step=? AND time>=? AND time<?"
        return [
            Sample.unpack(*row)
            for row in self._db.execute(query + " ORDER BY time", (step, since, until))
        ]

    def _history(
        self, since: float, until: float, points: int, step: int, memory: list[Sample]
    ) -> History:
        rows: list[Sample] = []
        if step > 1:
            try:
                rows = self._rows(step, since - step, until)
            except sqlite3.Error as error:
                self._broken(error)
        # What has not been folded yet is still there by the second.
        edge = rows[-1].time + step if rows else since
        rows += [s for s in memory if s.time >= edge]
        return samples.columns(rows, since, until, points, step)

    def _upkeep(self, db: sqlite3.Connection) -> None:
        newest: dict[int, int] = {}
        oldest: dict[int, int] = {}
        query = "SELECT step, max(time), min(time) FROM samples GROUP BY step"
        for step, last, first in db.execute(query):
            newest[step], oldest[step] = last, first
        used = db.execute(
            "SELECT (SELECT page_count FROM pragma_page_count)"
            " - (SELECT freelist_count FROM pragma_freelist_count)"
        ).fetchone()[0]
        size = used * db.execute("PRAGMA page_size").fetchone()[0]
        now = time.time()
        plan = samples.upkeep(now, newest, oldest, size)
        for source, step, after in plan.folds:
            rows = samples.fold(
                self._rows(source, after + step, now), step, after=after, before=now
            )
            db.execute("BEGIN")
            db.executemany(
                "INSERT OR REPLACE INTO samples VALUES (?,?,?,?)",
                [(step, s.time, s.gpus, s.pack()) for s in rows],
            )
            db.execute("COMMIT")
        for step, before in plan.drops:
            db.execute("DELETE FROM samples WHERE step=? AND time<?", (step, before))
        for apart, age in RUN_KEEP:
            db.execute(
                "DELETE FROM runs WHERE time < ?1 AND time NOT IN"
                " (SELECT min(time) FROM runs WHERE time < ?1 GROUP BY time / ?2)",
                (int(now - age), apart),
            )
        db.execute("DELETE FROM runs WHERE time < ?", (int(now - samples.KEEP[60]),))


def _epoch_row(epoch: Epoch) -> tuple[int, str]:
    return epoch.id, msgspec.json.encode(epoch).decode()


def _swap_row(swap: Swap) -> tuple[int, str, str]:
    return swap.id, swap.state, msgspec.json.encode(swap).decode()
