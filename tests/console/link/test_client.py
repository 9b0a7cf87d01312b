"""The whole link on one machine: deploy, greet, subscribe, lose, come back."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from console.config import Target
from console.link import backoff
from console.link.client import LinkError
from console.link.deploy import deploy
from remote.paths import Workspace
from remote.protocol import Done, Down, Get, ReadLog, Shutdown, Snapshot, Subscribe
from tests.console.link.conftest import agent_pid, watching
from tests.waiting import until


def bridges(workspace: Workspace) -> list[psutil.Process]:
    """The bridges of a workspace."""
    return [
        p
        for p in psutil.process_iter(["cmdline"])
        if str(workspace.code / "current/remote/bridge.py") in (p.info["cmdline"] or [])
    ]


def gone(pid: int) -> bool:
    """Whether a killed process holds nothing any more, be it reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_nothing_deployed_says_what_to_do(target: Target) -> None:
    async with watching(target) as watcher:
        with pytest.raises(LinkError, match="stoker deploy") as caught:
            await watcher.client.call(Get())
        assert caught.value.kind == "undeployed"
        await until(lambda: watcher.state == "failed")


async def test_deploy_is_done_once(target: Target, workspace: Workspace) -> None:
    first = await deploy(target)
    assert "pushed" in first
    assert "started" in first
    pid = agent_pid(workspace)
    second = await deploy(target)
    assert "current" in second
    assert agent_pid(workspace) == pid
    assert (workspace.code / "current").is_symlink()
    assert not list(workspace.code.glob("*.part"))


async def test_snapshots_logs_and_events_arrive(target: Target, workspace: Workspace) -> None:
    await deploy(target)
    async with watching(target) as watcher:
        await watcher.client.subscribe(Subscribe(events_after=0, logs={"agent": (0, -1)}))
        await until(lambda: len(watcher.snapshots) >= 3)
        assert watcher.state == "connected"
        first, *later = watcher.snapshots
        assert first.full
        assert not any(s.full for s in later)
        await until(lambda: any(e.kind == "agent.started" for e in watcher.events))
        await until(lambda: watcher.lines("agent"))
        now = await watcher.client.call(Get())
        assert isinstance(now, Snapshot)
        assert now.full


async def test_back_after_bridge_and_agent_are_killed(target: Target, workspace: Workspace) -> None:
    await deploy(target)
    async with watching(target) as watcher:
        await watcher.client.subscribe(Subscribe(events_after=0))
        await until(lambda: watcher.events)
        for bridge in bridges(workspace):
            bridge.kill()
        await until(lambda: "reconnecting" in [s.state for s in watcher.statuses])
        await until(lambda: watcher.state == "connected")
        before = agent_pid(workspace)
        os.kill(before, signal.SIGKILL)
        await until(lambda: agent_pid(workspace) not in (0, before))
        await until(lambda: watcher.state == "connected")
        count = len(watcher.snapshots)
        await until(lambda: len(watcher.snapshots) > count + 1)
        ids = [e.id for e in watcher.events]
        assert ids == sorted(set(ids)), "no event twice, none out of order"
        await until(lambda: [e.kind for e in watcher.events].count("agent.started") == 2)


async def test_who_may_only_look_starts_no_agent(
    target: Target, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "REFUSED_BACKOFF_S", 0.5)
    await deploy(target)
    before = agent_pid(workspace)
    os.kill(before, signal.SIGKILL)
    await until(lambda: gone(before))
    async with watching(dataclasses.replace(target, read_only=True)) as watcher:
        with pytest.raises(LinkError, match="no agent runs"):
            await watcher.client.call(Get())
        await until(lambda: watcher.state == "failed")
        assert agent_pid(workspace) == before
        async with watching(target) as acting:
            await acting.client.call(Get())
            assert agent_pid(workspace) not in (0, before)
        await until(lambda: watcher.state == "read-only")
        assert isinstance(await watcher.client.call(Get()), Snapshot)
        with pytest.raises(LinkError, match="only looks"):
            await watcher.client.call(Down())


async def test_another_version_is_read_only(target: Target, workspace: Workspace) -> None:
    await deploy(target)
    current = workspace.code / "current"
    other = workspace.code / "0123456789abcdef"
    (workspace.code / current.readlink()).rename(other)
    current.unlink()
    current.symlink_to(other.name)
    async with watching(target) as watcher:
        await watcher.client.call(Get())
        os.kill(agent_pid(workspace), signal.SIGKILL)
        await until(lambda: watcher.state == "read-only")
        assert isinstance(await watcher.client.call(Get()), Snapshot)
        with pytest.raises(LinkError, match="stoker deploy"):
            await watcher.client.call(Down())
        done = await deploy(target)
        assert "ended the agent 0123456789ab" in done
        await until(lambda: watcher.state == "connected")


async def test_refused_request_is_one_line(target: Target) -> None:
    await deploy(target)
    async with watching(target) as watcher:
        with pytest.raises(LinkError, match="no log called"):
            await watcher.client.call(ReadLog(source="gpu99x"))
        assert isinstance(await watcher.client.call(Shutdown()), Done)


async def test_errors_of_deploy(target: Target, tmp_path: Path) -> None:
    for wrong, text in (
        (dataclasses.replace(target, agent_python=""), "agent_python is not set"),
        (dataclasses.replace(target, agent_python="/no/python"), "does not exist"),
        (dataclasses.replace(target, read_only=True), "read-only"),
    ):
        with pytest.raises(LinkError, match=text):
            await deploy(wrong)
    spec = msgspec.structs.replace(target.spec, workspace="/no/where")
    with pytest.raises(LinkError, match="/no/where does not exist"):
        await deploy(dataclasses.replace(target, spec=spec))
