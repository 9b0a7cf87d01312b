"""What happened while nobody looked, worst first: one text for the console's panel and the webhook.

Pure. Times are the agent's; ``moment`` and ``span`` put them into words (a laptop's local time is
not the container's).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from remote.protocol import Event, Progress

Level: TypeAlias = Literal["error", "warning", "good", "info"]

OWN = ("action",)
"""Kinds of events that tell of what a person did."""

UNWATCHED = "agent.lost"
"""The kind of an event that tells of a time in which nothing was watched."""

_ORDER: dict[Level, int] = {"error": 0, "warning": 1, "good": 2, "info": 3}
_DEADLY = ("server.failed", "server.stalled")
_SWAPS = ("swap.done", "swap.failed", "swap.rolled_back")


class Seen(msgspec.Struct, frozen=True):
    """Where things stood when somebody last looked (the agent's clock)."""

    time: float = 0.0
    event: int = 0
    completed: int = 0
    rate: float = 0.0
    eta_at: float | None = None


@dataclass(frozen=True)
class Told:
    """One thing to know; ``about`` names the action of the console that shows or mends it."""

    level: Level
    text: str
    about: str = ""
    gpu: int | None = None
    """The server that it is about, where it is one."""
    time: float = 0.0
    """When it was; 0 where it is no moment."""


@dataclass(frozen=True)
class Words:
    """How times are said."""

    moment: Callable[[float], str]
    """A time of day, with its day where it is not today."""
    span: Callable[[float], str]
    """Seconds, in two units."""


def account(
    seen: Seen,
    *,
    now: float,
    events: Sequence[Event],
    progress: Progress | None,
    alive: bool,
    eta_at: float | None,
    words: Words,
) -> list[Told]:
    """What one who comes back wants to know; ``events`` are those after ``seen.event``.

    Deaths, alerts and swaps come from the events, progress and drift of the ETA from the numbers
    kept at the last look.
    """
    lines = [*_deaths(events), *_alerts(events, words), *_deeds(events, words)]
    if progress is not None:
        lines += _work(seen, progress, now, alive=alive, eta_at=eta_at, words=words)
    return sorted(lines, key=lambda line: _ORDER[line.level])


def _deaths(events: Sequence[Event]) -> list[Told]:
    found: list[Told] = []
    for kind, what, counted in (
        ("server.failed", "server deaths", True),
        ("server.stalled", "stalls", False),
    ):
        gpus = Counter(e.gpu for e in events if e.kind == kind and e.gpu is not None)
        if gpus:
            each = ", ".join(
                f"GPU {gpu}" + (f" ×{n}" if counted and n > 1 else "") for gpu, n in gpus.items()
            )
            last = max(e.time for e in events if e.kind == kind and e.gpu is not None)
            only = next(iter(gpus)) if len(gpus) == 1 else None
            found.append(Told("error", f"{gpus.total()} {what}: {each}", "events", only, last))
    restarts = sum(e.kind == "server.restart" for e in events)
    if restarts:
        found.append(Told("warning", f"{restarts} restarts by the agent itself", "events"))
    return found


def _alerts(events: Sequence[Event], words: Words) -> list[Told]:
    alerts = list(dict.fromkeys(e.text for e in events if e.kind == "alert"))
    others = [
        e for e in events if e.level == "error" and e.kind not in _DEADLY and e.text not in alerts
    ]
    found = [Told("warning", text, "events") for text in alerts[-4:]]
    if len(alerts) > 4:
        found.append(Told("warning", f"and {len(alerts) - 4} more alerts", "events"))
    lost = [e for e in events if e.kind == UNWATCHED]
    found += [Told("warning", f"{words.moment(e.time)} {e.text}", "events") for e in lost[-3:]]
    return found + [
        Told("error", f"{words.moment(e.time)} {e.text}", "events", e.gpu, e.time)
        for e in others[-3:]
    ]


def _deeds(events: Sequence[Event], words: Words) -> list[Told]:
    found: list[Told] = []
    for event in events:
        if event.kind in _SWAPS:
            level: Level = "good" if event.kind == "swap.done" else "error"
            text = f"{words.moment(event.time)} swap: {event.text}"
            found.append(Told(level, text, "config"))
    acts = [e for e in events if e.kind in OWN and e.who]
    return found + [Told("info", f"{words.moment(e.time)} {e.who}: {e.text}") for e in acts[-5:]]


def _work(
    seen: Seen,
    progress: Progress,
    now: float,
    *,
    alive: bool,
    eta_at: float | None,
    words: Words,
) -> list[Told]:
    done, away = progress.completed - seen.completed, now - seen.time
    rate = done / away if away > 0 else 0.0
    text = f"{done:,} prompts were done, {rate:,.2f}/s"
    if seen.rate > 0:
        text += f" (it was {seen.rate:,.2f}/s)"
    slow = seen.rate > 0 and rate < 0.8 * seen.rate and progress.status != "done"
    found = [Told("warning" if slow else "good", text, "run")]
    if seen.eta_at is not None and eta_at is not None:
        drift = eta_at - seen.eta_at
        if abs(drift) > max(600.0, 0.05 * max(0.0, eta_at - now)):
            later = "later" if drift > 0 else "earlier"
            text = (
                f"done {words.moment(eta_at)}, {words.span(abs(drift))} {later} than it looked then"
            )
            found.append(Told("warning" if drift > 0 else "good", text))
    if progress.status == "done":
        found.append(Told("good", "the run is done"))
    elif not alive:
        found.append(Told("error", "no run is generating", "run.go"))
    return found
