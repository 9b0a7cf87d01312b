"""Ends that came from elsewhere: a signal, the kernel, the driver, the machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from remote.fleet import identity, memory, processes
from tests.remote.fleet.conftest import FAST, Site
from tests.remote.fleet.servers import append, chat, pid_of, report
from tests.waiting import until


async def test_a_sigterm_from_elsewhere_empties_the_server_and_is_obeyed(site: Site) -> None:
    spec = site.spec(enable_metrics=True)
    fleet = await site.ready(spec, [0])
    first = pid_of(fleet, 0)
    append(Path(fleet.infos()[0].log), time.strftime("[%Y-%m-%d %H:%M:%S] Error in request: x"))
    append(Path(fleet.infos()[0].log), "Traceback (most recent call last):\nTemplateError: x")
    asked = asyncio.create_task(chat(fleet.url(0), 150))
    await until(lambda: fleet.states()[0].running)
    os.kill(first, signal.SIGTERM)
    await until(lambda: fleet.states()[0].state == "draining")
    assert site.run.told[-1] == (0, "pause")
    await until(lambda: "1 left" in fleet.states()[0].phase)
    assert await asked == "stop"  # what it had is finished
    await until(lambda: fleet.states()[0].state == "stopped")
    assert "SIGTERM that did not come from here" in fleet.states()[0].cause
    assert fleet.states()[0].phase == ""
    assert not site.events.texts("server.failed")
    assert not site.events.texts("server.restart")
    assert len(site.events.texts("server.draining")) == 1


async def test_a_drain_from_elsewhere_that_is_cut_short_is_no_failure(site: Site) -> None:
    """As of a supervisor that sends SIGTERM, waits a while, and sends SIGKILL."""
    spec = site.spec(fake_leak=True)
    fleet = await site.ready(spec, [0])
    pid = pid_of(fleet, 0)
    os.kill(pid, signal.SIGTERM)
    await until(lambda: "4 left" in fleet.states()[0].phase)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: fleet.states()[0].state == "stopped")
    assert "did not come from here, with 4 requests left" in fleet.states()[0].cause
    assert not site.events.texts("server.failed")


async def test_a_restart_of_the_machine_is_told_as_one(site: Site) -> None:
    spec = site.spec()
    fleet = await site.ready(spec, [0])
    server = fleet.server(0)
    assert server.holder is not None
    assert server.main is not None
    await site.close(fleet)
    os.kill(server.holder.pid, signal.SIGKILL)
    processes.end_tree(server.main, None)
    record = site.root / ".stoker" / "servers" / "0" / "running.json"
    running = json.loads(record.read_text())
    assert running["init"] == identity.birth(1)
    record.write_text(json.dumps({**running, "init": "before"}))
    again = site.fleet(spec)
    (line,) = await again.adopt()
    assert "the machine was restarted at 20" in line
    await until(lambda: again.states()[0].state == "ready")


async def test_the_kernels_killing_for_memory_is_told_as_that(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = site.root / "cgroup"
    group.mkdir()
    events = group / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n")
    monkeypatch.setenv(memory.ENVIRON, str(group))
    spec = site.spec()
    fleet = await site.ready(spec)
    first, second = pid_of(fleet, 0), pid_of(fleet, 1)
    os.kill(first, signal.SIGKILL)
    await until(lambda: site.events.texts("server.failed"))
    assert "kernel" not in site.events.texts("server.failed")[0]
    events.write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 3\n")
    os.kill(second, signal.SIGKILL)
    await until(lambda: len(site.events.texts("server.failed")) == 2)
    assert "killed by the kernel: the container's memory" in site.events.texts("server.failed")[1]
    assert len(site.events.texts("host.oom")) == 1
    await until(lambda: fleet.infos()[1].pid not in (None, second))  # it may go better


async def test_the_drivers_report_explains_a_death(site: Site) -> None:
    spec = site.spec()
    fleet = await site.ready(spec)
    # A fault of the program: it is started again. A lost card: it is not, and the rest go on.
    site.reports.update({0: report(31), 1: report(79)})
    first, second = pid_of(fleet, 0), pid_of(fleet, 1)
    os.kill(first, signal.SIGKILL)
    os.kill(second, signal.SIGKILL)
    await until(lambda: fleet.infos()[0].pid not in (None, first))
    await until(lambda: site.events.texts("server.set_aside"))
    failed = sorted(site.events.texts("server.failed"))
    assert failed[0].startswith("GPU 0: Xid 31 (of the driver); its log says: was killed by")
    assert failed[1].startswith("GPU 1: Xid 79 (of the driver): the host must be rebooted; its")
    (aside,) = site.events.texts("server.set_aside")
    assert aside.startswith("GPU 1: not started again by itself")
    assert fleet.states()[1].state == "failed"
    assert "Xid 79" in fleet.states()[1].cause


async def test_a_report_that_comes_after_the_death_stops_the_restart(site: Site) -> None:
    site.gpus = 1
    spec = site.spec()
    fleet = await site.ready(spec, timing=replace(FAST, restart_first=1.5))
    os.kill(pid_of(fleet, 0), signal.SIGKILL)
    await until(lambda: site.events.texts("server.restart"))
    fleet.hurt(0)  # nothing is known that explains it
    assert "Xid" not in fleet.states()[0].cause
    site.reports[0] = report(79)
    fleet.hurt(0)
    assert "Xid 79" in fleet.states()[0].cause
    await until(lambda: site.events.texts("server.set_aside"))
    assert len(site.events.texts("server.starting")) == 1
    fleet.hurt(0)  # told once
    assert sum("Xid 79" in text for text in site.events.texts("server.failed")) == 1
