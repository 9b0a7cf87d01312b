"""The console on a real agent, over SSH and `pct`, driven by keys: flags, restart, canary, targets,
a cut link, what happened meanwhile, the whole of a log, prompts tried again.

Servers and hardware are the lab's simulation; the link, the agent, the run and the swaps are real.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from textual.widgets import Input

from console import byhand
from console.app import ListedApp, StokerApp
from console.feed import connect_agent
from console.lab import job
from console.lab.lab import Lab
from console.lab.options import Options
from console.screens.ask import AskLine
from console.screens.away import AwayScreen
from console.screens.confirm import Confirm
from console.screens.fleet import FleetScreen
from console.screens.restart import RestartScreen
from console.screens.targets import TargetsScreen, TargetTable
from console.session import session
from console.watch import Source
from console.widgets.file_pane import FilePane
from console.widgets.flag_table import FlagTable
from tests.console.screen.driver import Driven, on_agent, painted

GPUS = 2


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
        async with on_agent(lab.target) as one:
            app = one.app
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
            one = Driven(app, pilot)

            def row(name: str) -> str:
                lines = painted(app.screen.query_one(TargetTable))[1:]
                return next((line for line in lines if name in line), "")

            await one.until(lambda: bool(app.screen.query(TargetTable)))
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


LONG = "word " * 30_000
"""More than the servers' context takes."""


def write_prompts(path: Path, count: int) -> None:
    """So many that are answered, and one that is refused."""
    texts = [f"What is {n} times {n + 1}? Explain each step." for n in range(count)] + [LONG]
    with path.open("w") as out:
        for index, text in enumerate(texts):
            prompt = {"id": index, "messages": [{"role": "user", "content": text}]}
            out.write(json.dumps(prompt) + "\n")


@pytest.mark.timeout(600)
async def test_a_cut_link_and_what_happened_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link comes back by itself; the next console tells what the run did; a log is searched
    and gone through on the far side; what was given up on gets another life."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    write_prompts(tmp_path / "prompts.jsonl", 600)
    options = Options(
        gpus=1, prompts=tmp_path / "prompts.jsonl", speed=120.0, folder=tmp_path / "lab", s3=False
    )
    async with Lab(options) as lab:
        await job.begin(lab, lambda _: None)
        await job.start(lab, lambda _: None)
        async with on_agent(lab.target, remember=True) as one:
            app = one.app
            await one.until(lambda: app.state.progress is not None, 60)
            await _cut(one, lab)
        async with session(lab.target) as here:
            await here.follow()
            await here.until(
                lambda: True if here.state.progress and not here.state.run.alive else None, 120
            )
        async with on_agent(lab.target, remember=True) as one:
            app = one.app
            await one.until(lambda: app.state.progress is not None, 60)
            await one.keys("w")
            await one.until(lambda: isinstance(app.screen, AwayScreen))
            await one.sees("You were away")
            await one.sees("prompts were done")
            await one.keys("escape")
            await _far_log(one, lab)
            await _retry(one, lab)
            if shutil.which("ssh"):
                await _by_hand(one, lab)


async def _cut(one: Driven, lab: Lab) -> None:
    """Every SSH connection drops; the numbers go on where they stood."""
    app = one.app
    before = app.state.received
    lab.cut()
    await one.until(lambda: app.state.link.state == "reconnecting", 30)
    await one.sees("the link was lost")
    await one.until(lambda: app.state.link.state == "connected", 60)
    await one.until(lambda: (app.state.received or 0) > (before or 0))
    ids = [event.id for event in app.state.events]
    assert ids == list(range(ids[0], ids[0] + len(ids)))


async def _far_log(one: Driven, lab: Lab) -> None:
    """The first lines of a log are long out of what is held here: found by a filter, and by
    their time."""
    app = one.app
    await one.keys("0", "l")
    await one.until(lambda: len(app.screen.query(FilePane)) == 1)
    pane = app.screen.query_one(FilePane)
    await one.until(lambda: pane.count > 100)
    assert not any("fired up" in line for line in pane.held())
    await one.keys("slash")
    await one.until(lambda: isinstance(app.focused, Input))
    await one.write("fired up")
    await one.keys("enter")
    await one.until(lambda: pane.count == 0)
    await one.keys("pageup")
    await one.until(lambda: any("fired up" in line for line in pane.held()))
    await one.keys("escape")
    log = lab.container.workspace / lab.target.spec.fleet.log_dir / "sglang_gpu0.log"
    first = next(line for line in log.read_text().splitlines() if line.startswith("[20"))
    await one.keys("T")
    await one.until(lambda: isinstance(app.screen, AskLine))
    await one.write(first[1:20])
    await one.keys("enter")
    await one.until(lambda: any(first[22:60] in line for line in pane.shown()))
    await one.keys("escape", "f")


async def _retry(one: Driven, lab: Lab) -> None:
    """The one prompt that was refused is tried again, and refused again."""
    app = one.app
    await one.until(lambda: not app.state.run.alive)
    assert app.state.progress is not None
    assert (app.state.progress.completed, app.state.progress.failed) == (600, 1)
    await one.keys("g", "R")
    await one.until(lambda: isinstance(app.screen, Confirm))
    await one.keys("y")
    await one.until(lambda: not (lab.run / "failed.jsonl").exists(), 30)
    assert list(lab.run.glob("failed*"))
    began = app.state.progress.time
    await one.keys("s")
    await one.until(lambda: app.state.progress is not None and app.state.progress.time > began, 60)
    await one.until(lambda: not app.state.run.alive and (lab.run / "failed.jsonl").exists(), 60)
    found = (lab.run / "failed.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in found] == [600]


async def _by_hand(one: Driven, lab: Lab) -> None:
    """The lines to copy, typed into a shell: the log comes, and the run is started."""
    found = byhand.lines(lab.target, one.app.state, [0])

    def type_in(line: str) -> str:
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", line], capture_output=True, check=True, timeout=10
            )
        except subprocess.TimeoutExpired as following:
            return (following.stdout or b"").decode()
        return done.stdout.decode()

    assert "Decode batch" in await asyncio.to_thread(type_in, found[0])
    log = lab.container.workspace / ".stoker" / "run.log"
    before = log.stat().st_size
    await asyncio.to_thread(type_in, found[-1])
    await one.until(lambda: b"601" in log.read_bytes()[before:], 30)
