"""Series over time: what cards and charts show of the past, whether watched or loaded.

Plain buckets of numbers; no screen, no clock of their own.
"""

from __future__ import annotations

import math
from itertools import pairwise

from console.model import ON, State
from remote.protocol import CARD_SERIES, SERIES, SERVER_SERIES, History


class Trend:
    """Per-GPU series over a sliding window, in equal buckets: what a chart of that window shows.

    History from the journal and live snapshots land in the same buckets (mean of what falls into
    one), so a picture is the same whether it was watched or loaded. A bucket that nothing fell
    into is a hole. Memory is bounded by ``points`` whatever the span.
    """

    def __init__(self, span: float, points: int) -> None:
        self.span = span
        self.points = points
        self.width = span / points
        self._sums: dict[str, dict[int, dict[int, list[float]]]] = {n: {} for n in SERIES}
        self.loads = 0
        """Moves when the past changed, not with each live sample."""

    def clear(self) -> None:
        """Forget everything: before history is loaded anew."""
        self._sums = {n: {} for n in SERIES}
        self.loads += 1

    def load(self, history: History) -> None:
        """Take in samples of the past. Each stands for the time up to the next one: coarse ones
        fill every bucket of that, else a picture of them would be all holes."""
        step = min((b - a for a, b in pairwise(history.times)), default=0.0)
        span = step if step > 1.01 * self.width else 0.0
        for name, columns in history.series.items():
            if name not in self._sums:
                continue
            for gpu, values in enumerate(columns):
                for at, value in zip(history.times, values, strict=False):
                    if value is not None:
                        self._put(name, gpu, at, value, span)
        for known in self._sums.values():
            for gpu, cells in known.items():
                known[gpu] = dict(sorted(cells.items()))
        self._prune(max(history.times, default=0.0))
        self.loads += 1

    def add(self, state: State) -> None:
        """Take in the newest snapshot."""
        at = state.time
        for gpu, server in state.servers.items():
            if server.state not in ON:
                continue
            for name in SERVER_SERIES:
                if (value := getattr(server, name)) is not None:
                    self._put(name, gpu, at, value)
        for gpu, card in state.gpus.items():
            for name in CARD_SERIES:
                if (value := getattr(card, name)) is not None:
                    self._put(name, gpu, at, value)
        self._prune(at)

    def _put(self, name: str, gpu: int, at: float, value: float, span: float = 0.0) -> None:
        first = int(at // self.width)
        last = max(first, math.ceil((at + span) / self.width - 0.001) - 1)
        cells = self._sums[name].setdefault(gpu, {})
        for index in range(first, last + 1):
            cell = cells.setdefault(index, [0.0, 0.0])
            cell[0] += value
            cell[1] += 1.0

    def _prune(self, newest: float) -> None:
        oldest = int(newest // self.width) - self.points - 1
        for columns in self._sums.values():
            for cells in columns.values():
                while cells and (first := next(iter(cells))) < oldest:
                    del cells[first]

    def gpus(self, name: str) -> list[int]:
        """GPUs with anything in this series."""
        return sorted(gpu for gpu, cells in self._sums[name].items() if cells)

    def column(
        self, name: str, gpu: int, until: float, points: int | None = None
    ) -> list[float | None]:
        """One GPU's values of the window that ends at ``until``, oldest first."""
        count = points or self.points
        cells = self._sums[name].get(gpu, {})
        last = int(until // self.width)
        values: list[float | None] = []
        for index in range(last - count + 1, last + 1):
            cell = cells.get(index)
            values.append(cell[0] / cell[1] if cell else None)
        return values

    def top(self, name: str) -> float:
        """Largest value held."""
        return max(
            (c[0] / c[1] for cells in self._sums[name].values() for c in cells.values()),
            default=0.0,
        )


def shrink(values: list[float | None], points: int) -> list[float | None]:
    """Means of equal runs: no more values than can be shown; a run without any stays a hole."""
    if points <= 0:
        return []
    if len(values) <= points:
        return values
    size = len(values) / points
    out: list[float | None] = []
    for index in range(points):
        run = [v for v in values[int(index * size) : int((index + 1) * size)] if v is not None]
        out.append(sum(run) / len(run) if run else None)
    return out


def nice_top(value: float) -> float:
    """A round scale limit at or above ``value``: 1, 1.5, 2, 3, 5, 8 times a power of ten."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for step in (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 10.0):
        if value <= step * power * 1.0001:
            return step * power
    return 10.0 * power


def steps_of(top: float) -> int:
    """Into how many equal steps a scale from 0 to a :func:`nice_top` divides roundly."""
    first = float(f"{top:e}".split("e")[0])
    return {1.0: 4, 1.5: 3, 2.0: 4, 3.0: 3, 5.0: 5, 8.0: 4}.get(round(first, 1), 4)
