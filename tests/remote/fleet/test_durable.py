"""What an agent knew, decided or had begun, and what the next one makes of it."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from remote.fleet import identity, plan, processes
from remote.fleet.adoption import recorded
from remote.fleet.fleet import Fleet, FleetError
from remote.fleet.records import Folder
from remote.fleet.restarts import Restarts
from remote.fleet.timing import Timing
from remote.paths import Workspace
from remote.protocol import Swap
from remote.sglang.causes import Cause
from tests.remote.fleet.conftest import FAST, Site
from tests.remote.fleet.servers import pid_of, report
from tests.remote.fleet.swaps import OLD, Journal, ready_fleet, swap_to
from tests.remote.fleet.test_canary import confirming
from tests.waiting import until


async def one_ready(site: Site, timing: Timing = FAST, **flags: object) -> Fleet:
    site.gpus = 1
    spec = site.spec(**flags)  # type: ignore[arg-type]
    return await site.ready(spec, timing=timing)


async def test_a_server_that_stalled_under_an_earlier_agent_gets_work_again(site: Site) -> None:
    fleet = await one_ready(site, replace(FAST, stalled_restart=60.0))
    (site.root / "hang").touch()
    site.run.open[0] = 3
    await until(lambda: fleet.states()[0].state == "stalled")
    assert site.run.may[0] == "pause"
    await site.close(fleet)
    (site.root / "hang").unlink()
    site.run.open[0] = 0
    other = site.fleet(fleet.spec)
    await other.adopt()
    assert other.states()[0].state == "ready"
    assert site.run.may[0] == "run"


async def cut(fleet: Fleet, site: Site, going: asyncio.Task[Swap]) -> Fleet:
    """The agent is killed in the middle of a swap; another one comes."""
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    await site.close(fleet)
    other = site.fleet(fleet.spec)
    await other.adopt()
    return other


async def test_a_swap_that_was_to_be_taken_back_does_not_go_on(site: Site) -> None:
    fleet, old = await ready_fleet(site)
    pids = [pid_of(fleet, 0), pid_of(fleet, 1)]
    swap, new, _ = await swap_to(fleet, old, "rolling", mamba_scheduler_strategy="no_buffer")
    site.run.open[0] = 1
    journal = Journal()
    going = asyncio.create_task(fleet.swap(swap, old=old, new=new, save=journal))
    await until(lambda: fleet.states()[0].state == "draining")
    await fleet.decide(keep=False, who="bob")
    other = await cut(fleet, site, going)
    site.run.open[0] = 0
    ended = await other.swap(journal.last, old=old, new=new, save=journal)
    assert ended.state == "rolled back", ended
    assert ended.text.startswith("taken back by bob; GPU 0 left as before; GPU 1 not touched")
    # It had only been paused, so nothing had to be started again.
    assert [pid_of(other, 0), pid_of(other, 1)] == pids
    assert [s.state for s in other.states()] == ["ready", "ready"]
    assert site.run.may[0] == "run"
    assert all(s.state != "doing" for s in ended.steps)


async def test_new_flags_that_were_to_be_kept_stay(site: Site) -> None:
    spec = site.spec(**OLD)  # type: ignore[arg-type]
    fleet = site.fleet(spec)
    old = site.epoch(spec, 1)
    await fleet.up([0], epoch=old, who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
    swap, new, _ = await swap_to(fleet, old, "all", mamba_scheduler_strategy="no_buffer")
    swap = msgspec.structs.replace(swap, confirm_s=60.0)
    journal = Journal()
    going = asyncio.create_task(fleet.swap(swap, old=old, new=new, save=journal))
    await until(lambda: confirming(journal))
    await fleet.decide(keep=True, who="ann")
    assert journal.last.decision == "keep"
    other = await cut(fleet, site, going)
    late = msgspec.structs.replace(journal.last, confirm_s=0.0)  # the time is over meanwhile
    ended = await other.swap(late, old=old, new=new, save=journal)
    assert ended.state == "done", ended
    assert "confirmed by ann" in ended.text


async def test_what_was_set_aside_stays_aside(site: Site) -> None:
    fleet = await one_ready(site)
    site.reports[0] = report(79)
    os.kill(pid_of(fleet, 0), signal.SIGKILL)
    await until(lambda: site.events.texts("server.set_aside"))
    await site.close(fleet)
    site.reports.clear()  # told long ago
    starts = len(site.events.texts("server.starting"))
    other = site.fleet(fleet.spec)
    (line,) = await other.adopt()
    assert line.startswith("GPU 0: failed before and is left so: Xid 79")
    await asyncio.sleep(1.0)
    assert other.states()[0].state == "failed"
    assert "Xid 79" in other.states()[0].cause
    assert len(site.events.texts("server.starting")) == starts
    # A person may try all the same.
    await other.up(None, epoch=site.epoch(fleet.spec), who="ann")
    await site.all_are(other, "ready")


def test_restarts_are_counted_by_the_next_agent_too(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "0")
    timing = Timing(restarts_an_hour=2)
    first = Restarts(folder)
    first.note(1000.0)
    first.note(1010.0)
    second = Restarts(folder)
    assert second.wait(1020.0, timing) == timing.restart_first
    second.read_back()
    assert second.wait(1020.0, timing) is None
    second.forget()
    third = Restarts(folder)
    third.read_back()
    assert third.wait(1020.0, timing) == timing.restart_first


async def test_a_start_that_could_not_be_made_is_tried_again(site: Site) -> None:
    site.gpus = 1
    python = site.root / "python"
    python.write_text(f'#!/bin/sh\nexec {site.spec().python} "$@"\n')
    python.chmod(0o755)
    spec = msgspec.structs.replace(site.spec(), python=str(python))
    fleet = await site.ready(spec)
    python.chmod(0o644)
    os.kill(pid_of(fleet, 0), signal.SIGKILL)
    told = site.events.texts
    await until(lambda: any("could not be started again" in t for t in told("server.failed")))
    assert "is not there or not executable" in fleet.states()[0].cause
    python.chmod(0o755)
    await site.all_are(fleet, "ready")


async def test_a_holder_that_comes_too_late_leaves_no_server(site: Site) -> None:
    site.gpus = 1
    spec = site.spec()
    fleet = site.fleet(spec, replace(FAST, holder=0.0))
    with pytest.raises(FleetError, match="did not start it within 0 s"):
        await fleet.up(None, epoch=site.epoch(spec), who="ann")
    launch = fleet.server(0).launch
    assert launch is not None
    assert fleet.states()[0].state == "failed"
    await asyncio.sleep(1.5)
    assert processes.marked(launch.launch, identity.table()) == []
    log = site.root / "sglang_logs" / "sglang_gpu0.log"
    assert "fired up" not in log.read_text()
    assert not site.events.texts("server.restart"), "who asked for it was told"


async def test_a_launch_without_a_known_process_is_ended_before_the_next(site: Site) -> None:
    """Its agent had given it up before the holder said which process it is."""
    fleet = await one_ready(site)
    server = fleet.server(0)
    main, launch = server.main, server.launch
    assert main is not None
    assert launch is not None
    await site.close(fleet)
    (server.folder.root / "running.json").unlink()
    server.folder.want(launch, "down")
    other = site.fleet(fleet.spec, replace(FAST, ports=60.0))
    assert await other.adopt() == ["GPU 0: stopped, as it was meant to be"]
    await other.up(None, epoch=site.epoch(fleet.spec), who="ann")
    assert not main.alive
    await site.all_are(other, "ready")


async def test_a_failed_server_that_still_ends_is_nobody_elses(site: Site) -> None:
    fleet = await one_ready(site)
    server = fleet.server(0)
    server.fail(Cause("slow-start", "not ready"))
    for main in (server.main, None):
        server.main = main
        assert await fleet._watch.find_foreign() == []
        assert server.launch is not None
    server.find_process()


async def test_servers_that_the_target_has_no_more_are_found_and_can_be_stopped(
    site: Site,
) -> None:
    spec = site.spec()
    fleet = await site.ready(spec)
    pid = pid_of(fleet, 1)
    await site.close(fleet)
    site.gpus = 1
    other = site.fleet(site.spec())
    lines = await other.adopt()
    assert f"GPU 1: runs, pid {pid}, ready, epoch 1" in lines
    assert [i.gpu for i in other.infos()] == [0, 1]
    await other.down([1], who="ann")
    assert identity.birth(pid) is None
    assert [i.gpu for i in other.infos()] == [0]
    assert other.states()[0].state == "ready"
    # One that is gone already is nothing to be found.
    assert recorded(Workspace(site.root), 1) == [0]
    with pytest.raises(FleetError, match="there is no GPU 1"):
        await other.down([1], who="ann")


async def test_a_servers_deaths_outlive_the_agent(site: Site) -> None:
    """Also one that no agent saw, at its own time; and none counts twice."""

    def died(fleet: Fleet) -> tuple[int, float | None, str]:
        told = fleet.states()[0]
        assert told.died == told.died_lately
        return told.died, told.died_at, told.died_of

    slow = replace(FAST, restart_first=60.0)
    fleet = await one_ready(site)
    pid = pid_of(fleet, 0)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: fleet.states()[0].state == "ready" and pid_of(fleet, 0) != pid)
    first = died(fleet)
    assert first[0] == 1
    await site.close(fleet)

    other = site.fleet(fleet.spec, slow)
    await other.adopt()
    assert died(other) == first
    pid = pid_of(other, 0)
    await site.close(other)
    os.kill(pid, signal.SIGKILL)
    launch = other.server(0).folder.launch()
    assert launch is not None
    await until(lambda: other.server(0).folder.exit(launch.launch))

    third = site.fleet(fleet.spec, slow)
    await third.adopt()
    second = died(third)
    ended = other.server(0).folder.exit(launch.launch)
    assert ended is not None
    assert second == (2, ended.ended, third.states()[0].cause)
    await until(lambda: third.states()[0].restart_at is not None)
    await site.close(third)
    last = site.fleet(fleet.spec, slow)
    await last.adopt()
    assert last.states()[0].state == "failed"
    assert died(last) == second


async def test_a_server_that_the_target_has_no_more_is_not_started_again(site: Site) -> None:
    spec = site.spec()
    fleet = await site.ready(spec)
    site.gpus = 1
    fleet.spec = site.spec()
    os.kill(pid_of(fleet, 1), signal.SIGKILL)
    await until(lambda: site.events.texts("server.set_aside"))
    assert "has no GPU 1 any more" in site.events.texts("server.failed")[-1]
    assert len(site.events.texts("server.starting")) == 2


async def test_servers_are_asked_where_they_listen(site: Site) -> None:
    """The target's ports were moved, or its address, while they run."""
    fleet = await one_ready(site)
    url = fleet.url(0)
    moved = site.spec(host="10.255.255.1")
    moved = msgspec.structs.replace(
        moved, fleet=msgspec.structs.replace(moved.fleet, base_port=site.base + 1)
    )
    fleet.spec = moved
    assert fleet.url(0) == url == f"http://127.0.0.1:{site.base}"
    await site.close(fleet)
    other = site.fleet(moved)
    await other.adopt()
    assert other.url(0) == url
    assert other.readings()[0].url == url
    await until(lambda: other.states()[0].lights.http)
    server = other.server(0)
    server.listens(31000, {"host": "10.1.2.3"})
    assert server.url == server.probe.url == "http://10.1.2.3:31000"
    server.listens(31000, {"host": "::1"})
    assert server.url == "http://[::1]:31000"
    server.listens(site.base, {"host": "0.0.0.0"})
    assert server.url == url


async def test_a_server_is_ready_only_after_a_completion_of_its_own(site: Site) -> None:
    """Also where it says that it is busy: that may be its warm-up."""
    site.gpus = 1
    (site.root / "hang").touch()
    site.run.open[0] = 1
    spec = site.spec()
    fleet = site.fleet(spec)
    await fleet.up(None, epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "warming")
    await asyncio.sleep(1.5)
    assert fleet.states()[0].state == "warming"
    (site.root / "hang").unlink()
    await site.all_are(fleet, "ready")
    assert site.run.tried == {0: True}
    assert Folder(Workspace(site.root).server(0)).previous() is None


async def test_a_canary_that_stalls_is_taken_back(site: Site) -> None:
    spec = site.spec(**OLD)  # type: ignore[arg-type]
    fleet = site.fleet(spec, replace(FAST, judge_most=600.0))
    old = site.epoch(spec, 1)
    await fleet.up(None, epoch=old, who="ann")
    await site.all_are(fleet, "ready")
    swap, new, _ = await swap_to(fleet, old, "canary", mamba_scheduler_strategy="no_buffer")
    going = asyncio.create_task(fleet.swap(swap, old=old, new=new, save=Journal()))
    await until(lambda: fleet.infos()[0].epoch == 2 and fleet.states()[0].state == "ready")
    (site.root / "hang").touch()
    site.run.open[0] = 1
    await until(lambda: fleet.states()[0].state == "stalled")
    (site.root / "hang").unlink()
    ended = await asyncio.wait_for(going, 60)  # not as long as one waits for a verdict
    assert ended.state == "rolled back", ended
    judged = plan.of(ended, 0, "judge")
    assert judged is not None
    assert "no token came for" in judged.text
