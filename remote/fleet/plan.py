"""A swap's plan: its steps in order, and how far it is. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from remote.protocol import InFlight, StepName, StepState, Strategy, Swap, SwapStep

STEPS: tuple[StepName, ...] = (
    "pause",
    "drain",
    "abort",
    "stop",
    "start",
    "ready",
    "compare",
    "resume",
)
"""What is done to one server, in this order; ``put back`` follows where one of them failed.
Nothing is drained where answers are broken off at once."""

OVER: tuple[StepState, ...] = ("done", "skipped")


def steps(
    gpus: Sequence[int], strategy: Strategy = "rolling", *, drains: bool = True
) -> list[SwapStep]:
    """All steps of a plan, none begun. A canary is judged before anyone else's turn comes."""
    made: list[SwapStep] = []
    for n, gpu in enumerate(gpus):
        made += [SwapStep(gpu=gpu, name=name) for name in STEPS if drains or name != "drain"]
        if strategy == "canary" and n == 0:
            made.append(SwapStep(gpu=gpu, name="judge"))
    return made


def groups(swap: Swap) -> list[list[int]]:
    """The GPUs in the order they are swapped; those of one group at the same time."""
    if swap.strategy == "all":
        return [list(swap.gpus)]
    alone, rest = (1 if swap.strategy == "canary" else 0), max(swap.at_once, 1)
    together = [swap.gpus[n : n + rest] for n in range(alone, len(swap.gpus), rest)]
    return [list(swap.gpus[:alone]), *together] if alone and swap.gpus else together


def of(swap: Swap, gpu: int, name: StepName) -> SwapStep | None:
    """One step; None where the plan has none of that name for this GPU."""
    return next((s for s in swap.steps if s.gpu == gpu and s.name == name), None)


def put(swap: Swap, step: SwapStep) -> Swap:
    """The plan with this step in place of the one of its GPU and name, or added after those."""
    changed = list(swap.steps)
    for n, one in enumerate(changed):
        if (one.gpu, one.name) == (step.gpu, step.name):
            changed[n] = step
            return replace(swap, steps=changed)
    last = max(
        (n for n, one in enumerate(changed) if one.gpu == step.gpu), default=len(changed) - 1
    )
    changed.insert(last + 1, step)
    return replace(swap, steps=changed)


def mark(swap: Swap, gpu: int, name: StepName, **changes: Any) -> Swap:
    """The plan with fields of one step changed (the step is added where there is none)."""
    return put(swap, replace(of(swap, gpu, name) or SwapStep(gpu=gpu, name=name), **changes))


def drain_first(swap: Swap, gpu: int) -> Swap:
    """The plan with a drain after this GPU's pause, where it has none."""
    if of(swap, gpu, "drain") is not None:
        return swap
    changed = list(swap.steps)
    at = next(n for n, one in enumerate(changed) if (one.gpu, one.name) == (gpu, "pause"))
    changed.insert(at + 1, SwapStep(gpu=gpu, name="drain"))
    return replace(swap, steps=changed)


def failed(swap: Swap, gpu: int) -> SwapStep | None:
    """The step of this GPU that failed, if one did."""
    return next((s for s in swap.steps if s.gpu == gpu and s.state == "failed"), None)


def finished(swap: Swap, gpu: int) -> bool:
    """Whether nothing is left to do on this GPU: all steps over, or the flags put back."""
    back = of(swap, gpu, "put back")
    if back is not None:
        return back.state in ("done", "failed", "skipped")
    return all(s.state in OVER for s in swap.steps if s.gpu == gpu)


def untouched(swap: Swap, gpu: int) -> bool:
    """Whether nothing has begun on this GPU."""
    own = (s for s in swap.steps if s.gpu == gpu and s.name != "confirm")  # that one is for all
    return all(s.state in ("waiting", "skipped") for s in own)


def was_stopped(swap: Swap, gpu: int) -> bool:
    """Whether the swap has begun to end what ran on this GPU."""
    stop = of(swap, gpu, "stop")
    return stop is not None and stop.began is not None


def skip_rest(swap: Swap, gpu: int) -> Swap:
    """The plan with all that is not over on this GPU marked as skipped, but for the way back."""
    changed = [
        replace(s, state="skipped")
        if s.gpu == gpu and s.state in ("waiting", "doing") and s.name != "put back"
        else s
        for s in swap.steps
    ]
    return replace(swap, steps=changed)


def out_of_service(swap: Swap) -> float:
    """GPU-seconds that the swap has taken from serving: from the end of each drain (or what came
    instead) to the server's return."""
    total = 0.0
    for gpu in swap.gpus:
        back = of(swap, gpu, "put back") or of(swap, gpu, "resume")
        first = next(
            (s for s in swap.steps if s.gpu == gpu and s.name in ("abort", "stop") and s.began),
            None,
        )
        if back is not None and back.ended is not None and first is not None and first.began:
            total += max(back.ended - first.began, 0.0)
    return total


def spent(swap: Swap) -> str:
    """What a swap has cost, as measured."""
    text = f"{out_of_service(swap):,.0f} GPU-seconds out of service"
    if swap.tokens_kept:
        text += f", {swap.tokens_kept:,} tokens of interrupted answers kept"
    thrown = f"{swap.tokens_lost:,} tokens" if swap.tokens_lost else "nothing"
    return f"{text}, {thrown} thrown away"


@dataclass(frozen=True)
class Load:
    """What a server has at hand when a swap is planned."""

    in_flight: int
    tok_s: float | None
    """Tokens it decodes a second, all requests together."""
    reload_s: float | None
    """What its last start took."""


@dataclass(frozen=True)
class Cost:
    """What one way of dealing with answers under way is expected to take."""

    waits: float
    """Seconds of draining, all servers together."""
    broken_off: float
    """Answers ended before they are whole."""
    tokens: float
    """What those have got so far."""


STOP_SECONDS = 6.0
"""SGLang looks every 5 s whether its drain is over."""

UNKNOWN_RELOAD = 120.0


def cost(loads: Iterable[Load], drain_seconds: float, mean_tokens: float) -> Cost:
    """Expected cost of draining for at most ``drain_seconds``; 0 is breaking off at once.

    The answers in flight are taken to be anywhere between their first and their last token, with
    ``mean_tokens`` in all: what has more left than the drain gives time for is broken off.
    """
    waits = broken_off = tokens = 0.0
    for load in loads:
        if not load.in_flight:
            continue
        speed = (load.tok_s or 0.0) / load.in_flight
        within = min(speed * drain_seconds, mean_tokens)
        left = 1 - within / mean_tokens if mean_tokens else 0.0
        broken_off += load.in_flight * left
        # Uniform ages: those that are cut had up to what was left outside, and made on meanwhile.
        tokens += load.in_flight * left * ((mean_tokens - within) / 2 + within)
        waits += drain_seconds if left > 0 else (mean_tokens / speed if speed else 0.0)
    return Cost(waits, broken_off, tokens)


def reloads(loads: Sequence[Load], together: int) -> str:
    """What the reloads take, in words, with so many servers out of service at the same time."""
    each = [(load.reload_s or UNKNOWN_RELOAD) + STOP_SECONDS for load in loads]
    text = f"{sum(each):,.0f} GPU-seconds without tokens"
    if len(loads) < 2:
        return text
    if together >= len(loads):
        return f"{text}, all {len(loads)} servers for {max(each):,.0f} s"
    spans = [max(each[n : n + together]) for n in range(0, len(each), together)]
    return f"{text}, {together} of {len(loads)} servers at a time for {sum(spans):,.0f} s"


def interruption(
    loads: Sequence[Load], drain_seconds: float, mean_tokens: float, *, continues: bool
) -> dict[InFlight, str]:
    """What becomes of answers under way, by mode, in words; empty where nothing is under way or
    nobody knows how long answers are (``mean_tokens`` 0).

    ``continues``: whether what is broken off can be gone on with, so that nothing is lost.
    """
    if not mean_tokens or not any(load.in_flight for load in loads):
        return {}
    at_once, drained = cost(loads, 0.0, mean_tokens), cost(loads, drain_seconds, mean_tokens)
    each = drained.waits / sum(1 for load in loads if load.in_flight)
    drain = f"waits up to {each:,.0f} s a server; "
    if not drained.broken_off:
        drain += "nothing is broken off"
    elif continues:
        drain += f"about {drained.broken_off:,.0f} answers are broken off and continued"
    else:
        drain += (
            f"about {drained.broken_off:,.0f} answers are broken off, "
            f"{drained.tokens:,.0f} tokens thrown away"
        )
    kept = (
        f"about {at_once.broken_off:,.0f} answers with {at_once.tokens:,.0f} tokens are broken "
        "off and continued; nothing is thrown away"
    )
    return {
        "continue": kept if continues else f"not possible here: as drain: {drain}",
        "drain": drain,
        "redo": (
            f"about {at_once.broken_off:,.0f} answers are broken off, "
            f"{at_once.tokens:,.0f} tokens thrown away"
        ),
    }


def cost_lines(
    loads: Sequence[Load],
    drain_seconds: float,
    mean_tokens: float,
    *,
    together: int,
    continues: bool,
) -> list[str]:
    """The expected cost, a line each: the reloads, then each mode of dealing with answers under
    way, its name in front."""
    modes = interruption(loads, drain_seconds, mean_tokens, continues=continues)
    return [reloads(loads, together), *(f"{mode}: {text}" for mode, text in modes.items())]
