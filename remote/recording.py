"""A journal as a recording: read-only, for looking back over a run that is over or goes on."""

from __future__ import annotations

import calendar
import contextlib
import re
import sqlite3
import time
import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from remote import STOKER_DIR, samples
from remote.agent import logs, merged
from remote.journal import CLOCK, TARGET
from remote.protocol import (
    Epoch,
    Event,
    History,
    LogPart,
    MergedPart,
    ReadLog,
    ReadMerged,
    RunState,
    Swap,
    TargetSpec,
)
from remote.samples import Sample

T = TypeVar("T", bound=msgspec.Struct)

JOURNAL = "journal.db"
"""How the agent calls its journal."""

AGE_S = 180
"""A sample stands for what was until so long after it, where no newer one is."""

_STAMP = re.compile(rb"^\s*\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)", re.MULTILINE)
_NEAR = 4096
"""Bytes of a log within which lines are looked through one by one."""


class RecordingError(Exception):
    """One line: why a file is no recording."""


class Recording:
    """What a journal file holds. Blocking; the file is never written.

    Any thread may ask, several at once: each question has a connection of its own.
    """

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            path = _within(path)
        if not path.is_file():
            raise RecordingError(f"{path} is not there: name a journal.db")
        self._uri = f"{path.resolve().as_uri()}?mode=ro"
        try:
            with self._open() as db:
                rows = db.execute("SELECT min(time), max(time) FROM samples").fetchone()
                told = db.execute("SELECT min(time), max(time) FROM events").fetchone()
                self.events = [
                    Event(*row)
                    for row in db.execute(
                        "SELECT id, time, kind, level, text, gpu, who FROM events ORDER BY id"
                    )
                ]
                self.epochs = _all(db, "epochs", Epoch)
                self.swaps = _all(db, "swaps", Swap)
                notes = dict(db.execute("SELECT name, data FROM notes"))
                self._runs = _has(db, "runs")
                kept = db.execute("SELECT min(time) FROM runs") if self._runs else None
                self.run_begin: float | None = None if kept is None else kept.fetchone()[0]
                """When the first of the run's own numbers were kept; None where none were."""
        except (sqlite3.Error, msgspec.DecodeError) as error:
            raise RecordingError(f"{path} is no journal of Stoker's: {error}") from None
        times = [t for t in (*rows, *told) if t is not None]
        if not times:
            raise RecordingError(f"{path} holds nothing yet")
        self.begin, self.end = float(min(times)), float(max(times))
        self.target: TargetSpec | None = None
        self.clock = 0
        """Seconds by which the clock of the logs' machine is east of UTC."""
        try:
            if TARGET in notes:
                self.target = msgspec.json.decode(notes[TARGET], type=TargetSpec)
            self.clock = msgspec.json.decode(notes.get(CLOCK, "0"), type=int)
        except msgspec.DecodeError:
            pass  # of another version: what is known without it is shown
        self._folder = path.resolve().parent

    def _open(self) -> contextlib.closing[sqlite3.Connection]:
        return contextlib.closing(sqlite3.connect(self._uri, uri=True))

    def history(self, since: float, until: float, points: int) -> History:
        """At most ``points`` columns of averages, from the finest samples that are left; none is
        narrower than the coarsest of those, which would leave holes between them."""
        rows: dict[int, tuple[int, Sample]] = {}
        for step in sorted(samples.KEEP, reverse=True):
            found = self._rows(step, since - step, until)
            if found:
                first = found[0].time
                rows = {t: one for t, one in rows.items() if t < first}
                rows.update({s.time: (step, s) for s in found})
        ordered = [rows[t][1] for t in sorted(rows)]
        coarsest = max((step for t, (step, _) in rows.items() if t >= since), default=1)
        return samples.columns(ordered, since, until, points, coarsest)

    def at(self, time: float) -> History:
        """The newest sample at a time, as one column; none where there was none for long."""
        newest: Sample | None = None
        for step in samples.KEEP:
            for sample in self._rows(step, time - AGE_S, time + 1):
                if newest is None or sample.time > newest.time:
                    newest = sample
        if newest is None:
            return History([], {})
        return samples.columns([newest], newest.time, newest.time + 1, 1, 1)

    def _rows(self, step: int, since: float, until: float) -> list[Sample]:
        with self._open() as db:
            found = db.execute(
                "SELECT time, gpus, data FROM samples WHERE step=? AND time>=? AND time<?"
                " ORDER BY time",
                (step, int(since), until),
            )
            return [Sample.unpack(*row) for row in found]

    def run_at(self, time: float) -> RunState | None:
        """The run's own numbers as they were; None where none were kept by then."""
        if not self._runs:
            return None
        query = "SELECT data FROM runs WHERE time <= ? ORDER BY time DESC LIMIT 1"
        with self._open() as db:
            row = db.execute(query, (int(time) + 1,)).fetchone()
        if row is None:
            return None
        try:
            return msgspec.json.decode(zlib.decompress(row[0]), type=RunState)
        except (zlib.error, msgspec.DecodeError):
            return None

    # --- logs, where they lie beside the journal ---

    def log_path(self, source: str) -> Path | None:
        """The file of ``gpu0`` …, ``run`` or ``agent``: where the agent left it, or beside the
        journal; None where there is none."""
        name = f"{source}.log"
        places = [self._folder / name]
        if source.startswith("gpu"):
            name = f"sglang_{name}"
            places = [self._folder / name]
            if self.target is not None:
                near = self._folder.parent if self._folder.name == STOKER_DIR else self._folder
                places.insert(0, near / self.target.fleet.log_dir / name)
        return next((place for place in places if place.is_file()), None)

    def log(self, source: str, time: float, lines: int) -> LogPart | None:
        """The last lines written by a time; None where there is no such log, or it has no times."""
        path = self.log_path(source)
        end = None if path is None else self._offset(path, time)
        if path is None or end is None:
            return None
        return logs.read(source, path, end, -lines)

    def log_between(self, source: str, offset: int, time: float) -> LogPart | None:
        """What was written from a place on until a time; None where that is nothing."""
        path = self.log_path(source)
        end = None if path is None else self._offset(path, time)
        if path is None or end is None or end <= offset:
            return None
        if end - offset > logs.BEHIND:  # played so fast that nobody reads it
            newest = logs.read(source, path, end, -500)
            return msgspec.structs.replace(newest, skipped=_newlines(path, offset, newest.offset))
        part = logs.read(source, path, offset, 10_000)
        if part.next <= end:
            return part
        kept, at = [], offset
        with path.open("rb") as file:
            file.seek(at)
            for line in part.lines:
                at += len(file.readline())
                if at > end:
                    break
                kept.append(line)
        return msgspec.structs.replace(part, lines=kept, next=end) if kept else None

    def read_log(self, request: ReadLog) -> LogPart:
        """Any part of a log, as an agent gives it. Raises OSError, ValueError."""
        path = self.log_path(request.source)
        if path is None:
            raise FileNotFoundError(f"no log of {request.source} lies beside this recording")
        try:
            if request.offset is None:
                return logs.tail(request.source, path, request.lines, request.grep)
            return logs.read(request.source, path, request.offset, request.lines, request.grep)
        except re.error as error:
            raise ValueError(str(error)) from None

    def read_merged(self, request: ReadMerged) -> MergedPart:
        """Any part of several logs as one; those that lie there. Raises OSError, ValueError."""
        paths = {s: at for s in request.sources if (at := self.log_path(s)) is not None}
        try:
            asked = msgspec.structs.replace(request, sources=list(paths))
            return merged.read(paths, asked)
        except re.error as error:
            raise ValueError(str(error)) from None

    def _offset(self, path: Path, wanted: float) -> int | None:
        """Where the first line after a time begins, by halving; None in a log without times."""
        with path.open("rb") as file:
            low, high = 0, path.stat().st_size
            known = False
            while high - low > _NEAR:
                middle = (low + high) // 2
                file.seek(middle)
                found = _STAMP.search(file.read(64 * 1024).partition(b"\n")[2])
                if found is None:
                    high = middle
                    continue
                known = True
                if self._time(found) <= wanted:
                    low = middle
                else:
                    high = middle
            file.seek(low)
            if low:
                file.readline()
            at = file.tell()
            for line in file:
                found = _STAMP.match(line)
                if found is not None:
                    known = True
                    if self._time(found) > wanted:
                        break
                at += len(line)
        return at if known else None

    def _time(self, found: re.Match[bytes]) -> float:
        words = f"{found[1].decode()} {found[2].decode()}"
        try:
            return calendar.timegm(time.strptime(words, "%Y-%m-%d %H:%M:%S")) - self.clock
        except ValueError:
            return 0.0


def _within(folder: Path) -> Path:
    """The journal in a folder, or in the agent's folder in it. Raises RecordingError."""
    places = (folder / JOURNAL, folder / STOKER_DIR / JOURNAL)
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise RecordingError(
            f"{folder} is a folder with no {JOURNAL} in it: name the journal's file, or its folder"
        )
    return found


def _has(db: sqlite3.Connection, table: str) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE type='table' AND name=?"
    return db.execute(query, (table,)).fetchone() is not None


def _all(db: sqlite3.Connection, table: str, kind: type[T]) -> list[T]:
    rows = db.execute(f"SELECT data FROM {table} ORDER BY id")
    return [msgspec.json.decode(data, type=kind) for (data,) in rows]


def _newlines(path: Path, begin: int, end: int) -> int:
    count = 0
    with path.open("rb") as file:
        file.seek(begin)
        while begin < end and (block := file.read(min(1 << 20, end - begin))):
            count += block.count(b"\n")
            begin += len(block)
    return count
