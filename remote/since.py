"""What happened while nobody looked, worst first: one text for the console's panel and the webhook.

Pure. Times are the agent's; ``moment`` and ``span`` put them into words (a laptop's local time is
not the container's). A night may hold hundreds of events: those that are alike are one line, and
:meth:`Account.lines` gives as many lines as one has room for, the rest counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from remote.protocol import Alert, Event, Progress
from remote.seen import Seen

Level: TypeAlias = Literal["error", "warning", "good", "info"]

OWN = ("action",)
"""Kinds of events that tell of what a person did."""

MOST: Final = 14
"""Lines where nobody says how many there is room for."""

LONGEST: Final = 90
"""Characters of a cause."""

S3_GREW: Final = 1_000
"""Records more than then that are not in S3: two batches are always on their way."""

UNWATCHED = "agent.lost"
"""The kind of an event that tells of a time in which nothing was watched."""

_ORDER: dict[Level, int] = {"error": 0, "warning": 1, "good": 2, "info": 3}
_DEADLY = {
    "server.failed": "died",
    "server.stalled": "stalled",
    "server.set_aside": "set aside",
}
_SWAPS = ("swap.done", "swap.failed", "swap.rolled_back")
_WORTH = (UNWATCHED, "gpu.xid", "swap.lost", "swap.fewer_slots", "run.epochs")
"""Kinds of which a warning is told, as an error of any kind is."""

_VARIES = re.compile(r"(GPU \d+)|\d[\w.,%]*(?: (?:h|min|s)\b)?")

_TOPIC = re.compile(r"GPU \d+(?=: \d)|\w+")
"""What an alert is about, of its text: ``GPU 3`` that is hot, ``GPU`` that are not seen, ``disk``,
``S3``, ``ETA``; the text on its end begins alike."""


@dataclass(frozen=True)
class Told:
    """One thing to know; ``about`` names the action of the console that shows or mends it."""

    level: Level
    text: str
    about: str = ""
    gpu: int | None = None
    """The server that it is about, where it is one."""
    time: float = 0.0
    """When it was, the last time; 0 where it is no moment."""
    count: int = 1
    """Events that it stands for."""


@dataclass(frozen=True)
class Words:
    """How times are said."""

    moment: Callable[[float], str]
    """A time of day, with its day where it is not today."""
    span: Callable[[float], str]
    """Seconds, in two units."""


@dataclass(frozen=True)
class Account:
    """All there is to tell."""

    standing: list[Told]
    """On the run itself; always told."""
    sections: dict[str, list[Told]]
    """From the events, by what they are, each with what should be read first in front."""
    uncounted: int = 0
    """Events of that time that were not at hand."""

    def lines(self, most: int = MOST) -> list[Told]:
        """So many lines at most, worst first; what found no room is counted in one of them."""
        room = max(1, most - len(self.standing))
        total = sum(map(len, self.sections.values()))
        if total + bool(self.uncounted) > room:
            room -= 1
        taken = dict.fromkeys(self.sections, 0)
        while room > 0 and any(taken[name] < len(told) for name, told in self.sections.items()):
            for name, told in self.sections.items():  # each in its turn: no flood hides the others
                if room > 0 and taken[name] < len(told):
                    taken[name] += 1
                    room -= 1
        shown = [one for name, told in self.sections.items() for one in told[: taken[name]]]
        found = [*self.standing, *shown]
        found.sort(key=lambda one: _ORDER[one.level])
        if rest := self._rest(taken):
            return [*found, rest]
        first = next((n for n, one in enumerate(found) if one in shown and not one.about), None)
        if first is not None:
            found[first] = replace(found[first], about="events")
        return found

    def _rest(self, taken: dict[str, int]) -> Told | None:
        left = {
            name: sum(one.count for one in told[taken[name] :])
            for name, told in self.sections.items()
        }
        parts = [f"{count:,} {name}" for name, count in left.items() if count]
        if self.uncounted:
            parts.append(f"{self.uncounted:,} earlier events")
        return Told("info", f"and more: {', '.join(parts)}", "events") if parts else None


def account(
    seen: Seen,
    *,
    now: float,
    events: Sequence[Event],
    progress: Progress | None,
    alive: bool,
    eta_at: float | None,
    words: Words,
    alerts: Sequence[Alert] = (),
) -> Account:
    """What one who comes back wants to know; ``events`` are those after ``seen.event``, ``alerts``
    what is wrong now.

    Deaths, alerts and swaps come from the events, progress and drift of rate, ETA, failures and
    uploads from the numbers kept at the last look.
    """
    standing: list[Told] = []
    if progress is not None:
        standing = [
            *_work(seen, progress, now, alive=alive, eta_at=eta_at, words=words),
            *_outcomes(seen, progress),
            *_uploads(seen, progress),
        ]
    sections = {
        "deaths and restarts": [*_deaths(events, words), *_restarts(events, words)],
        "alerts": _alerts(events, alerts, seen, words),
        "other troubles": _others(events, words),
        "swaps": _swaps(events, words),
        "deeds of people": _deeds(events, words),
    }
    gap = events[0].id - seen.event - 1 if events and seen.event else 0
    return Account(standing, sections, max(0, gap))


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"


def _when(times: Sequence[float], words: Words) -> str:
    """``03:12``, or from when to when."""
    first, last = words.moment(min(times)), words.moment(max(times))
    return first if first == last else f"{first} to {last}"


def _like(text: str) -> str:
    """The same for two texts that differ in their numbers only; the GPU's is none of those."""
    return _VARIES.sub(lambda found: found[1] or "#", text)


def _told(level: Level, text: str, same: Sequence[Event]) -> Told:
    """A line on events that are alike."""
    gpus = {e.gpu for e in same}
    return Told(level, text, "", gpus.pop() if len(gpus) == 1 else None, same[-1].time, len(same))


def _worst_first(found: Sequence[Told]) -> list[Told]:
    """And of those as bad the newest."""
    return sorted(found, key=lambda one: (_ORDER[one.level], -one.time))


def _cause(event: Event) -> str:
    return _cut(event.text.removeprefix(f"GPU {event.gpu}: "))


# --- Servers ---


def _deaths(events: Sequence[Event], words: Words) -> list[Told]:
    """One line a way to die: which servers, how often, when, of what, and whether they are back."""
    groups: dict[tuple[str, str], list[Event]] = {}
    ready: dict[int, float] = {}
    for event in events:
        if event.gpu is not None and event.kind == "server.ready":
            ready[event.gpu] = event.time
        elif event.gpu is not None and event.kind in _DEADLY:
            groups.setdefault((event.kind, _like(_cause(event))), []).append(event)
    found: list[Told] = []
    for (kind, _), same in groups.items():
        gpus = Counter(e.gpu for e in same if e.gpu is not None)
        each = ", ".join(f"{g} ×{n}" if n > 1 else str(g) for g, n in sorted(gpus.items()))
        last = {g: max(e.time for e in same if e.gpu == g) for g in gpus}
        away = [g for g in sorted(gpus) if ready.get(g, 0.0) <= last[g]]
        if not away:
            now = f"ready again {words.moment(max(ready[g] for g in gpus))}"
        elif len(away) == len(gpus):
            now = "not ready since"
        else:
            now = f"GPU {', '.join(map(str, away))} not ready since"
        when = _when([e.time for e in same], words)
        text = f"GPU {each} {_DEADLY[kind]} {when}: {_cause(same[-1])}; {now}"
        found.append(_told("error", text, same))
    return sorted(found, key=lambda one: -one.time)


def _restarts(events: Sequence[Event], words: Words) -> list[Told]:
    same = [e for e in events if e.kind == "server.restart"]
    if not same:
        return []
    when = _when([e.time for e in same], words)
    text = f"the agent started servers again by itself {len(same)}×, {when}"
    return [_told("warning", text, same)]


# --- Alerts and other troubles ---


@dataclass
class _Spells:
    """The times that one thing was wrong."""

    text: str = ""
    level: Level = "warning"
    began: list[float] = field(default_factory=list)
    over: float | None = None
    gpu: int | None = None


def _ended(text: str, spells: dict[str, _Spells]) -> _Spells:
    """The one that a text says is over: it may tell how things are now, in other words."""
    was = text.removeprefix("over: ")
    if (one := spells.get(_like(was))) is not None:
        return one
    topic = _TOPIC.match(was)
    for one in reversed(spells.values()):
        found = _TOPIC.match(one.text)
        if one.over is None and topic and found and found[0] == topic[0]:
            return one
    return spells.setdefault(_like(was), _Spells(was))


def _alerts(
    events: Sequence[Event], standing: Sequence[Alert], seen: Seen, words: Words
) -> list[Told]:
    """Each thing that was wrong: how often, when, and whether it is over."""
    spells: dict[str, _Spells] = {}
    for event in events:
        if event.kind == "alert":
            one = spells.setdefault(_like(event.text), _Spells())
            one.text, one.over = event.text, None
            one.level = "error" if event.level == "error" else "warning"
            one.began.append(event.time)
            one.gpu = event.gpu
        elif event.kind == "alert.over":
            one = _ended(event.text, spells)
            one.over = event.time
    now: dict[str, Alert] = {}
    for alert in standing:
        key = _like(alert.text)
        now[key] = alert
        if alert.since < seen.time and key not in spells and not alert.code.startswith("server."):
            spells[key] = _Spells(alert.text, alert.level, [alert.since])
    found: list[Told] = []
    for key, one in spells.items():
        level: Level = one.level
        if key in now:
            state, level = "still so", now[key].level
        else:  # how it reads may have changed since: then it is over too, at a time not known
            state = "over" if one.over is None else f"over {words.moment(one.over)}"
            level = "warning" if one.level == "error" else "info"
        count = len(one.began)
        when = _when(one.began, words) if one.began else "from before"
        times = f"{count}×, " if count > 1 else ""
        text = f"{times}{when} {_cut(one.text)}: {state}"
        newest = max([*one.began, one.over or 0.0])
        found.append(Told(level, text, "", one.gpu, newest, max(1, count)))
    return _worst_first(found)


def _others(events: Sequence[Event], words: Words) -> list[Told]:
    """Errors of all other kinds, those that are alike in one line."""
    told = {"alert", "alert.over", *_DEADLY, *_SWAPS}
    groups: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        worth = event.level == "warning" and event.kind in _WORTH
        if event.kind not in told and (event.level == "error" or worth):
            groups.setdefault((event.kind, _like(event.text)), []).append(event)
    found = []
    for same in groups.values():
        last = same[-1]
        times = f"{len(same)}×, " if len(same) > 1 else ""
        level: Level = "error" if last.level == "error" else "warning"
        text = f"{times}{_when([e.time for e in same], words)} {_cut(last.text)}"
        found.append(_told(level, text, same))
    return _worst_first(found)


def _swaps(events: Sequence[Event], words: Words) -> list[Told]:
    found = [e for e in reversed(events) if e.kind in _SWAPS]
    return [
        Told(
            "good" if e.kind == "swap.done" else "error",
            f"{words.moment(e.time)} swap: {_cut(e.text)}",
            "config" if e is found[0] else "",
            time=e.time,
        )
        for e in found
    ]


def _deeds(events: Sequence[Event], words: Words) -> list[Told]:
    acts = [e for e in reversed(events) if e.kind in OWN and e.who]
    return [
        Told("info", f"{words.moment(e.time)} {e.who}: {_cut(e.text)}", time=e.time) for e in acts
    ]


# --- The run ---


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
        text += f" (it was {seen.rate:,.2f}/s"
        text += f", is {progress.rate_per_sec:,.2f}/s)" if alive else ")"
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


def _outcomes(seen: Seen, progress: Progress) -> list[Told]:
    """Prompts that did not end well since then, and tries that had to be made again."""
    parts = [
        f"{now - then:,} {what}"
        for now, then, what in (
            (progress.failed, seen.failed, "given up"),
            (progress.set_aside, seen.set_aside, "set aside"),
        )
        if then is not None and now > then
    ]
    level: Level = "warning" if parts else "info"
    if seen.retries is not None:
        # Another process of the run counts from 0.
        then = Counter(seen.retries if seen.pid == progress.pid else {})
        again = Counter(progress.retries) - then
        if again:
            causes = [f"{cause} {count:,}" for cause, count in again.most_common(3)]
            more = ", …" if len(again) > 3 else ""
            parts.append(f"{again.total():,} tries again ({', '.join(causes)}{more})")
    return [Told(level, f"prompts: {', '.join(parts)}", "run" if level == "warning" else "")][
        : bool(parts)
    ]


def _uploads(seen: Seen, progress: Progress) -> list[Told]:
    """Whether the bucket falls behind."""
    left, then = progress.not_in_s3, seen.not_in_s3
    done = progress.status == "done" and left > 0
    grew = then is not None and left - then > S3_GREW
    if not (done or grew or progress.s3_error):
        return []
    text = f"S3: {left:,} records not uploaded"
    if then is not None:
        text += f" ({then:,} then)"
    if progress.s3_error:
        text += f": {_cut(progress.s3_error)}"
    return [Told("error" if done else "warning", text, "run")]
