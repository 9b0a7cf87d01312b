"""A journal as a recording: read-only, for looking back over a run that is over or goes on."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TypeVar

import msgspec

from remote import samples
from remote.protocol import Epoch, Event, History, Swap
from remote.samples import Sample

T = TypeVar("T", bound=msgspec.Struct)

AGE_S = 180
"""A sample stands for what was until so long after it, where no newer one is."""


class RecordingError(Exception):
    """One line: why a file is no recording."""


class Recording:
    """What a journal file holds. Blocking; the file is never written."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise RecordingError(f"{path} is not there")
        try:
            uri = f"{path.resolve().as_uri()}?mode=ro"
            self._db = sqlite3.connect(uri, uri=True, check_same_thread=False)
            rows = self._db.execute("SELECT min(time), max(time) FROM samples").fetchone()
            told = self._db.execute("SELECT min(time), max(time) FROM events").fetchone()
            self.events = [
                Event(*row)
                for row in self._db.execute(
                    "SELECT id, time, kind, level, text, gpu, who FROM events ORDER BY id"
                )
            ]
            self.epochs = self._all("epochs", Epoch)
            self.swaps = self._all("swaps", Swap)
        except (sqlite3.Error, msgspec.DecodeError) as error:
            raise RecordingError(f"{path} is no journal of Stoker's: {error}") from None
        times = [t for t in (*rows, *told) if t is not None]
        if not times:
            raise RecordingError(f"{path} holds nothing yet")
        self.begin, self.end = float(min(times)), float(max(times))

    def _all(self, table: str, kind: type[T]) -> list[T]:
        rows = self._db.execute(f"SELECT data FROM {table} ORDER BY id")
        return [msgspec.json.decode(data, type=kind) for (data,) in rows]

    def history(self, since: float, until: float, points: int) -> History:
        """At most ``points`` columns of averages, from the finest samples that are left."""
        rows: dict[int, Sample] = {}
        for step in sorted(samples.KEEP, reverse=True):
            found = self._rows(step, since - step, until)
            if found:
                first = found[0].time
                rows = {t: s for t, s in rows.items() if t < first}
                rows.update({s.time: s for s in found})
        ordered = [rows[t] for t in sorted(rows)]
        return samples.columns(ordered, since, until, points, 1)

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
        found = self._db.execute(
            "SELECT time, gpus, data FROM samples WHERE step=? AND time>=? AND time<?"
            " ORDER BY time",
            (step, int(since), until),
        )
        return [Sample.unpack(*row) for row in found]

    def close(self) -> None:
        """Close the file."""
        self._db.close()
