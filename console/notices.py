"""What is wrong now and what is worth knowing, in sentences, each with the action that helps.

Pure functions of a :class:`console.model.State`, as everything there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from console import mixed
from console.model import ON, State, age, told_at, told_now
from console.ram import full_in
from console.reckon import at_once_cost, outliers, silent, waits
from console.text import duration, moment, size
from remote.protocol import Flags, Verdict

Level: TypeAlias = Literal["good", "info", "warning", "error"]


@dataclass(frozen=True)
class Notice:
    """One thing to know now; ``action`` names the action of the registry that helps."""

    level: Level
    text: str
    action: str = ""
    gpu: int | None = None
    code: str = ""
    since: float = 0.0
    """Since when it is so, on the agent's clock; 0 where nobody knows."""


SILENT_S: Final = 15.0
"""Seconds without a sign of life from a server that are worth a line."""

OFTEN: Final = 3
"""Deaths of a server within an hour that are worth a line, though it is up again."""

AWAY_S: Final = 60.0
"""A phase of a start that takes longer, and twice what it took last time, is worth a line."""

_WEIGHT: Final[dict[Level, int]] = {"error": 0, "warning": 1, "info": 2, "good": 3}


def notices(state: State, now: float) -> list[Notice]:
    """What is wrong, worst first, then what is worth knowing; empty where nothing stands out."""
    found = _link(state, now)
    looks = _only_looks(state)
    if state.received is None:
        if not (found or looks):  # nothing is known, which does not mean that nothing is wrong
            link = state.link
            doing = link.text if link.state == "connecting" and link.text else link.state
            found.append(Notice("info", f"{doing} …", "", None, "link"))
        return found + looks
    found += _down(state, now, "failed", "it ended without a word", "up")
    found += _down(state, now, "stalled", "no token is produced", "restart")
    found += _dying(state, now)
    found += _silent(state, now)
    found += _away(state, now)
    found += _alerts(state, " ".join(n.text for n in found))
    found += _run(state, " ".join(n.text for n in found), now)
    found += _mixed(state)
    found += _memory(state)
    found += _odd_ones(state)
    found += _verdict(state, [n.code for n in found], now)
    if line := waits(_standing(state), told_now(state, now)):
        found.append(Notice("info", line, "", None, "verdict.waits"))
    progress = state.progress
    if progress is not None and progress.status == "done":
        found.append(Notice("good", f"Done: {progress.completed:,} completions", "", None, "done"))
    return sorted(found, key=lambda n: _WEIGHT[n.level]) + looks


def _link(state: State, now: float) -> list[Notice]:
    link = state.link
    if link.state in ("failed", "reconnecting", "closed"):
        old = age(state, now)
        shown = "" if old is None else f"; what is shown is {duration(old)} old"
        helps = "deploy" if "deploy" in link.text else "link.retry"
        return [Notice("error", f"{link.text or link.state}{shown}", helps, None, "link")]
    return []


def _only_looks(state: State) -> list[Notice]:
    """That nothing can be changed, and why: never before what is wrong."""
    link = state.link
    if link.state != "read-only":
        return []
    text = link.text or "this console may only look"
    if "deploy" in text:  # nobody chose that, and a key mends it
        return [Notice("warning", text, "deploy", None, "link")]
    return [Notice("info", text, "", None, "link")]


def _alerts(state: State, shown: str) -> list[Notice]:
    """What the agent says is wrong, where ``shown`` does not say it already; to the ETA belongs
    what mends it."""
    covered = ("server.failed.", "server.stalled.", "run.problem")
    verdict = _standing(state)
    change = _better(verdict)
    slow = _helps_against(verdict) if verdict is not None else ""
    if at_once_cost(state, state.run.concurrency):
        slow, change = "run.concurrency", ""
    return [
        Notice(
            alert.level,
            f"{alert.text}. {change}" if change and alert.code == "eta" else alert.text,
            slow or "restart" if alert.code == "eta" else _mends(state, alert.code),
            _gpu_of(alert.code),
            alert.code,
            alert.since,
        )
        for alert in state.alerts
        if alert.text and alert.text not in shown and not alert.code.startswith(covered)
    ]


def _mends(state: State, code: str) -> str:
    """The action against an alert; none where the agent is about to do it by itself."""
    due = code == "run.failed" and state.run.again_at is not None
    return "" if due else _HELPS.get(code, "")


def _gpu_of(code: str) -> int | None:
    """``hot.3`` is of GPU 3."""
    number = code.rpartition(".")[2]
    return int(number) if number.isdigit() else None


def _run(state: State, shown: str, now: float) -> list[Notice]:
    found: list[Notice] = []
    progress = state.progress
    if progress is not None and progress.problem and progress.problem not in shown:
        found.append(Notice("error", progress.problem, "", None, "run.problem"))
    if state.run.alive and progress is not None and progress.status == "paused":
        found.append(Notice("warning", "The run is paused", "run.go", None, "run.paused"))
    elif state.run.alive and (cost := at_once_cost(state, state.run.concurrency)):
        text = f"The run is held at {state.run.concurrency} requests at once on each server: {cost}"
        found.append(Notice("warning", text, "run.concurrency", None, "run.at_once"))
    # A recording has gaps, in which nobody knows whether servers were up and the run alive.
    replay = state.link.state == "replay"
    up = sum(s.state in ON for s in state.servers.values())
    if not up and (state.servers if replay else state.numbers):
        found.append(Notice("warning", "No server is up", "up", None, "fleet.down"))
    elif not state.run.alive and not state.run.foreign and not (replay and progress is None):
        ended = "" if state.run.exit in (None, 0, 130) else f" (it ended with {state.run.exit})"
        text, helps = f"No run is generating{ended}", "run.go"
        if state.run.again_at is not None:
            due = max(1.0, state.run.again_at - told_now(state, now))
            text, helps = f"{text}: started again in {duration(due)}", ""
        none = Notice("warning", text, helps, None, "run.none")
        found += [none] if progress is None or progress.status != "done" else []
    return found


def _mixed(state: State) -> list[Notice]:
    """Servers that run different flags though no swap is under way."""
    found = mixed.parts(state)
    return [Notice("warning", mixed.told(found), "restart", None, "fleet.mixed")] if found else []


def _memory(state: State) -> list[Notice]:
    host = state.host
    soon = full_in(state.ram, host.memory_total)
    if soon is None or not host.memory_used:
        return []
    lasts, grows = soon
    text = (
        f"RAM runs out in {duration(lasts)}: {size(host.memory_used)} of "
        f"{size(host.memory_total)} in use, {size(grows * 3600)} more each hour"
    )
    return [Notice("warning", text, "", None, "ram")]


def _odd_ones(state: State) -> list[Notice]:
    hot = {int(a.code[4:]) for a in state.alerts if a.code[:4] == "hot." and a.code[4:].isdigit()}
    odd_ones = [o for o in outliers(state) if o.metric != "temperature_c" or o.gpu not in hot]
    return [
        Notice("warning", odd.text, "logs", odd.gpu, f"outlier.{odd.metric}")
        for odd in odd_ones[:3]
    ]


def _standing(state: State) -> Verdict | None:
    """The verdict, where it is one on what is at work now."""
    verdict, progress = state.verdict, state.progress
    working = state.run.alive and progress is not None and progress.status == "running"
    at_work = working or state.run.foreign or state.link.state == "replay"
    if verdict is None or not at_work:
        return None
    outdated = bool(state.epochs) and verdict.time < state.epochs[-1].since
    return None if outdated else verdict


def proposed(state: State) -> Flags:
    """The change of flags that would help what is at work now; False takes one out."""
    verdict = _standing(state)
    return verdict.remedy_flags if verdict is not None and verdict.good is not True else {}


def _better(verdict: Verdict | None) -> str:
    """What to do about it."""
    return f"Better: {verdict.remedy}" if verdict is not None and verdict.remedy else ""


def _verdict(state: State, codes: list[str], now: float) -> list[Notice]:
    """What the first minute came to; what would mend it stands with the alert of the ETA, where
    that is among ``codes``."""
    verdict = _standing(state)
    if verdict is None or not (verdict.text or verdict.bound_by):
        return []
    level: Level = "good" if verdict.good else "info" if verdict.good is None else "warning"
    parts = [verdict.text.rstrip(". ")] if verdict.text else []
    if verdict.bound_by and verdict.bound_by.casefold() not in verdict.text.casefold():
        parts.append(f"Held back by {verdict.bound_by}")
    helps = "" if verdict.good is True else _helps_against(verdict)
    if "eta" in codes and helps == "restart":
        helps = ""
    elif change := _better(verdict):
        parts.append(change)
    text = ". ".join(parts) if len(parts) > 1 else verdict.text or parts[0]
    text = f"{_when(verdict, state, now)}: {text}"
    return [Notice(level, text, helps, None, "verdict", verdict.time)]


def _when(verdict: Verdict, state: State, now: float) -> str:
    """``at 02:57, after the restart``: it is of then, whatever has come since."""
    at = moment(verdict.time + told_at(state) - state.time, now)
    after = _AFTER.get(verdict.after, verdict.after)
    return f"at {at}, after {after}" if after else f"at {at}"


_AFTER: Final[Mapping[str, str]] = {
    "start": "the start",
    "resume": "it was resumed",
    "swap": "the restart",
}
"""What a verdict follows, in words."""


def _helps_against(verdict: Verdict) -> str:
    """Flags help where a server is full; where too little is sent to it, sending more does."""
    if verdict.bound_by.startswith("requests:"):
        return "run.concurrency"
    return "restart" if verdict.remedy else ""


def _down(state: State, now: float, status: str, unsaid: str, action: str) -> list[Notice]:
    """Servers in a bad state, one notice a cause: eight with the same one are one thing to read."""
    causes: dict[str, list[int]] = {}
    by_flags: set[str] = set()
    by_itself: set[str] = set()
    now = told_now(state, now)
    for gpu, server in sorted(state.servers.items()):
        if server.state == status:
            left = " and is not started again by itself" if server.given_up else ""
            told = f"{status}{left}: {server.cause or unsaid}"
            if status == "failed" and server.restart_at is not None:
                told += f"; restarted in {duration(max(1.0, server.restart_at - now))}"
                by_itself.add(told)
            causes.setdefault(told, []).append(gpu)
            if server.mended_by == "flags":
                by_flags.add(told)
    since = {alert.code: alert.since for alert in state.alerts}
    return [
        Notice(
            "error",
            f"GPU {', '.join(map(str, gpus))} {cause}",
            "" if cause in by_itself else "restart" if cause in by_flags else action,
            gpus[0] if len(gpus) == 1 else None,
            f"server.{status}",
            min(since.get(f"server.{status}.{gpu}", 0.0) for gpu in gpus),
        )
        for cause, gpus in causes.items()
    ]


def _dying(state: State, now: float) -> list[Notice]:
    """Servers that come back each time and die again: the cards look well in between."""
    told = [s for _, s in sorted(state.servers.items()) if s.died_lately >= OFTEN]
    skew = told_at(state) - state.time
    return [
        Notice(
            "warning",
            f"GPU {s.gpu} died {s.died_lately} times in the last hour, last at "
            f"{moment((s.died_at or state.time) + skew, now)}: {s.died_of}",
            "logs",
            s.gpu,
            "server.dies",
            s.died_at or 0.0,
        )
        for s in told
        if not s.given_up
    ]


def _silent(state: State, now: float) -> list[Notice]:
    """Servers that give no sign of life for long enough to be worth a line."""
    now = told_now(state, now)
    mute = [
        (gpu, server.silent_since, server.restart_at)
        for gpu, server in sorted(state.servers.items())
        if server.silent_since is not None and silent(server)
        if now - server.silent_since >= SILENT_S
    ]
    if not mute:
        return []
    since = min(since for _, since, _ in mute)
    gives = "gives" if len(mute) == 1 else "give"
    text = (
        f"GPU {', '.join(str(gpu) for gpu, _, _ in mute)} {gives} no sign of life for "
        f"{duration(now - since)}"
    )
    ends = [at - began for _, began, at in mute if at is not None]
    if ends:
        they = "it is" if len(mute) == 1 else "they are"
        text += f"; {they} restarted after {duration(max(ends))} of it"
    gpu = mute[0][0] if len(mute) == 1 else None
    return [Notice("warning", text, "logs", gpu, "server.silent", since)]


def _away(state: State, now: float) -> list[Notice]:
    """Servers that have been coming up for long while the others work: part of the fleet is out."""
    now = told_now(state, now)
    swapping = state.swap is not None and state.swap.state == "doing"
    if swapping or not any(s.state == "ready" for s in state.servers.values()):
        return []
    late = [
        (gpu, server)
        for gpu, server in sorted(state.servers.items())
        if server.state in ("starting", "warming")
        and server.phase_since is not None
        and now - server.phase_since > max(AWAY_S, 2 * (server.phase_usual_s or 0.0))
    ]
    if not late:
        return []
    longest = max(now - (server.phase_since or now) for _, server in late)
    phases = ", ".join(sorted({server.phase or server.state for _, server in late}))
    text = (
        f"{len(late)} of {len(state.numbers)} servers give nothing: GPU "
        f"{', '.join(str(gpu) for gpu, _ in late)} {phases} for {duration(longest)}"
    )
    gpu = late[0][0] if len(late) == 1 else None
    return [Notice("warning", text, "logs", gpu, "fleet.away", now - longest)]


_HELPS: Final[Mapping[str, str]] = {
    "run.failed": "run.go",
    "gpu.missing": "events",
    "s3": "run",
}
