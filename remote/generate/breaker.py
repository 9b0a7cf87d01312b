"""Whether requests may flow to a server. Times are ``time.monotonic()`` seconds."""

from __future__ import annotations

import random
from dataclasses import dataclass

FAILURES = 5
"""Failures in a row that open the breaker."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0


@dataclass(slots=True)
class Breaker:
    """Closed: requests flow. Open: none until a trial completion is answered."""

    is_open: bool = True
    """A server begins untried, so the first thing it gets is a trial."""
    failures: int = 0
    pause: float = FIRST_PAUSE_S
    retry_at: float = 0.0
    closed_at: float = 0.0
    trying: bool = False

    def succeeded(self) -> None:
        """A request was answered."""
        self.failures = 0

    def failed(self, now: float, *, gone: bool = False) -> None:
        """A request failed by the server's fault; ``gone``: it does not even take connections."""
        self.failures += 1
        if not self.is_open and (gone or self.failures >= FAILURES):
            self.open(now)

    def open(self, now: float) -> None:
        """Stop sending; the first trial comes at once."""
        if now - self.closed_at > 30.0:
            self.pause = FIRST_PAUSE_S
        self.is_open = True
        self.retry_at = now

    def trial_failed(self, now: float) -> None:
        """Still not well: the next trial comes later, by a jittered and growing pause."""
        self.trying = False
        self.retry_at = now + self.pause * random.uniform(0.7, 1.3)
        self.pause = min(self.pause * 2, LONGEST_PAUSE_S)

    def close(self, now: float) -> None:
        """The trial was answered."""
        self.trying = self.is_open = False
        self.failures = 0
        self.closed_at = now
