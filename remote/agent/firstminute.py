"""The first-minute verdict: what a start, a resume or a swap has come to once tokens flow.

What holds servers back that are all full is said within seconds, with the change of flags that
would help; the throughput, and what follows from it, once it has been measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from remote import advise, verdict
from remote.agent.doubt import Doubt
from remote.agent.run import Run
from remote.journal import Journal
from remote.protocol import Epoch, GpuState, ServerInfo, ServerState, TargetSpec, Verdict

CEILING_S: Final = 6.0
"""Seconds for which all servers must have been full: two polls, lest a moment count."""
RAMP_S: Final = 10.0
"""Seconds after the first token from which servers count as filled …"""
VERDICT_S: Final = 45.0
"""… and those after which the verdict is given."""
LEAST: Final = 5
"""Seconds of numbers without which a run that has ended gets no verdict."""

ANEW: Final = "a change of the rate"
"""What a verdict follows that was asked for by no action: the one before no longer held."""

_NOTE: Final = "verdict"
"""The name under which the journal keeps the last one."""


class FirstMinute:
    """Gathers until there is something to say, and says it once."""

    def __init__(self, journal: Journal, run: Run, emit: Callable[..., object]) -> None:
        self._journal, self._run, self._emit = journal, run, emit
        self._minute: _Minute | None = None
        self._last: Verdict | None = None
        self._previous: Epoch | None = None
        """What the last one was compared with."""
        self._doubt = Doubt()

    def read_back(self) -> None:
        """What the last agent said; the journal is open."""
        self._last = self._journal.noted(_NOTE, Verdict)

    def soon(self, why: str, previous: Epoch | None) -> None:
        """Give a verdict once tokens have flowed for a while."""
        if previous is not None and not previous.tok_s_per_gpu:
            known = [e for e in self._journal.epochs.values() if e.tok_s_per_gpu]
            previous = max(known, key=lambda e: e.id, default=None)
        self._minute, self._previous = _Minute(why, previous), previous
        self._last = None  # of before
        self._doubt.begin()

    def not_now(self) -> None:
        """A change is under way: no verdict on what is neither old nor new."""
        self._minute = None

    def alert_ended(self, code: str, limit: float | None) -> None:
        """An alert is over; a verdict that said the same of the ETA is, too."""
        last = self._last
        if code == "eta" and last is not None and (last.eta_hours or 0.0) > (limit or 0.0):
            self._drop(time.time())

    def _drop(self, now: float) -> None:
        """The last one no longer holds. A run that is at work is judged anew, but not all the
        time."""
        self._last = None
        self._journal.note(_NOTE, None)
        progress = self._run.progress
        working = self._run.alive and progress is not None and progress.status == "running"
        if self._minute is None and working and self._doubt.again(now):
            self._minute = _Minute(ANEW, self._previous)

    @property
    def last(self) -> Verdict | None:
        """The newest verdict, and whether another one is to come."""
        minute = self._minute
        if minute is None:
            return self._last
        shown = self._last or Verdict(time=round(minute.began, 3), text="")
        if minute.first_token is None:
            return replace(shown, waits="the first tokens")
        return replace(shown, waits="measuring", due=round(minute.first_token + VERDICT_S, 1))

    def look(
        self,
        spec: TargetSpec,
        infos: list[ServerInfo],
        states: list[ServerState],
        cards: Sequence[GpuState],
        now: float,
        *,
        changing: bool = False,
    ) -> None:
        """Once a second; ``changing``: a swap is under way."""
        minute = self._minute
        if minute is None:
            alive = self._run.alive and not changing
            if self._last is None or not alive:
                return
            if self._doubt.look(self._last, states, self._run.progress, now):
                self._drop(now)
            return
        flowing = any(s.gen_tok_s and s.running for s in states if s.state == "ready")
        if self._run.alive and flowing:
            minute.first_token = minute.first_token or now
            if now - minute.first_token >= RAMP_S:
                minute.states.append(states)
        self._early(minute, spec, infos, states, cards, now)
        if minute.first_token is None:
            if not self._run.alive and now - minute.began > 60:
                self._minute = None
            return
        if self._run.alive and now - minute.first_token < VERDICT_S:
            return
        self._minute = None
        if len(minute.states) < LEAST:
            return
        judged = verdict.judge(
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
        judged = replace(judged, after=minute.why)
        self._last = self._helped(judged, spec, infos, states, cards)
        self._journal.note(_NOTE, self._last)
        self._tell(minute.why, self._last)

    def _early(
        self,
        minute: _Minute,
        spec: TargetSpec,
        infos: list[ServerInfo],
        states: list[ServerState],
        cards: Sequence[GpuState],
        now: float,
    ) -> None:
        """Name what holds full servers back as soon as they have been full for a few seconds."""
        if not self._run.alive or not verdict.at_ceiling(states, infos):
            minute.full_since = None
            return
        minute.full_since = minute.full_since or now
        if minute.is_told or now - minute.full_since < CEILING_S:
            return
        minute.is_told = True
        found = replace(verdict.early(states, infos, now=round(now, 3)), after=minute.why)
        self._last = self._helped(found, spec, infos, states, cards)
        self._tell(minute.why, self._last)

    def _tell(self, why: str, said: Verdict) -> None:
        level = "warning" if said.good is False else "info"
        helps = f"; {said.remedy}" if said.remedy else ""
        self._emit("verdict", f"after {why}: {said.text}{helps}", level=level)

    def _helped(
        self,
        said: Verdict,
        spec: TargetSpec,
        infos: list[ServerInfo],
        states: list[ServerState],
        cards: Sequence[GpuState],
    ) -> Verdict:
        """The verdict with the change that would help."""
        known = self._journal.epochs.values()
        found = advise.advise(advise.observed(infos, states, cards, spec.fleet.model, known))
        return replace(said, remedy=advise.remedy(found), remedy_flags=advise.remedy_flags(found))


class _Minute:
    """What is gathered until then."""

    def __init__(self, why: str, previous: Epoch | None) -> None:
        self.why = why
        self.previous = previous
        self.began = time.time()
        self.first_token: float | None = None
        self.full_since: float | None = None
        self.is_told = False
        self.states: list[list[ServerState]] = []
