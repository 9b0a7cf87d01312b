"""What one server process has answered to the fleet's questions, the newest of each kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from remote.fleet.rate import Rate
from remote.sglang.loads import Loads, ServerFacts
from remote.sglang.metrics import Metrics

_N = TypeVar("_N", int, float)


@dataclass
class Answers:
    """Times are Unix seconds."""

    rate: Rate
    """Tokens decoded, by the counter of every step."""
    loads: Loads | None = None
    loads_at: float | None = None
    loads_failing: int = 0
    """Questions about its load without an answer since."""
    metrics: Metrics | None = None
    facts: ServerFacts | None = None

    def took_loads(self, loads: Loads | None, now: float) -> None:
        """An answer of ``/v1/loads``, or that there was none."""
        if loads is None:
            self.loads_failing += 1
        else:
            self.loads, self.loads_at, self.loads_failing = loads, now, 0

    def took_metrics(self, metrics: Metrics | None, asked: float, answered: float) -> None:
        """An answer of ``/metrics``, and when it was asked for and came."""
        if metrics is None:
            return
        self.metrics = metrics
        if metrics.decode_tokens is not None:
            self.rate.take(asked, answered, metrics.decode_tokens)

    @property
    def running(self) -> int | None:
        """Requests being decoded."""
        if self.loads is not None and self.loads.running is not None:
            return self.loads.running
        return self.metrics.running if self.metrics is not None else None

    @property
    def queued(self) -> int | None:
        """Requests that wait for a slot."""
        if self.loads is not None and self.loads.queued is not None:
            return self.loads.queued
        return self.metrics.queued if self.metrics is not None else None

    @property
    def open_requests(self) -> int | None:
        """Generation requests that HTTP clients wait for."""
        return self.metrics.open_requests if self.metrics is not None else None

    @property
    def work_tokens(self) -> float | None:
        """Grows while it works at all; None where it counts nothing."""
        return self.metrics.work_tokens if self.metrics is not None else None

    @property
    def version(self) -> str | None:
        """The SGLang that it says it is."""
        return next((s.version for s in (self.facts, self.loads) if s and s.version), None)


def first(*values: _N | None) -> _N | None:
    """The first value that is known."""
    return next((value for value in values if value is not None), None)
