"""Servers that run different flags: who runs which, and how a swap that stopped half-way left them.

Pure functions of a :class:`console.model.State`, as everything there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import mean

from console.model import ON, State, awaits_decision
from console.text import number
from remote.protocol import Epoch, Flags, FlagValue, Plan, Swap

SAME = 0.05
"""A difference of throughput below this share is none."""


def ranges(gpus: Iterable[int]) -> str:
    """``0–3, 5, 7``."""
    runs: list[list[int]] = []
    for gpu in sorted(gpus):
        if runs and gpu == runs[-1][1] + 1:
            runs[-1][1] = gpu
        else:
            runs.append([gpu, gpu])
    parts = (f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in runs)
    return ", ".join(parts)


@dataclass(frozen=True)
class Part:
    """Servers that run the same flags."""

    epoch: Epoch
    gpus: list[int]
    tok_s: float | None
    """Mean decode throughput of those that are ready; None where it is not known."""


def parts(state: State) -> list[Part]:
    """The servers that are up by their flags, the newest epoch first; empty where all run the same
    and while a swap is under way."""
    if state.swap is not None and state.swap.state == "doing":
        return []
    known = {epoch.id: epoch for epoch in state.epochs}
    groups: list[tuple[Epoch, list[int]]] = []
    up = [gpu for gpu, server in state.servers.items() if server.state in ON]
    for gpu in sorted(up):
        info = state.infos.get(gpu)
        epoch = known.get(info.epoch or 0) if info is not None else None
        if epoch is None:
            continue
        for index, (other, gpus) in enumerate(groups):
            if other.flags == epoch.flags:
                groups[index] = (max(other, epoch, key=lambda e: e.id), [*gpus, gpu])
                break
        else:
            groups.append((epoch, [gpu]))
    if len(groups) < 2:
        return []
    newest = sorted(groups, key=lambda one: -one[0].id)
    return [Part(epoch, gpus, _speed(state, gpus)) for epoch, gpus in newest]


def _speed(state: State, gpus: list[int]) -> float | None:
    ready = [state.servers[gpu] for gpu in gpus if state.servers[gpu].state == "ready"]
    rates = [s.gen_tok_s for s in ready if s.gen_tok_s]
    return mean(rates) if rates else None


def better(found: list[Part]) -> Part:
    """Those whose flags the others should have: the newest ones, unless others are faster."""
    fastest = max(found, key=lambda part: part.tok_s or 0.0)
    new = found[0].tok_s
    slower = new is not None and fastest.tok_s is not None and new < (1 - SAME) * fastest.tok_s
    return fastest if slower else found[0]


def told(found: list[Part]) -> str:
    """Who runs what and what it gives, with what makes them alike again."""
    first, *others = found
    count = len(first.gpus)
    words = [f"{count} server{'s run' if count > 1 else ' runs'} epoch {first.epoch.id}"]
    words += [f"GPU {ranges(part.gpus)} still epoch {part.epoch.id}" for part in others]
    text = ", ".join(words)
    if all(part.tok_s for part in found):
        rates = [number(part.tok_s) for part in found]
        text += f" ({', '.join(rates[:-1])} and {rates[-1]} tok/s each)"
    wanted = better(found).epoch.id
    helps = "finishes it" if wanted == first.epoch.id else "makes them alike again"
    return f"{text}: restart with epoch {wanted}'s flags {helps}"


def finishing(state: State, base: Flags) -> dict[str, FlagValue | None]:
    """Edits of ``base`` that give all servers the same flags; None takes a flag out."""
    found = parts(state)
    if not found:
        return {}
    wanted = better(found).epoch.flags
    edits: dict[str, FlagValue | None] = {n: v for n, v in wanted.items() if base.get(n) != v}
    return edits | dict.fromkeys(name for name in base if name not in wanted)


def going_on(plan: Plan | None) -> str:
    """Which servers a plan leaves alone, and why; empty where it leaves none."""
    if plan is None or not plan.goes_on:
        return ""
    has, goes = ("has", "it goes") if len(plan.goes_on) == 1 else ("have", "they go")
    return f"GPU {ranges(plan.goes_on)} {has} these flags already: {goes} on"


def under_way(state: State) -> str:
    """That a swap is under way, and what can be done about it; empty where none is."""
    swap = state.swap
    if swap is None or swap.state != "doing":
        return ""
    keep = "K keeps the new flags, " if awaits_decision(swap) else ""
    return (
        f"swap {swap.id} to epoch {swap.to_epoch} is under way: no other can begin; esc, then "
        f"B takes it back, {keep}or wait for its end"
    )


# --- How a swap was left ---


def moved(swap: Swap) -> list[int]:
    """Servers that came through with the new flags and keep them."""
    steps: Mapping[int, list[tuple[str, str]]] = {gpu: [] for gpu in swap.gpus}
    for step in swap.steps:
        if step.gpu in steps:
            steps[step.gpu].append((step.name, step.state))
    return [
        gpu
        for gpu, all_of in steps.items()
        if any(state == "done" for _, state in all_of)
        and not any(name == "put back" for name, _ in all_of)
        and all(state in ("done", "skipped") for _, state in all_of)
    ]


def untouched(swap: Swap) -> list[int]:
    """Servers that the swap has not begun with."""
    begun = {step.gpu for step in swap.steps if step.state not in ("waiting", "skipped")}
    return [gpu for gpu in swap.gpus if gpu not in begun]


def halfway(swap: Swap) -> bool:
    """Whether it ended with the new flags on some of its servers only."""
    return swap.state in ("failed", "rolled back") and bool(moved(swap))


def ended(swap: Swap) -> str:
    """How it ended, in a word or two."""
    return "stopped half-way" if halfway(swap) else swap.state


def left(swap: Swap) -> str:
    """Of one that stopped half-way, what became of which server; empty for any other."""
    if not halfway(swap):
        return ""
    through, not_begun = moved(swap), untouched(swap)
    failed = [gpu for gpu in swap.gpus if gpu not in through and gpu not in not_begun]
    words = [f"{ranges(through)} on epoch {swap.to_epoch}"]
    words += [f"{ranges(failed)} failed"] if failed else []
    words += [f"{ranges(not_begun)} not touched"] if not_begun else []
    return f"stopped half-way: {', '.join(words)}"
