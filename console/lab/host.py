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
import logging
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import asyncssh

from console.lab import container
from console.lab.host_files import Layout, install_pct, make_keys, write_client_config
from console.lab.host_session import SHELL, Session

MAX_SESSIONS = 10
"""OpenSSH's default ``MaxSessions``."""


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

    def session_requested(self) -> Session:
        if self._sessions >= self._host.max_sessions:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "open failed")
        self._sessions += 1
        return Session(
            self._host.layout.home,
            self._host.environment(self._connection),
            self._host.children,
            self._session_closed,
        )

    def _session_closed(self) -> None:
        self._sessions -= 1


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
