"""The container: a machine plus the hop into it. Commands run there, and failures are explained."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable
from dataclasses import dataclass

from console.config import Hop, Target
from console.link import hop, ssh
from console.link.errors import LinkError
from console.link.process import Host, LocalHost, Process

STATUS_S = 8.0
OUTPUT = 8 << 20
"""Bytes of output one command may give."""


@dataclass(frozen=True)
class Completed:
    """How a command ended. ``status`` None: the connection went, its fate is unknown."""

    status: int | None
    out: bytes
    errors: str


class Place:
    """Where a target's commands run."""

    def __init__(self, target: Target, host: Host) -> None:
        self.target = target
        self.host = host
        self._few = asyncio.Semaphore(ssh.SESSIONS)

    @property
    def name(self) -> str:
        """For messages: ``container 200 on root@10.1.2.6``."""
        inner = hop.name(self.target.hop)
        return f"{inner} on {self.host.name}" if inner else self.host.name

    async def open(self, argv: list[str]) -> Process:
        """Start a command that stays (the bridge). Raises LinkError."""
        try:
            return await self.host.open(hop.wrap(self.target.hop, argv))
        except OSError as error:  # this machine only: the program itself is missing
            raise LinkError(f"{error.filename or argv[0]}: {error.strerror}") from None

    async def run(
        self,
        argv: list[str],
        data: bytes | AsyncIterable[bytes] = b"",
        *,
        timeout: float = 30,
    ) -> Completed:
        """Run a command to its end with ``data`` on its standard input. Raises LinkError when it
        can't be started or does not end in time; a failing one is returned."""
        async with self._few:
            process = await self.open(argv)
            try:
                async with asyncio.timeout(timeout):
                    feeder = asyncio.create_task(_feed(process, data))
                    try:
                        out = await _read_all(process)
                        status = await process.wait()
                    finally:
                        feeder.cancel()
                        fed = await asyncio.gather(feeder, return_exceptions=True)
                    if isinstance(fed[0], LinkError):
                        raise fed[0]
                    return Completed(status, out, process.errors)
            except TimeoutError:
                raise await self.explain_timeout(timeout) from None
            except OSError as error:
                text = f"{self.name}: the connection was lost: {error}"
                raise LinkError(text, "lost") from None
            finally:
                await process.close()

    async def explain_timeout(self, timeout: float) -> LinkError:
        """Why nothing came: a frozen container says that it runs and hangs every command."""
        state = await self._state()
        if self.target.hop.kind == "pct" and state and "running" in state:
            return LinkError(
                f"{self.name}: running, yet no answer within {timeout:.0f} s: it may be frozen "
                f"(suspended, or a backup runs): `pct list` there, `pct resume {self._id}` thaws",
                "timeout",
            )
        return LinkError(f"{self.name}: no answer within {timeout:.0f} s", "timeout")

    async def explain(self, done: Completed, what: str) -> LinkError:
        """Why ``what`` failed, from its exit status, its words, and the container's state now."""
        if done.status is None:
            return LinkError(f"{self.name}: the connection was lost during {what}", "lost")
        if cause := await self.diagnose(done):
            return LinkError(cause)
        words = _last_line(done.errors or done.out.decode("utf-8", "replace"))
        killed = " (killed: out of memory?)" if done.status == 137 else ""
        return LinkError(
            f"{self.name}: {what} failed with exit status {done.status}{killed}"
            + (f": {words}" if words else "")
        )

    async def diagnose(self, done: Completed) -> str:
        """The cause where it is a known one that a person has to mend; else empty.

        Exit status 137 is the same for kill -9, out of memory and a stopped container, and 1 and
        255 may be the hop's own: so the container's state is asked for.
        """
        if known := explain_text(self.target, self.host.name, done.errors):
            return known
        state = await self._state()
        if state is None or "running" in state.lower().replace("not running", ""):
            return ""
        return explain_text(self.target, self.host.name, state) or _stopped(
            self.target.hop, self.host.name
        )

    @property
    def _id(self) -> str:
        return self.target.hop.name

    async def _state(self) -> str | None:
        """What the container's own tool says of it, errors included; None where that fails."""
        argv = hop.status(self.target.hop)
        if argv is None or not self.host.alive:
            return None
        with contextlib.suppress(LinkError, OSError, TimeoutError):
            process = await self.host.open(argv)
            try:
                async with asyncio.timeout(STATUS_S):
                    await process.write_eof()
                    out = await _read_all(process)
                    await process.wait()
                    return (out.decode("utf-8", "replace") + process.errors).strip()
            finally:
                await process.close()
        return None

    async def close(self) -> None:
        """Let go of the machine."""
        await self.host.close()


async def reach(target: Target) -> Place:
    """Connect to a target's machine. Raises LinkError."""
    return Place(target, await ssh.connect(target) if target.ssh else LocalHost())


def explain_text(target: Target, host: str, text: str) -> str:
    """One line for the known error texts of pct, lxc-attach, docker, podman, incus and sudo;
    empty for unknown ones."""
    kind, name = target.hop.kind, target.hop.name
    there = f"on {host}" if target.ssh else "here"
    low = text.lower()

    def has(*words: str) -> bool:
        return any(word in low for word in words)

    if has("a password is required", "a terminal is required to read the password"):
        return (
            f"sudo {there} asks for a password: allow it without one (NOPASSWD), or log in as root"
        )
    if kind != "none" and has(f"{kind}: command not found", f"{kind}: not found"):
        return f"there is no {kind} {there}: correct `ssh` or `hop`"
    if has("sudo: command not found", "sudo: not found"):
        return f"there is no sudo {there}: set sudo = false and log in as root"
    named = bool(target.agent_python) and target.agent_python.lower() in low
    if named and has("no such file", "not found"):
        return (
            f"agent_python = {target.agent_python!r} does not exist in "
            f"{hop.name(target.hop) or host}: correct it"
        )
    if (
        target.agent_python
        and target.agent_python.lower() in low
        and has("failed to exec", "permission denied")
    ):
        return (
            f"agent_python = {target.agent_python!r} can't be run in "
            f"{hop.name(target.hop) or host}: correct it"
        )
    if kind == "pct":
        if "configuration file" in low and "does not exist" in low:
            return (
                f"there is no container {name} {there}: `pct list` shows those of this node; "
                "it may have been moved to another node of the cluster"
            )
        if has("not running"):
            return f"container {name} {there} is stopped: `pct start {name}` there"
        if has("please run as root"):
            return f"pct {there} needs root: log in as root, or set sudo = true"
    if kind in ("docker", "podman", "incus"):
        if has("no such container", "no such object", "instance not found", "not found"):
            return f"there is no container {name} {there}: correct `hop`"
        if has("is not running", "container state improper"):
            return _stopped(target.hop, host)
        if has("permission denied", "cannot connect to the docker daemon"):
            return f"{kind} {there} can't be used: {_last_line(text)}"
    return ""


def _stopped(where: Hop, host: str) -> str:
    start = {"pct": "pct start", "docker": "docker start", "podman": "podman start"}
    command = f"{start.get(where.kind, 'incus start')} {where.name}"
    return f"container {where.name} on {host} is not running: `{command}` there"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


async def _feed(process: Process, data: bytes | AsyncIterable[bytes]) -> None:
    try:
        if isinstance(data, bytes):
            if data:
                await process.write(data)
        else:
            async for block in data:
                await process.write(block)
    except OSError:
        return  # it reads no further: its exit status says why
    await process.write_eof()


async def _read_all(process: Process) -> bytes:
    kept = bytearray()
    while data := await process.read():
        kept += data[: max(0, OUTPUT - len(kept))]
    return bytes(kept)
