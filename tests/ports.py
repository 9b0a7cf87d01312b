"""Free ports for tests, also where several pytest workers take them at the same time."""

from __future__ import annotations

import os
import random

from console.lab import ports

WORKERS = 6
"""So many workers get ports of their own; more would share them."""
LOW, HIGH = 11_000, 20_000
"""Below the lab's own, and like them below those that the system hands out by itself
(``net.ipv4.ip_local_port_range``): a free one of those may be the end of somebody's connection
before a server listens on it."""


def own(low: int, high: int) -> tuple[int, int]:
    """This pytest worker's share of a range of ports."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    size = (high - low) // WORKERS
    return low + number * size, low + (number + 1) * size


_low, _high = own(LOW, HIGH)
_next = random.randrange(_low, _high)  # tests may be run twice at the same time


def free(count: int = 1) -> int:
    """The first of ``count`` free ports in a row; none comes twice before all others came.

    Raises OSError when there are none.
    """
    global _next
    for _ in range(_low, _high):
        base = _next if _next + count <= _high else _low
        _next = base + count
        if all(ports.free(port) for port in range(base, base + count)):
            return base
    raise OSError(f"no {count} free ports in a row between {_low} and {_high}")
