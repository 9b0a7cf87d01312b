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


STEP = 1.5
"""How many more slots a server of unknown size is tried with."""
GAIN = 1.1
"""Throughput must grow by this for them to stay."""
MOST = 32.0
"""More than so many times the first guess is not tried."""
STEP_S = 10.0
AGAIN_S = 1800.0
"""After a try that gained nothing the next one comes this much later."""


@dataclass
class Reach:
    """How many slots a server can use that says neither its limit nor its queue.

    Its slots are full: half as many more are tried, once all answers to the old number are in,
    for as many answers as there are slots. They stay if the throughput grew with them.
    """

    factor: float = 1.0
    """Of the first guess."""
    _best: float = 0.0
    """Output tokens a second before the last step."""
    _trying: bool = False
    _settled: bool = False
    """The answers since the last step were all sent after it (most of them)."""
    _rest_until: float = 0.0
    _began: float | None = None
    _answers: int = 0
    _tokens: int = 0

    def tick(self, at: float, tokens: int, answers: int, *, slots: int, full: bool) -> None:
        """Once a second: output tokens and answers so far, and whether its slots are in use."""
        if self._began is None or not full:
            self._mark(at, tokens, answers, settled=self._settled and self._began is not None)
            return
        if answers - self._answers < slots or at - self._began < STEP_S:
            return
        # Some servers tell no usage.
        rate = (tokens - self._tokens or answers - self._answers) / (at - self._began)
        settled = self._settled
        self._mark(at, tokens, answers, settled=True)
        if settled:
            self._judge(at, rate)

    def _mark(self, at: float, tokens: int, answers: int, *, settled: bool) -> None:
        self._began, self._tokens, self._answers, self._settled = at, tokens, answers, settled

    def _judge(self, at: float, rate: float) -> None:
        if self._trying and rate < GAIN * self._best:
            self.factor /= STEP
            self._trying, self._settled = False, False
            self._rest_until = at + AGAIN_S
        elif at >= self._rest_until and self.factor * STEP <= MOST:
            self._best = rate
            self.factor *= STEP
            self._trying, self._settled = True, False
        else:
            self._trying = False
