"""The one writer of a run directory.

The order is what keeps every prefix of these calls recoverable: records are appended and synced
before their indices are; a full batch gets its final name before its line in the manifest, and
that line before the next batch. An entry counts once :attr:`Ledger.acked` holds it.

It is done synchronously; :mod:`.writer` runs it in a thread, in groups.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from remote.generate import layout, sides
from remote.generate.disk import Appender, Disk, DiskBrokenError, DiskFullError, trouble
from remote.generate.records import Batch, Seen, SourceSums, deltas, line

Kind: TypeAlias = Literal["batch", "failed", "set_aside", "pending"]

_FILES: dict[Kind, str] = {
    "failed": layout.FAILED,
    "set_aside": layout.SET_ASIDE,
    "pending": layout.PENDING,
}
_GROUP_BYTES = 32 << 20


@dataclass(slots=True)
class Entry:
    """One line for one of the files; ``seen`` carries what is summed, for batch records."""

    kind: Kind
    index: int
    line: bytes
    seen: Seen | None = None


@dataclass
class Tally:
    """Sums over the records of one batch, as its manifest line has them."""

    records: int = 0
    size: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    indices: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    by_source: dict[str, SourceSums] = field(default_factory=dict)
    epochs: Counter[str] = field(default_factory=Counter)
    first_at: str = ""
    last_at: str = ""

    def add(self, seen: Seen, data: bytes) -> None:
        """Count one record and its line."""
        self.records += 1
        self.size += len(data)
        self.digest.update(data)
        self.indices.append(seen.index)
        name = seen.source or ""
        sums = self.by_source.get(name)
        if sums is None:
            sums = self.by_source[name] = SourceSums(outcomes={})
        if seen.usage is not None:
            self.prompt_tokens += seen.usage.prompt_tokens
            self.completion_tokens += seen.usage.completion_tokens
            self.reasoning_tokens += seen.usage.reasoning_tokens
            sums.prompt_tokens += seen.usage.prompt_tokens
            sums.completion_tokens += seen.usage.completion_tokens
        sums.outcomes[seen.outcome] = sums.outcomes.get(seen.outcome, 0) + 1
        self.outcomes[seen.outcome] += 1
        self.sources[name] += 1
        self.epochs["null" if seen.epoch is None else str(seen.epoch)] += 1
        if at := seen.finished_at:
            self.first_at = min(self.first_at, at) if self.first_at else at
            self.last_at = max(self.last_at, at)

    def batch(self, name: str) -> Batch:
        """The manifest line of the batch once it is sealed."""
        return Batch(
            name=name,
            state="sealed",
            records=self.records,
            bytes=self.size,
            sha256=self.digest.hexdigest(),
            indices=deltas(self.indices),
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            reasoning_tokens=self.reasoning_tokens,
            outcomes=dict(self.outcomes),
            sources=dict(self.sources),
            by_source=self.by_source,
            epochs=dict(self.epochs),
            first_at=self.first_at,
            last_at=self.last_at,
        )


@dataclass
class Books:
    """What the writer starts from; recovery makes it out of the directory.

    ``unindexed`` are durable records without their line in ``.done_indices``; ``unlisted`` are
    sealed batches without their line in the manifest.
    """

    batches: dict[str, Batch] = field(default_factory=dict)
    width: int = layout.DIGITS
    number: int = 1
    """Of the open batch, or of the next one where none is open."""
    tally: Tally = field(default_factory=Tally)
    """Of the open batch; empty where none is open."""
    unindexed: list[int] = field(default_factory=list)
    unlisted: list[Batch] = field(default_factory=list)


class Ledger:
    """Appends, syncs, seals. Not thread-safe: one thread owns it.

    Every method may raise :class:`DiskFullError` (nothing is lost; call :meth:`flush` again when
    there is space) or :class:`DiskBrokenError` (stop; the next start finds out what is there).
    """

    def __init__(self, folder: Path, books: Books, disk: Disk | None = None) -> None:
        self.folder = folder
        self.books = books
        self.acked: list[Entry] = []
        """Durable since the caller last emptied the list."""
        self.sealed: list[Batch] = []
        """Sealed since the caller last emptied the list."""
        self._disk = disk or Disk()
        self._todo: deque[Entry] = deque()
        self._unacked: list[Entry] = []
        self._unindexed = list(books.unindexed)
        self._unlisted = list(books.unlisted)
        self._aside: dict[Kind, list[sides.Entry]] = {"failed": [], "set_aside": []}
        """Durable entries that are not yet in their file's index."""
        self._indexes: dict[Kind, Appender] = {}
        self._seal_short = False
        self._open: Appender | None = None
        if books.tally.records:
            self._open = Appender(self._disk, self._open_path(), books.tally.size)
        self._done = Appender(self._disk, folder / layout.DONE)
        self._manifest = Appender(self._disk, folder / layout.MANIFEST)
        self._others: dict[Kind, Appender] = {}

    def _name(self) -> str:
        return layout.batch_name(self.books.number, self.books.width)

    def _open_path(self) -> Path:
        return self.folder / (self._name() + layout.OPEN)

    def queued(self) -> list[Entry]:
        """Entries that are not yet durable."""
        return list(self._todo)

    def add(self, entries: Iterable[Entry]) -> None:
        """Queue entries; :meth:`flush` makes them durable in this order."""
        self._todo.extend(entries)

    def seal(self) -> None:
        """Have the open batch sealed short, after everything queued so far."""
        self._seal_short = True

    def list_batch(self, batch: Batch) -> None:
        """Append a batch's new line to the manifest (uploaded, local file deleted)."""
        self._unlisted.append(batch)

    def flush(self) -> None:
        """Make everything that was queued durable."""
        self._settle()
        while self._todo:
            self._group()
            self._settle()
        if self._seal_short:
            if self.books.tally.records:
                self._seal()
                self._settle()
            self._seal_short = False

    def _group(self) -> None:
        """Append and sync as many queued entries as fit the open batch; all of them or none."""
        room = layout.BATCH - self.books.tally.records
        group: list[Entry] = []
        size = 0
        for entry in self._todo:
            if entry.kind == "batch":
                if not room:
                    break
                room -= 1
            group.append(entry)
            size += len(entry.line)
            if size >= _GROUP_BYTES:
                break
        lines: dict[Kind, list[bytes]] = {}
        for entry in group:
            lines.setdefault(entry.kind, []).append(entry.line)
        touched: list[Appender] = []
        ends: dict[Kind, int] = {}
        try:
            for kind, parts in lines.items():
                file = self._file(kind)
                touched.append(file)
                ends[kind] = file.size
                file.append(b"".join(parts))
        except DiskFullError:
            for file in touched:
                file.take_back()
            raise
        for file in touched:
            file.sync()
        for entry in group:
            self._todo.popleft()
            if entry.kind in self._aside:
                ends[entry.kind] += len(entry.line)
                outcome = entry.seen.outcome if entry.seen is not None else entry.kind
                self._aside[entry.kind].append((entry.index, outcome, ends[entry.kind]))
            if entry.kind == "batch":
                assert entry.seen is not None
                self.books.tally.add(entry.seen, entry.line)
                self._unindexed.append(entry.index)
        self._unacked.extend(group)

    def _file(self, kind: Kind) -> Appender:
        if kind == "batch":
            if self._open is None:
                self._open = self._create(self._open_path())
            return self._open
        if kind not in self._others:
            self._others[kind] = self._create(self.folder / _FILES[kind])
        return self._others[kind]

    def _create(self, path: Path) -> Appender:
        """Open a file whose folder entry is durable before anything in it is acknowledged.

        Also where it is there already: a killed process may have made it and not come further.
        """
        try:
            file = Appender(self._disk, path)
        except OSError as error:
            raise trouble(path, error) from error
        try:
            self._disk.sync_folder(self.folder)
        except OSError as error:
            raise DiskBrokenError(f"{path.name}: {error.strerror}") from error
        return file

    def _settle(self) -> None:
        """Whatever has to follow the last sync: indices, seals, manifest lines, in this order."""
        if self._unindexed:
            self._done.append(b"".join(b"%d\n" % index for index in self._unindexed))
            self._done.keep()
            self._unindexed.clear()
        self.acked.extend(self._unacked)
        self._unacked.clear()
        for kind, entries in self._aside.items():
            if entries:
                if kind not in self._indexes:
                    self._indexes[kind] = self._create(sides.path_of(self.folder / _FILES[kind]))
                self._indexes[kind].append(sides.encode(entries))
                self._indexes[kind].keep()
                entries.clear()
        if self.books.tally.records >= layout.BATCH:
            self._seal()
        while self._unlisted:
            # One sync a line: a crash can harm the last line only.
            batch = self._unlisted[0]
            self._manifest.append(line(batch))
            self._manifest.sync()
            del self._unlisted[0]
            self.books.batches[batch.name] = batch
            if batch.state == "sealed":
                self.sealed.append(batch)

    def _seal(self) -> None:
        assert self._open is not None
        self._open.sync()
        final = self.folder / self._name()
        if final.exists():
            raise DiskBrokenError(f"{final.name}: exists already, though nothing here made it")
        try:
            self._disk.rename(self._open.path, final)
        except OSError as error:
            raise trouble(final, error) from error
        try:
            self._disk.sync_folder(self.folder)
        except OSError as error:
            raise DiskBrokenError(f"{final.name}: {error.strerror}") from error
        self._open.close()
        self._open = None
        self._unlisted.append(self.books.tally.batch(final.name))
        self.books.tally = Tally()
        self.books.number += 1

    def delete_local(self, batch: Batch) -> None:
        """Delete a batch whose line in the manifest says so already: it stays done."""
        path = self.folder / batch.name
        try:
            self._disk.unlink(path)  # needs space, too, where old blocks are never overwritten
        except OSError as error:
            raise trouble(path, error) from error
        self._disk.sync_folder(self.folder)

    def replace_pending(self, lines: list[bytes]) -> None:
        """Have ``pending.jsonl`` hold these lines and no others."""
        if file := self._others.pop("pending", None):
            file.close()
        self._disk.replace(self.folder / layout.PENDING, b"".join(lines))

    def close(self) -> None:
        """Let go of the files."""
        files = (*self._others.values(), *self._indexes.values())
        for file in (self._open, self._done, self._manifest, *files):
            if file is not None:
                file.close()
