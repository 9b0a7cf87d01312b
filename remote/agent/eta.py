"""When the time left is an alert, and when no longer."""

from __future__ import annotations

import math
from collections.abc import Iterable

from remote.agent import alerts
from remote.agent.alerts import Wrong
from remote.agent.diff import Picture
from remote.generate.progress import WINDOW_S
from remote.protocol import Alert
from remote.verdict import REQUESTS, duration

UNDER = 0.95
"""An alert is over below this share of the limit …"""
UNDER_S = 30.0
"""… once it has been so for so long: near the limit it would come and go."""
FAR_UNDER = 0.8
"""Below this share it is over at once."""


class EtaWatch:
    """Looks each second. While a swap or a pause takes servers away or the requests at once have
    just been set otherwise, and until the run's moving
    rate has nothing of that any more, its ETA tells nothing: what stood stays as it was. While a
    server comes up again an alert does not end either."""

    def __init__(self) -> None:
        self._moved_at = -math.inf
        """When the run last was not at work with what it is to have."""
        self._under_since: float | None = None
        self._at_once: int | str | None = None

    def look(self, now: Picture, standing: Iterable[Alert], at: float) -> list[Wrong]:
        """The alert, where there is one; ``standing`` are the alerts of the look before."""
        old = next((alert for alert in standing if alert.code == "eta"), None)
        limit = now.target.alerts.eta_hours_over if now.target is not None else None
        progress = now.run.progress
        if limit is None or progress is None or not now.run.alive:
            self._under_since = None
            return []
        if self._at_once is None:
            self._at_once = now.run.concurrency
        if progress.status != "running" or _swaps(now) or self._at_once != now.run.concurrency:
            self._moved_at, self._at_once = at, now.run.concurrency
        eta = self._told(now, at)
        if eta is None:
            self._under_since = None
            return [] if old is None else [Wrong("eta", _kept(old), old.level)]
        if eta > limit * (1.0 if old is None else UNDER):
            self._under_since = None
            return [Wrong("eta", _text(now, eta, limit), "error")]
        if old is None:
            return []
        coming = any(server.state in ("starting", "warming") for server in now.servers)
        if self._under_since is None or coming:
            self._under_since = at
        settled = at - self._under_since >= UNDER_S or eta < limit * FAR_UNDER
        if coming or not settled:
            return [Wrong("eta", _text(now, eta, limit), "error")]
        self._under_since = None
        return []

    def _told(self, now: Picture, at: float) -> float | None:
        """From the run's own rate once it has one, until then from the verdict on these flags."""
        progress, verdict = now.run.progress, now.verdict
        if progress is None or self._moved_at == at:
            return None
        # A process that has just taken up a run of many finished prompts has no rate of its own.
        here = sum(work.completed for work in progress.servers.values())
        done = here if progress.servers else progress.completed
        own = bool(progress.rate_per_sec) and done >= 3 * max(progress.in_flight, 1)
        if own and progress.eta_hours is not None and at - self._moved_at >= WINDOW_S:
            return progress.eta_hours
        if verdict is None or verdict.time < self._moved_at:
            return None
        return verdict.eta_hours if _on_these_flags(now) else None


def over(alert: Alert, now: Picture) -> str:
    """That an alert has ended, and the number now."""
    return _ended(now) if alert.code == "eta" else alerts.over(alert, now)


def _ended(now: Picture) -> str:
    progress, verdict = now.run.progress, now.verdict
    limit = now.target.alerts.eta_hours_over if now.target is not None else None
    if limit is None:
        return "ETA alert ended: no limit is set any more"
    if not now.run.alive or progress is None:
        return "ETA alert ended: the run is not at work"
    eta = progress.eta_hours
    if eta is None and verdict is not None:
        eta = verdict.eta_hours
    number = "unknown" if eta is None else duration(eta)
    return f"ETA alert ended: {number}, {duration(limit)} allowed"


def _kept(old: Alert) -> str:
    """What is said of it while nothing new is known: the number, but no cause that may be gone."""
    number = old.text.partition(" allowed")[0]
    return f"{number} allowed before the change; it is being measured anew"


def _swaps(now: Picture) -> bool:
    return now.swap is not None and now.swap.state == "doing"


def _on_these_flags(now: Picture) -> bool:
    return now.verdict is not None and not (now.epochs and now.verdict.time < now.epochs[-1].since)


def _text(now: Picture, eta: float, limit: float) -> str:
    told, allowed = duration(eta), duration(limit)
    where = "over" if eta > limit and told != allowed else "about"
    if eta < limit * FAR_UNDER:
        return f"ETA {told} of the {allowed} allowed while a server comes up"
    why = _held_at(now)
    if not why and now.verdict is not None and _on_these_flags(now):
        why = now.verdict.bound_by
    why = f": {why}" if why else ""
    return f"ETA {told}, {where} the {allowed} allowed{why}"


def _held_at(now: Picture) -> str:
    """That fewer requests are sent than servers could run, where somebody said so."""
    told, slots = now.run.concurrency, [i.max_running for i in now.infos if i.max_running]
    if not isinstance(told, int) or not slots or told >= min(slots):
        return ""
    return f"{REQUESTS} the run is held at {told} of {min(slots)} slots a server"
