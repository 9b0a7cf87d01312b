"""The first-minute verdict: from a minute's numbers to rate, time left and what holds it back.

Pure. A run of fifteen hours that would take two hundred is seen in its first minute, while hardly
an answer has ended: tokens are already flowing, and tokens a second over the tokens that an
answer is expected to take is the rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Literal, TypeAlias

from msgspec import Struct

from remote.protocol import Epoch, Progress, ServerInfo, ServerState, Verdict

EXPECTED_SHARE = 0.66
"""Of ``max_tokens``: what a reasoning model's answer takes on average, before any is known."""
SAME = 0.05
"""A difference of throughput below this share is none."""
FULL = 0.9
"""A pool, or a server's slots, used above this share holds requests back."""

Bound: TypeAlias = Literal["requests", "kv cache", "state slots", "slots"]
"""What can hold servers back: too few requests, or one of three things that are full."""

PLAIN = 0.7
"""Usage of the Mamba state pool under which nobody would take it for the limit."""

REQUESTS = "requests:"
"""How :attr:`Verdict.bound_by` begins where it is too few requests."""


class Minute(Struct, frozen=True):
    """What the verdict is drawn from."""

    states: list[list[ServerState]]
    """One list of servers for each second that was looked at."""
    infos: list[ServerInfo]
    progress: Progress | None
    max_tokens: int
    previous: Epoch | None = None
    """The epoch before the present one, where there was one."""


def expected_tokens(progress: Progress | None, max_tokens: int) -> tuple[float, bool]:
    """Tokens an answer is expected to take, and whether that is measured.

    The first answers to end are the short ones, so their mean counts only once several times as
    many have ended as are under way.
    """
    guess = EXPECTED_SHARE * max_tokens
    if progress is None or not progress.completed or not progress.avg_output_tokens:
        return guess, False
    if progress.completed >= 3 * max(progress.in_flight, 1):
        return progress.avg_output_tokens, True
    return max(guess, progress.avg_output_tokens), False


def judge(minute: Minute, *, now: float, eta_hours_over: float | None = None) -> Verdict:
    """One verdict; see :class:`Minute`."""
    ready = [[s for s in states if s.state == "ready"] for states in minute.states]
    per_gpu = _mean(s.gen_tok_s for states in ready for s in states if s.running and not s.alone)
    total = _mean(sum(s.gen_tok_s or 0.0 for s in states) for states in ready if states)
    slots = _common([i.max_running for i in minute.infos])
    rate = hours = None
    expected, measured = expected_tokens(minute.progress, minute.max_tokens)
    if total and minute.progress is not None:
        rate = total / expected
        hours = minute.progress.remaining / rate / 3600
    bound = bound_by(ready[-1] if ready else [], minute.infos)
    # Servers that were not given all that they can do show nothing of their flags.
    held_short = bound.startswith(REQUESTS)
    good, compared = (None, "") if held_short else _compare(per_gpu, slots, minute.previous)
    over = hours is not None and eta_hours_over is not None and hours > eta_hours_over
    if over:
        good = False
    return Verdict(
        time=now,
        text=_text(rate, hours, expected, measured, per_gpu, slots, compared, bound, over),
        good=good,
        rate_per_sec=rate,
        eta_hours=hours,
        tok_s_per_gpu=per_gpu,
        tok_s=total,
        slots=slots,
        bound_by=bound,
    )


def held_by(
    *,
    running: float,
    slots: float | None,
    queued: float,
    kv: float | None,
    hybrid: bool,
    capped: bool,
    offered: float | None = None,
) -> Bound | None:
    """What keeps servers from running more at once, by their means; None where nobody can say.

    ``running``, ``slots``, ``queued`` and ``offered`` (what the client keeps open, where that is
    known) are requests a server, ``kv`` is the share of the KV cache in use. ``hybrid``: the
    model has linear attention; ``capped``: the slots are those that ``max-running-requests`` asks
    for.
    """
    if kv is not None and kv >= FULL:
        return "kv cache"
    if slots is None:
        return None
    taken = running >= FULL * slots and (offered is None or offered >= slots)
    if queued < 1 and not taken:
        return "requests"
    # A hybrid model's slots come from its state pool, long before its KV cache is full.
    return "state slots" if hybrid and not capped else "slots"


def at_ceiling(states: Sequence[ServerState], infos: Sequence[ServerInfo]) -> bool:
    """Whether every server that is up runs all that it can, and requests wait: no rate has to be
    measured to know what holds them back."""
    slots = {info.gpu: info.max_running for info in infos}
    up = [s for s in states if s.state not in ("stopped", "failed")]
    if not up or (_mean(s.queued for s in up) or 0.0) < 1:
        return False
    return all(
        s.state == "ready" and s.silent_since is None and (s.running or 0) >= FULL * most
        for s in up
        if (most := slots.get(s.gpu) or math.inf)
    )


def early(states: Sequence[ServerState], infos: Sequence[ServerInfo], *, now: float) -> Verdict:
    """What can be said of servers at their ceiling before their throughput is known."""
    slots = _common([info.max_running for info in infos])
    bound = bound_by([s for s in states if s.state == "ready"], infos)
    text = f"every server runs its most at once and more requests wait; held by {bound}"
    return Verdict(time=now, text=text, slots=slots, bound_by=bound)


def bound_by(servers: Sequence[ServerState], infos: Sequence[ServerInfo]) -> str:
    """What keeps the servers from running more at once, in a few words; empty when unknown."""
    limits = {info.gpu: info for info in infos}
    busy = [s for s in servers if s.running is not None and limits.get(s.gpu) and not s.alone]
    if not busy:
        return ""
    slots = _common([limits[s.gpu].max_running for s in busy])
    running = mean(s.running or 0 for s in busy)
    kv = _mean(s.kv_usage for s in busy)
    bound = held_by(
        running=running,
        slots=slots,
        queued=_mean(s.queued for s in busy) or 0.0,
        kv=kv,
        hybrid=any(s.mamba_usage is not None or limits[s.gpu].max_mamba for s in busy),
        capped=str(slots) in {str(limits[s.gpu].flags.get("max-running-requests")) for s in busy},
    )
    if bound is None:
        return ""
    if bound == "requests":
        return f"{REQUESTS} the run offers {running:.0f} of {slots} slots a server"
    if bound == "kv cache":
        return f"KV cache: {kv:.0%} used at {running:.0f} running a server"
    used = "" if kv is None else f", KV {'only ' if kv < 0.5 else ''}{kv:.0%} used"
    name = "Mamba state pool" if bound == "state slots" else "max-running-requests"
    # A pool that is hardly used beside slots that are all taken reads as a contradiction.
    state = _mean(s.mamba_usage for s in busy)
    if bound == "state slots" and state is not None and state < PLAIN:
        used = f", all in use though the pool is {state:.0%} used: its size sets their number{used}"
    return f"{name}: {slots} slots a server{used}"


def _compare(
    per_gpu: float | None, slots: int | None, previous: Epoch | None
) -> tuple[bool | None, str]:
    if previous is None or not previous.tok_s_per_gpu or not per_gpu:
        return None, ""
    factor = per_gpu / previous.tok_s_per_gpu
    before = f"epoch {previous.id}: {previous.tok_s_per_gpu:.0f} tok/s a GPU"
    if previous.max_running and slots:
        before += f", {previous.max_running} slots"
    if factor >= 1 + SAME:
        return True, f"×{factor:.2f} of {before}"
    if factor <= 1 - SAME:
        return False, f"only ×{factor:.2f} of {before}"
    return True, f"as fast as {before}"


def _text(
    rate: float | None,
    hours: float | None,
    expected: float,
    measured: bool,
    per_gpu: float | None,
    slots: int | None,
    compared: str,
    bound: str,
    over: bool,
) -> str:
    parts = []
    if rate is not None and hours is not None:
        basis = "" if measured else " expected"
        text = f"{rate:.2f} prompts/s, ETA {duration(hours)}"
        parts.append(f"{text} at {expected:,.0f} tokens an answer{basis}")
    if over:
        parts.append("TOO LONG")
    if per_gpu is not None:
        parts.append(f"{per_gpu:,.0f} tok/s a GPU" + (f" on {slots} slots" if slots else ""))
    if compared:
        parts.append(compared)
    if bound:
        parts.append(f"held by {bound}")
    return "; ".join(parts) or "no token was produced"


def duration(hours: float) -> str:
    """``208 h``, ``14.2 h``, ``12 min``."""
    if hours >= 48:
        return f"{hours:.0f} h"
    return f"{hours:.1f} h" if hours >= 1 else f"{max(hours * 60, 1):.0f} min"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [float(v) for v in values if v is not None]
    return mean(known) if known else None


def _common(values: Sequence[int | None]) -> int | None:
    """The usual value; None where none is known."""
    known = [v for v in values if v is not None]
    return max(set(known), key=known.count) if known else None
