"""A session of the stand-in host: one command, as OpenSSH's ``sshd`` runs it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, cast

import asyncssh
from asyncssh.constants import EXTENDED_DATA_STDERR

SIGNALS = {
    name: signal.Signals[f"SIG{name}"]
    for name in (
        *("ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM"),
        *("USR1", "USR2"),
    )
}
"""The signals a client may send (RFC 4254, 6.9)."""

SHELL = next(s for s in ("/bin/bash", "/bin/sh") if Path(s).exists())


class Session(asyncssh.SSHServerSession[bytes]):
    """One command: a shell on three pipes.

    ``children`` gets the shell, and loses it when it has ended; ``on_closed`` is called once.
    """

    def __init__(
        self,
        home: Path,
        environment: dict[str, str],
        children: dict[subprocess.Popen[bytes], asyncio.Future[int]],
        on_closed: Callable[[], None],
    ) -> None:
        self._home = home
        self._environment = environment
        self._children = children
        self._on_closed = on_closed
        self._command: str | None = None
        self._stdin: _Stdin | None = None
        self._early: list[bytes | None] = []
        """What came before there was a pipe for it; None is the end."""
        self._outputs: list[asyncio.ReadTransport] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._chan = chan

    def exec_requested(self, command: str) -> bool:
        self._command = command
        return True

    def shell_requested(self) -> bool:
        return True

    def session_started(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(lambda _: self._chan.close())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            child, ends = self._spawn()
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            self._chan.write_stderr(f"{SHELL}: {os.strerror(errno.E2BIG)}\n".encode())
            self._chan.exit(1)
            return
        self._child = child
        exited: asyncio.Future[int] = loop.create_future()
        self._children[child] = exited
        exited.add_done_callback(lambda _: self._children.pop(child))
        threading.Thread(target=_wait, args=(child, loop, exited), daemon=True).start()
        _, self._stdin = await loop.connect_write_pipe(partial(_Stdin, self._chan), ends[0])
        for data in self._early:
            self._feed(data)
        outputs = []
        for pipe, datatype in ((ends[1], None), (ends[2], EXTENDED_DATA_STDERR)):
            transport, output = await loop.connect_read_pipe(
                partial(_Output, self._chan, datatype), pipe
            )
            self._outputs.append(transport)
            outputs.append(output)
        if self._closed:
            self._hang_up()
        code = await exited
        self._stdin.drop()
        # A child of the command that still holds an end keeps the session open, as with sshd.
        await asyncio.gather(*(output.ended for output in outputs))
        if self._closed:
            return
        if code >= 0:
            self._chan.exit(code)
        else:
            self._chan.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))

    def _spawn(self) -> tuple[subprocess.Popen[bytes], list[IO[bytes]]]:
        """The shell in a session of its own; our ends of its three pipes."""
        name = Path(SHELL).name
        argv = [f"-{name}"] if self._command is None else [name, "-c", self._command]
        accepted = {
            key: value
            for key, value in self._chan.get_environment().items()
            if key == "LANG" or key.startswith("LC_")  # AcceptEnv of Debian's sshd_config
        }
        # Pipes of our own: asyncio's are sockets in part, which cannot be opened by name.
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        ours_err, theirs_err = os.pipe()
        try:
            child = subprocess.Popen(
                argv,
                executable=SHELL,
                stdin=theirs_in,
                stdout=theirs_out,
                stderr=theirs_err,
                env={**self._environment, **accepted},
                cwd=self._home,
                start_new_session=True,
            )
        except OSError:
            for fd in (ours_in, ours_out, ours_err):
                os.close(fd)
            raise
        finally:
            for fd in (theirs_in, theirs_out, theirs_err):
                os.close(fd)
        modes = ((ours_in, "wb"), (ours_out, "rb"), (ours_err, "rb"))
        return child, [cast("IO[bytes]", os.fdopen(fd, mode, 0)) for fd, mode in modes]

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._feed(data)

    def eof_received(self) -> bool:
        self._feed(None)
        return True

    def _feed(self, data: bytes | None) -> None:
        if self._stdin is None:
            self._early.append(data)
        elif self._stdin.pipe.is_closing():
            pass  # nobody reads any more
        elif data is None:
            self._stdin.pipe.write_eof()
        else:
            self._stdin.pipe.write(data)

    def signal_received(self, signal: str) -> None:
        if self._child is not None and self._child in self._children and signal in SIGNALS:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, SIGNALS[signal])

    def pause_writing(self) -> None:
        for output in self._outputs:
            output.pause_reading()

    def resume_writing(self) -> None:
        for output in self._outputs:
            output.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._on_closed()
        self._hang_up()

    def _hang_up(self) -> None:
        """Close the pipes; no signal is sent to anyone."""
        if self._stdin is not None:
            self._stdin.drop()
        for output in self._outputs:
            output.close()


def _wait(
    child: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, exited: asyncio.Future[int]
) -> None:
    code = child.wait()

    def tell() -> None:
        if not exited.done():
            exited.set_result(code)

    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(tell)


class _Stdin(asyncio.Protocol):
    """Slows the client to the pace of the command."""

    def __init__(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._chan = chan
        self._dropped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.pipe = cast("asyncio.WriteTransport", transport)

    def drop(self) -> None:
        """Close the pipe, whatever is still to be written."""
        if not self._dropped and not (self.pipe.is_closing() and self._idle()):
            self._dropped = True
            self.pipe.abort()

    def _idle(self) -> bool:
        return self.pipe.get_write_buffer_size() == 0

    def pause_writing(self) -> None:
        self._chan.pause_reading()

    def resume_writing(self) -> None:
        # Not from inside the transport: the channel hands over data and end of file at once, and
        # asyncio would then close the pipe over what it has just taken.
        asyncio.get_running_loop().call_soon(self._chan.resume_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        self._dropped = True
        self.resume_writing()  # nobody reads any more: what comes is thrown away


class _Output(asyncio.Protocol):
    """One of the command's outputs on its way to the client."""

    def __init__(self, chan: asyncssh.SSHServerChannel[bytes], datatype: int | None) -> None:
        self._chan = chan
        self._datatype = datatype
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self._chan.is_closing():
            self._chan.write(data, self._datatype)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
