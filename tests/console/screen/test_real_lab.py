"""The console on a real agent, over SSH and `pct`, driven by keys: flags, restart, canary, targets.

Servers and hardware are the lab's simulation; the link, the agent, the run and the swaps are real.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from console.app import ListedApp, StokerApp
from console.feed import connect_agent
from console.lab import job
from console.lab.lab import Lab, Options
from console.screens.confirm import Confirm
from console.screens.fleet import FleetScreen
from console.screens.restart import RestartScreen
from console.screens.targets import TargetsScreen, TargetTable
from console.watch import Source
from console.widgets.flag_table import FlagTable
from tests.console.screen.driver import Driven, painted
from tests.console.screen.story import Story

GPUS = 2


def driven_on(app: StokerApp, pilot: object) -> Driven:
    """The driver without a story of its own."""
    return Driven(app, pilot, Story(lambda _: None, lambda _: None))  # type: ignore[arg-type]


async def to_canary(one: Driven, edit: str) -> None:
    """From the fleet to a canary that is being judged."""
    await one.keys("r")
    await one.until(lambda: isinstance(one.app.screen, RestartScreen))
    await one.write(edit)
    await one.keys("enter", "enter")
    await one.sees("type restart")
    await one.keys("tab")
    await one.sees("one GPU first")
    await one.write("restart")
    await one.keys("enter")
    await one.until(lambda: isinstance(one.app.screen, FleetScreen))
    await one.until(lambda: "K keep" in one.screen(), 120)


@pytest.mark.timeout(600)
async def test_flags_restart_and_canary_by_keys(tmp_path: Path) -> None:
    """What the lab's SGLang takes is known, what it would refuse is refused at once, and a canary
    is taken back and kept by keys while the run goes on."""
    options = Options(gpus=GPUS, count=60_000, speed=60.0, folder=tmp_path / "lab", s3=False)
    async with Lab(options) as lab:
        await job.begin(lab, lambda _: None)
        await job.start(lab, lambda _: None)
        app = StokerApp(connect_agent(lab.target), name="ct200", remember=False, strict=True)
        async with app.run_test(size=(120, 40), notifications=True) as pilot:
            one = driven_on(app, pilot)
            await one.until(lambda: app.state.progress is not None, 60)
            await _flags(one)
            await to_canary(one, "mamba-scheduler-strategy=no_buffer")
            begun = app.state.epochs[-1].id
            await one.keys("B")
            await one.until(lambda: isinstance(app.screen, Confirm))
            await one.sees(f"Take back: epoch {begun} of ct200")
            await one.keys("y")
            await one.until(lambda: _swap(app) == "rolled back", 120)
            assert {i.flags["mamba-scheduler-strategy"] for i in app.state.infos.values()} == {
                "extra_buffer"
            }
            done = app.state.progress.completed if app.state.progress is not None else 0
            await to_canary(one, "mamba-scheduler-strategy=no_buffer")
            await one.keys("K", "y")
            await one.until(lambda: _swap(app) == "done", 120)
            flags = [i.flags["mamba-scheduler-strategy"] for i in app.state.infos.values()]
            assert flags == ["no_buffer"] * GPUS, (app.state.infos, app.state.swap)
            slots = [i.max_running or 0 for i in app.state.infos.values()]
            assert min(slots) > 37
            assert app.state.progress is not None
            assert app.state.progress.completed >= done
            await one.keys("c")
            await one.sees("no_buffer")


def _swap(app: StokerApp) -> str:
    return app.state.swap.state if app.state.swap is not None else ""


async def _flags(one: Driven) -> None:
    """The whole catalogue in Config and in the dialog."""
    await one.keys("c")
    await one.sees("flags of SGLang 0.5.12")
    table = one.app.screen.query_one(FlagTable)
    assert len(table.rows) > 300
    await one.keys("slash")
    await one.write("conservativeness")
    await one.until(lambda: [r.name for r in table.rows] == ["schedule-conservativeness"])
    await one.keys("enter", "enter")
    await one.until(lambda: isinstance(one.app.screen, RestartScreen))
    await one.write("much")
    await one.keys("enter")
    await one.sees("takes a number")
    one.app.screen.query_one("#edit").value = "mem-fracton-static=0.9"  # type: ignore[attr-defined]
    await one.keys("enter")
    await one.sees("SGLang 0.5.12 has no flag mem-fracton-static; did you mean mem-fraction-static")
    await one.keys("escape", "escape", "f")
    await one.until(lambda: isinstance(one.app.screen, FleetScreen))


async def test_a_real_target_beside_a_dead_one(tmp_path: Path) -> None:
    """The list shows both; the dead one's refusal is its own."""
    options = Options(gpus=1, count=10, folder=tmp_path / "lab", s3=False)
    async with Lab(options) as lab:
        await job.begin(lab, lambda _: None)
        dead = _dead(lab)
        sources = [Source("gone", connect_agent(dead)), Source("ct200", connect_agent(lab.target))]
        app = ListedApp(sources, remember=False, strict=True)
        async with app.run_test(size=(120, 40), notifications=True) as pilot:
            one = driven_on(app, pilot)

            def row(name: str) -> str:
                lines = painted(app.screen.query_one(TargetTable))[1:]
                return next((line for line in lines if name in line), "")

            await one.until(lambda: "connected" in row("ct200"), 60)
            await one.until(lambda: "failed" in row("gone"), 60)
            await one.keys("j", "enter")
            await one.until(lambda: isinstance(app.screen, FleetScreen))
            await one.sees("stoker ct200")
            await one.keys("N")
            await one.sees("stoker gone")
            await one.keys("u")
            await one.sees("nothing was sent")
            await one.keys("A")
            await one.until(lambda: isinstance(app.screen, TargetsScreen))


def _dead(lab: Lab):  # type: ignore[no-untyped-def]
    """A target on a port where nobody listens, of the lab's own SSH settings."""
    from dataclasses import replace

    spec = lab.target.spec
    return replace(lab.target, name="gone", ssh="ops@127.0.0.1:9", spec=spec)
