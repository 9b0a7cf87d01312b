"""Fewer requests where more of them slow a server down.

A server whose throughput falls while its slots are full may be thrashing (retractions, a cache
too small for so many): a quarter fewer are tried for a minute. Where that does not help it is
simply slower than it was, and gets its slots back.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_S = 60.0
FALLEN = 0.6
"""Share of its usual throughput below which a server is tried with less."""
HEALED = 0.85
"""Share above which it gets more again."""
LEAST = 0.25
"""Share of the slots that it keeps at least."""


@dataclass
class Pace:
    """The throughput of one server over minutes, and the share of its slots that it deserves."""

    share: float = 1.0
    usual: float = 0.0
    """Output tokens a second while its slots are full."""
    _before: float = 0.0
    """Throughput before the last step down."""
    _began: float | None = None
    _tokens: int = 0
    _full: bool = True

    def reset(self) -> None:
        """Another process, or other flags: nothing is known."""
        self.share, self.usual, self._began = 1.0, 0.0, None

    def tick(self, at: float, tokens: int, *, full: bool) -> None:
        """Once a second: its output tokens so far, and whether its slots are in use."""
        if self._began is None:
            self._began, self._tokens, self._full = at, tokens, full
            return
        self._full = self._full and full
        if at - self._began < WINDOW_S:
            return
        rate = (tokens - self._tokens) / (at - self._began)
        whole, self._began, self._tokens, self._full = self._full, at, tokens, full
        if whole and rate > 0:
            self._judge(rate)

    def _judge(self, rate: float) -> None:
        if rate >= HEALED * self.usual:
            self.usual = max(rate, 0.9 * self.usual + 0.1 * rate)
            self.share = min(1.0, self.share + 0.1)
        elif self.share == 1.0:
            if rate < FALLEN * self.usual:
                self._before = rate
                self.share = 0.75
            else:
                self.usual = 0.9 * self.usual + 0.1 * rate
        elif rate < 0.95 * self._before:
            self.share, self.usual = 1.0, rate  # less was no better: this is its speed now
        else:
            self._before = max(self._before, rate)
            self.share = max(LEAST, self.share - 0.15)
