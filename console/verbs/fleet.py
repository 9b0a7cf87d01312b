"""Verbs that start, stop and swap servers."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from console import mixed
from console.config import Target
from console.session import Session, session
from console.verbs.common import VerbError, ask, flags_problem, say, simple, watched
from remote.protocol import (
    Decide,
    Done,
    Down,
    Flags,
    FlagValue,
    Plan,
    Restart,
    Rollback,
    ServerInfo,
    Up,
)


def flag_value(text: str) -> FlagValue:
    """``true``, ``false``, a number, or the text; several words are a list of such."""

    def scalar(word: str) -> int | float | str:
        if "e" in word.lower():  # stays as it was typed: an answer shows it so
            return word
        for kind in (int, float):
            try:
                number = kind(word)
            except ValueError:
                continue
            if math.isfinite(number):  # JSON has no other numbers
                return number
        return word

    if text in ("true", "false"):
        return text == "true"
    if " " in text and not text.startswith(("{", "[")):
        return [scalar(word) for word in text.split()]
    return scalar(text)


def flags(pairs: list[str]) -> Flags:
    """``--set FLAG=VALUE`` options as flags; dashes in front are allowed."""
    found: Flags = {}
    for pair in pairs:
        name, sign, value = pair.lstrip("-").partition("=")
        if not name:
            raise VerbError(f"--set {pair}: FLAG=VALUE is needed")
        found[name.replace("_", "-")] = flag_value(value) if sign else True
    return found


LEARN_S = 180.0
"""For so long SGLang's parser may take to tell its flags, the first time it is asked."""


async def up(target: Target, gpus: list[int] | None, *, wait: bool) -> int:
    """``stoker up``: start servers, and by default wait until each is ready or has failed."""
    async with session(target) as here:
        if problem := await flags_problem(here, LEARN_S):
            raise VerbError(problem)
        await watched(here)
        done = await here.call(Up(spec=target.spec, gpus=gpus), timeout=60)
        assert isinstance(done, Done)
        say(done.text or "starting")
        return await wait_up(here, gpus) if wait else 0


async def wait_up(here: Session, gpus: list[int] | None) -> int:
    """Until every wanted server is ready (0) or one has failed (1)."""
    wanted = range(here.target.spec.fleet.gpus) if gpus is None else gpus
    since = time.monotonic()

    def settled() -> int | None:
        servers = [here.state.servers[g] for g in wanted if g in here.state.servers]
        # The snapshots of the first seconds may be older than the start.
        if len(servers) < len(wanted) or time.monotonic() - since < 2:
            return None
        states = [s.state for s in servers]
        if all(state == "ready" for state in states):
            return 0
        # A stopped one with something to say is about to start.
        if any(s.state == "stopped" and s.phase for s in servers):
            return None
        if all(state in ("ready", "failed", "stopped", "foreign") for state in states):
            return 1
        return None

    status = await here.until(settled)
    for gpu in wanted:
        server = here.state.servers[gpu]
        if server.state != "ready":
            look = f"see its log: {here.target.command('logs', str(gpu))}"
            cause = server.cause or _last_error(here) or look
            say(f"gpu {gpu}: {server.state}: {cause}")
    return status


def _gave_up(here: Session) -> bool:
    """Whether the agent ended what is under way with an error, where events are followed."""
    return any(event.kind == "action.failed" for event in here.state.events)


def _last_error(here: Session) -> str:
    """The newest thing that went wrong, where events are followed."""
    errors = [event.text for event in here.state.events if event.level == "error"]
    return errors[-1] if errors else ""


async def down(target: Target, gpus: list[int] | None, *, yes: bool) -> int:
    """``stoker down``: stop servers; the run continues elsewhere what they had under way."""
    which = "all servers" if gpus is None else f"GPU {', '.join(map(str, gpus))}"
    ask(f"Stop {which} of {target.name}?", yes=yes)
    async with session(target) as here:
        await watched(here)
        done = await here.call(Down(gpus=gpus), timeout=60)
        assert isinstance(done, Done)
        say(done.text or "stopping")
        wanted = range(target.spec.fleet.gpus) if gpus is None else gpus

        def ended() -> int | None:
            states = [s.state for g, s in here.state.servers.items() if g in wanted]
            if all(s in ("stopped", "failed", "foreign") for s in states):
                return 0
            return 1 if _gave_up(here) else None

        return await here.until(ended)


async def swap(target: Target, request: Restart | Rollback, *, yes: bool, as_json: bool) -> int:
    """``stoker restart`` and ``rollback``: show the plan, ask, and follow the swap to its end.

    With ``dry_run`` the plan is all.
    """
    async with session(target) as here:
        plan = await _show(here, replace(request, dry_run=True), as_json and request.dry_run)
    if request.dry_run:
        return 0
    # Without a link meanwhile: whoever is asked may take long, and the bridge leaves a silent one.
    ask(_question(target, request, plan), yes=yes)
    async with session(target) as here:
        return await _swap(here, replace(request, take_over=plan.take_over))


def _question(target: Target, request: Restart | Rollback, plan: Plan) -> str:
    how = f"({request.strategy}, {request.in_flight})"
    if plan.take_over:
        how += f", ending {len(plan.take_over)} not started by Stoker"
    if isinstance(request, Rollback):
        epoch = "the previous flags" if request.epoch is None else f"epoch {request.epoch}"
        return f"Roll {_which(target, _some(plan))} back to {epoch} {how}?"
    return f"Restart {_which(target, request.gpus or _some(plan))} {how}?"


def _some(plan: Plan) -> list[int] | None:
    """The servers that a plan for all restarts, where others go on; None where none does."""
    return plan.swap.gpus if plan.goes_on and plan.swap is not None else None


async def confirm(target: Target, *, back: bool, yes: bool) -> int:
    """``stoker confirm``: keep the new flags of the swap under way, or take them back."""
    what = "Take the new flags back" if back else "Keep the new flags"
    ask(f"{what} on {target.name}?", yes=yes)
    return await simple(target, Decide(keep=not back))


def _which(target: Target, gpus: list[int] | None) -> str:
    if gpus is None:
        count = target.spec.fleet.gpus
        return f"{f'all {count} servers' if count > 1 else 'the server'} of {target.name}"
    return f"GPU {', '.join(map(str, gpus))} of {target.name}"


async def _show(here: Session, request: Restart | Rollback, as_json: bool) -> Plan:
    """What the request would do, printed beside what runs now; nothing is done."""
    plan = await here.call(request, timeout=LEARN_S)
    assert isinstance(plan, Plan)
    if as_json:
        print(json.dumps(msgspec.to_builtins(plan)))
        return plan
    gpus = plan.swap.gpus if plan.swap is not None else []
    if plan.predicted_max_running is not None:
        await here.follow()
    for line in plan_lines(plan, [i for g, i in here.state.infos.items() if g in gpus]):
        say(line)
    return plan


def plan_lines(plan: Plan, now: Sequence[ServerInfo]) -> list[str]:
    """A plan for people: the difference, who goes on all the while, the prediction beside what the
    servers of ``now`` have, the costs, the warnings."""
    lines = list(plan.diff) or ["no flag changes: a plain restart"]
    lines += filter(None, [mixed.going_on(plan)])
    lines += _predicted(plan, now)
    lines += [f"cost: {cost}" for cost in plan.costs]
    return lines + [f"warning: {warning}" for warning in plan.warnings]


def _predicted(plan: Plan, now: Sequence[ServerInfo]) -> list[str]:
    if plan.predicted_max_running is None:
        return []
    told = plan.predicted
    slots = _beside([i.max_running for i in now], plan.predicted_max_running)
    bound = f", bound by {told.bound_by}" if told is not None and told.bound_by else ""
    lines = [f"predicted: {slots} running requests a server{bound}"]
    if told is None:
        return lines
    lines.append(f"predicted: {_beside([i.kv_tokens for i in now], told.kv_tokens)} KV tokens")
    if told.max_mamba is not None:
        lines[-1] += f", {_beside([i.max_mamba for i in now], told.max_mamba)} state slots"
    left = f"{told.left_gib:.1f} GiB left for graphs and activations"
    return [*lines, f"predicted: {told.pools_gib:.1f} GiB of pools, {left}"]


def _beside(now: Sequence[int | None], then: int) -> str:
    """``37 → 72``; servers that differ now as ``37–41 → 72``, nothing before where none is up."""
    known = sorted({value for value in now if value})
    span = "–".join(f"{value:,}" for value in dict.fromkeys([*known[:1], *known[-1:]]))
    return f"{span} → {then:,}" if span else f"{then:,}"


async def _swap(here: Session, request: Restart | Rollback) -> int:
    """Begin a swap and follow it; 0 when it is done, 1 when it failed or was rolled back."""
    await watched(here)
    plan = await here.call(request, timeout=LEARN_S)
    assert isinstance(plan, Plan)
    if plan.swap is None:
        say("nothing to do")
        return 0
    number = plan.swap.id

    def ended() -> int | None:
        swap = here.state.swap
        if swap is not None and swap.id == number and swap.state != "doing":
            say(f"swap {mixed.left(swap) or swap.state}: {swap.text}")
            return 0 if swap.state == "done" else 1
        return 1 if _gave_up(here) else None

    try:
        return await here.until(ended)
    except asyncio.CancelledError:  # ctrl+c
        look, back = here.target.command("status"), here.target.command("confirm", "--back")
        goes_on = f"the swap goes on: `{look}` shows it, `{back}` takes it back"
        print(f"stoker: {goes_on}", file=sys.stderr, flush=True)
        raise
