"""A swap's plan: its steps in order, and how far it is. Values only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from remote.protocol import StepName, StepState, Swap, SwapStep

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


def steps(gpus: Iterable[int]) -> list[SwapStep]:
    """All steps of a plan, none begun."""
    return [SwapStep(gpu=gpu, name=name) for gpu in gpus for name in STEPS]


def groups(swap: Swap, at_once: int = 1) -> list[list[int]]:
    """The GPUs in the order they are swapped; those of one group at the same time."""
    gpus = list(swap.gpus)
    if swap.strategy == "all":
        return [gpus] if gpus else []
    if swap.strategy == "canary":
        return [gpus[:1], *([gpus[1:]] if gpus[1:] else [])]
    return [gpus[n : n + at_once] for n in range(0, len(gpus), max(at_once, 1))]


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
    return all(s.state == "waiting" for s in swap.steps if s.gpu == gpu)


def skip_rest(swap: Swap, gpu: int) -> Swap:
    """The plan with all that had not begun on this GPU marked as skipped."""
    changed = [
        replace(s, state="skipped") if s.gpu == gpu and s.state == "waiting" else s
        for s in swap.steps
    ]
    return replace(swap, steps=changed)
