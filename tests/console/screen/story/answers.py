"""What the agent of the made-up target answers, and does, when it is asked."""

from __future__ import annotations

from console.feed import FeedError
from remote.protocol import (
    Decide,
    Done,
    Down,
    Events,
    LogPart,
    Machine,
    ReadAnswers,
    ReadBatches,
    ReadEvents,
    ReadFlags,
    ReadHistory,
    ReadLog,
    ReadMachine,
    ReadMix,
    Request,
    Restart,
    Result,
    RetryFailed,
    Rollback,
    RunControl,
    RunStart,
    Up,
)
from tests.console.screen.story import run, swapping
from tests.console.screen.story.catalogue import catalogue
from tests.console.screen.story.snapshot import history
from tests.console.screen.story.world import World


def answer(world: World, request: Request) -> Result:
    """Do what is asked of it.

    :raises FeedError: where an agent would refuse, or the story knows no answer
    """
    return _read(world, request) or _act(world, request)


def _read(world: World, request: Request) -> Result | None:
    """What is only looked at, or None where something is to be done."""
    match request:
        case ReadHistory(since=since, until=until, points=points):
            return history(world, since, until or world.now, min(points, 120))
        case ReadAnswers(kind=kind, limit=limit, grep=grep):
            return run.answers(kind, limit, grep)
        case ReadBatches():
            return run.batches(int(world.done))
        case ReadMix():
            return run.mix(world.done)
        case ReadEvents(after=after, limit=limit, before=before):
            end = world.events[-1].id + 1 if before is None else before
            return Events([e for e in world.events if after < e.id < end][-limit:])
        case ReadLog(source=("run" | "agent") as source):
            return LogPart(source, 1, 0, 0, ["Port 30000: OK"])
        case ReadLog(source=source, lines=lines):
            server = world.servers[int(source[3:])]
            return LogPart(source, 1, 0, 0, server.lines[-lines:])
        case ReadFlags():
            return catalogue()
        case ReadMachine():
            return Machine(
                {"torch": "2.9.1", "sglang": "0.5.12"},
                {"nvidia-smi-q.txt": "Driver Version : 580.95.05\n"},
                {"kernel.log": "/dev/kmsg: Operation not permitted"},
            )
    return None


def _act(world: World, request: Request) -> Result:
    match request:
        case Restart():
            return swapping.restart(world, request)
        case Decide(keep=keep):
            return swapping.decide(world, keep)
        case Rollback(dry_run=dry, epoch=wanted):
            then = [e for e in world.epochs if e.id == wanted] or [world.epochs[-2]]
            return swapping.restart(world, Restart(world.spec, then[0].flags, dry_run=dry))
        case RunControl(do=do):
            world.concurrency = request.concurrency or world.concurrency
            world.status = {"pause": "paused", "resume": "running"}.get(do, "stopped")
            world.alive = do in ("pause", "resume")
            return Done(f"the run is {world.status}")
        case RunStart():
            world.alive, world.status = True, "running"
            return Done("the run is starting")
        case Up(gpus=gpus) | Down(gpus=gpus):
            for server in world.servers:
                if gpus is None or server.gpu in gpus:
                    server.state = "ready" if isinstance(request, Up) else "stopped"
                    server.cause = ""
            return Done(f"{type(request).__name__.lower()} is under way")
        case RetryFailed():
            return Done("12 prompts are open again")
        case _:
            raise FeedError(f"not in this story: {type(request).__name__}")
