"""Servers that stand still: what is told of them, when, and what their numbers are afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from console.lab.sim.settings import Fault
from remote.fleet.fleet import Fleet
from remote.fleet.rate import Rate
from remote.protocol import ServerState
from tests.remote.fleet.conftest import FAST, Site
from tests.remote.fleet.servers import chat, pid_of
from tests.remote.fleet.test_simulated import SIM, SimSite, asking, slow_sim
from tests.waiting import until

__all__ = ["slow_sim"]

SOON = replace(FAST, answer=0.5, silent=1.0, stall=60.0, rate=2.0)


def state(fleet: Fleet) -> ServerState:
    return fleet.states()[0]


@contextmanager
def frozen(fleet: Fleet) -> Iterator[None]:
    """Every process of the first server stands still meanwhile."""
    pids = [p.pid for p in fleet.server(0).tree]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("metrics", [True, False])
async def test_a_frozen_server_is_told_long_before_it_counts_as_stalled(
    site: Site, metrics: bool
) -> None:
    spec = site.spec(enable_metrics=metrics)
    fleet = site.fleet(spec, SOON)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: state(fleet).state == "ready")
    site.run.open[0] = 3
    asked = asyncio.create_task(chat(fleet.url(0), 100_000))
    await until(lambda: state(fleet).running)
    if metrics:
        await until(lambda: state(fleet).gen_tok_s)
    assert state(fleet).silent_since is None
    with frozen(fleet):
        began = time.time()
        await until(lambda: state(fleet).silent_since is not None)
        told = state(fleet)
        assert told.silent_since == pytest.approx(began, abs=1.0)
        assert told.state == "ready"
        assert told.gen_tok_s is None
        assert told.restart_at is not None
        assert told.restart_at - began == pytest.approx(60.0 + SOON.stalled_restart, abs=2.0)
        await until(lambda: state(fleet).steady_since is None)
    await until(lambda: state(fleet).silent_since is None)
    await until(lambda: state(fleet).steady_since is not None)
    assert not site.events.texts("server.stalled")
    asked.cancel()


async def test_one_slow_answer_is_no_silence(slow_sim: SimSite) -> None:
    """Its counters are late, and it works: nobody is told of it."""
    fleet = slow_sim.fleet(slow_sim.target(), replace(SIM, answer=0.5, silent=1.0))
    spec = slow_sim.target()
    await fleet.up(None, epoch=slow_sim.epoch(spec), who="ann")
    await until(lambda: state(fleet).state == "ready")
    async with asking(fleet, 0, 3, again=True):
        await until(lambda: state(fleet).lights.tokens)
        slow_sim.fault(0, Fault(slow_probe_s=1.2))
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            assert state(fleet).silent_since is None
            await asyncio.sleep(0.05)


async def test_no_rate_is_told_after_a_freeze_that_was_never_reached(slow_sim: SimSite) -> None:
    """The whole container stands still, agent and all, and goes on: what was on its way to the
    agent is of the time before."""
    spec = slow_sim.target()
    fleet = slow_sim.fleet(spec, replace(SIM, rate=2.0))
    await fleet.up(None, epoch=slow_sim.epoch(spec), who="ann")
    await until(lambda: state(fleet).state == "ready")
    async with asking(fleet, 0, 20, again=True):
        await asyncio.sleep(4)
        usual = state(fleet).gen_tok_s
        assert usual
        told: list[float] = []
        with frozen(fleet):
            await asyncio.sleep(6)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            told.append(state(fleet).gen_tok_s or 0.0)
            await asyncio.sleep(0.05)
    assert max(told) < 1.3 * usual
    assert told[-1] > 0.7 * usual


def test_an_old_answer_makes_no_rate_that_nobody_reached() -> None:
    """100 tokens a second, and the answer of second 10 is read in second 30 only."""
    rate = Rate(10.0)
    for second in range(0, 10, 3):
        rate.take(second, second + 0.1, 100.0 * second)
    rate.take(10.0, 30.0, 1000.0)
    assert rate.value is not None and rate.value <= 100
    for second in range(31, 60, 3):
        rate.take(second, second + 0.1, 100.0 * second)
        assert rate.value <= 101, second
    assert rate.value == pytest.approx(100, rel=0.05)
    rate.take(60, 60.1, 5.0)
    assert rate.value is None, "a new counter"


async def test_a_server_that_stalls_in_an_actions_hand_is_mended_once_let_go(site: Site) -> None:
    spec = site.spec(enable_metrics=True)
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: state(fleet).state == "ready")
    first = pid_of(fleet, 0)
    (site.root / "hang").touch()
    site.run.open[0] = 3
    fleet.server(0).held = True
    await until(lambda: state(fleet).state == "stalled")
    await asyncio.sleep(FAST.stalled_restart + 0.5)
    assert state(fleet).state == "stalled"
    fleet.server(0).let_go()
    await until(lambda: site.events.texts("server.failed"))
    (site.root / "hang").unlink()
    site.run.open[0] = 0
    await until(lambda: state(fleet).state == "ready" and pid_of(fleet, 0) != first)


async def test_a_sigterm_during_the_load_is_no_failure(site: Site) -> None:
    spec = site.spec(fake_load=20)
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: state(fleet).lights.process)
    os.kill(pid_of(fleet, 0), signal.SIGTERM)
    await until(lambda: state(fleet).state == "stopped")
    assert "SIGTERM that did not come from here" in state(fleet).cause
    assert not site.events.texts("server.failed")
    assert not site.events.texts("server.restart")


async def test_a_server_without_a_record_of_its_start_is_adopted_late(site: Site) -> None:
    """It could not be written; the server has served for longer than a start may take."""
    spec = site.spec(start=4.0)
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: state(fleet).state == "ready")
    first = pid_of(fleet, 0)
    await site.close(fleet)
    (fleet.server(0).folder.root / "ready.json").unlink()
    await asyncio.sleep(4)
    again = site.fleet(spec)
    await again.adopt()
    await until(lambda: state(again).state == "ready")
    assert pid_of(again, 0) == first
    assert not site.events.texts("server.failed")
