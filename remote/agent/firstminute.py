"""The first-minute verdict: what a start, a resume or a swap has come to once tokens flow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from remote import verdict
from remote.agent.run import Run
from remote.journal import Journal
from remote.protocol import Epoch, ServerInfo, ServerState, TargetSpec, Verdict

RAMP_S: Final = 10.0
"""Seconds after the first token from which servers count as filled …"""
VERDICT_S: Final = 45.0
"""… and those after which the verdict is given."""
LEAST: Final = 5
"""Seconds of numbers without which a run that has ended gets no verdict."""

_NOTE: Final = "verdict"
"""The name under which the journal keeps the last one."""


class FirstMinute:
    """Gathers until there is something to say, and says it once."""

    def __init__(self, journal: Journal, run: Run, emit: Callable[..., object]) -> None:
        self._journal, self._run, self._emit = journal, run, emit
        self._minute: _Minute | None = None
        self.last: Verdict | None = None

    def read_back(self) -> None:
        """What the last agent said; the journal is open."""
        self.last = self._journal.noted(_NOTE, Verdict)

    def soon(self, why: str, previous: Epoch | None) -> None:
        """Give a verdict once tokens have flowed for a while."""
        if previous is not None and not previous.tok_s_per_gpu:
            known = [e for e in self._journal.epochs.values() if e.tok_s_per_gpu]
            previous = max(known, key=lambda e: e.id, default=None)
        self._minute = _Minute(why, previous)

    def not_now(self) -> None:
        """A change is under way: no verdict on what is neither old nor new."""
        self._minute = None

    def look(
        self, spec: TargetSpec, infos: list[ServerInfo], states: list[ServerState], now: float
    ) -> None:
        """Once a second."""
        minute = self._minute
        if minute is None:
            return
        flowing = any(s.gen_tok_s and s.running for s in states if s.state == "ready")
        if self._run.alive and flowing:
            minute.first_token = minute.first_token or now
            if now - minute.first_token >= RAMP_S:
                minute.states.append(states)
        if minute.first_token is None:
            if not self._run.alive and now - minute.began > 60:
                self._minute = None
            return
        if self._run.alive and now - minute.first_token < VERDICT_S:
            return
        self._minute = None
        if len(minute.states) < LEAST:
            return
        self.last = verdict.judge(
            verdict.Minute(
                states=minute.states,
                infos=infos,
                progress=self._run.progress,
                max_tokens=spec.run.max_tokens,
                previous=minute.previous,
            ),
            now=round(now, 3),
            eta_hours_over=spec.alerts.eta_hours_over,
        )
        self._journal.note(_NOTE, self.last)
        level = "warning" if self.last.good is False else "info"
        self._emit("verdict", f"after {minute.why}: {self.last.text}", level=level)


class _Minute:
    """What is gathered until then."""

    def __init__(self, why: str, previous: Epoch | None) -> None:
        self.why = why
        self.previous = previous
        self.began = time.time()
        self.first_token: float | None = None
        self.states: list[list[ServerState]] = []
