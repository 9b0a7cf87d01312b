"""One agent's life: lock, log, signals, socket, until it is asked to end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import logging
import logging.handlers
import os
import signal
import sys
import time
from pathlib import Path

from remote.agent.core import Agent
from remote.agent.serve import Server
from remote.bridge import HELD
from remote.paths import Workspace

log = logging.getLogger("agent")

SOCKET_CHECK_S = 5.0
LOG_BYTES = 16 << 20
LOCK_S = 1.0
"""Whoever only looks whether an agent lives holds the lock for an instant."""


def main(argv: list[str] | None = None) -> int:
    """Run an agent; returns its exit status."""
    parser = argparse.ArgumentParser(prog="remote.agent")
    parser.add_argument("--workspace", type=Path, required=True)
    args = parser.parse_args(argv)
    workspace = Workspace(args.workspace.resolve())
    try:
        workspace.stoker.mkdir(parents=True, exist_ok=True)
        socket = workspace.socket  # where the last agent listened: the run still looks there
        lock = take_lock(workspace)
    except OSError as error:
        print(f"{workspace.stoker}: {error.strerror or error}", file=sys.stderr)
        return 1
    if lock is None:
        return HELD
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
        handlers=[log_handler(workspace.agent_log)],
    )
    os.environ.pop("PYTHONSAFEPATH", None)  # ours alone: servers and run start their own way
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        return asyncio.run(_run(workspace, lock, socket))
    finally:
        logging.shutdown()


class _Rotating(logging.handlers.RotatingFileHandler):
    """Takes standard output and error along to the new file."""

    def doRollover(self) -> None:  # noqa: N802 - logging's own name
        super().doRollover()
        if self.stream is not None:
            for number in (1, 2):
                os.dup2(self.stream.fileno(), number)


def log_handler(path: Path) -> logging.Handler:
    """Standard error; where that is the agent's log file, one that begins a new file in time."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(2), path.stat()):
            return _Rotating(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    return logging.StreamHandler(sys.stderr)


def take_lock(workspace: Workspace) -> int | None:
    """The descriptor that holds the workspace's flock, or None where another agent has it.

    The descriptor is not inherited: servers and run outlive the agent and must not keep it.
    """
    lock = os.open(workspace.agent_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(lock)
                return None
            time.sleep(0.05)
    os.ftruncate(lock, 0)  # what an earlier agent said of itself holds no more
    return lock


def say_where(lock: int, code: str, socket: Path) -> None:
    """Write into the lock file who holds it and where it listens."""
    said = {"pid": os.getpid(), "code": code, "socket": str(socket), "since": time.time()}
    line = json.dumps(said).encode() + b"\n"
    os.pwrite(lock, line, 0)
    os.ftruncate(lock, len(line))


def code_hash() -> str:
    """Hash of this code: the name of the folder it was deployed to, ``source`` where it was not."""
    folder = Path(__file__).resolve().parent.parent.parent
    return folder.name if folder.parent.name == "code" else "source"


async def _run(workspace: Workspace, lock: int, socket: Path) -> int:
    loop = asyncio.get_running_loop()
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _signalled, signal.Signals(number).name, end)
    code = code_hash()
    agent = Agent(workspace, code=code, end=end)
    server = Server(agent, socket)
    log.info("agent %s, pid %d, workspace %s", code, os.getpid(), workspace.root)
    try:
        await agent.open()
        await server.open()
    except OSError as error:
        log.error("%s", error)  # noqa: TRY400 - one line; the text says it all
        await agent.close()
        return 1
    say_where(lock, code, server.path)
    work = asyncio.create_task(agent.live())
    try:
        while not end.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SOCKET_CHECK_S):
                    await end.wait()
            if not server.there and not end.is_set():
                log.warning("%s is gone: listening anew", server.path)
                await _listen_anew(server, workspace)
                say_where(lock, code, server.path)
            if work.done():
                work.result()
    finally:
        await asyncio.sleep(0.1)  # the answer to Shutdown is on its way
        await server.close()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await agent.close()
        log.info("agent ended; servers and run go on")
    return 0


async def _listen_anew(server: Server, workspace: Workspace) -> None:
    """At the same place, or where that is gone (``/run/user`` after the last logout) at another."""
    for path in (server.path, workspace.fresh_socket):
        server.path = path
        try:
            await server.open()
        except OSError as error:
            log.warning("%s: %s", path, error)
        else:
            return


def _signalled(name: str, end: asyncio.Event) -> None:
    log.info("%s: ending", name)
    end.set()
