"""Free ports on loopback."""

from __future__ import annotations

import random
import socket

LOW, HIGH = 20_000, 32_000
"""Below the ports that systems hand out by themselves, so that nobody takes one meanwhile."""


def free(port: int) -> bool:
    """Whether nothing listens on this port of the loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_range(count: int) -> int:
    """The first of ``count`` free ports in a row. Raises OSError when there are none."""
    for _ in range(200):
        base = random.randrange(LOW, HIGH - count, 10)
        if all(free(port) for port in range(base, base + count)):
            return base
    raise OSError(f"no {count} free ports in a row between {LOW} and {HIGH}")
