"""The stand-in SSH server, as its clients see it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import psutil
import pytest
import pytest_asyncio

from console.lab import host, host_files
from console.lab.host import Host
from console.lab.host_session import SHELL


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Host]:
    """A listening host."""
    here = await host.start(tmp_path)
    yield here
    await here.close()


async def connect(server: Host, **options: object) -> asyncssh.SSHClientConnection:
    """A connection by the client configuration alone."""
    return await asyncssh.connect("lab", config=[str(server.layout.config)], **options)


def test_half_written_keys_are_made_anew(tmp_path: Path) -> None:
    """A full disk leaves such; those that are whole are kept."""
    (tmp_path / "id.part").write_text("-----BEGIN")
    (tmp_path / "id.pub").touch()
    host_files.make_keys(tmp_path)
    key = asyncssh.read_private_key(tmp_path / "id")
    assert key.public_data == asyncssh.read_public_key(tmp_path / "id.pub").public_data
    whole = (tmp_path / "id").read_bytes()
    host_files.make_keys(tmp_path)
    assert (tmp_path / "id").read_bytes() == whole
    assert (tmp_path / "id").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not shutil.which("ssh"), reason="needs OpenSSH's client")
async def test_openssh_client(server: Host) -> None:
    """The configuration is OpenSSH's, and bytes and exit codes pass."""
    data = bytes(range(256)) * 4000
    process = await asyncio.create_subprocess_exec(
        *("ssh", "-F", str(server.layout.config), "lab", "cat; echo end >&2; exit 7"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(data), 30)
    assert (out == data, err, process.returncode) == (True, b"end\n", 7)


async def test_only_root(server: Host) -> None:
    """The key is root's."""
    with pytest.raises(asyncssh.PermissionDenied):
        await connect(server, username="somebody")


async def test_shell_without_a_command(server: Host) -> None:
    """It reads its commands from standard input."""
    async with await connect(server) as connection:
        done = await connection.run(input="echo $0; exit 4\n")
    assert (done.stdout, done.exit_status) == ("-bash\n" if "bash" in SHELL else "-sh\n", 4)


async def test_environment(server: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean one; the client's locale is accepted, and nothing else of it."""
    monkeypatch.setenv("SECRET", "of this process")
    async with await connect(server, env={"LANG": "de_DE.UTF-8", "OTHER": "x"}) as connection:
        done = await connection.run("env", stdin=asyncssh.DEVNULL)
    env = dict(line.split("=", 1) for line in str(done.stdout).splitlines())
    assert not {"SECRET", "OTHER", "SSH_AUTH_SOCK", "VIRTUAL_ENV"} & set(env)
    assert (env["LANG"], env["USER"]) == ("de_DE.UTF-8", "root")
    assert env["HOME"] == str(server.layout.home)
    assert env["SSH_CONNECTION"].endswith(f"127.0.0.1 {server.port}")


async def test_signals(server: Host) -> None:
    """They reach the session's processes, and the end is told as a signal."""
    async with await connect(server) as connection:
        process = await connection.create_process("echo up; exec sleep 300")
        await process.stdout.readline()
        process.send_signal("TERM")
        done = await asyncio.wait_for(process.wait(), 10)
    assert (done.exit_status, done.exit_signal and done.exit_signal[0]) == (-1, "TERM")


async def test_noisy_start_up_file(server: Host) -> None:
    """Root's .bashrc is read for a command, as on the real host: clients have to live with it."""
    if "bash" not in SHELL:
        pytest.skip("root's shell is not bash")
    (server.layout.home / ".bashrc").write_text("echo welcome\n")
    async with await connect(server) as connection:
        done = await connection.run("echo data", stdin=asyncssh.DEVNULL)
    assert str(done.stdout).splitlines()[-1] == "data"


async def test_close_ends_the_sessions(tmp_path: Path) -> None:
    """Also one that ignores a polite request."""
    server = await host.start(tmp_path)
    connection = await connect(server)
    process = await connection.create_process("trap '' TERM; echo $$; sleep 300 & wait; wait")
    pid = int(str(await process.stdout.readline()))
    await server.close(patience=0.3)
    await asyncio.wait_for(connection.wait_closed(), 10)
    assert not psutil.pid_exists(pid)


async def test_no_terminal_and_no_subsystem(server: Host) -> None:
    """What is not there is refused, and the connection goes on."""
    async with await connect(server) as connection:
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.start_sftp_client()
        assert (await connection.run("exit 3", stdin=asyncssh.DEVNULL)).exit_status == 3
