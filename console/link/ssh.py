"""One SSH connection to the machine in front of the container.

The user's OpenSSH configuration, keys, agent and known_hosts are honoured as ``ssh`` would; host
keys are always checked. Every error comes out as one line that says what to do. The port is
never probed with a bare TCP connection: since 9.8 OpenSSH locks such clients out
(``PerSourcePenalties``).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from itertools import count
from pathlib import Path
from typing import Any

import asyncssh
from asyncssh import SSHClient, SSHClientConnection, SSHClientConnectionOptions

from console.config import Target
from console.link import hop
from console.link.errors import AuthError, LinkError
from console.link.process import Process, StderrTail

CONNECT_S = 15.0
KEEPALIVE_S = 10.0
KEEPALIVES = 3
SESSIONS = 6
"""Commands at once: sshd allows 10 sessions (MaxSessions) and frees one late; one is the link's."""
OPEN_S = 20.0
"""So long a command waits for one of sshd's sessions."""
JUMPS = 8


class _Client(SSHClient):
    """Remembers which host key was offered, for the message when it is refused."""

    def __init__(self) -> None:
        self.offered: asyncssh.SSHKey | None = None

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        self.offered = key
        return False


class _KnownHosts:
    """Looks a host up in the known_hosts files that exist, and remembers whether it was there."""

    def __init__(self, files: list[str] | str | bytes | None) -> None:
        if isinstance(files, bytes) or not files:
            # asyncssh takes "UserKnownHostsFile none" for "don't check"; ssh(1) does not, nor we.
            files = [] if files is None else ["~/.ssh/known_hosts"]
        names = [files] if isinstance(files, str) else files
        self.files = [Path(name).expanduser() for name in names]
        self.found = False

    def __call__(self, host: str, addr: str, port: int | None) -> Any:
        text = ""
        for file in self.files:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text += file.read_text("utf-8") + "\n"
        result = asyncssh.import_known_hosts(text).match(host, addr, port)
        self.found = bool(result[0])
        return result


class SshProcess:
    """A command behind an SSH connection."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._process = process
        self._stderr = StderrTail(lambda size: self._read(process.stderr, size))

    async def read(self, size: int = 1 << 16) -> bytes:
        return await self._read(self._process.stdout, size)

    @staticmethod
    async def _read(stream: asyncssh.SSHReader[bytes], size: int) -> bytes:
        try:
            return await stream.read(size)
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from None

    async def write(self, data: bytes) -> None:
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from None

    async def write_eof(self) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            self._process.stdin.write_eof()

    async def wait(self) -> int | None:
        # wait() would read the output too; only the end of the channel is wanted here.
        await self._process.wait_closed()
        await self._stderr.finish()
        if self._process.exit_signal is not None:
            return 255
        return self._process.exit_status

    async def close(self) -> None:
        self._process.close()
        self._stderr.cancel()

    @property
    def errors(self) -> str:
        return self._stderr.text


class SshHost:
    """An open connection; commands are started on it, at most :data:`SESSIONS` at once."""

    def __init__(self, name: str, chain: list[SSHClientConnection]) -> None:
        self.name = name
        self._chain = chain
        self._connection = chain[-1]
        self._alive = True
        self._watch = asyncio.create_task(self._closed())

    async def _closed(self) -> None:
        await self._connection.wait_closed()
        self._alive = False

    @property
    def alive(self) -> bool:
        return self._alive

    async def open(self, argv: list[str]) -> Process:
        command = hop.line(argv)
        end = time.monotonic() + OPEN_S
        for attempt in count():
            try:
                process = await self._connection.create_process(
                    command, encoding=None, stdin=asyncssh.PIPE, stderr=asyncssh.PIPE
                )
            except asyncssh.ChannelOpenError as error:
                # 2, "open failed": the sessions are all taken; sshd frees an ended one late.
                if error.code != asyncssh.OPEN_CONNECT_FAILED or not self._alive:
                    raise LinkError(f"{self.name}: {error.reason}", "lost") from None
                if time.monotonic() > end:
                    break
                await asyncio.sleep(0.02 * (1 + min(attempt, 10)) * random.uniform(0.5, 1.5))
            except (asyncssh.Error, OSError) as error:
                raise LinkError(f"{self.name}: the connection was lost: {error}", "lost") from None
            else:
                return SshProcess(process)
        raise LinkError(f"{self.name}: no free session (MaxSessions); close some", "refused")

    async def close(self) -> None:
        """Close the connection, and those it jumps through; half-open ones without waiting."""
        self._alive = False
        self._watch.cancel()
        for connection in reversed(self._chain):
            connection.close()
        for connection in reversed(self._chain):
            with contextlib.suppress(TimeoutError, asyncssh.Error, OSError):
                async with asyncio.timeout(0.5):
                    await connection.wait_closed()
            connection.abort()


async def connect(target: Target) -> SshHost:
    """Connect and log in. Raises LinkError, AuthError for a refused login."""
    config = [str(target.ssh_config)] if target.ssh_config else ()
    if target.ssh_config and not target.ssh_config.is_file():
        raise LinkError(f"{target.ssh_config}: no such SSH configuration (ssh_config)")
    chain: list[SSHClientConnection] = []
    try:
        await _reach(target.ssh, config, chain, depth=0)
    except BaseException:
        for connection in reversed(chain):
            connection.abort()
        raise
    return SshHost(target.ssh, chain)


async def _reach(
    where: str, config: list[str] | tuple[()], chain: list[SSHClientConnection], depth: int
) -> None:
    """Append a connection to ``where`` to the chain, through its jump hosts.

    Jumps are connected one by one: asyncssh's own ProxyJump stops at the first of a nested
    chain, and keeps none of them alive.
    """
    if depth > JUMPS:
        raise LinkError(f"{where}: more than {JUMPS} jump hosts (ProxyJump): a circle?")
    user, host, port = hop.destination(where)
    base: dict[str, Any] = {
        "config": config,
        "host": host,
        "port": port if port else (),
        "connect_timeout": CONNECT_S,
        "login_timeout": CONNECT_S,
        "keepalive_interval": KEEPALIVE_S,
        "keepalive_count_max": KEEPALIVES,
    }
    if user:
        base["username"] = user
    try:
        options = await SSHClientConnectionOptions.construct(**base)
    except (asyncssh.Error, asyncssh.ConfigParseError, OSError, ValueError) as error:
        raise _setup_error(where, error) from None
    jumps = options.tunnel if isinstance(options.tunnel, str) else ""
    if not chain or depth:
        for jump in filter(None, (name.strip() for name in jumps.split(","))):
            await _reach(jump, config, chain, depth + 1)
    known = _KnownHosts(options.known_hosts)
    client = _Client()
    place = f"{options.host}:{options.port}" if options.port != 22 else options.host
    try:
        connection = await asyncssh.connect(
            **base,
            known_hosts=known,
            client_factory=lambda: client,
            tunnel=chain[-1] if chain else None,
        )
    except asyncssh.HostKeyNotVerifiable as error:
        raise _host_key_error(options, known, client, str(error)) from None
    except asyncssh.PermissionDenied as error:
        raise AuthError(
            f"{place} refused the login of {options.username} ({error.reason}): is the key loaded "
            f"(`ssh-add -l`)? Check with `ssh {where}`, or add it with `ssh-copy-id {where}`",
            "refused",
        ) from None
    except TimeoutError:
        raise LinkError(
            f"{place}: no answer within {CONNECT_S:.0f} s: is the machine up and the network open?",
            "timeout",
        ) from None
    except (asyncssh.Error, OSError, ValueError) as error:
        raise _connect_error(place, where, error) from None
    chain.append(connection)


def _setup_error(where: str, error: Exception) -> LinkError:
    if isinstance(error, asyncssh.KeyImportError | asyncssh.KeyEncryptionError):
        return LinkError(f"{where}: a key can't be used ({error}): `ssh-add` it, or name another")
    if isinstance(error, OSError) and error.filename:
        return LinkError(f"{where}: {error.filename}: {error.strerror}")
    return LinkError(f"{where}: the SSH configuration can't be used: {error}")


def _host_key_error(
    options: SSHClientConnectionOptions, known: _KnownHosts, client: _Client, text: str
) -> LinkError:
    host, port = options.host, options.port
    listed = host if port == 22 else f"[{host}]:{port}"
    file = known.files[0] if known.files else Path("~/.ssh/known_hosts")
    key = client.offered
    if key is None:
        return LinkError(f"{listed}: its host key can't be verified: {text}")
    shown = f"{key.get_algorithm()} {key.get_fingerprint()}"
    if known.found:
        return LinkError(
            f"{listed}: THE HOST KEY HAS CHANGED, now {shown}: someone may sit in between; where "
            f"you know why it changed: `ssh-keygen -R '{listed}' -f {file}`, then connect again"
        )
    scan = f"ssh-keyscan {'' if port == 22 else f'-p {port} '}{host} >> {file}"
    return LinkError(
        f"{listed}: unknown host key {shown}: compare it with the machine's own "
        f"(`ssh-keygen -lf` there), then `{scan}`"
    )


def _connect_error(place: str, where: str, error: Exception) -> LinkError:
    if isinstance(error, socket.gaierror):
        return LinkError(f"{place}: no such host: check `ssh = {where!r}`", "unreachable")
    if isinstance(error, ConnectionRefusedError):
        text = f"{place} refuses connections: does sshd run there, and on this port?"
        return LinkError(text, "unreachable")
    if isinstance(error, asyncssh.ChannelOpenError):
        return LinkError(f"{place}: the jump host can't reach it: {error.reason}", "unreachable")
    if isinstance(error, asyncssh.ConnectionLost | ConnectionResetError):
        return LinkError(
            f"{place} closed the connection before the login: after failed logins OpenSSH locks "
            "an address out for a while; wait a minute",
            "unreachable",
        )
    if isinstance(error, asyncssh.KeyImportError | asyncssh.KeyEncryptionError):
        return _setup_error(where, error)
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return LinkError(f"{place}: {reason}", "unreachable")
