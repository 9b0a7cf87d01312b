"""What each verb of the command line does: a front end without a screen on the console's core.

Each verb takes a target and options, prints for people or as JSON, and returns the exit status.
Mistakes are raised as :class:`VerbError`, ``ConfigError`` or ``LinkError``, one line each.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from console import status as report
from console.config import Target
from console.link.client import LinkError, LinkStatus
from console.link.deploy import deploy as push_agent
from console.link.deploy import own_version
from console.link.place import Place, reach
from console.link.push import push_file
from console.session import Session, session
from console.text import clock, visible
from remote.protocol import (
    STOKER_DIR,
    Batches,
    Decide,
    Done,
    Down,
    Events,
    Flags,
    FlagValue,
    Happened,
    InFlight,
    LogPart,
    Plan,
    ReadBatches,
    ReadEvents,
    ReadLog,
    Request,
    Restart,
    RetryFailed,
    Rollback,
    RunControl,
    RunStart,
    Subscribe,
    Up,
)

LINE = 1 << 20
"""Longest line printed, in characters."""


class VerbError(Exception):
    """Bad usage: one line that says what and what to do."""


def say(text: str) -> None:
    """A line for people, at once. It may hold what a server or its log said: no control sequence
    of theirs gets through."""
    print(visible(text, limit=LINE), flush=True)


def flag_value(text: str) -> FlagValue:
    """``true``, ``false``, a number, or the text; several words are a list of such."""

    def scalar(word: str) -> int | float | str:
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


def ask(question: str, *, yes: bool) -> None:
    """Go on only after a yes. Raises VerbError where nobody can be asked or the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise VerbError(f"{question} Nobody can be asked here: add --yes")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise VerbError("nothing was done")


# --- Looking ---


async def status(target: Target, *, as_json: bool) -> int:
    """``stoker status``: one look, from three sources."""
    try:
        async with session(target) as here:
            await here.follow()
            batches = await here.call(ReadBatches())
            assert isinstance(batches, Batches)
            document = report.document(target.name, here.state, batches)
    except LinkError as error:
        if as_json and error.kind != "refused":
            print(json.dumps(report.unreachable(target.name, time.time(), str(error))))
            return 3
        raise
    if as_json:
        print(json.dumps(document))
    else:
        for line in report.lines(document):
            say(line)
    wrong = document["disagreements"] or any(
        server["state"] in ("failed", "stalled") for server in document["servers"]
    )
    return 1 if wrong else 0


async def observed(target: Target) -> dict[str, Any]:
    """What ``stoker advise`` looks at, as its snapshot has it."""
    async with session(target) as here:
        await here.follow()
        return report.observed(here.state)


async def logs(
    target: Target, server: str, *, count: int, grep: str, follow: bool, as_json: bool
) -> int:
    """``stoker logs``: the last lines of a server, of the run or of the agent; or follow them."""
    source = f"gpu{server}" if server.isdigit() else server
    try:
        wanted = re.compile(grep)
    except re.error as error:
        raise VerbError(f"--grep {grep}: not a regular expression: {error}") from None
    async with session(target) as here:
        part = await here.call(ReadLog(source=source, lines=count, grep=grep))
        assert isinstance(part, LogPart)
        _print_log(part, as_json=as_json)
        if follow:

            def more(part: LogPart) -> None:
                if part.skipped:
                    print(f"... {part.skipped} lines skipped", file=sys.stderr)
                kept = [line for line in part.lines if wanted.search(line)]
                _print_log(msgspec.structs.replace(part, lines=kept), as_json=as_json)

            here.on_log = more
            here.on_link = _tell_link
            cursor = (part.inode, part.next)
            await here.client.subscribe(Subscribe(snapshots=False, logs={source: cursor}))
            await here.until(lambda: None)
    return 0


def _print_log(part: LogPart, *, as_json: bool) -> None:
    for line in part.lines:
        if as_json:
            print(json.dumps({"source": part.source, "line": line}), flush=True)
        else:
            say(line)


# --- Changing ---


@asynccontextmanager
async def _place(target: Target) -> AsyncIterator[Place]:
    """The container itself, without an agent, to bring something there. Whatever fails makes it
    unreachable. Raises LinkError, and VerbError where nothing may be brought."""
    if target.read_only:
        raise VerbError(f"{target.name} is read-only: nothing is brought there")
    try:
        place = await reach(target)
        try:
            yield place
        finally:
            await place.close()
    except LinkError as error:
        raise LinkError(str(error), "unreachable") from None


async def deploy(target: Target) -> int:
    """``stoker deploy``: push the agent and start it; a no-op when it is current."""
    async with _place(target) as place:
        say(await push_agent(target, place))
    return 0


async def up(target: Target, gpus: list[int] | None, *, wait: bool) -> int:
    """``stoker up``: start servers, and by default wait until each is ready or has failed."""
    async with session(target) as here:
        await _watched(here)
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
            cause = server.cause or _last_error(here) or f"see its log: stoker logs {gpu}"
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
        await _watched(here)
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


async def restart(
    target: Target,
    set_flags: Flags,
    unset_flags: list[str],
    strategy: Any,
    gpus: list[int] | None,
    *,
    in_flight: InFlight,
    at_once: int,
    confirm_within: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """``stoker restart``: show the plan, ask, and follow the swap to its end."""

    def request(*, dry: bool, take_over: list[int]) -> Restart:
        return Restart(
            spec=target.spec,
            set_flags=set_flags,
            unset_flags=unset_flags,
            strategy=strategy,
            gpus=gpus,
            in_flight=in_flight,
            at_once=at_once,
            confirm_within_min=confirm_within,
            take_over=take_over,
            dry_run=dry,
        )

    async with session(target) as here:
        try:
            plan = await here.call(request(dry=True, take_over=[]), timeout=180)
        except LinkError as error:
            if error.kind == "refused" and (set_flags or unset_flags):
                raise VerbError(str(error)) from None
            raise
        assert isinstance(plan, Plan)
    if as_json and dry_run:
        print(msgspec.json.encode(plan).decode())
        return 0
    for line in plan_lines(plan):
        say(line)
    if dry_run:
        return 0
    # Without a link meanwhile: whoever is asked may take long, and the bridge leaves a silent one.
    ending = f", ending {len(plan.take_over)} not started by Stoker" if plan.take_over else ""
    ask(f"Restart {_which(target, gpus)} ({strategy}, {in_flight}){ending}?", yes=yes)
    async with session(target) as here:
        return await _swap(here, request(dry=False, take_over=plan.take_over), tell_plan=False)


async def rollback(
    target: Target,
    epoch: int | None,
    strategy: Any,
    *,
    in_flight: InFlight,
    at_once: int,
    yes: bool,
) -> int:
    """``stoker rollback``: swap back to an earlier epoch."""
    ask(f"Roll {_which(target, None)} back to {_epoch(epoch)}?", yes=yes)
    async with session(target) as here:
        request = Rollback(
            spec=target.spec,
            epoch=epoch,
            strategy=strategy,
            in_flight=in_flight,
            at_once=at_once,
        )
        return await _swap(here, request, tell_plan=True)


async def confirm(target: Target, *, back: bool, yes: bool) -> int:
    """``stoker confirm``: keep the new flags of the swap under way, or take them back."""
    what = "Take the new flags back" if back else "Keep the new flags"
    ask(f"{what} on {target.name}?", yes=yes)
    return await _simple(target, Decide(keep=not back))


def _which(target: Target, gpus: list[int] | None) -> str:
    if gpus is None:
        return f"all {target.spec.fleet.gpus} servers of {target.name}"
    return f"GPU {', '.join(map(str, gpus))} of {target.name}"


def _epoch(epoch: int | None) -> str:
    return "the previous flags" if epoch is None else f"epoch {epoch}"


def plan_lines(plan: Plan) -> list[str]:
    """A plan for people: the difference, the prediction, the warnings."""
    lines = list(plan.diff) or ["no flag changes: a plain restart"]
    if plan.predicted_max_running is not None:
        lines.append(f"predicted: {plan.predicted_max_running} running requests a server")
    lines += [f"cost: {cost}" for cost in plan.costs]
    return lines + [f"warning: {warning}" for warning in plan.warnings]


async def _swap(here: Session, request: Restart | Rollback, *, tell_plan: bool) -> int:
    """Begin a swap and follow it; 0 when it is done, 1 when it failed or was rolled back."""
    await _watched(here)
    plan = await here.call(request, timeout=180)
    assert isinstance(plan, Plan)
    if tell_plan:
        for line in plan_lines(plan):
            say(line)
    if plan.swap is None:
        say("nothing to do")
        return 0
    number = plan.swap.id

    def ended() -> int | None:
        swap = here.state.swap
        if swap is not None and swap.id == number and swap.state != "doing":
            say(f"swap {swap.state}: {swap.text}")
            return 0 if swap.state == "done" else 1
        return 1 if _gave_up(here) else None

    return await here.until(ended)


async def run_start(
    target: Target, prompts: Path | None, *, extend: bool, accept_params: bool
) -> int:
    """``stoker run start``: bring the prompts into the container if asked, then start or resume."""
    if prompts is not None:
        check_prompts(prompts)
        place = str(PurePosixPath(target.spec.workspace) / target.spec.run.prompts)
        async with _place(target) as there:
            digest = await push_file(there, prompts, place, progress=_pushed(prompts))
        say(f"{prompts} → {place} (sha256 {digest[:12]}…)")
    async with session(target) as here:
        await _watched(here)
        request = RunStart(spec=target.spec, extend=extend, accept_params=accept_params)
        done = await here.call(request, timeout=120)
        assert isinstance(done, Done)
        say(done.text or "started")
    return 0


def check_prompts(path: Path) -> None:
    """A first look before gigabytes travel. Raises VerbError with file and line."""
    if not path.is_file():
        raise VerbError(f"{path}: no such prompts file")
    last = b"\n"
    with path.open("rb") as source:
        for number, line in enumerate(source, 1):
            last = line
            try:
                row = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise VerbError(f"{path}:{number}: not JSON: {error}; mend or remove it") from None
            if not isinstance(row, dict) or not isinstance(row.get("messages"), list):
                raise VerbError(f"{path}:{number}: a JSON object with `messages` is needed")
            if not row["messages"]:
                raise VerbError(f"{path}:{number}: `messages` is empty; remove the line")
    if last == b"\n":
        raise VerbError(f"{path}: no prompts in it")
    if not last.endswith(b"\n"):
        raise VerbError(
            f"{path}: the last line has no newline: is the file whole? If so, "
            f"`echo >> {path}` ends it"
        )


def _pushed(path: Path) -> Callable[[int, int], None] | None:
    if not sys.stderr.isatty():
        return None

    def show(sent: int, total: int) -> None:
        share = sent * 100 // (total or 1)
        print(f"\r{path.name}: {share}% ", end="", file=sys.stderr, flush=True)

    return show


PREPARE = """
cd "$1" || exit 1; secrets=$2; code=$3; shift 3
if [ -f "$secrets" ]; then set -a; . "$secrets"; set +a; fi
export PYTHONPATH="$code" PYTHONUNBUFFERED=1
"""
"""Run in the container's workspace, with the secrets of the credentials file (``HF_TOKEN``)."""


async def prepare_on(target: Target, recipe: Path, options: list[str]) -> int:
    """``stoker prepare --on TARGET``: make the prompts where the disk and the hub's cache are.

    ``options`` are those of ``python -m remote.prepare``; paths in them are the container's.
    """
    as_json = "--json" in options  # then standard output is one document and nothing else
    show = print if as_json else say
    async with _place(target) as place:
        deployed = await push_agent(target, place)
        print(deployed, file=sys.stderr if as_json else sys.stdout, flush=True)
        word = str(recipe)
        if await asyncio.to_thread(recipe.is_file):
            word = f"{STOKER_DIR}/recipe-{recipe.name}"
            await push_file(place, recipe, word)
        spec = target.spec
        code = f"{spec.workspace}/{STOKER_DIR}/code/{own_version()}"
        script = PREPARE + ('exec "$@"' if as_json else 'exec "$@" 2>&1')
        shell = ["sh", "-c", script, "sh", spec.workspace, spec.credentials_file, code]
        command = [target.agent_python, "-m", "remote.prepare", word, *options]
        process = await place.open([*shell, *command])
        try:
            await process.write_eof()
            rest = b""
            while data := await process.read():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    show(line.decode("utf-8", "replace"))
            if rest:
                show(rest.decode("utf-8", "replace"))
            status = await process.wait()
            if as_json and process.errors:
                print(visible(process.errors.splitlines()[-1]), file=sys.stderr)
        finally:
            await process.close()
    if status is None:
        raise LinkError("the connection was lost; the same command goes on where it was", "lost")
    return status


async def run_control(target: Target, do: Any, **more: Any) -> int:
    """``stoker run pause|resume|stop``; ``more`` as :class:`RunControl` has it."""
    return await _simple(target, RunControl(do=do, **more))


async def retry_failed(target: Target, *, set_aside: bool) -> int:
    """``stoker run retry-failed``."""
    return await _simple(target, RetryFailed(set_aside=set_aside))


async def _simple(target: Target, request: Request) -> int:
    async with session(target) as here:
        done = await here.call(request, timeout=60)
        assert isinstance(done, Done)
        say(done.text or "done")
    return 0


async def _watched(here: Session) -> None:
    """From now on, print what happens: on the target, and to the link."""

    def tell(message: Happened) -> None:
        say(f"{clock(message.event.time)} {message.event.text}")

    last = await here.call(ReadEvents(limit=1))
    assert isinstance(last, Events)
    await here.follow(events_after=last.events[-1].id if last.events else 0)
    here.on_event = tell
    here.on_link = _tell_link


def _tell_link(status: LinkStatus) -> None:
    """A lost link comes back by itself: only say it."""
    if status.state != "closed":
        print(f"stoker: {visible(status.text)}", file=sys.stderr, flush=True)
