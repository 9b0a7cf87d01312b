"""The agent is killed over and over while a fleet runs: the servers do not notice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from remote.fleet import identity
from remote.fleet.records import Folder, Launch, Running
from remote.paths import Workspace
from tests.remote.fleet.conftest import FAST, Site
from tests.waiting import until

TIMES = 50
REPOSITORY = Path(__file__).resolve().parents[3]


def launches(site: Site) -> list[Launch | None]:
    return [Folder(Workspace(site.root).server(gpu)).launch() for gpu in range(site.gpus)]


def processes_of(site: Site) -> list[Running | None]:
    found: list[Running | None] = []
    for gpu in range(site.gpus):
        folder = Folder(Workspace(site.root).server(gpu))
        launch = folder.launch()
        found.append(folder.running(launch.launch) if launch is not None else None)
    return found


@pytest.mark.timeout(240)
async def test_servers_outlive_their_agents(site: Site) -> None:
    spec = site.spec(fake_load=1.0)
    described = site.root / "spec.json"
    described.write_bytes(msgspec.json.encode(spec))
    rng = random.Random(7)

    async def agent() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.remote.fleet.little_agent",
            str(site.root),
            str(described),
            cwd=REPOSITORY,
            start_new_session=True,
        )

    first = await agent()
    await until(lambda: all(processes_of(site)), 30)
    began = launches(site)
    servers = processes_of(site)
    # The first ones die while the servers still load, the others at any moment later.
    os.kill(first.pid, signal.SIGKILL)
    await first.wait()
    for n in range(1, TIMES):
        one = await agent()
        await asyncio.sleep(rng.uniform(0.1, 1.0 if n % 5 == 0 else 0.6))
        os.kill(one.pid, signal.SIGKILL)
        assert await one.wait() == -signal.SIGKILL
    last = site.fleet(spec)
    lines = await last.adopt()
    assert [line.split(",")[0] for line in lines] == [f"GPU {n}: runs" for n in range(site.gpus)]
    await site.all_are(last, "ready")
    assert launches(site) == began
    assert processes_of(site) == servers
    assert all(s is not None and identity.birth(s.pid) == s.birth for s in servers)
    for gpu in range(site.gpus):
        log = site.root / "sglang_logs" / f"sglang_gpu{gpu}.log"
        assert log.read_text().count("server_args=") == 1


async def test_a_killed_holder_leaves_its_server_and_an_unknown_end(site: Site) -> None:
    site.gpus = 1
    spec = site.spec()
    fleet = await site.ready(spec)
    (running,) = processes_of(site)
    assert running is not None
    os.kill(running.holder, signal.SIGKILL)
    await until(lambda: identity.birth(running.holder) is None)
    assert identity.birth(running.pid) == running.birth
    os.kill(running.pid, signal.SIGKILL)
    await until(lambda: site.events.texts("server.failed"))
    assert "how is unknown" in site.events.texts("server.failed")[0]
    await site.all_are(fleet, "ready")


async def test_a_stop_that_was_cut_off_is_gone_on_with(site: Site) -> None:
    site.gpus = 1
    spec = site.spec(drain=60.0)
    fleet = await site.ready(spec)
    site.run.cannot = "this run does not keep them"  # so that the drain lasts
    site.run.open[0] = 3
    stopping = asyncio.create_task(fleet.down(None, who="ann"))
    await until(lambda: fleet.states()[0].state == "draining")
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    await site.close(fleet)
    site.run.open[0] = 0
    other = site.fleet(spec)
    (line,) = await other.adopt()
    assert line.endswith("stopping goes on")
    await until(lambda: other.states()[0].state == "stopped")
    assert not site.events.texts("server.failed")


async def test_a_spent_hour_of_restarts_ends_them(site: Site) -> None:
    site.gpus = 1
    spec = site.spec()
    timing = replace(FAST, restarts_an_hour=2, restart_first=0.05)
    fleet = site.fleet(spec, timing)
    await fleet.up(None, epoch=site.epoch(spec), who="ann")
    for _ in range(3):
        await until(lambda: fleet.states()[0].state == "ready")
        pid = fleet.infos()[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda pid=pid: fleet.infos()[0].pid != pid)  # type: ignore[misc]
    await until(lambda: site.events.texts("server.set_aside"))
    assert "failed 2 times within an hour" in site.events.texts("server.set_aside")[0]
    told = fleet.states()[0]
    assert (told.died, told.died_lately, told.given_up, told.mended_by) == (3, 3, True, "start")
    assert told.died_at is not None and told.died_of == told.cause
    # A person starts it again, and counting begins anew.
    await fleet.up(None, epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")


async def test_when_a_killed_server_is_started_again_is_told(site: Site) -> None:
    site.gpus = 1
    spec = site.spec()
    fleet = site.fleet(spec, replace(FAST, restart_first=2.0))
    await fleet.up(None, epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
    pid = fleet.infos()[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: fleet.states()[0].restart_at)
    told = fleet.states()[0]
    assert told.state == "failed"
    assert told.restart_at is not None
    assert 0 < told.restart_at - time.time() <= 2
    await until(lambda: fleet.states()[0].state == "ready")
    assert fleet.states()[0].restart_at is None
