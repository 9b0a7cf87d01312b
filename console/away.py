"""What happened on a target since its console was last open: one panel, worst first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from console import clocks, reckon
from console.model import State
from console.notices import Notice
from console.prefs import Seen
from console.text import duration, moment
from remote import since
from remote.protocol import Event
from remote.seen import seen

LEAST_S = 120.0
"""A shorter absence is not worth a panel."""


def worth_telling(seen: Seen | None, state: State) -> bool:
    """Whether there is a last time, and it is long enough ago."""
    return seen is not None and seen.time > 0 and state.time - seen.time >= LEAST_S


def account(seen: Seen, state: State, events: Sequence[Event]) -> Callable[[int], list[Notice]]:
    """What a person who comes back wants to know, as :func:`remote.since.account` tells it, in so
    many lines at most; ``events`` are those after ``seen.event``."""
    now = state.time
    found = since.account(
        seen,
        now=now,
        events=events,
        progress=state.progress,
        alive=state.run.alive,
        eta_at=reckon.eta(state, now).at,
        words=since.Words(lambda at: moment(at, now), duration),
        alerts=state.alerts,
    )
    return lambda most: [
        Notice(one.level, one.text, one.about, one.gpu, since=one.time) for one in found.lines(most)
    ]


def seen_now(state: State) -> Seen:
    """Where things stand, to be told from at the next look."""
    event = state.events[-1].id if state.events else 0
    return seen(state.time, event, state.progress, reckon.eta(state, state.time).at)


def title(seen: Seen, state: State) -> str:
    """``You were away 7h12m, since 23:10 (UTC+1)``: all times of the panel are of that zone."""
    zone = clocks.zone(time.localtime(state.time).tm_gmtoff)
    away = duration(state.time - seen.time)
    return f"You were away {away}, since {moment(seen.time, state.time)} ({zone})"
