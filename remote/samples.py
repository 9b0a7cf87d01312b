"""Samples of the past as values: packing, averaging, downsampling, retention. No I/O.

A sample is a moment and, for each series and each GPU, a number or nothing. Nothing is NaN in
the packed form and ``None`` outside of it, so that a gap stays a gap and is never drawn as 0.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remote.protocol import CARD_SERIES, SERIES, SERVER_SERIES, GpuState, History, ServerState

KEEP: dict[int, float] = {1: 2 * 3600.0, 10: 48 * 3600.0, 60: 60 * 86400.0}
"""Seconds between samples → for how many seconds such samples are kept."""

MAX_BYTES = 100 * 1000 * 1000
"""What all samples together may take on disk."""

NAN = math.nan


@dataclass(frozen=True)
class Sample:
    """All series of ``gpus`` GPUs at one time (Unix seconds): value = data[series * gpus + gpu]."""

    time: int
    gpus: int
    data: array[float]

    def pack(self) -> bytes:
        """The data as 32-bit floats in this machine's order."""
        return self.data.tobytes()

    @staticmethod
    def unpack(time: int, gpus: int, raw: bytes) -> Sample:
        """The sample of a stored row; a row of fewer series is filled with unknowns."""
        data = array("f")
        data.frombytes(raw[: len(raw) - len(raw) % 4])
        wanted = len(SERIES) * gpus
        data.extend([NAN] * (wanted - len(data)))
        return Sample(time, gpus, data[:wanted])


def sample(
    time: float, servers: Iterable[ServerState], cards: Iterable[GpuState], gpus: int
) -> Sample:
    """What one second looked like; servers and cards outside 0..gpus-1 are left out."""
    data = array("f", [NAN] * (len(SERIES) * gpus))

    def put(name: str, gpu: int, value: float | None) -> None:
        if value is not None and 0 <= gpu < gpus:
            data[SERIES.index(name) * gpus + gpu] = value

    for server in servers:
        for name in SERVER_SERIES:
            put(name, server.gpu, getattr(server, name))
    for card in cards:
        for name in CARD_SERIES:
            put(name, card.gpu, getattr(card, name))
    return Sample(int(time), gpus, data)


def mean(samples: Sequence[Sample], time: int) -> Sample:
    """The average of what is known, value by value."""
    gpus = max(s.gpus for s in samples)
    sums = [0.0] * (len(SERIES) * gpus)
    counts = [0] * len(sums)
    for one in samples:
        for series in range(len(SERIES)):
            for gpu in range(one.gpus):
                value = one.data[series * one.gpus + gpu]
                if value == value:  # not NaN
                    sums[series * gpus + gpu] += value
                    counts[series * gpus + gpu] += 1
    values = [total / n if n else NAN for total, n in zip(sums, counts, strict=True)]
    return Sample(time, gpus, array("f", values))


def fold(samples: Iterable[Sample], step: int, *, after: int, before: float) -> list[Sample]:
    """Averages over whole windows of ``step`` seconds that begin after ``after`` and have ended
    by ``before``. Windows begin at multiples of ``step``; one without a sample gives none."""
    windows: dict[int, list[Sample]] = {}
    for one in samples:
        start = one.time - one.time % step
        if start > after and start + step <= before:
            windows.setdefault(start, []).append(one)
    return [mean(group, start) for start, group in sorted(windows.items())]


def level(since: float, until: float, now: float, points: int) -> int:
    """Which samples to read for ``points`` values over a span: the coarsest that are fine enough,
    or the finest that still reach back to ``since``."""
    bucket = (until - since) / max(points, 1)
    reaching = [step for step, keep in KEEP.items() if now - since <= keep + step]
    fine = [step for step in reaching if step <= bucket]
    return max(fine) if fine else min(reaching, default=max(KEEP))


def columns(
    samples: Iterable[Sample], since: float, until: float, points: int, step: int
) -> History:
    """Samples → at most ``points`` columns of averages over equal spans; empty spans are None."""
    width = max((until - since) / max(points, 1), float(step))
    count = max(1, math.ceil((until - since) / width - 1e-9))
    groups: list[list[Sample]] = [[] for _ in range(count)]
    for one in samples:
        if since <= one.time < until:
            groups[min(int((one.time - since) / width), count - 1)].append(one)
    gpus = max((s.gpus for group in groups for s in group), default=0)
    means = [mean(group, 0) if group else None for group in groups]
    series = {
        name: [
            [_known(m.data[n * m.gpus + g]) if m and g < m.gpus else None for m in means]
            for g in range(gpus)
        ]
        for n, name in enumerate(SERIES)
    }
    return History(times=[round(since + i * width, 3) for i in range(count)], series=series)


def _known(value: float) -> float | None:
    return None if value != value else float(f"{value:.6g}")


@dataclass(frozen=True)
class Upkeep:
    """What one round of upkeep does: fold ``source`` steps into ``step`` ones, drop old rows."""

    folds: tuple[tuple[int, int, int], ...]
    """(source step, step, newest row of that step)"""
    drops: tuple[tuple[int, int], ...]
    """(step, rows before this time go)"""


def upkeep(now: float, newest: dict[int, int], oldest: dict[int, int], size: int) -> Upkeep:
    """Plan a round from the newest and oldest row of each step and the bytes all rows take.

    Over :data:`MAX_BYTES` the oldest tenth of the span of the coarsest rows goes as well.
    """
    steps = sorted(KEEP)
    folds = tuple(
        (source, step, newest.get(step, -step)) for source, step in itertools.pairwise(steps)
    )
    drops = {step: int(now - keep) for step, keep in KEEP.items()}
    if size > MAX_BYTES and steps[-1] in oldest:
        last = steps[-1]
        begin = max(oldest[last], drops[last])
        drops[last] = begin + max(int((now - begin) / 10), last)
    return Upkeep(folds, tuple(sorted(drops.items())))
