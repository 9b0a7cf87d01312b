"""Whether the container's memory runs out: what it used over the last while, and where that leads.

Pure. A leak of some GiB an hour kills servers overnight, and no single number shows it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, TypeAlias

Samples: TypeAlias = tuple[tuple[float, int], ...]
"""Times (the agent's) and bytes in use, oldest first."""

EVERY_S: Final = 20.0
KEPT_S: Final = 3600.0
LEAST_S: Final = 900.0
"""A shorter past says nothing: servers that load their weights take memory for minutes."""

SOON_S: Final = 12 * 3600.0
"""Later ends are not worth a warning: a night is what has to be survived."""


def sampled(samples: Samples, at: float, used: int | None) -> Samples:
    """With one more sample, where it is time for one; another past, where time went back."""
    if used is None:
        return samples
    if samples and at < samples[-1][0]:
        samples = ()
    if samples and at - samples[-1][0] < EVERY_S:
        return samples
    return (*(s for s in samples if s[0] >= at - KEPT_S), (at, used))


def slope(samples: Samples) -> float | None:
    """Bytes a second by which it has grown; None where it is not steady, or not known yet."""
    if len(samples) < 8 or samples[-1][0] - samples[0][0] < LEAST_S:
        return None
    quarter = len(samples) // 4
    means = [
        sum(used for _, used in samples[i * quarter : (i + 1) * quarter]) / quarter
        for i in range(4)
    ]
    if any(later <= before for before, later in pairwise(means)):
        return None
    return (means[-1] - means[0]) / (samples[3 * quarter][0] - samples[0][0])


def full_in(samples: Samples, total: int | None) -> tuple[float, float] | None:
    """Seconds until nothing is left, and the bytes a second that lead there; None where it does
    not come within :data:`SOON_S`."""
    grows = slope(samples)
    if grows is None or not total or not samples:
        return None
    left = max(0.0, total - samples[-1][1]) / grows
    return (left, grows) if left <= SOON_S else None
