"""Restarts of the made-up fleet: what is planned, and step after step what happens."""

from __future__ import annotations

from msgspec.structs import replace

from console.feed import FeedError
from remote.protocol import (
    Done,
    Epoch,
    Flags,
    Plan,
    Predicted,
    Restart,
    StepName,
    Swap,
    SwapStep,
    Verdict,
)
from tests.console.screen.story.world import World

LENGTHS: dict[StepName, float] = {
    "pause": 1,
    "drain": 9,
    "stop": 2,
    "start": 2,
    "ready": 18,
    "compare": 1,
    "resume": 1,
}
"""The steps of one server in their order, and how many seconds each takes."""
JUDGED_S = 120.0
"""How long a canary is looked at where nobody decides."""
PHASES = ("loading weights", "allocating caches", "capturing graphs", "warming up")


def _plan(world: World, request: Restart) -> Plan:
    """What a restart would change, bring and cost.

    :raises FeedError: where a server would refuse the flags
    """
    fraction = request.set_flags.get("mem-fraction-static", 0.5)
    if not isinstance(fraction, float | int) or not 0 < fraction < 1:
        raise FeedError("mem-fraction-static must lie between 0 and 1")
    old, new = world.epochs[-1].flags, _after(world, request)
    goes_on = _have_already(world, new) if request.gpus is None else []
    gpus = request.gpus or [s.gpu for s in world.servers if s.gpu not in goes_on]
    swap = Swap(
        len(world.epochs),
        request.strategy,
        gpus,
        world.epochs[-1].id,
        world.epochs[-1].id + 1,
        "ops",
        world.now,
        steps=_steps(request.strategy, gpus),
        set_flags=request.set_flags,
        unset_flags=request.unset_flags,
    )
    diff = [
        f"{n} {old.get(n, '–')} → {new.get(n, '–')}"
        for n in sorted({*old, *new})
        if old.get(n) != new.get(n)
    ]
    frees = new.get("mamba-scheduler-strategy") == "no_buffer"
    warnings = ["no_buffer turns the overlap scheduler off"] if frees else []
    slots = 72 if frees else 37
    together = len(gpus) if request.strategy == "all" else request.at_once
    predicted = Predicted(612_000, slots * 5, 57.3, 6.1, "state slots")
    return Plan(
        swap, diff, warnings, slots, _costs(len(gpus), together), predicted, goes_on=goes_on
    )


def _after(world: World, request: Restart) -> Flags:
    """The flags that a restart leads to."""
    flags = {**world.epochs[-1].flags, **request.set_flags}
    for name in request.unset_flags:
        flags.pop(name, None)
    return flags


def _have_already(world: World, flags: Flags) -> list[int]:
    """GPUs whose servers run these flags, where others do not."""
    told = {epoch.id: epoch.flags for epoch in world.epochs}
    have = [s.gpu for s in world.servers if told.get(s.epoch) == flags]
    return have if len(have) < len(world.servers) else []


def _steps(strategy: str, gpus: list[int]) -> list[SwapStep]:
    if strategy == "all":
        return [SwapStep(gpu, name) for name in LENGTHS for gpu in gpus]
    steps = [SwapStep(gpu, name) for gpu in gpus for name in LENGTHS]
    if strategy == "canary":
        steps.insert(len(LENGTHS), SwapStep(gpus[0], "judge"))
    return steps


def _costs(gpus: int, together: int) -> list[str]:
    span = 24 * -(-gpus // together)
    where = f"{together} of {gpus} servers at a time for {span} s"
    kept = "about 292 answers with 395,000 tokens are broken off and continued"
    return [
        f"{24 * gpus} GPU-seconds without tokens, {where}",
        f"continue: {kept}; nothing is thrown away",
        "drain: waits up to 83 s a server; nothing is broken off",
        "redo: about 292 answers are broken off, 395,000 tokens thrown away",
    ]


def restart(world: World, request: Restart) -> Plan:
    """Plan a swap, and begin it unless it is a dry run."""
    planned = _plan(world, request)
    if not request.dry_run:
        number, flags = world.epochs[-1].id + 1, _after(world, request)
        world.epochs.append(Epoch(number, world.now, flags, "ops", request.why))
        world.swap, world.kept = planned.swap, False
    return planned


def decide(world: World, keep: bool) -> Done:
    """Promote the canary, or put the old flags back at once.

    :raises FeedError: where there is nothing to decide
    """
    swap = world.swap
    if swap is None or swap.state != "doing":
        raise FeedError("no swap is under way")
    if keep:
        world.kept = True
        return Done("the new flags are kept")
    for server in world.servers:
        server.slots, server.epoch, server.state = 37, 2, "ready"
    world.swap = replace(swap, state="rolled back", ended=world.now, text="taken back by ops")
    return Done("the previous flags come back")


def go_on(world: World) -> None:
    """The swap under way, if there is one, at the world's time."""
    swap = world.swap
    if swap is None or swap.state != "doing":
        return
    steps = list(swap.steps)
    doing = [i for i, s in enumerate(steps) if s.state == "doing"]
    if not doing:
        waiting = [i for i, s in enumerate(steps) if s.state == "waiting"]
        if not waiting:
            _end(world, swap)
            return
        doing = waiting[:1]
        if swap.strategy == "all":
            doing = [i for i in waiting if steps[i].name == steps[waiting[0]].name]
        for i in doing:
            steps[i] = replace(steps[i], state="doing", began=world.now)
    for i in doing:
        steps[i] = _do(world, swap, steps[i])
        if steps[i].name == "judge":
            swap = replace(swap, text=f"canary GPU {steps[i].gpu}: ×1.58 of the others so far")
    world.swap = replace(swap, steps=steps)


def _do(world: World, swap: Swap, step: SwapStep) -> SwapStep:
    """One step as it stands now, and what it does to its server."""
    server = world.servers[step.gpu]
    took = world.now - (step.began or world.now)
    judged = 0.0 if world.kept else JUDGED_S
    length = judged if step.name == "judge" else LENGTHS[step.name]
    text = step.text
    match step.name:
        case "pause":
            server.dispatch = "pause"
        case "drain":
            server.state = "draining"
            text = server.phase = f"{max(0, round(37 * (1 - took / length)))} in flight"
        case "stop":
            server.state, server.phase = "stopped", ""
        case "start":
            server.state, server.phase = "starting", "process up"
        case "ready":
            text = PHASES[min(3, int(took / length * 4))]
            if text != server.phase:
                server.phase, server.phase_since = text, world.now
            server.state = "warming" if text == "warming up" else "starting"
        case "compare":
            server.state, server.phase = "ready", ""
            server.slots, server.epoch = 72, swap.to_epoch
            text = "37 → 72 slots"
        case "resume":
            server.dispatch = "run"
    if took < length:
        return replace(step, text=text)
    if step.name == "resume":
        world.say("server.ready", f"GPU {step.gpu} is ready: 37 → 72 slots", gpu=step.gpu)
    return replace(step, text=text, state="done", ended=world.now)


def _end(world: World, swap: Swap) -> None:
    """All steps are done: what the new flags brought."""
    world.epochs[-1] = replace(
        world.epochs[-1],
        tok_s_per_gpu=1_043.0,
        max_running=72,
        mamba_usage=0.61,
        kv_usage=0.39,
        seconds=300.0,
    )
    text = "8 servers on epoch 3, 37 → 72 slots each"
    world.swap = replace(swap, state="done", ended=world.now, text=text)
    world.verdict = Verdict(
        world.now,
        "72 slots a server (37 before), 1,043 tok/s a GPU (×1.58): 3.08 prompts/s, done in 16.5 h",
        True,
        3.08,
        16.5,
        1_043.0,
        72,
        "",
    )
    world.say("swap.done", text, who="ops")
    world.say("verdict", world.verdict.text)
