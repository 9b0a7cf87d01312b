"""One remote command with its standard input and output, whichever way it is reached."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Protocol

STDERR = 16 * 1024
"""Bytes of standard error that are kept (the last ones)."""


class Process(Protocol):
    """A command under way. Bytes only: one undecodable byte must not end a connection."""

    async def read(self, size: int = 1 << 16) -> bytes:
        """Some of its standard output; empty at its end. Raises OSError when it is lost."""

    async def write(self, data: bytes) -> None:
        """To its standard input, waiting while it does not read. Raises OSError."""

    async def write_eof(self) -> None:
        """End its standard input. Without this a remote ``cat`` waits for ever."""

    async def wait(self) -> int | None:
        """Its exit status; None when the connection went first: its fate is unknown."""

    async def close(self) -> None:
        """Let go of it (and, where it can be reached, end it)."""

    @property
    def errors(self) -> str:
        """What it said on standard error, the last of it."""


class Host(Protocol):
    """A machine on which commands can be started: over SSH, or this one."""

    name: str

    async def open(self, argv: list[str]) -> Process:
        """Start a command. Raises LinkError."""

    @property
    def alive(self) -> bool:
        """Whether commands can still be started."""

    async def close(self) -> None:
        """Let go of the connection."""


class StderrTail:
    """Reads standard error to its end, keeping the last of it."""

    def __init__(self, read: Callable[[int], Awaitable[bytes]]) -> None:
        self._read = read
        self._kept = b""
        self._task = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._read(1 << 14):
                self._kept = (self._kept + data)[-STDERR:]

    async def finish(self) -> None:
        """Wait a moment for the rest of it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.shield(self._task)

    @property
    def text(self) -> str:
        """What was kept."""
        return self._kept.decode("utf-8", "replace").strip()

    def cancel(self) -> None:
        """Stop reading."""
        self._task.cancel()


class LocalProcess:
    """A command on this machine."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._stderr = StderrTail(process.stderr.read)

    async def read(self, size: int = 1 << 16) -> bytes:
        return await self._stdout.read(size)

    async def write(self, data: bytes) -> None:
        self._stdin.write(data)
        await self._stdin.drain()

    async def write_eof(self) -> None:
        with contextlib.suppress(OSError):
            self._stdin.write_eof()

    async def wait(self) -> int | None:
        code = await self._process.wait()
        await self._stderr.finish()
        return code if code >= 0 else 128 - code

    async def close(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        self._stderr.cancel()
        self._stdin.close()

    @property
    def errors(self) -> str:
        return self._stderr.text


class LocalHost:
    """This machine: no SSH, no shell."""

    name = "this machine"
    alive = True

    async def open(self, argv: list[str]) -> Process:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return LocalProcess(process)

    async def close(self) -> None:
        """Nothing is held."""
