"""What happened on a target since its console was last open: one panel, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from console import model
from console.model import State
from console.notices import Notice
from console.prefs import Seen
from console.text import duration, moment, number
from remote.protocol import Event

LEAST_S = 120.0
"""A shorter absence is not worth a panel."""

OWN = ("action",)
"""Kinds of events that tell of what a person did."""


def worth_telling(seen: Seen | None, state: State) -> bool:
    """Whether there is a last time, and it is long enough ago."""
    return seen is not None and seen.time > 0 and state.time - seen.time >= LEAST_S


def account(seen: Seen, state: State, events: Sequence[Event]) -> list[Notice]:
    """What a person who comes back wants to know; ``events`` are those after ``seen.event``.

    Times are the agent's. Deaths, alerts and swaps come from the events, progress and drift of
    the ETA from the numbers kept at the last look.
    """
    now = state.time
    away = now - seen.time
    lines: list[Notice] = []
    deaths = Counter(e.gpu for e in events if e.kind == "server.failed" and e.gpu is not None)
    if deaths:
        each = ", ".join(f"GPU {gpu}" + (f" ×{n}" if n > 1 else "") for gpu, n in deaths.items())
        lines.append(Notice("error", f"{sum(deaths.values())} server deaths: {each}", "events"))
    stalls = Counter(e.gpu for e in events if e.kind == "server.stalled" and e.gpu is not None)
    if stalls:
        each = ", ".join(f"GPU {gpu}" for gpu in stalls)
        lines.append(Notice("error", f"{sum(stalls.values())} stalls: {each}", "events"))
    deadly = ("server.failed", "server.stalled")
    alerts = list(dict.fromkeys(e.text for e in events if e.kind.startswith("alert")))
    others = [
        e for e in events if e.level == "error" and e.kind not in deadly and e.text not in alerts
    ]
    lines += [Notice("warning", text, "events") for text in alerts[-4:]]
    if len(alerts) > 4:
        lines.append(Notice("warning", f"and {len(alerts) - 4} more alerts", "events"))
    lines += [Notice("error", f"{moment(e.time, now)} {e.text}", "events") for e in others[-3:]]
    restarts = sum(e.kind == "server.restart" for e in events)
    if restarts:
        lines.append(Notice("warning", f"{restarts} restarts by the agent itself", "events"))
    for event in events:
        if event.kind in ("swap.done", "swap.failed", "swap.rolled_back"):
            good = event.kind == "swap.done"
            text = f"{moment(event.time, now)} swap: {event.text}"
            lines.append(Notice("good" if good else "error", text, "config"))
    acts = [e for e in events if e.kind in OWN and e.who]
    lines += [Notice("info", f"{moment(e.time, now)} {e.who}: {e.text}") for e in acts[-5:]]

    progress = state.progress
    if progress is not None:
        done = progress.completed - seen.completed
        rate = done / away if away > 0 else 0.0
        text = f"{number(done)} prompts were done, {number(rate, 2)}/s"
        if seen.rate > 0:
            text += f" (it was {number(seen.rate, 2)}/s)"
        slow = seen.rate > 0 and rate < 0.8 * seen.rate and progress.status != "done"
        lines.append(Notice("warning" if slow else "good", text, "run"))
        at = model.eta(state, now).at
        if seen.eta_at is not None and at is not None:
            drift = at - seen.eta_at
            if abs(drift) > max(600.0, 0.05 * max(0.0, at - now)):
                later = "later" if drift > 0 else "earlier"
                text = f"done {moment(at, now)}, {duration(abs(drift))} {later} than it looked then"
                lines.append(Notice("warning" if drift > 0 else "good", text))
        if progress.status == "done":
            lines.append(Notice("good", "the run is done"))
        elif not state.run.alive:
            lines.append(Notice("error", "no run is generating", "run.go"))
    order = {"error": 0, "warning": 1, "good": 2, "info": 3}
    return sorted(lines, key=lambda n: order[n.level])


def seen_now(state: State) -> Seen:
    """Where things stand, to be told from at the next look."""
    progress = state.progress
    return Seen(
        state.time,
        state.events[-1].id if state.events else 0,
        progress.completed if progress else 0,
        progress.rate_per_sec if progress else 0.0,
        model.eta(state, state.time).at,
    )


def title(seen: Seen, state: State) -> str:
    """``You were away 7h12m, since 23:10``."""
    return (
        f"You were away {duration(state.time - seen.time)}, since {moment(seen.time, state.time)}"
    )
