"""From whatever a killed run left behind to books that the writer can go on with.

Sealed batches cost a stat each: what is in them is in their manifest line. Only the open batch
and the side files are parsed. What cannot be explained by a crash is refused with file and line.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from pathlib import Path

import msgspec
from msgspec import Struct

from remote.generate import layout, sides
from remote.generate.disk import Disk, DiskFullError, is_full
from remote.generate.donelist import DoneList
from remote.generate.ledger import Books, Tally
from remote.generate.lock import RunLock
from remote.generate.mending import Mender, RecoveryError, split
from remote.generate.records import SCHEMA, Batch, Pending, RunFile, Seen, coded, undelta

TODO, TAKEN, DONE, FAILED, ASIDE = range(5)
"""States of a prompt, one byte each. ``TAKEN`` is this process's own: in flight or waiting."""


@dataclass
class Recovered:
    """What the run starts from."""

    books: Books
    status: bytearray
    failures: Counter[str] = field(default_factory=Counter)
    """Given-up prompts by outcome."""
    aside: Counter[str] = field(default_factory=Counter)
    """Set-aside records by outcome."""
    pending: list[Pending] = field(default_factory=list)
    """Entries whose prompt is not done yet, oldest first."""
    notes: list[str] = field(default_factory=list)
    """What was mended, one line each."""
    repaired: int = 0
    """Lines cut, added or removed."""


class _Index(Struct):
    index: int


class _Side(Struct):
    index: int
    outcome: str = "failed"


_seen = msgspec.json.Decoder(Seen).decode
_only_index = msgspec.json.Decoder(_Index).decode
_batch = msgspec.json.Decoder(Batch).decode
_side = msgspec.json.Decoder(_Side).decode
_pending = msgspec.json.Decoder(Pending).decode
_DOUBLES = 20
"""Of more lines that stand twice only the number is told."""
_STROKES = [b"", *(bytes(step - 1) + bytes((DONE,)) for step in range(1, 256))]
"""How far a batch's next prompt is → the states from behind the one before up to it."""


def read_run_file(folder: Path) -> RunFile | None:
    """``run.json``, or None in a new directory or one of an earlier tool."""
    path = folder / layout.RUN
    try:
        run = msgspec.json.decode(path.read_bytes(), type=RunFile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise RecoveryError(
            f"{path}: cannot be read ({error}); put it back from a copy, or remove it to have "
            "the directory taken over as one of an earlier tool"
        ) from None
    if run.schema > SCHEMA:
        raise RecoveryError(
            f"{path}: schema {run.schema}, written by a newer Stoker; this one knows {SCHEMA}: "
            "update it"
        )
    return run


def recover(folder: Path, total: int, *, adopted: bool, disk: Disk | None = None) -> Recovered:
    """Mend the directory and tell where the run stands. The caller holds the lock.

    ``total`` is the number of prompts; ``adopted`` says that an earlier tool, which kept no
    order between records and indices, began the directory.

    :raises RecoveryError: something no crash explains, or no space to mend.
    """
    work = _Recovery(folder, total, adopted, disk or Disk())
    try:
        return work.run()
    except DiskFullError as error:
        raise RecoveryError(f"{folder}: disk full while mending ({error}); make room") from None
    except OSError as error:
        do = "; make room" if is_full(error) else ""
        raise RecoveryError(f"{error.filename or folder}: {error.strerror}{do}") from None


class _Recovery:
    def __init__(self, folder: Path, total: int, adopted: bool, disk: Disk) -> None:
        self.folder = folder
        self.total = total
        self.foreign = adopted and not (folder / layout.MANIFEST).exists()
        """Nothing here is ours yet: the writer makes its manifest first of all."""
        self.disk = disk
        self.out = Recovered(Books(), bytearray(total))
        self.done = DoneList(folder, total)
        self.mender = Mender(folder, self.disk, self._acknowledged)
        self.doubles: list[str] = []
        """Records of prompts that have one already, and where."""

    def _acknowledged(self, index: int) -> bool:
        """Whether ``.done_indices`` has a prompt of which no record was found so far."""
        known = not self.foreign and index < self.total
        return known and bool(self.done.listed[index]) and self.out.status[index] != DONE

    def run(self) -> Recovered:
        sizes = {
            entry.name: entry.stat().st_size
            for entry in os.scandir(self.folder)
            if entry.is_file(follow_symlinks=True)
        }
        for name in sizes:
            if name.endswith(".tmp") and name.startswith("."):
                (self.folder / name).unlink(missing_ok=True)
        self._manifest()
        self._sealed(sizes)
        self._open(sizes)
        if self.doubles:
            more = len(self.doubles) - _DOUBLES
            raise RecoveryError(
                "; ".join(self.doubles[:_DOUBLES])
                + (f"; and {more:,} more such lines" if more > 0 else "")
                + "; remove one of each two"
            )
        self._side(layout.FAILED, FAILED, self.out.failures)
        self._side(layout.SET_ASIDE, ASIDE, self.out.aside)
        self._mend_done()
        self._pending()
        self.out.notes, self.out.repaired = self.mender.notes, self.mender.repaired
        return self.out

    # --- batches ---

    def _manifest(self) -> None:
        path = self.folder / layout.MANIFEST
        for _, _, batch in self.mender.lines(path, _batch):
            self.out.books.batches[batch.name] = batch

    def _sealed(self, sizes: dict[str, int]) -> None:
        books, batches, status = self.out.books, self.out.books.batches, self.out.status
        books.width = layout.digits(sorted([*sizes, *batches]))
        files = {name: n for name in sizes if (n := layout.batch_number(name)) is not None}
        known = {name: n for name in batches if (n := layout.batch_number(name)) is not None}
        newest = max(files.values(), default=0)
        books.number = max([newest, *known.values()], default=0) + 1
        only_s3: list[Batch] = []
        for name, batch in batches.items():
            size = sizes.get(name)
            if size is None and batch.state == "sealed":
                raise RecoveryError(
                    f"{self.folder / name}: in {layout.MANIFEST} but not here, and never "
                    "uploaded; put it back, or remove its line there to generate it again"
                )
            if size is None:
                if batch.state == "uploaded":
                    only_s3.append(msgspec.structs.replace(batch, state="local_deleted"))
            elif batch.state == "local_deleted":
                self.disk.unlink(self.folder / name)  # killed between its line and this
            elif size != batch.bytes:
                raise RecoveryError(
                    f"{self.folder / name}: {size} bytes, but {layout.MANIFEST} says "
                    f"{batch.bytes}; put the right file back"
                )
            self._mark(batch)
        if status.count(DONE) != sum(batch.records for batch in batches.values()):
            raise RecoveryError(self._twice())
        if only_s3:
            books.unlisted.extend(only_s3)
            self.mender.notes.append(
                f"{len(only_s3)} uploaded batches are no longer here, only in S3"
            )
        for name, number in sorted(files.items(), key=lambda item: item[1]):
            if name not in batches:
                tally = self._batch_file(self.folder / name, mend=number == newest)
                if tally.records:
                    books.unlisted.append(tally.batch(name))
                elif number == newest:  # killed before its first record was whole
                    self.disk.unlink(self.folder / name)
                    self.mender.notes.append(f"{name} had no whole record: removed")
                    self.mender.repaired += 1
                    books.number = number
                else:
                    raise RecoveryError(f"{self.folder / name}: no whole record in it; remove it")
        if len(books.unlisted) > len(only_s3) or books.number == newest:
            self.disk.sync_folder(self.folder)

    def _mark(self, batch: Batch) -> None:
        """Mark the prompts of a sealed batch as done.

        Ten million of them one by one would take seconds. So the batch is painted whole, each
        difference as so many bytes, and laid over what is marked.
        """
        status = self.out.status
        try:
            steps = coded(batch.indices)
            if len(steps) != batch.records or 0 in steps[1:]:
                raise msgspec.DecodeError(f"not {batch.records} different prompts")
        except msgspec.DecodeError as error:
            raise RecoveryError(
                f"{self.folder / layout.MANIFEST}: indices of {batch.name}: {error}; put the line "
                "back from a copy, or remove it to have the batch read again"
            ) from None
        first, last = steps[0] if steps else 0, sum(steps)
        if last >= self.total:
            raise RecoveryError(
                f"{self.folder / batch.name}: holds prompt {last}, but the prompts "
                f"file ends at {self.total - 1}; this is not its run"
            )
        try:
            strokes = [b"", *map(_STROKES.__getitem__, steps[1:])]
        except IndexError:  # far apart
            deque(map(status.__setitem__, accumulate(steps), repeat(DONE)), maxlen=0)
            return
        strokes[0] = _STROKES[1]
        paint = int.from_bytes(b"".join(strokes), "little")
        there = int.from_bytes(status[first : last + 1], "little")
        status[first : last + 1] = (there | paint).to_bytes(last + 1 - first, "little")

    def _twice(self) -> str:
        """Which prompt two sealed batches have."""
        first: dict[int, str] = {}
        for name, batch in self.out.books.batches.items():
            for index in undelta(batch.indices):
                if index in first:
                    return (
                        f"{self.folder / name}: holds prompt {index}, which {first[index]} has "
                        f"as well; move one of the two, and its line in {layout.MANIFEST}, away"
                    )
                first[index] = name
        return f"{self.folder / layout.MANIFEST}: its lines do not add up"

    def _open(self, sizes: dict[str, int]) -> None:
        books = self.out.books
        names = [name for name in sizes if layout.open_number(name) is not None]
        if len(names) > 1:
            raise RecoveryError(
                f"{self.folder}: {' and '.join(sorted(names))}: two open batches; move the "
                "wrong one out of the way"
            )
        for name in names:
            number = layout.open_number(name)
            assert number is not None
            path = self.folder / name
            if number != books.number or name != layout.batch_name(number, books.width) + ".open":
                raise RecoveryError(
                    f"{path}: the next batch should be "
                    f"{layout.batch_name(books.number, books.width)}; move it out of the way"
                )
            books.tally = self._batch_file(path, mend=True)

    def _batch_file(self, path: Path, *, mend: bool) -> Tally:
        """Parse a batch; with ``mend``, what follows its last good line is cut off."""
        tally = Tally()
        status = self.out.status
        fd = self.disk.open(path)
        try:
            for number, offset, raw in split(path):
                seen = self._record(raw)
                if seen is None:
                    if not mend:
                        raise RecoveryError(
                            f"{path}: line {number}: not a record (a JSON object with an "
                            'integer "index"); mend or remove the line'
                        )
                    self.mender.cut(fd, path, offset, number)
                    break
                if seen.index >= self.total or seen.index < 0:
                    raise RecoveryError(
                        f"{path}: line {number}: prompt {seen.index}, but the prompts file "
                        f"ends at {self.total - 1}; this is not its run"
                    )
                if status[seen.index] == DONE:
                    where = f"{path}: line {number}: prompt {seen.index}"
                    self.doubles.append(f"{where} has a record already")
                status[seen.index] = DONE
                tally.add(seen, raw)
            self.disk.sync(fd, path)
        finally:
            os.close(fd)
        return tally

    def _record(self, raw: bytes) -> Seen | None:
        if raw[-1:] != b"\n":
            return None
        try:
            raw.decode()
            return _seen(raw)
        except UnicodeDecodeError:
            return None
        except msgspec.DecodeError:
            pass
        try:
            return Seen(_only_index(raw).index)
        except msgspec.DecodeError:
            return None

    # --- the other files ---

    def _side(self, name: str, state: int, counts: Counter[str]) -> None:
        path = self.folder / name
        if self.foreign and state == FAILED:
            if path.exists():
                target = layout.retired(self.folder, name)
                self.disk.rename(path, target)
                self.mender.notes.append(f"{name} of the earlier tool is now {target.name}")
            return
        known = sides.read(path)
        number = 0
        for number, (index, outcome, _) in enumerate(known.entries(), 1):
            self._take_side(path, number, index, state)
            counts[outcome] += 1
        more: list[sides.Entry] = []
        lines = self.mender.lines(path, _side, start=known.end, number=number + 1)
        for number, end, side in lines:
            self._take_side(path, number, side.index, state)
            counts[side.outcome] += 1
            more.append((side.index, side.outcome, end))
        if more or not known.whole:
            index_file = known.lines + sides.encode(more)
            self.disk.replace(sides.path_of(path), index_file, durable=False)

    def _take_side(self, path: Path, number: int, index: int, state: int) -> None:
        status = self.out.status
        if not 0 <= index < self.total:
            raise RecoveryError(
                f"{path}: line {number}: prompt {index}, but the prompts file ends at "
                f"{self.total - 1}; this is not its run"
            )
        if status[index] != TODO:
            raise RecoveryError(
                f"{path}: line {number}: prompt {index} has a record elsewhere as well; remove "
                "one of the two"
            )
        status[index] = state

    def _mend_done(self) -> None:
        removed, missing = self.done.mend(self.out.status.translate(_IS_DONE), self.disk)
        self.mender.repaired += removed + len(missing)
        if removed:
            self.mender.notes.append(f"{removed} lines of {layout.DONE} had no record: removed")
        if missing:
            self.mender.notes.append(f"{len(missing)} records were not yet in {layout.DONE}: added")
            self.out.books.unindexed = missing

    def _pending(self) -> None:
        path = self.folder / layout.PENDING
        latest: dict[int, Pending] = {}
        bad = 0
        for _, _, raw in split(path):
            try:
                entry = _pending(raw) if raw[-1:] == b"\n" else None
            except (msgspec.DecodeError, UnicodeDecodeError):
                entry = None
            if entry is None or not 0 <= entry.index < self.total:
                bad += 1
            elif self.out.status[entry.index] == TODO:
                latest.pop(entry.index, None)
                latest[entry.index] = entry
        if bad:
            self.mender.repaired += bad
            self.mender.notes.append(f"{bad} torn lines of {layout.PENDING} dropped")
        self.out.pending = list(latest.values())
        if path.exists():
            lines = b"".join(msgspec.json.encode(e) + b"\n" for e in self.out.pending)
            if len(lines) != path.stat().st_size:
                self.disk.replace(path, lines)


_IS_DONE = bytes(state == DONE for state in range(256))


def retry_failed(folder: Path, *, set_aside: bool = False, disk: Disk | None = None) -> str:
    """Give the given-up prompts (by option those set aside too) another life at the next start.

    :raises LockedError: a run is at work there.
    :returns: one line of what was done.
    """
    if not folder.is_dir():
        raise RecoveryError(f"{folder}: no such run directory")
    disk = disk or Disk()
    lock = RunLock(folder)
    try:
        moved = []
        for name in (layout.FAILED, *([layout.SET_ASIDE] if set_aside else [])):
            path = folder / name
            if path.exists() and path.stat().st_size:
                count = sum(1 for _ in split(path))
                target = layout.retired(folder, name)
                disk.unlink(sides.path_of(path))
                disk.rename(path, target)
                moved.append(f"{count} of {name} (now {target.name})")
        disk.sync_folder(folder)
    finally:
        lock.release()
    return "to be tried again: " + " and ".join(moved) if moved else "nothing to try again"
