"""What was wrong at some time of a recording, from the events that were told up to then.

The journal keeps no alerts and of the verdicts only the last; but each is told as an event when it
comes, and alerts again when they are over. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from remote.protocol import Alert, Event, ServerStatus, Verdict

_CODES: Final = (
    (re.compile(r"ETA "), "eta"),
    (re.compile(r"S3: "), "s3"),
    (re.compile(r"disk: "), "disk"),
    (re.compile(r"GPU (\d+): \d+ °C"), "hot"),
    (re.compile(r"GPU.*: (?:not|all are) seen by the driver"), "gpu.missing"),
    (re.compile(r"the run ended "), "run.failed"),
)
"""How the texts of alerts begin, whose numbers change while they last."""

_DOWN: Final[dict[str, ServerStatus]] = {"server.failed": "failed", "server.stalled": "stalled"}
_MENDED: Final = frozenset({"server.ready", "server.starting", "server.stopped", "server.foreign"})
_RUNS: Final = frozenset({"run.started", "run.done", "run.ended"})


@dataclass(frozen=True)
class Told:
    """What stood at one moment."""

    alerts: tuple[Alert, ...] = ()
    down: dict[int, tuple[ServerStatus, str]] = field(default_factory=dict)
    """Servers that had failed or stalled, with the cause."""
    verdict: Verdict | None = None


class Hindsight:
    """Of the events of a recording, in the order of their times, what stood after each."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._times: list[float] = []
        self._told: list[Told] = [Told()]
        for event in events:
            before = self._told[-1]
            after = _after(before, event)
            if after is not before:
                self._times.append(event.time)
                self._told.append(after)

        first: dict[int, Event] = {}
        for event in events:
            if event.gpu is not None and event.kind.startswith("server."):
                first.setdefault(event.gpu, event)
        self._started = {g: e.time for g, e in first.items() if e.kind == "server.starting"}
        """When those servers were started first that were not up before this journal began."""

    def at(self, now: float) -> Told:
        """What stood then."""
        return self._told[bisect_right(self._times, now)]

    def unborn(self, gpu: int, now: float) -> bool:
        """Whether the server had not been started yet: samples of a minute are averages, and tell
        of it a little before its time."""
        return now < self._started.get(gpu, now)


def _after(told: Told, event: Event) -> Told:
    alerts, down, verdict = told.alerts, told.down, told.verdict
    match event.kind:
        case "agent.started":  # whatever is still wrong is told by this one anew
            alerts = ()
        case "alert" | "run.failed":
            code = _code(event.text)
            level: Literal["warning", "error"] = "warning" if event.level == "warning" else "error"
            alerts = (*_without(alerts, code), Alert(code, event.text, event.time, level))
        case "alert.over":
            alerts = _without(alerts, _code(event.text.removeprefix("over: ")))
        case "verdict":
            verdict = _verdict(event)
        case kind if kind in _RUNS:
            alerts = _without(alerts, "run.failed")
        case kind if kind in _DOWN and event.gpu is not None:
            cause = event.text.removeprefix(f"GPU {event.gpu}: ")
            down = {**down, event.gpu: (_DOWN[kind], cause)}
        case kind if kind in _MENDED and event.gpu in down:
            down = {gpu: why for gpu, why in down.items() if gpu != event.gpu}
        case _:
            return told
    return Told(alerts, down, verdict)


def _code(text: str) -> str:
    """What an alert is about; one of unknown kind is about its own text."""
    for pattern, code in _CODES:
        if found := pattern.match(text):
            return ".".join([code, *found.groups()])
    return text


def _without(alerts: tuple[Alert, ...], code: str) -> tuple[Alert, ...]:
    return tuple(alert for alert in alerts if alert.code != code)


def _verdict(event: Event) -> Verdict:
    """As far as its text tells it: ``after the start: 1.9/s, …; held by Mamba state pool: …``."""
    text = event.text.partition(": ")[2] if event.text.startswith("after ") else event.text
    compared = "×" in text or "as fast as" in text
    good = False if event.level == "warning" else True if compared else None
    after = event.text.partition(": ")[0].removeprefix("after ") if text != event.text else ""
    bound_by = text.partition("held by ")[2]
    return Verdict(event.time, text, good, after=after, bound_by=bound_by)
