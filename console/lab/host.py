"""A stand-in Proxmox host: an SSH server on loopback that runs command lines as root's shell.

It behaves as OpenSSH's ``sshd`` does for a session without a terminal: separate pipes, exit codes
and signals as they are, end of file handed on, at most ten sessions a connection, and nothing
that tells a process its client is gone but the ends of its pipes. It has a host key, a client
key, a client configuration and a home of its own below the lab's folder; the user's keys, agent
and configuration are never looked at.

``python -m console.lab.host LAB_FOLDER`` serves until it is terminated or its standard input
ends; the first line on standard output is the port. SIGUSR1 drops every connection at once, as a
failing network does. When it leaves, everything in its containers ends, as it does when a real
host is switched off.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import asyncssh
from asyncssh.constants import EXTENDED_DATA_STDERR

from console.lab import container, pct

ALIAS = "lab"
"""How the client configuration names the host."""

MAX_SESSIONS = 10
"""OpenSSH's default ``MaxSessions``."""

SIGNALS = {
    name: signal.Signals[f"SIG{name}"]
    for name in (
        *("ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM"),
        *("USR1", "USR2"),
    )
}
"""The signals a client may send (RFC 4254, 6.9)."""

SHELL = next(s for s in ("/bin/bash", "/bin/sh") if Path(s).exists())


@dataclass(frozen=True)
class Layout:
    """Where the host's things lie below a lab's folder."""

    lab: Path

    @property
    def ssh(self) -> Path:
        """Keys and the client's configuration; 0700."""
        return self.lab / "ssh"

    @property
    def config(self) -> Path:
        """Client configuration with one ``Host lab``."""
        return self.ssh / "config"

    @property
    def home(self) -> Path:
        """Root's home on the host."""
        return self.lab / "host" / "root"

    @property
    def bin(self) -> Path:
        """First on the host's PATH; holds ``pct``."""
        return self.lab / "host" / "bin"


def make_keys(ssh: Path) -> None:
    """Host key ``host_key``, client key ``id`` and ``authorized_keys``; those there are kept."""
    ssh.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("host_key", "id"):
        if not (ssh / name).exists():
            key = asyncssh.generate_private_key("ssh-ed25519", comment=f"stoker-lab {name}")
            part = ssh / f"{name}.part"
            part.unlink(missing_ok=True)  # one that is there keeps its mode
            with open(part, "wb", opener=private) as out:
                out.write(key.export_private_key())
            key.write_public_key(str(ssh / f"{name}.pub"))
            part.replace(ssh / name)  # last: a key that is there is whole, and has the other half
    (ssh / "authorized_keys").write_bytes((ssh / "id.pub").read_bytes())


def write_client_config(ssh: Path, port: int, alias: str = ALIAS) -> None:
    """``config`` and ``known_hosts`` for OpenSSH and asyncssh alike, from these keys alone."""
    kind, key = (ssh / "host_key.pub").read_text().split()[:2]
    (ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    lines = [
        f"Host {alias}",
        "  HostName 127.0.0.1",
        f"  Port {port}",
        "  User root",
        f'  IdentityFile "{ssh / "id"}"',
        "  IdentitiesOnly yes",
        "  IdentityAgent none",
        f'  UserKnownHostsFile "{ssh / "known_hosts"}"',
        "  GlobalKnownHostsFile none",
        "  StrictHostKeyChecking yes",
        "  PreferredAuthentications publickey",
    ]
    (ssh / "config").write_text("\n".join(lines) + "\n")


def install_pct(layout: Layout) -> None:
    """``pct`` on the host's PATH, by this interpreter."""
    layout.bin.mkdir(parents=True, exist_ok=True)
    layout.home.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-I", "-S", str(Path(pct.__file__).resolve()), str(layout.lab)]
    program = layout.bin / "pct"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)


def private(path: str, flags: int) -> int:
    """An opener for files that only their owner may read."""
    return os.open(path, flags, 0o600)


class Host:
    """The server, in the caller's event loop. See :func:`start`."""

    def __init__(self, layout: Layout, max_sessions: int = MAX_SESSIONS) -> None:
        self.layout = layout
        self.max_sessions = max_sessions
        self.port = 0
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self.children: dict[subprocess.Popen[bytes], asyncio.Future[int]] = {}
        """Session leaders that were not reaped yet, and their exit codes to come."""

    async def open(self, port: int = 0) -> None:
        """Listen on loopback (a free port by default) and write the client's files."""
        make_keys(self.layout.ssh)
        install_pct(self.layout)
        self._acceptor = await asyncssh.create_server(
            lambda: _Server(self),
            "127.0.0.1",
            port,
            server_host_keys=[str(self.layout.ssh / "host_key")],
            authorized_client_keys=str(self.layout.ssh / "authorized_keys"),
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
            password_auth=False,
            kbdint_auth=False,
            host_based_auth=False,
            gss_host=None,
            login_timeout=120,
        )
        self.port = self._acceptor.get_port()
        write_client_config(self.layout.ssh, self.port)

    def cut(self) -> None:
        """Drop every connection without a goodbye; what runs is told nothing."""
        for connection in list(self._connections):
            connection.abort()

    async def close(self, patience: float = 2.0) -> None:
        """Stop listening, drop the connections, end the sessions' process groups."""
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        self.cut()
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for child in list(self.children):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, sign)
            if self.children:
                await asyncio.wait(self.children.values(), timeout=patience)

    def environment(self, connection: asyncssh.SSHServerConnection) -> dict[str, str]:
        """What sshd and login give a session; nothing of this process's own."""
        peer = connection.get_extra_info("peername") or ("127.0.0.1", 0)
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {
            "USER": "root",
            "LOGNAME": "root",
            "HOME": str(self.layout.home),
            "SHELL": SHELL,
            "PATH": f"{self.layout.bin}:{path}",
            "LANG": "C.UTF-8",
            "SSH_CLIENT": f"{peer[0]} {peer[1]} {self.port}",
            "SSH_CONNECTION": f"{peer[0]} {peer[1]} 127.0.0.1 {self.port}",
            "STOKER_LAB": str(self.layout.lab),
        }


async def start(lab: Path, *, port: int = 0, max_sessions: int = MAX_SESSIONS) -> Host:
    """A listening host for the lab in this folder; its containers are ``ct/<vmid>``."""
    host = Host(Layout(lab), max_sessions)
    await host.open(port)
    return host


class _Server(asyncssh.SSHServer):
    """One connection."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sessions = 0

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._host._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._host._connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        if username != "root":  # the key is root's alone
            self._connection.set_authorized_keys(asyncssh.import_authorized_keys(""))
        return True

    def session_requested(self) -> _Session:
        if self._sessions >= self._host.max_sessions:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "open failed")
        self._sessions += 1
        return _Session(self._host, self._connection, self._session_closed)

    def _session_closed(self) -> None:
        self._sessions -= 1


class _Session(asyncssh.SSHServerSession[bytes]):
    """One command: a shell on three pipes."""

    def __init__(
        self, host: Host, connection: asyncssh.SSHServerConnection, on_closed: Any
    ) -> None:
        self._host = host
        self._connection = connection
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
        self._host.children[child] = exited
        exited.add_done_callback(lambda _: self._host.children.pop(child))
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
        env = self._host.environment(self._connection)
        for key, value in self._chan.get_environment().items():
            if key == "LANG" or key.startswith("LC_"):  # AcceptEnv of Debian's sshd_config
                env[key] = value
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
                env=env,
                cwd=self._host.layout.home,
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
        if self._child is not None and self._child in self._host.children and signal in SIGNALS:
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


async def serve(lab: Path, port: int, *, temporary: bool = False) -> None:
    """Serve until SIGTERM, SIGINT or the end of standard input; then end what runs in the lab.

    A ``temporary`` lab's folder is removed then.
    """
    host = await start(lab, port=port)
    print(host.port, flush=True)
    loop = asyncio.get_running_loop()
    leave = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, leave.set)
    loop.add_signal_handler(signal.SIGUSR1, host.cut)

    def watch_stdin() -> None:
        while os.read(0, 4096):
            pass
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(leave.set)

    threading.Thread(target=watch_stdin, daemon=True).start()
    await leave.wait()
    await host.close()
    await asyncio.to_thread(container.end_all, lab)
    if temporary:
        await asyncio.to_thread(shutil.rmtree, lab, ignore_errors=True)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m console.lab.host", description=__doc__)
    parser.add_argument("lab", type=Path, help="the lab's folder")
    parser.add_argument("--port", type=int, default=0, help="a free one by default")
    parser.add_argument("--temporary", action="store_true", help="remove the folder at the end")
    options = parser.parse_args()
    logging.getLogger("asyncssh").setLevel(logging.CRITICAL)
    asyncio.run(serve(options.lab.resolve(), options.port, temporary=options.temporary))


if __name__ == "__main__":
    main()
