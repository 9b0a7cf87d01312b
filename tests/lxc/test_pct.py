"""What a client of ``pct`` relies on, the same on the stand-in and on the real thing."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import shlex
import time
from dataclasses import dataclass

import asyncssh
import pytest

from tests.lxc.conftest import Node


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int | None
    out: bytes
    err: bytes


async def run(
    connection: asyncssh.SSHClientConnection, *argv: str, data: bytes | None = None
) -> Ended:
    """Run a command line made of these words on the host."""
    return await shell(connection, shlex.join(argv), data)


async def shell(
    connection: asyncssh.SSHClientConnection, command: str, data: bytes | None = None
) -> Ended:
    """Run a command line on the host."""
    stdin = {"input": data} if data else {"stdin": asyncssh.DEVNULL}
    done = await asyncio.wait_for(connection.run(command, encoding=None, **stdin), 60)
    assert isinstance(done.stdout, bytes)
    assert isinstance(done.stderr, bytes)
    return Ended(done.exit_status, done.stdout, done.stderr)


Connection = asyncssh.SSHClientConnection


async def inside(
    node: Node, connection: Connection, *argv: str, data: bytes | None = None
) -> Ended:
    """Run a command in the container."""
    return await run(connection, "pct", "exec", str(node.vmid), "--", *argv, data=data)


# --- Texts and exit codes ---


async def test_status_list_config(node: Node, connection: Connection) -> None:
    """The reports of a running container."""
    vmid = str(node.vmid)
    assert await run(connection, "pct", "status", vmid) == Ended(0, b"status: running\n", b"")
    listed = await run(connection, "pct", "list")
    header, row = listed.out.decode().splitlines()
    assert header.split() == ["VMID", "Status", "Lock", "Name"]
    assert (row[:10].strip(), row[11:21].strip(), row[22:34].strip()) == (vmid, "running", "")
    config = await run(connection, "pct", "config", vmid)
    keys = dict(line.split(": ", 1) for line in config.out.decode().splitlines())
    assert keys["hostname"] == row[35:].strip()


@pytest.mark.parametrize("verb", ["status", "config", "exec"])
async def test_no_such_container(node: Node, connection: Connection, verb: str) -> None:
    """A missing configuration is the caller's first error, with ENOENT as status."""
    end = ["--", "true"] if verb == "exec" else []
    ended = await run(connection, "pct", verb, "999", *end)
    assert ended.status == 2
    assert ended.err.startswith(b"Configuration file 'nodes/")
    assert ended.err.endswith(b"/lxc/999.conf' does not exist\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["exec", "12", "--", "true"], "value does not look like a valid VM ID"),
        (["exec", "abc", "--", "true"], "vmid: type check ('integer') failed - got 'abc'"),
        (["status"], "400 not enough arguments"),
        (["status", "200", "300"], "400 too many arguments"),
        (["exec", "200", "sh", "-c", "true"], "Unknown option: c\n400 unable to parse option"),
        (["exec", "200", "--keep-env=maybe", "--", "true"], "400 unable to parse boolean option"),
        (["frobnicate"], "ERROR: unknown command 'pct frobnicate'"),
    ],
)
async def test_bad_usage(connection: Connection, words: list[str], text: str) -> None:
    """The API's complaints, and Perl's status for them."""
    ended = await run(connection, "pct", *words)
    assert ended.status == 255
    assert text in ended.err.decode()
    assert not ended.out


async def test_no_command(node: Node, connection: Connection) -> None:
    """``pct exec`` needs something to run."""
    ended = await run(connection, "pct", "exec", str(node.vmid))
    assert ended.status == 255
    assert ended.err.startswith(b"missing command at ")


async def test_stopped(node: Node, connection: Connection) -> None:
    """A stopped container says so; one that starts again works again."""
    node.switch.stop()
    try:
        status = await run(connection, "pct", "status", str(node.vmid))
        assert status == Ended(0, b"status: stopped\n", b"")
        ended = await inside(node, connection, "true")
        assert ended == Ended(255, b"", f"container '{node.vmid}' not running!\n".encode())
    finally:
        node.switch.start()
    assert (await inside(node, connection, "true")).status == 0


async def test_frozen(node: Node, connection: Connection) -> None:
    """A frozen container counts as running, and a command waits until it is thawed."""
    node.switch.freeze()
    try:
        status = await run(connection, "pct", "status", str(node.vmid))
        assert status.out == b"status: running\n"
        waiting = asyncio.create_task(inside(node, connection, "echo", "thawed"))
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert not done
    finally:
        node.switch.thaw()
    assert await waiting == Ended(0, b"thawed\n", b"")


async def test_stopped_under_a_command(node: Node, connection: Connection) -> None:
    """The command ends at once like one that was killed."""
    running = await start(node, connection, "echo on; exec sleep 300")
    node.switch.stop()
    try:
        async with asyncio.timeout(10):
            done = await running.wait()
        assert done.exit_status == 137
    finally:
        node.switch.start()


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("exec /no/such/program", 127),
        ("exec /etc/passwd", 126),
    ],
)
async def test_exit_codes(node: Node, connection: Connection, script: str, status: int) -> None:
    """The command's own; 128 and the signal where it was killed."""
    assert (await inside(node, connection, "sh", "-c", script)).status == status


@pytest.mark.parametrize(("program", "status"), [("no-such-program", 127), ("/etc/passwd", 126)])
async def test_not_executable(
    node: Node, connection: Connection, program: str, status: int
) -> None:
    """What cannot be run is told from what failed by lxc-attach's own line."""
    ended = await inside(node, connection, program)
    assert ended.status == status
    assert ended.err.startswith(f"lxc-attach: {node.vmid}: ".encode())
    assert ended.err.rstrip().endswith(f'Failed to exec "{program}"'.encode())


# --- Bytes ---


async def test_separate_streams(node: Node, connection: Connection) -> None:
    """Standard output and error stay apart, and no byte is changed."""
    ended = await inside(node, connection, "sh", "-c", r"printf 'o\0\377\r\n'; printf 'e\n' >&2")
    assert ended == Ended(0, b"o\0\xff\r\n", b"e\n")


@pytest.mark.parametrize("size", [1, 65_537, 6_000_001])
async def test_bytes_both_ways(node: Node, connection: Connection, size: int) -> None:
    """What goes in comes out, NULs and all, and the end of it is seen."""
    data = random.Random(size).randbytes(size - 1) + b"\0"
    ended = await inside(node, connection, "cat", data=data)
    assert (ended.status, ended.out == data) == (0, True)
    ended = await inside(node, connection, "sha256sum", data=data)
    assert ended.out.split()[0].decode() == hashlib.sha256(data).hexdigest()


async def test_input_before_the_command_is_up(node: Node, connection: Connection) -> None:
    """Nothing is lost of what is sent the moment the session is open."""
    for size in (1, 70_000, 3_000_000):
        process: asyncssh.SSHClientProcess[bytes] = await connection.create_process(
            f"pct exec {node.vmid} -- wc -c", encoding=None
        )
        process.stdin.write(bytes(size))
        process.stdin.write_eof()
        done = await asyncio.wait_for(process.wait(), 30)
        assert done.stdout == f"{size}\n".encode()


async def test_without_stdin(node: Node, connection: Connection) -> None:
    """End of file at once where there is nothing to read."""
    assert await inside(node, connection, "cat") == Ended(0, b"", b"")


async def test_stdin_that_nobody_reads(node: Node, connection: Connection) -> None:
    """The exit code arrives though the client still has megabytes to send."""
    process: asyncssh.SSHClientProcess[bytes] = await connection.create_process(
        f"pct exec {node.vmid} -- sh -c 'exit 5'", encoding=None
    )
    with contextlib.suppress(OSError):
        for _ in range(100):
            process.stdin.write(bytes(65_536))
            await process.stdin.drain()
    done = await asyncio.wait_for(process.wait(), 20)
    assert done.exit_status == 5


HOSTILE = [
    "",
    " ",
    "two words",
    "'",
    '"',
    "$HOME `id` $(id) \\",
    "a\nb",
    "--",
    "-x",
    "*",
    ";exit 9",
    "\t!&|<>(){}[]#~^%=",
    "x" * 50_000,
]


async def test_hostile_arguments(node: Node, connection: Connection) -> None:
    """Quoted once, every word arrives as it is."""
    script = 'for word; do printf "%s\\0" "$word"; done'
    ended = await inside(node, connection, "sh", "-c", script, "sh", *HOSTILE)
    assert ended.out.split(b"\0")[:-1] == [word.encode() for word in HOSTILE]


async def test_too_long(node: Node, connection: Connection) -> None:
    """A command line is one argument of the host's shell, and those have a limit."""
    ended = await inside(node, connection, "echo", "x" * 140_000)
    assert ended.status == 1
    assert ended.err.endswith(b"Argument list too long\n")


# --- Environment ---


async def environment(connection: Connection, command: str) -> dict[str, str]:
    """What ``env`` prints."""
    ended = await shell(connection, command)
    return dict(line.split("=", 1) for line in ended.out.decode().splitlines() if "=" in line)


async def test_environment_is_kept(node: Node, connection: Connection) -> None:
    """The host's leaks in, but PATH is PVE's, without /usr/local, and certificates are gone."""
    command = f"export LEAK=1 SSL_CERT_FILE=x; pct exec {node.vmid} -- env"
    env = await environment(connection, command)
    assert (env["LEAK"], env["container"], env["USER"]) == ("1", "lxc", "root")
    assert env["PATH"].endswith("/sbin:/bin:/usr/sbin:/usr/bin")
    assert "/usr/local/bin" not in env["PATH"]
    assert "SSL_CERT_FILE" not in env


async def test_environment_is_cleared(node: Node, connection: Connection) -> None:
    """With --keep-env=0 nothing of the host is seen."""
    env = await environment(connection, f"LEAK=1 pct exec {node.vmid} --keep-env=0 -- env")
    assert not {"LEAK", "USER", "SSH_CLIENT", "HOME"} & set(env)
    assert (env["container"], env["TERM"]) == ("lxc", "linux")
    assert "/usr/local/bin" in env["PATH"]


async def test_option_takes_the_number(node: Node, connection: Connection) -> None:
    """A bare --keep-env before the number takes it as its value."""
    ended = await shell(connection, f"pct exec --keep-env {node.vmid} -- env")
    assert ended.status == 255


async def test_directory(node: Node, connection: Connection) -> None:
    """The caller's where the container has it, and root's home is there on both sides."""
    home = await shell(connection, f"pct exec {node.vmid} -- sh -c 'pwd; echo ~'")
    start, root = home.out.decode().splitlines()
    assert start == root
    ended = await shell(connection, f"cd /usr/lib && pct exec {node.vmid} -- pwd")
    assert ended.out == b"/usr/lib\n"
    gone = "d=$(mktemp -d) && cd $d && rmdir $d && "
    assert (await shell(connection, gone + f"pct exec {node.vmid} -- pwd")).out == b"/\n"


# --- Ends ---


async def start(
    node: Node, connection: Connection, script: str
) -> asyncssh.SSHClientProcess[bytes]:
    """A script that was seen to print its first line."""
    process: asyncssh.SSHClientProcess[bytes] = await connection.create_process(
        shlex.join(["pct", "exec", str(node.vmid), "--", "sh", "-c", script]), encoding=None
    )
    async with asyncio.timeout(10):
        await process.stdout.readline()
    return process


async def alive(node: Node, pid: str) -> bool:
    """Whether a process of the container lives."""
    connection = await node.connect()
    try:
        return (await inside(node, connection, "kill", "-0", pid)).status == 0
    finally:
        connection.close()
        await connection.wait_closed()


async def gone(node: Node, pid: str, within: float = 10.0) -> bool:
    """Whether it ends in this time."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not await alive(node, pid):
            return True
        await asyncio.sleep(0.1)
    return False


READER = "echo $$; cat >/dev/null"
WRITER = "echo $$; while echo x; do sleep 0.05; done"
SLEEPER = "echo $$; exec sleep 300"


@pytest.mark.parametrize("how", ["channel", "connection"])
async def test_what_a_lost_client_ends(node: Node, how: str) -> None:
    """Who reads or writes sees its pipes end; who sleeps is told nothing."""
    connection = await node.connect()
    pids = []
    processes = []
    for script in (READER, WRITER, SLEEPER):
        process: asyncssh.SSHClientProcess[bytes] = await connection.create_process(
            shlex.join(["pct", "exec", str(node.vmid), "--", "sh", "-c", script]), encoding=None
        )
        processes.append(process)
        async with asyncio.timeout(10):
            pids.append((await process.stdout.readline()).decode().strip())
    if how == "connection":
        connection.abort()
    else:
        for process in processes:
            process.close()
    reader, writer, sleeper = pids
    try:
        assert await gone(node, reader)
        assert await gone(node, writer)
        assert await alive(node, sleeper)
    finally:
        async with await node.connect() as again:
            await inside(node, again, "kill", "-9", sleeper)
        connection.abort()
        await connection.wait_closed()


async def test_detached_outlives_its_client(node: Node, connection: Connection) -> None:
    """A process in a session of its own, with no pipe of ours, goes on."""
    script = "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $!"
    ended = await inside(node, connection, "sh", "-c", script)
    pid = ended.out.decode().strip()
    connection.abort()
    await connection.wait_closed()
    assert await alive(node, pid)
    async with await node.connect() as again:
        assert (await inside(node, again, "kill", "-9", pid)).status == 0
    assert await gone(node, pid)


async def test_background_child_holds_the_session(node: Node, connection: Connection) -> None:
    """A child that keeps standard output open keeps the channel open, as with any sshd."""
    began = time.monotonic()
    ended = await inside(node, connection, "sh", "-c", "sleep 1.5 & echo now")
    assert (ended.status, ended.out) == (0, b"now\n")
    assert time.monotonic() - began > 1.4


async def test_sessions_of_a_connection(node: Node, connection: Connection) -> None:
    """Ten at once; the eleventh is refused and the connection goes on."""

    async def one() -> int | str | None:
        try:
            return (await inside(node, connection, "sleep", "1.5")).status
        except asyncssh.ChannelOpenError as error:
            return f"{error.code} {error.reason}"

    ends = await asyncio.gather(*(one() for _ in range(13)))
    assert sorted(map(str, ends)) == ["0"] * 10 + ["2 open failed"] * 3
    assert (await inside(node, connection, "true")).status == 0


async def test_wrong_key(node: Node) -> None:
    """Another key is refused."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    with pytest.raises(asyncssh.PermissionDenied):
        await asyncssh.connect("lab", config=[str(node.config)], client_keys=[key])


async def test_unknown_host_key(node: Node) -> None:
    """The host's key is its own: another one in known_hosts is not it."""
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    with pytest.raises(asyncssh.HostKeyNotVerifiable):
        await asyncssh.connect(
            "lab",
            config=[str(node.config)],
            known_hosts=asyncssh.import_known_hosts(f"* {other}"),
        )


async def test_large_output_waits_for_its_reader(node: Node, connection: Connection) -> None:
    """A client that does not read slows the command down and loses nothing."""
    size = 8_000_000
    process: asyncssh.SSHClientProcess[bytes] = await connection.create_process(
        f"pct exec {node.vmid} -- head -c {size} /dev/zero", encoding=None
    )
    await asyncio.sleep(0.5)
    assert (await inside(node, connection, "true")).status == 0
    got = await process.stdout.read()
    assert len(got) == size
