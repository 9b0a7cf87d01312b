"""Through the stand-in Proxmox host: the container is stopped, frozen, missing, or lacks things."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import venv
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from console.config import Hop, Target
from console.lab import host, host_files
from console.lab.container import Container
from console.link import backoff, place
from console.link import client as clients
from console.link.deploy import deploy
from console.link.errors import LinkError
from console.verbs.common import VerbError
from console.verbs.container import prepare_on
from remote.protocol import Get, Snapshot, Subscribe, TargetSpec
from tests.console.link.conftest import watching
from tests.remote.prepare import synthetic
from tests.waiting import until


@pytest.fixture
async def container(tmp_path: Path) -> AsyncIterator[Container]:
    """Container 200 of a lab that has nothing but the host."""
    made = Container(tmp_path)
    made.create()
    server = await host.start(tmp_path)
    yield made
    made.thaw()
    made.stop()
    await server.close()


@pytest.fixture
def target(container: Container) -> Target:
    layout = host_files.Layout(container.lab)
    spec = TargetSpec(name="ct200", workspace=str(container.workspace))
    return Target(
        name="ct200",
        ssh=host_files.ALIAS,
        ssh_config=layout.config,
        hop=Hop("pct", "200"),
        spec=spec,
        agent_python=sys.executable,
    )


async def fails(target: Target, words: str) -> LinkError:
    with pytest.raises(LinkError, match=words) as caught:
        await deploy(target)
    assert "\n" not in str(caught.value)
    return caught.value


async def test_deploy_and_watch_through_pct(target: Target) -> None:
    assert "pushed" in await deploy(target)
    assert "current" in await deploy(target)
    async with watching(target) as watcher:
        await watcher.client.subscribe(Subscribe(events_after=0))
        await until(lambda: watcher.snapshots and watcher.events)
        assert watcher.client.status.text == "connected to container 200 on lab"


async def test_missing_container_python_workspace_and_modules(
    target: Target, tmp_path: Path
) -> None:
    await fails(dataclasses.replace(target, hop=Hop("pct", "999")), "no container 999 on lab")
    await fails(dataclasses.replace(target, agent_python="/no/python"), "agent_python = '/no/pyth")
    await fails(dataclasses.replace(target, agent_python="/etc/passwd"), "agent_python")
    spec = TargetSpec(name="ct200", workspace="/no/workspace")
    await fails(dataclasses.replace(target, spec=spec), "/no/workspace does not exist")
    bare = tmp_path / "bare"
    await asyncio.to_thread(venv.create, bare, symlinks=True)
    error = await fails(
        dataclasses.replace(target, agent_python=str(bare / "bin/python")), "agent_python lacks"
    )
    assert f"{bare}/bin/python -m pip install msgspec httpx" in str(error)


async def test_a_workspace_that_cannot_be_written(target: Target, container: Container) -> None:
    (container.workspace / ".stoker").write_text("a file is in the way")
    await fails(target, r"^container 200 on lab: \S+/\.stoker/code: Not a directory$")


async def test_a_stopped_container_is_said_and_comes_back(
    target: Target, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "REFUSED_BACKOFF_S", 0.5)
    await deploy(target)
    async with watching(target) as watcher:
        await watcher.client.subscribe(Subscribe())
        await until(lambda: watcher.snapshots)
        container.stop()
        await until(lambda: watcher.state == "failed")
        assert "pct start 200" in watcher.client.status.text
        with pytest.raises(LinkError, match="pct start 200"):
            await watcher.client.call(Get())
        container.set_state("running")
        await until(lambda: watcher.state == "connected")
        assert isinstance(await watcher.client.call(Get()), Snapshot)


async def test_a_frozen_container_times_out_and_says_why(
    target: Target, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    container.freeze()
    there = await place.reach(target)
    try:
        with pytest.raises(LinkError, match="pct resume 200") as caught:
            await there.run(["true"], timeout=1.0)
        assert caught.value.kind == "timeout"
        monkeypatch.setattr(clients, "HELLO_S", 1.0)
        async with watching(target) as watcher:
            await until(lambda: watcher.statuses and watcher.state in ("failed", "reconnecting"))
            assert "frozen" in watcher.client.status.text
        container.thaw()
        assert (await there.run(["echo", "thawed"])).out == b"thawed\n"
    finally:
        await there.close()


async def test_many_deploys_at_once_end_with_one_agent(target: Target) -> None:
    done = await asyncio.gather(*(deploy(target) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(text, str) for text in done), done
    assert "current" in await deploy(target)


async def test_prompts_are_prepared_in_the_container(
    target: Target, container: Container, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic.write(container.workspace / "a.jsonl", 60)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[[sources]]\nname = "a"\npath = "a.jsonl"\n')
    options = ["-o", "out.jsonl", "--base", ".", "--workers", "1"]
    assert await prepare_on(target, recipe, [*options, "--json"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)  # and nothing else
    lines = (container.workspace / "out.jsonl").read_text().splitlines()
    assert document["output"]["lines"] == len(lines) > 0
    assert "pushed" in shown.err
    assert await prepare_on(target, recipe, options) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert "current" in first
    assert last
    recipe.write_text("[[sources]]\nnam = 1\n")
    assert await prepare_on(target, recipe, [*options, "--json"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("prepare: ")) == ("", 1)
    with pytest.raises(VerbError, match="read-only"):
        await prepare_on(dataclasses.replace(target, read_only=True), recipe, options)


async def test_noise_of_a_login_shell_does_no_harm(target: Target, container: Container) -> None:
    """An echo in root's ``.bashrc`` stands before everything that a command says."""
    home = host_files.Layout(container.lab).home
    (home / ".bashrc").write_text("echo 'Welcome to pve!'; printf 'no newline'; echo oops >&2\n")
    await deploy(target)
    async with watching(target) as watcher:
        assert isinstance(await watcher.client.call(Get()), Snapshot)
