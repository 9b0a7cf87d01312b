"""A swap's plan: its steps in order, and how far it is. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from remote.protocol import StepName, StepState, Swap, SwapStep

Strategy: TypeAlias = Literal["rolling", "all", "canary"]

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
"""What is done to one server, in this order; ``put back`` follows where one of them failed."""

OVER: tuple[StepState, ...] = ("done", "skipped")


def steps(gpus: Sequence[int], strategy: Strategy = "rolling") -> list[SwapStep]:
    """All steps of a plan, none begun. A canary is judged before anyone else's turn comes."""
    made: list[SwapStep] = []
    for n, gpu in enumerate(gpus):
        made += [SwapStep(gpu=gpu, name=name) for name in STEPS]
        if strategy == "canary" and n == 0:
            made.append(SwapStep(gpu=gpu, name="judge"))
    return made


def groups(swap: Swap) -> list[list[int]]:
    """The GPUs in the order they are swapped; those of one group at the same time."""
    if swap.strategy == "all":
        return [list(swap.gpus)]
    return [[gpu] for gpu in swap.gpus]


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


def skip_rest(swap: Swap, gpu: int) -> Swap:
    """The plan with all that had not begun on this GPU marked as skipped."""
    changed = [
        replace(s, state="skipped") if s.gpu == gpu and s.state == "waiting" else s
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
    """What one way of swapping is expected to take."""

    gpu_seconds: float
    """Without tokens (the emptying end of a drain not counted)."""
    waits: float
    """Seconds of draining, all servers together."""
    aborted: float
    """Requests ended before their answer was whole."""
    tokens: float
    """Tokens of theirs that have to be made again where they cannot be continued."""


STOP_SECONDS = 6.0
"""SGLang looks every 5 s whether its drain is over."""

UNKNOWN_RELOAD = 120.0


def cost(loads: Iterable[Load], drain_seconds: float, mean_tokens: float) -> Cost:
    """Expected cost of a swap that drains for at most ``drain_seconds``; 0 is abort at once.

    The answers in flight are taken to be anywhere between their first and their last token, with
    ``mean_tokens`` in all: what has more left than the drain gives time for is aborted.
    """
    seconds = waits = aborted = tokens = 0.0
    for load in loads:
        seconds += (load.reload_s or UNKNOWN_RELOAD) + STOP_SECONDS
        if not load.in_flight:
            continue
        speed = (load.tok_s or 0.0) / load.in_flight
        within = min(speed * drain_seconds, mean_tokens)
        left = 1 - within / mean_tokens if mean_tokens else 0.0
        aborted += load.in_flight * left
        # Uniform ages: those that are cut had up to what was left outside, and made on meanwhile.
        tokens += load.in_flight * left * ((mean_tokens - within) / 2 + within)
        waits += drain_seconds if left > 0 else (mean_tokens / speed if speed else 0.0)
    return Cost(seconds, waits, aborted, tokens)


def cost_lines(
    loads: Sequence[Load], drain_seconds: float, mean_tokens: float, *, one_by_one: bool
) -> list[str]:
    """The expected cost in words: draining against aborting at once, where the mean length of an
    answer (``mean_tokens``, 0 for unknown) allows to tell."""
    drained = cost(loads, drain_seconds, mean_tokens)
    lines = [f"{drained.gpu_seconds:,.0f} GPU-seconds without tokens"]
    if one_by_one:
        lines[0] += f", one of {len(loads)} servers at a time"
    if mean_tokens and any(load.in_flight for load in loads):
        at_once = cost(loads, 0.0, mean_tokens)
        for name, way in ((f"drain, {drain_seconds:.0f} s at most", drained), ("abort", at_once)):
            lines.append(
                f"{name}: about {way.aborted:,.0f} answers aborted, "
                f"{way.tokens:,.0f} tokens made again"
            )
    return lines
