"""How a swap has ended, read from its steps, and in one line. Values only."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from remote.fleet import plan
from remote.protocol import Swap


def conclude(swap: Swap) -> Swap:
    """The plan with its end: nothing is left to be done on any of its GPUs."""
    wrong = [gpu for gpu in swap.gpus if plan.failed(swap, gpu)]
    if not wrong:
        slots = sorted({s.text for s in swap.steps if s.name == "compare" and s.text})
        judged = [s.text for s in swap.steps if s.name in ("judge", "confirm") and s.text]
        text = f"{_gpus(swap.gpus)} on the new flags: {'; '.join([*slots, *judged])}"
        return replace(swap, state="done", text=text)
    back = [g for g in swap.gpus if plan.of(swap, g, "put back") is not None]
    moved = [g for g in swap.gpus if g not in back and not plan.untouched(swap, g)]
    waiting = [g for g in swap.gpus if plan.untouched(swap, g)]
    lost = [g for g in back if _is_lost(swap, g)]
    same = [g for g in back if g not in lost and not plan.was_stopped(swap, g)]
    text = _why(swap, wrong)
    if lost:
        text += f"; {_gpus(lost)} could not be put back either"
    elif len(back) > len(same):
        text += "; the previous flags were put back"
    if same:
        text += f"; {_gpus(same)} left as before"
    if moved:
        text += f"; {_gpus(moved)} keep the new flags"
    if waiting:
        text += f"; {_gpus(waiting)} not touched"
    for gpu in waiting:
        swap = plan.skip_rest(swap, gpu)
    return replace(swap, state="failed" if lost else "rolled back", text=text)


def _is_lost(swap: Swap, gpu: int) -> bool:
    step = plan.of(swap, gpu, "put back")
    return step is None or step.state != "done"


def _why(swap: Swap, wrong: Sequence[int]) -> str:
    first = plan.failed(swap, wrong[0])
    assert first is not None
    if first.name == "confirm":
        return first.text
    if first.name == "judge":
        return f"{_gpus(wrong)} as the canary: {first.text}"
    if first.name == "pause":
        return f"{_gpus(wrong)} could not be swapped: {first.text}"
    return f"{_gpus(wrong)} did not come up with the new flags: {first.text}"


def _gpus(gpus: Sequence[int]) -> str:
    if len(gpus) == 1:
        return f"GPU {gpus[0]}"
    return "GPUs " + ", ".join(str(gpu) for gpu in gpus)
