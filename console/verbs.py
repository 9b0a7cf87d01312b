"""What each verb of the command line does: a front end without a screen on the console's core.

Each verb takes a target and options, prints for people or as JSON, and returns the exit status.
Mistakes are raised as :class:`VerbError`, ``ConfigError`` or ``LinkError``, one line each.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from console import status as report
from console.config import Target
from console.link.client import LinkError
from console.link.deploy import deploy as push_agent
from console.link.deploy import own_version
from console.link.place import Place, reach
from console.link.push import push_file
from console.session import Session, session
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
    LogPart,
    Plan,
    ReadBatches,
    ReadEvents,
    ReadLog,
    Restart,
    RetryFailed,
    Rollback,
    RunControl,
    RunStart,
    Subscribe,
    Swap,
    Up,
)


class VerbError(Exception):
    """Bad usage: one line that says what and what to do."""


def say(text: str) -> None:
    """A line for people, at once."""
    print(text, flush=True)


def flag_value(text: str) -> FlagValue:
    """``true``, ``false``, a number, or the text; several words are a list of such."""

    def scalar(word: str) -> int | float | str:
        for kind in (int, float):
            try:
                return kind(word)
            except ValueError:
                continue
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
                if kept:
                    _print_log(_with(part, kept), as_json=as_json)

            here.on_log = more
            cursor = (part.inode, part.next)
            await here.client.subscribe(Subscribe(snapshots=False, logs={source: cursor}))
            await here.until(lambda: None)
    return 0


def _with(part: LogPart, lines: list[str]) -> LogPart:
    return LogPart(part.source, part.inode, part.offset, part.next, lines, part.skipped, part.size)


def _print_log(part: LogPart, *, as_json: bool) -> None:
    from console.text import visible

    for line in part.lines:
        if as_json:
            print(json.dumps({"source": part.source, "line": line}), flush=True)
        else:
            say(visible(line, limit=1 << 20))


# --- Changing ---


@asynccontextmanager
async def _place(target: Target) -> AsyncIterator[Place]:
    """The container itself, without an agent. What fails on the way makes it unreachable."""
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
    if target.read_only:
        raise VerbError(f"{target.name} is read-only (read_only = true): nothing is deployed")
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


def _last_error(here: Session) -> str:
    """The newest thing that went wrong, where events are followed."""
    errors = [event.text for event in here.state.events if event.level == "error"]
    return errors[-1] if errors else ""


async def down(target: Target, gpus: list[int] | None, *, yes: bool) -> int:
    """``stoker down``: drain servers and stop them."""
    which = "all servers" if gpus is None else f"GPU {', '.join(map(str, gpus))}"
    ask(f"Drain and stop {which} of {target.name}?", yes=yes)
    async with session(target) as here:
        await _watched(here)
        done = await here.call(Down(gpus=gpus), timeout=60)
        assert isinstance(done, Done)
        say(done.text or "stopping")
        wanted = range(target.spec.fleet.gpus) if gpus is None else gpus

        def stopped() -> bool | None:
            states = [s.state for g, s in here.state.servers.items() if g in wanted]
            return True if all(s in ("stopped", "failed", "foreign") for s in states) else None

        await here.until(stopped)
    return 0


async def restart(
    target: Target,
    set_flags: Flags,
    unset_flags: list[str],
    strategy: Any,
    gpus: list[int] | None,
    *,
    confirm_within: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """``stoker restart``: show the plan, ask, and follow the swap to its end."""

    def request(dry: bool) -> Restart:
        return Restart(
            spec=target.spec,
            set_flags=set_flags,
            unset_flags=unset_flags,
            strategy=strategy,
            gpus=gpus,
            confirm_within_min=confirm_within,
            dry_run=dry,
        )

    async with session(target) as here:
        try:
            plan = await here.call(request(dry=True), timeout=180)
        except LinkError as error:
            if error.kind == "refused" and (set_flags or unset_flags):
                raise VerbError(str(error)) from None
            raise
        assert isinstance(plan, Plan)
        if as_json and dry_run:
            import msgspec

            print(msgspec.json.encode(plan).decode())
            return 0
        for line in plan_lines(plan):
            say(line)
        if dry_run:
            return 0
        ask(f"Restart {_which(target, gpus)} ({strategy})?", yes=yes)
        return await _swap(here, await here.call(request(dry=False), timeout=180))


async def rollback(target: Target, epoch: int | None, strategy: Any, *, yes: bool) -> int:
    """``stoker rollback``: swap back to an earlier epoch."""
    ask(f"Roll {_which(target, None)} back to {_epoch(epoch)}?", yes=yes)
    async with session(target) as here:
        request = Rollback(spec=target.spec, epoch=epoch, strategy=strategy)
        plan = await here.call(request, timeout=180)
        assert isinstance(plan, Plan)
        for line in plan_lines(plan):
            say(line)
        return await _swap(here, plan)


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


async def _swap(here: Session, plan: object) -> int:
    """Follow a begun swap; 0 when it is done, 1 when it failed or was rolled back."""
    assert isinstance(plan, Plan)
    if plan.swap is None:
        say("nothing to do")
        return 0
    number = plan.swap.id
    told: set[tuple[int, str, str]] = set()
    await here.client.subscribe(Subscribe(snapshots=True))

    def ended() -> Swap | None:
        swap = here.state.swap
        if swap is None or swap.id != number:
            return None
        for step in swap.steps:
            key = (step.gpu, step.name, step.state)
            if step.state in ("done", "failed") and key not in told:
                told.add(key)
                say(
                    f"gpu {step.gpu}: {step.name} {step.state}"
                    + (f": {step.text}" * bool(step.text))
                )
        return swap if swap.state != "doing" else None

    swap = await here.until(ended)
    say(f"swap {swap.state}: {swap.text}")
    return 0 if swap.state == "done" else 1


async def run_start(
    target: Target, prompts: Path | None, *, extend: bool, accept_params: bool
) -> int:
    """``stoker run start``: bring the prompts into the container if asked, then start or resume."""
    if prompts is not None:
        check_prompts(prompts)
        spec = target.spec
        place = f"{spec.workspace.rstrip('/')}/{spec.run.prompts}"
        if spec.run.prompts.startswith("/"):
            place = spec.run.prompts
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
    import msgspec

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
export PYTHONPATH="$code" PYTHONUNBUFFERED=1; exec "$@" 2>&1
"""
"""Run in the container's workspace, with the secrets of the credentials file (``HF_TOKEN``)."""


async def prepare_on(target: Target, recipe: Path, options: list[str]) -> int:
    """``stoker prepare --on TARGET``: make the prompts where the disk and the hub's cache are.

    ``options`` are those of ``python -m remote.prepare``; paths in them are the container's.
    """
    async with _place(target) as place:
        say(await push_agent(target, place))
        word = str(recipe)
        if await asyncio.to_thread(recipe.is_file):
            word = f"{STOKER_DIR}/recipe-{recipe.name}"
            await push_file(place, recipe, word)
        spec = target.spec
        code = f"{spec.workspace}/{STOKER_DIR}/code/{own_version()}"
        shell = ["sh", "-c", PREPARE, "sh", spec.workspace, spec.credentials_file, code]
        command = [target.agent_python, "-m", "remote.prepare", word, *options]
        process = await place.open([*shell, *command])
        try:
            await process.write_eof()
            while data := await process.read():
                sys.stdout.write(data.decode("utf-8", "replace"))
                sys.stdout.flush()
            status = await process.wait()
        finally:
            await process.close()
    if status is None:
        raise LinkError("the connection was lost; the same command goes on where it was", "lost")
    return status


async def run_control(target: Target, do: Any, *, seal: bool = False) -> int:
    """``stoker run pause|resume|stop``."""
    return await _simple(target, RunControl(do=do, seal=seal))


async def retry_failed(target: Target, *, set_aside: bool) -> int:
    """``stoker run retry-failed``."""
    return await _simple(target, RetryFailed(set_aside=set_aside))


async def _simple(target: Target, request: Any) -> int:
    async with session(target) as here:
        done = await here.call(request, timeout=60)
        assert isinstance(done, Done)
        say(done.text or "done")
    return 0


async def _watched(here: Session) -> None:
    """From now on, print what happens."""

    def tell(message: Happened) -> None:
        event = message.event
        where = f"gpu {event.gpu}: " if event.gpu is not None else ""
        say(f"{time.strftime('%H:%M:%S', time.localtime(event.time))} {where}{event.text}")

    last = await here.call(ReadEvents(limit=1))
    assert isinstance(last, Events)
    await here.follow(events_after=last.events[-1].id if last.events else 0)
    here.on_event = tell
