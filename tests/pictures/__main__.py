"""Pictures of the console for the README, taken of the real lab: ``python -m tests.pictures``.

Brings up the lab with eight simulated servers, lets it run to its first verdict, takes the fleet
and the logs, opens the restart dialog up to the question, swaps, and takes the fleet again with
both epochs side by side. Each picture is an SVG in ``console/docs/pictures/`` that needs nothing
from elsewhere. ``--story`` takes every screen at three sizes in two themes of the made-up target
instead, into a folder of one's own, to be looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from textual.pilot import Pilot
from textual.widgets import Input

from console.app import StokerApp
from console.feed import connect_agent
from console.proposal import STRATEGIES
from console.screens.restart import RestartScreen
from console.screens.run import RunText
from console.widgets.chart import Chart
from console.widgets.log_pane import LogPane
from tests.console.screen.story import connect

if TYPE_CHECKING:
    from console.lab.lab import Lab

FOLDER = Path(__file__).parents[2] / "console" / "docs" / "pictures"
SIZE = (132, 44)
FONTS = "ui-monospace, 'JetBrains Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def svg(app: StokerApp) -> str:
    """The screen as an SVG that asks no other host for a font."""
    text = app.export_screenshot(title="stoker")
    text = re.sub(r"@font-face\s*{[^}]*}\s*", "", text)
    return text.replace("Fira Code, monospace", FONTS).replace("Fira Code", FONTS)


class Camera:
    """An app, its keys, and where its pictures go."""

    def __init__(self, app: StokerApp, pilot: Pilot[None], folder: Path) -> None:
        self.app = app
        self.pilot = pilot
        self.folder = folder

    async def until(self, true: Callable[[], object], seconds: float = 240) -> None:
        """Wait for a condition."""
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                raise SystemExit(f"the picture's moment did not come within {seconds:.0f} s")
            await self.pilot.pause(0.2)

    async def take(self, name: str) -> None:
        """Save what is on the screen, once its plots have the size that it gives them."""
        await self.pilot.pause(0.5)
        charts = [c for c in self.app.screen.query(Chart) if c.size.height > 12]
        await self.until(lambda: all(len(c._rows) == c.size.height - 2 for c in charts))
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.svg"
        path.write_text(svg(self.app), encoding="utf-8")
        print(path, file=sys.__stdout__, flush=True)


async def lab_pictures(folder: Path) -> None:
    """Fleet, logs, restart dialog and swap of the lab."""
    from console.lab import job
    from console.lab.lab import Lab
    from console.lab.options import Options

    socket.gethostname = lambda: "laptop"  # who acts is shown: no picture names this machine
    os.environ["LOGNAME"] = os.environ["USER"] = "ops"

    def say(text: str) -> None:
        print(text, file=sys.__stdout__, flush=True)

    with tempfile.TemporaryDirectory(prefix="stoker-pictures-") as place:
        lab: Lab
        async with Lab(Options(gpus=8, folder=Path(place) / "lab", speed=20.0), say) as lab:
            await job.begin(lab, say)
            await job.start(lab, say)
            app = StokerApp(connect_agent(lab.target), name="ct200", remember=False, strict=True)
            async with app.run_test(size=SIZE) as pilot:
                await _walk(Camera(app, pilot, folder))


def _planned(app: StokerApp) -> bool:
    """Whether the mix is there, with what was planned."""
    mix = app.screen.query_one(RunText).told.mix
    return mix is not None and not mix.counting


async def _walk(camera: Camera) -> None:
    app, pilot = camera.app, camera.pilot

    def charted() -> bool:
        return any(len(chart._rows) > 3 for chart in app.screen.query("Chart"))  # type: ignore[attr-defined]

    await pilot.press("plus")
    await camera.until(lambda: app.state.verdict is not None)
    await camera.until(charted)
    await pilot.pause(100)
    await camera.take("fleet")
    await pilot.press("l")
    await camera.until(lambda: all(p.count > 20 for p in app.screen.query(LogPane)))
    await camera.take("logs")
    await pilot.press("f", "r")
    await camera.until(lambda: isinstance(app.screen, RestartScreen))
    for edit in ("mamba-scheduler-strategy=no_buffer", "mem-fraction-static=0.9", ""):
        app.screen.query_one(Input).value = edit
        await pilot.press("enter")
        await pilot.pause()
    dialog = app.screen
    assert isinstance(dialog, RestartScreen)
    await camera.until(lambda: dialog.step == "plan")
    plans = dialog.proposal.plans
    await camera.until(lambda: len(plans) == len(STRATEGIES))  # each way with its cost
    await camera.take("restart")
    dialog.query_one(Input).value = "restart"
    await pilot.press("enter")
    await camera.until(lambda: app.state.swap is not None)
    await camera.until(lambda: sum(s.state == "done" for s in app.state.swap.steps) > 24)  # type: ignore[union-attr]
    await camera.take("swap")
    await camera.until(lambda: app.state.swap is not None and app.state.swap.state == "done", 600)
    began = app.state.epochs[-1].since
    await camera.until(lambda: app.state.verdict is not None and app.state.verdict.time > began)
    await camera.take("after")
    for name, key in (("config", "c"), ("run", "g"), ("events", "e")):
        await pilot.press(key)
        await pilot.pause(2)
        if name == "run":
            await camera.until(lambda: _planned(app))
        await camera.take(name)
    await pilot.press("g", "a")
    await camera.until(lambda: bool(getattr(app.screen, "found", None)))
    await camera.take("answers")


async def story_pictures(folder: Path) -> None:
    """Every screen of the made-up target at three sizes in two themes."""
    screens = {"fleet": "f", "logs": "l", "config": "c", "run": "g", "events": "e", "help": "?"}
    for theme in ("dark", "light"):
        for size in ((80, 24), (120, 40), (220, 60)):
            make = connect(now=time.time(), elapsed=120)
            app = StokerApp(make, name="ct200", theme=theme, remember=False, strict=True)
            async with app.run_test(size=size) as pilot:
                camera = Camera(app, pilot, folder)
                await camera.until(lambda app=app: app.state.received is not None)  # type: ignore[misc]
                await pilot.pause(3)
                for name, key in screens.items():
                    await pilot.press("question_mark" if key == "?" else key)
                    await pilot.pause(1)
                    await camera.take(f"{name}-{size[0]}x{size[1]}-{theme}")


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(prog="python -m tests.pictures", description=__doc__)
    parser.add_argument("--story", metavar="FOLDER", type=Path, help="every screen, made up")
    parser.add_argument("--to", metavar="FOLDER", type=Path, default=FOLDER)
    given = parser.parse_args()
    if given.story is not None:
        asyncio.run(story_pictures(given.story))
    else:
        asyncio.run(lab_pictures(given.to))


if __name__ == "__main__":
    main()
