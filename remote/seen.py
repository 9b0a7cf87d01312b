"""Where things stood when somebody last looked: what is kept of it until the next time."""

from __future__ import annotations

from msgspec import Struct

from remote.protocol import Progress


class Seen(Struct, frozen=True):
    """Where things stood when somebody last looked (the agent's clock)."""

    time: float = 0.0
    event: int = 0
    completed: int = 0
    rate: float = 0.0
    eta_at: float | None = None
    failed: int | None = None
    """None, here and below, where an earlier version did not note it."""
    set_aside: int | None = None
    not_in_s3: int | None = None
    retries: dict[str, int] | None = None
    """Of the run's process ``pid``, by cause."""
    pid: int = 0


def seen(now: float, event: int, progress: Progress | None, eta_at: float | None) -> Seen:
    """Where things stand; ``event`` is the newest one's id."""
    if progress is None:
        return Seen(now, event, eta_at=eta_at)
    return Seen(
        now,
        event,
        progress.completed,
        progress.rate_per_sec,
        eta_at,
        progress.failed,
        progress.set_aside,
        progress.not_in_s3,
        progress.retries,
        progress.pid,
    )
