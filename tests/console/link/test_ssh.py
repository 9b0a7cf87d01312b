"""Against a real OpenSSH server: what works, and what each failure says."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from console.config import Hop, Target
from console.link import client, place, ssh
from console.link.deploy import deploy
from console.link.errors import AuthError, LinkError
from console.link.place import Place, reach
from remote.paths import Workspace
from remote.protocol import Get, Snapshot, Subscribe, TargetSpec
from tests import ports
from tests.console.link.conftest import watching
from tests.console.link.sshd import Sshd
from tests.waiting import until

__all__ = ["sshd"]
from tests.console.link.sshd import sshd


def target_of(server: Sshd, workspace: str = "/", where: str = "box") -> Target:
    spec = TargetSpec(name="box", workspace=workspace)
    return Target(
        name="box", ssh=where, ssh_config=server.config, spec=spec, agent_python=sys.executable
    )


@asynccontextmanager
async def reached(target: Target) -> AsyncIterator[Place]:
    there = await reach(target)
    try:
        yield there
    finally:
        await there.close()


async def refused(target: Target) -> LinkError:
    with pytest.raises(LinkError) as caught:
        await reach(target)
    text = str(caught.value)
    assert "\n" not in text
    assert "Traceback" not in text
    return caught.value


async def test_commands_over_one_connection(sshd: Sshd) -> None:
    async with reached(target_of(sshd)) as there:
        done = await there.run(["sh", "-c", "cat; echo oops >&2; exit 7"], b"\0\xff\n")
        assert (done.status, done.out, done.errors) == (7, b"\0\xff\n", "oops")
        # Nothing on standard input is still an end of it: a remote cat must not wait for ever.
        assert (await there.run(["cat"], timeout=10)).status == 0
        blob = os.urandom(3_000_000)
        assert (await there.run(["cat"], blob, timeout=60)).out == blob


async def test_more_at_once_than_sshd_has_sessions(sshd: Sshd) -> None:
    """MaxSessions is 10, and an ended session is freed late."""
    async with reached(target_of(sshd)) as there:
        keep = [await there.open(["sleep", "60"]) for _ in range(5)]
        done = await asyncio.gather(*(there.run(["echo", str(n)]) for n in range(20)))
        assert [d.out for d in done] == [b"%d\n" % n for n in range(20)]
        for process in keep:
            await process.close()


async def test_a_command_that_hangs_times_out(sshd: Sshd) -> None:
    async with reached(target_of(sshd)) as there:
        with pytest.raises(LinkError, match="no answer within") as caught:
            await there.run(["sleep", "60"], timeout=0.5)
        assert caught.value.kind == "timeout"
        assert (await there.run(["echo", "still"])).out == b"still\n"


async def test_a_cut_connection_is_lost_not_done(sshd: Sshd) -> None:
    async with reached(target_of(sshd)) as there:
        process = await there.open(["sleep", "60"])
        sshd.cut()
        assert await asyncio.wait_for(process.wait(), 20) is None
        await until(lambda: not there.host.alive)
        with pytest.raises(LinkError) as caught:
            await there.run(["echo", "x"])
        assert caught.value.kind == "lost"


async def test_unknown_host_key_shows_fingerprint_and_command(sshd: Sshd) -> None:
    (sshd.folder / "known_hosts").write_text("")
    error = await refused(target_of(sshd))
    text = str(error)
    assert re.search(r"SHA256:[A-Za-z0-9+/]{40,}", text)
    assert f"ssh-keyscan -p {sshd.port} 127.0.0.1 >> {sshd.folder}/known_hosts" in text
    assert error.kind == "refused"


async def test_changed_host_key_is_said_loudly(sshd: Sshd) -> None:
    sshd.keygen("other")
    kind, key, *_ = (sshd.folder / "other.pub").read_text().split()
    (sshd.folder / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {kind} {key}\n")
    text = str(await refused(target_of(sshd)))
    assert "HAS CHANGED" in text
    assert "ssh-keygen -R" in text


async def test_known_hosts_none_does_not_switch_checking_off(sshd: Sshd) -> None:
    config = sshd.config.read_text()
    sshd.config.write_text(config.replace(f"{sshd.folder}/known_hosts", "none"))
    assert "unknown host key" in str(await refused(target_of(sshd)))


async def test_wrong_key(sshd: Sshd) -> None:
    sshd.keygen("stranger")
    sshd.write_config(identity="stranger")
    error = await refused(target_of(sshd))
    assert isinstance(error, AuthError)
    assert "refused the login" in str(error)
    assert "ssh-copy-id box" in str(error)


async def test_missing_key_file_and_configuration(sshd: Sshd) -> None:
    sshd.write_config(identity="absent")
    assert "absent" in str(await refused(target_of(sshd)))
    gone = dataclasses.replace(target_of(sshd), ssh_config=sshd.folder / "nothing")
    assert "no such SSH configuration" in str(await refused(gone))


async def test_no_server_no_host_no_answer(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    error = await refused(target_of(sshd, where=f"ssh://127.0.0.1:{ports.free()}"))
    assert "refuses connections" in str(error)
    assert error.kind == "unreachable"
    error = await refused(target_of(sshd, where="no-such-host.invalid"))
    assert "no such host" in str(error)
    monkeypatch.setattr(ssh, "CONNECT_S", 1.0)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        error = await refused(target_of(sshd, where=f"ssh://127.0.0.1:{mute.getsockname()[1]}"))
    assert error.kind in ("timeout", "unreachable")


async def test_nested_jump_hosts(sshd: Sshd) -> None:
    sshd.write_config("Host box\n  ProxyJump hop1\nHost hop1\n  ProxyJump hop2\n")
    async with reached(target_of(sshd)) as there:
        assert (await there.run(["echo", "through"])).out == b"through\n"
        # Three connections are open: one to each jump host and one to the target.
        accepted = sshd.log.read_text().count("Accepted publickey")
        assert accepted == 3


async def test_jumps_in_a_circle_are_refused(sshd: Sshd) -> None:
    sshd.write_config("Host hop1\n  ProxyJump hop2\nHost hop2\n  ProxyJump hop1\n")
    assert "jump hosts" in str(await refused(target_of(sshd, where="hop1")))


async def test_missing_tools_of_each_hop(sshd: Sshd) -> None:
    """This server has no pct, no docker, no incus: each is one line that says so."""
    for hop, words in (
        (Hop("pct", "200"), "no pct on"),
        (Hop("incus", "c"), "incus"),
    ):
        target = dataclasses.replace(target_of(sshd), hop=hop)
        with pytest.raises(LinkError, match=words):
            await deploy(target)


async def test_the_whole_link_survives_cuts(sshd: Sshd, workspace: Workspace) -> None:
    target = target_of(sshd, str(workspace.root))
    await deploy(target)
    async with watching(target) as watcher:
        await watcher.client.subscribe(Subscribe(events_after=0, logs={"agent": (0, -1)}))
        await until(lambda: watcher.snapshots and watcher.events)
        for _ in range(3):
            count = len(watcher.snapshots)
            sshd.cut()
            await until(lambda: watcher.state == "reconnecting")
            await until(lambda: watcher.state == "connected")
            await until(lambda c=count: len(watcher.snapshots) > c)  # type: ignore[misc]
        assert isinstance(await watcher.client.call(Get()), Snapshot)
        ids = [e.id for e in watcher.events]
        assert ids == sorted(set(ids))
        lines = watcher.lines("agent")
        assert len(lines) == len(set(lines)), "no line twice"


async def test_a_half_open_link_is_noticed(
    sshd: Sshd, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing flows any more and nothing says so: a stopped server process stands for it."""
    monkeypatch.setattr(client, "QUIET_S", 3.0)
    target = target_of(sshd, str(workspace.root))
    await deploy(target)
    async with watching(target) as watcher:
        await watcher.client.subscribe(Subscribe())
        await until(lambda: watcher.snapshots)
        stopped = [p for s in sshd.sessions() for p in (*s.children(), s)]
        stopped = [p for p in stopped if p.name().startswith("sshd")]
        for process in stopped:
            process.suspend()
        began = time.monotonic()
        await until(lambda: watcher.state == "reconnecting")
        assert "silent" in watcher.client.status.text
        assert time.monotonic() - began < 10
        await until(lambda: watcher.state == "connected")
        for process in stopped:
            process.kill()


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("pct", "Configuration file 'nodes/pve/lxc/200.conf' does not exist", "no container 200"),
        ("pct", "container '200' not running!", "pct start 200"),
        ("pct", "please run as root", "sudo = true"),
        ("pct", "sudo: a password is required", "NOPASSWD"),
        ("docker", "Error response from daemon: No such container: 200", "no container 200"),
        ("docker", "Error response from daemon: container 200 is not running", "docker start 200"),
        ("docker", 'OCI runtime exec failed: exec: "/py": stat /py: no such file', "agent_python"),
        ("incus", "Error: Instance not found", "no container 200"),
        ("pct", "env: '/py': No such file or directory", "agent_python"),
        ("pct", "something nobody has seen", ""),
    ],
)
def test_known_error_texts(kind: str, text: str, says: str) -> None:
    target = Target(
        name="t",
        ssh="root@pve",
        spec=TargetSpec(name="t", workspace="/w"),
        hop=Hop(kind, "200"),  # type: ignore[arg-type]
        agent_python="/py",
    )
    assert says in place.explain_text(target, "root@pve", text)
    assert bool(place.explain_text(target, "root@pve", text)) == bool(says)
