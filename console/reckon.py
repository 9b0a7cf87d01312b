"""What the numbers of a state come to: sums, who stands apart, when it is done, what a step costs.

Pure functions of a :class:`console.model.State`, as everything there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from console.model import ON, State, told_at, touched
from console.text import number, percent, visible
from remote.protocol import Progress, ServerState, Verdict

WARM_S: Final = 30.0
"""A server that serves for less has not filled its slots yet: its throughput says nothing."""

FEW: Final = 0.9
MANY: Final = 4.0
"""Requests at once, as shares of a server's slots: below and above, they are worth a question."""


def silent(server: ServerState) -> bool:
    """Whether a server that is held to be up gives no sign of life."""
    return server.silent_since is not None and server.state in ("ready", "draining", "foreign")


@dataclass(frozen=True)
class Fleet:
    """Sums over the servers; None where no server told a value."""

    servers: int
    ready: int
    running: int
    max_running: int
    gen_tok_s: float | None
    power_w: float | None


def fleet(state: State) -> Fleet:
    """Totals of the fleet; throughput is that of ready servers, power that of all cards."""
    servers = list(state.servers.values())
    speeds = [s.gen_tok_s for s in servers if s.state == "ready" and s.gen_tok_s is not None]
    powers = [g.power_w for g in state.gpus.values() if g.power_w is not None]
    return Fleet(
        servers=len(state.numbers),
        ready=sum(s.state == "ready" and not silent(s) for s in servers),
        running=sum(s.running or 0 for s in servers),
        max_running=sum(
            info.max_running or 0
            for gpu, info in state.infos.items()
            if (server := state.servers.get(gpu)) is not None and server.state in ON
        ),
        gen_tok_s=sum(speeds) if speeds else None,
        power_w=sum(powers) if powers else None,
    )


@dataclass(frozen=True)
class Outlier:
    """A GPU whose number stands apart from the others'."""

    gpu: int
    metric: str
    value: float
    middle: float
    text: str


def outliers(state: State) -> list[Outlier]:
    """The odd ones out among ready servers, worst first; empty when all is well.

    A server counts as slow below 3/4 of the median throughput of at least three that run the same
    flags with the same slots, a card as hot from 85 °C or 12 K above the median. Servers that a
    swap under way has begun with, or that came back just now, are still gathering speed; one that
    is kept for a suspect is meant to do little; and where there is not enough to send to all of
    them, how much each one has left is chance.
    """
    found: list[Outlier] = []
    swap = state.swap
    gathering = set(touched(swap)) if swap is not None and swap.state == "doing" else set()
    if _slots_run_empty(state):
        gathering |= set(state.servers)
    alike: dict[tuple[int | None, int | None], dict[int, float]] = {}
    for server in state.servers.values():
        if server.gpu in gathering or server.dispatch == "pause" or server.alone or silent(server):
            continue
        if server.steady_since is not None and state.time - server.steady_since < WARM_S:
            continue
        if server.state == "ready" and server.gen_tok_s is not None:
            info = state.infos.get(server.gpu)
            kind = (info.epoch, info.max_running) if info is not None else (None, None)
            alike.setdefault(kind, {})[server.gpu] = server.gen_tok_s
    for speeds in alike.values():
        if len(speeds) < 3 or (middle := median(speeds.values())) <= 20:
            continue
        found += [
            Outlier(
                gpu,
                "gen_tok_s",
                speed,
                middle,
                f"GPU {gpu} is {percent(1 - speed / middle)} slower than the others "
                f"({number(speed)} against {number(middle)} tok/s)",
            )
            for gpu, speed in speeds.items()
            if speed < 0.75 * middle
        ]
    heats = {g.gpu: g.temperature_c for g in state.gpus.values() if g.temperature_c is not None}
    if heats:
        middle = median(heats.values())
        found += [
            Outlier(
                gpu,
                "temperature_c",
                heat,
                middle,
                f"GPU {gpu} is at {heat:.0f} °C"
                + (f", the others at {middle:.0f} °C" if len(heats) > 2 else ""),
            )
            for gpu, heat in heats.items()
            if heat >= 85 or (len(heats) > 2 and heat > middle + 12)
        ]
    return sorted(found, key=lambda o: o.value / o.middle if o.metric == "gen_tok_s" else 1.0)


def _slots_run_empty(state: State) -> bool:
    """Whether the run does not fill the servers' slots: it pauses, leaves, or is near its end."""
    progress = state.progress
    if progress is None or not state.run.alive:
        return False
    if progress.status != "running":
        return True
    ready = [gpu for gpu, server in state.servers.items() if server.state == "ready"]
    slots = sum(state.infos[gpu].max_running or 0 for gpu in ready if gpu in state.infos)
    return progress.total > 0 and progress.remaining < slots


def waits(verdict: Verdict | None, now: float) -> str:
    """For what the next verdict waits, in one line; empty where none is to come."""
    if verdict is None or not verdict.waits:
        return ""
    if verdict.due is None:
        return f"Waiting for {verdict.waits}: a verdict comes within a minute of them"
    return f"{verdict.waits.capitalize()}: verdict in about {max(1, round(verdict.due - now))} s"


# --- How far, how fast, when done ---

ENDED: Final = ("done", "stopped", "failed")
"""States of a run that has no end to come any more."""


@dataclass(frozen=True)
class Eta:
    """When the run will be done, as it was last told; all None where nobody can say."""

    hours: float | None = None
    """From when it was told, as ``low`` and ``high``."""
    low: float | None = None
    high: float | None = None
    at: float | None = None


def overall_rate(progress: Progress) -> float | None:
    """Prompts a second over the whole run, pauses and restarts included."""
    if progress.elapsed_hours <= 0:
        return None
    return progress.completed / (progress.elapsed_hours * 3600)


def eta(state: State, told: float | None = None) -> Eta:
    """The time of the end and a range, counted from when the numbers were told (``told``, where
    it is wanted on another clock): what is old does not move the end.

    Three rates bound the range: the run's moving rate, tokens a second over the mean answer
    length, and, once an hour of the run is behind, its overall rate.
    """
    progress = state.progress
    at_work = state.run.alive or state.run.foreign
    if progress is None or progress.status in ENDED or not at_work:
        return Eta()
    left = progress.remaining or max(0, progress.total - progress.completed - progress.failed)
    guesses: list[float] = []
    if progress.rate_per_sec > 0:
        guesses.append(left / progress.rate_per_sec / 3600)
    if progress.tok_s and progress.avg_output_tokens > 0:
        guesses.append(left * progress.avg_output_tokens / progress.tok_s / 3600)
    if progress.elapsed_hours >= 1 and (rate := overall_rate(progress)):
        guesses.append(left / rate / 3600)
    best = progress.eta_hours
    if best is None and state.verdict is not None:
        best = state.verdict.eta_hours
    if best is None:
        best = guesses[0] if guesses else None
    if best is None:
        return Eta()
    spread = [*guesses, best]
    return Eta(
        hours=best,
        low=min(spread) if len(guesses) > 1 else None,
        high=max(spread) if len(guesses) > 1 else None,
        at=(told_at(state) if told is None else told) + best * 3600,
    )


def by_count(counts: Mapping[str, int], most: int = 4) -> str:
    """``timeout 8, rejected 4``, largest first; the rest in one number."""
    order = sorted(((n, k) for k, n in counts.items() if n), key=lambda c: (-c[0], c[1]))
    words = [f"{name} {count:,}" for count, name in order[:most]]
    if len(order) > most:
        words.append(f"{len(order) - most} more")
    return ", ".join(words)


# --- What it costs ---


def swap_cost(state: State, gpus: Sequence[int], strategy: str = "all") -> str:
    """What taking these servers away costs while it happens, in one line: all of them at once
    (``all``), or one after the other."""
    progress = state.progress
    running = sum(state.servers[g].running or 0 for g in gpus if g in state.servers)
    parts = []
    if running:
        parts.append(f"{running:,} requests in flight are broken off, kept and continued")
    speed = sum(state.servers[g].gen_tok_s or 0 for g in gpus if g in state.servers)
    if speed and strategy != "all" and len(gpus) > 1:
        parts.append(f"{number(speed / len(gpus))} tok/s are missing while each one restarts")
    elif speed:
        parts.append(f"{number(speed)} tok/s are missing meanwhile")
    if progress is not None and progress.completed:
        parts.append(f"the {progress.completed:,} finished prompts stay")
    return "; ".join(parts) or "nothing is in flight"


def stop_cost(state: State) -> str:
    """What ending the run costs now, in one line."""
    progress = state.progress
    if progress is None or not state.run.alive:
        return "no run is generating"
    up = sum(s.state in ON for s in state.servers.values())
    parts = [f"{progress.in_flight:,} requests in flight end first and are kept"]
    if up:
        parts.append(f"then {up} servers idle")
    left = progress.remaining or max(0, progress.total - progress.completed - progress.failed)
    parts.append(f"{left:,} prompts are left")
    return "; ".join(parts)


def at_once_cost(state: State, wanted: int | Literal["auto"] | None) -> str:
    """What so many requests at once on each server come to, where that is far from what the
    servers can run; empty where it is near, or where nobody knows."""
    slots = slots_each(state)
    if not isinstance(wanted, int) or not slots:
        return ""
    if wanted < FEW * slots:
        return (
            f"a server runs {slots} at once: {slots - wanted} of its slots stay empty, and about "
            f"{percent(1 - wanted / slots)} of the tokens a second are given up"
        )
    if wanted > MANY * slots:
        return (
            f"a server runs {slots} at once: {wanted - slots:,} more only wait in each server's "
            "queue, and what waits too long is sent again"
        )
    return ""


def slots_each(state: State) -> int | None:
    """Requests that a server can decode at once: the most common number of those that are up."""
    known = [
        info.max_running
        for gpu, info in state.infos.items()
        if info.max_running and (server := state.servers.get(gpu)) and server.state in ON
    ]
    return max(set(known), key=known.count) if known else None


def run_times(state: State) -> tuple[float, float | None] | None:
    """When the run began and, where it has ended, when; None where there is none. A run of an
    older tool does not say when it began: then as long ago as it worked."""
    run = state.run
    if run.progress is None:
        return None
    last = run.progress.time or state.time
    began = last - run.progress.elapsed_hours * 3600 if run.began is None else run.began
    return (began, None if run.alive else last) if began < last else None


def pointless(state: State, action: str, gpus: Sequence[int]) -> str:
    """Why an action would do nothing, in one line; empty where it would do something, or where
    that is not known."""
    progress = state.progress
    on = [gpu in state.servers and state.servers[gpu].state in ON for gpu in gpus]
    if action == "up" and on and all(on):
        what = f"GPU {gpus[0]} is" if len(gpus) == 1 else f"all {len(gpus)} servers are"
        return f"{what} up already: nothing to start"
    if action in ("run.retry", "run.retry_aside") and progress is not None and not progress.failed:
        if action == "run.retry":
            aside = f"; {progress.set_aside:,} are set aside: U" if progress.set_aside else ""
            return f"nothing failed: no prompt to try again{aside}"
        if not progress.set_aside:
            return "nothing failed and nothing is set aside: no prompt to try again"
    return ""


def retry_means(state: State, *, aside: bool) -> str:
    """Which prompts would be tried again, with why they had failed."""
    progress = state.progress
    if progress is None:
        return ""
    why = ", ".join(
        f"{count:,} {visible(reason)}"
        for reason, count in sorted(progress.failures.items(), key=lambda one: -one[1])[:4]
    )
    text = f"{progress.failed:,} failed" + (f" ({why})" if why else "")
    return f"{text} and {progress.set_aside:,} set aside" if aside else text
