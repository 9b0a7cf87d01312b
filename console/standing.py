"""How the run stands, in words: the one place for what the console's header and ``stoker status``
say of it.

Each part is a text and the style that a screen gives it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from console import model, reckon
from console.text import UNKNOWN, duration, hours, moment, number, same_day
from remote.protocol import Event, Progress

Part: TypeAlias = tuple[str, str]

STYLE: Final = {
    "running": "good",
    "paused": "warn",
    "draining": "warn",
    "done": "good",
    "stopped": "warn",
    "failed": "bad",
}
"""Of each word that :func:`word` says; anything else is ``bad``."""


HELD: Final = ("paused", "draining")
"""Of a run at work whose end moves as long as it is so."""


def word(state: model.State, progress: Progress) -> str:
    """What the run is: its status, unless that is an old one of a process that is gone."""
    ended = progress.status in reckon.ENDED
    return progress.status if state.run.alive or ended else "not running"


def when(state: model.State, progress: Progress, now: float) -> list[Part]:
    """When it will be done; of one that is not at work: since when, by whom, or how long it took.
    Empty where nobody can say."""
    last = _here(state, progress.time, now)
    if progress.status == "done":
        at = f" {last}" if last != UNKNOWN else ""
        return [
            ("done", "bold good"),
            (at, "text"),
            (f" in {_took(progress)}", "dim"),
        ]
    if not state.run.alive:
        said = word(state, progress)
        since = [(" since ", "dim"), (last, "text")] if last != UNKNOWN else []
        who = _stopped_by(state)
        by = [(f" by {who}", "dim")] if who and progress.status == "stopped" else []
        took = [(f" after {_took(progress)}", "dim")]
        took = took if progress.elapsed_hours else []
        return [(said, f"bold {STYLE.get(said, 'bad')}"), *since, *by, *took]
    estimate = reckon.eta(state)
    if estimate.hours is None or progress.status in HELD:
        return []
    over = state.target.alerts.eta_hours_over if state.target else None
    tone = "bold bad" if over is not None and estimate.hours > over else "bold strong"
    parts = [("done ", "dim"), (moment(estimate.at, now), tone)]
    if model.stale(state, now):
        return [*parts, (f" as of {moment(model.told_at(state), now)}", "dim")]
    return [
        *parts,
        (_between(estimate, now), "text"),
        (" in ", "dim"),
        (hours(estimate.hours), tone),
    ]


def _took(progress: Progress) -> str:
    """How long it worked: a short one is not ``0.0 h``."""
    worked = progress.elapsed_hours
    return hours(worked) if worked >= 1 else duration(3600 * worked)


def _between(estimate: reckon.Eta, now: float) -> str:
    """`` (15:50–17:10)``: the earliest and the latest end, with their day where it is another one;
    empty where they are the same minute."""
    if estimate.at is None or estimate.hours is None:
        return ""
    if estimate.low is None or estimate.high is None:
        return ""
    ends = [
        estimate.at + (hours - estimate.hours) * 3600 for hours in (estimate.low, estimate.high)
    ]
    days = now if not all(same_day(end, estimate.at) for end in ends) else None
    first, last = (moment(end, end if days is None else days) for end in ends)
    return f" ({first}–{last})" if first != last else ""


def rate(state: model.State, progress: Progress, *, brief: bool = False) -> list[Part]:
    """Prompts a second, now and over all; those of a run that is not alive were another time's."""
    overall = reckon.overall_rate(progress)
    if state.run.alive:
        unit = "/s" if brief else " prompts/s"
        parts = [(number(progress.rate_per_sec, 2), "strong"), (unit, "dim")]
        return parts + ([(f", {number(overall, 2)} overall", "dim")] if overall else [])
    return [(f"{number(overall, 2)}/s", "text"), (" overall", "dim")] if overall else []


def counts(state: model.State, progress: Progress) -> list[tuple[str, int]]:
    """What is neither done nor given up, by name; of a run that is not alive nothing is under
    way."""
    alive = state.run.alive
    found = [
        ("set aside", progress.set_aside),
        ("in flight", progress.in_flight if alive else 0),
        ("wait for a retry", progress.waiting_retry if alive else 0),
        ("suspects", progress.suspects if alive else 0),
        ("on probation", progress.on_probation),
    ]
    return [(name, count) for name, count in found if count or (alive and name == "in flight")]


def why(state: model.State, progress: Progress) -> str:
    """Why a run that nobody stopped is not at work, as far as the events tell."""
    if state.run.alive or progress.status in ("done", "stopped"):
        return ""
    failed = [event.text for event in _of_this_session(state) if event.kind == "run.failed"]
    return failed[-1] if failed else ""


def _stopped_by(state: model.State) -> str:
    """Who asked for its end."""
    asked = [
        event.who
        for event in _of_this_session(state)
        if event.kind == "action" and event.text.startswith(("run drain", "run stop"))
    ]
    return asked[-1] if asked else ""


def _of_this_session(state: model.State) -> list[Event]:
    """Events since the run was started last, as far as they are known here."""
    events = list(state.events)
    for index in range(len(events) - 1, -1, -1):
        if events[index].kind == "action" and events[index].text.startswith("run start"):
            return events[index:]
    return events


def _here(state: model.State, at: float, now: float) -> str:
    """A time of the agent's, on this side's clock."""
    if not at:
        return UNKNOWN
    return moment(at + model.told_at(state) - state.time, now)
