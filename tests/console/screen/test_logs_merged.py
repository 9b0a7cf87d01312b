"""The logs' screen over the files of a real agent: merged by time, any of them side by side, what
is not there told. No server runs: the files are written here, an hour of them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from console.lab.lab import Lab
from console.lab.options import Options
from console.link.deploy import deploy
from console.screens.ask import AskLine
from console.screens.logs import LogsScreen
from console.screens.sources import SourcesScreen
from console.text import size
from console.widgets.file_pane import FilePane
from console.widgets.log_pane import LogPane
from console.widgets.merged_pane import MergedPane
from remote.paths import Workspace
from tests.console.screen.driver import Driven, on_agent

GPUS = 6
HOUR = 3_600


def stamp(at: float) -> str:
    """As the lab's servers write it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def fill(lab: Lab, now: float) -> None:
    """An hour of logs: ten thousand lines a server, a traceback half an hour ago on GPU 5."""
    folder = lab.container.workspace / lab.target.spec.fleet.log_dir
    folder.mkdir(parents=True, exist_ok=True)
    for gpu in range(GPUS):
        with (folder / f"sglang_gpu{gpu}.log").open("w") as out:
            out.write("a banner without a time\n")
            for n in range(3 * HOUR):
                at = now - HOUR + n / 3
                out.write(f"[{stamp(at)}] gpu{gpu} line {n}\n")
                if gpu == 5 and n == 3 * HOUR // 2:
                    out.write("Traceback (most recent call last):\nRuntimeError: incident\n")
    workspace = Workspace(lab.container.workspace)
    workspace.stoker.mkdir(exist_ok=True)
    with workspace.run_log.open("w") as out:
        for n in range(60):
            out.write(f"{stamp(now - HOUR + 60 * n)},000 I run: minute {n}\n")


@asynccontextmanager
async def looking(tmp_path: Path) -> AsyncIterator[tuple[Driven, float]]:
    """The Logs screen of a console on a real agent; and when the logs end."""
    options = Options(gpus=GPUS, count=10, folder=tmp_path / "lab", s3=False)
    async with Lab(options) as lab:
        now = float(int(time.time()))
        fill(lab, now)
        await deploy(lab.target)
        async with on_agent(lab.target) as one:
            app = one.app
            await one.until(lambda: app.state.link.state == "connected", 60)
            await one.until(lambda: len(app.state.numbers) == GPUS, 60)
            await one.keys("l")
            await one.until(lambda: all(p.count for p in panes(one)) and len(panes(one)) > 1)
            yield one, now


def panes(one: Driven) -> list[LogPane]:
    """All there are."""
    screen = one.app.screen_stack[0]
    return list(screen.query(LogPane)) if isinstance(screen, LogsScreen) else []


async def to(one: Driven, when: float) -> None:
    """Type a time."""
    await one.keys("T")
    await one.until(lambda: isinstance(one.app.screen, AskLine))
    await one.write(stamp(when))
    await one.keys("enter")


async def merge(one: Driven) -> MergedPane:
    """The merged view, with lines."""
    await one.keys("M")
    await one.until(lambda: bool(one.app.screen.query(MergedPane)))
    pane = one.app.screen.query_one(MergedPane)
    await one.until(lambda: pane.count)
    return pane


def list_of(folder: Path) -> list[Path]:
    """What was saved of the merged view."""
    return list(folder.glob("stoker-all-*.log"))


async def test_an_incident_of_half_an_hour_ago_is_seen_merged(tmp_path: Path) -> None:
    """To its time and around it, both ways, to both ends; its traceback stays whole."""
    async with looking(tmp_path) as (one, now):
        pane = await merge(one)
        await to(one, now - 2 * HOUR)
        await one.sees(f"these logs begin {stamp(now - HOUR)[11:]}")
        await to(one, now - HOUR / 2)
        at = stamp(now - HOUR / 2)[11:]
        await one.until(lambda: at in pane.shown()[0])
        rows = pane.shown()
        found = next(n for n, line in enumerate(rows) if "Traceback" in line)
        assert rows[found].startswith("    5│")
        assert "RuntimeError: incident" in rows[found + 1]
        assert {line[:5].strip() for line in rows} >= {"0", "1", "2", "3", "4", "5", "run"}
        whole = [pane.own(line) for line in pane.held()]
        times = [line[1:20] for line in whole if line.startswith("[")]
        assert times == sorted(times)

        await one.keys("pageup")
        await one.until(lambda: at not in pane.shown()[0])
        for _ in range(30):
            await one.keys("home", "pageup")
            await one.until(lambda: not pane.fetching)
        first = next(line for _, line in pane._lines if pane.own(line).startswith("["))
        assert pane.own(first)[1:20] < stamp(now - HOUR / 2 - 600), "far above what was fetched"
        await one.keys("ctrl+home")
        await one.until(lambda: "a banner without" in pane.shown()[0])
        await one.keys("pagedown")
        await one.until(lambda: "a banner" not in pane.shown()[0])
        await one.keys("end")
        await one.until(lambda: pane.following and pane.past is None)


async def test_merged_lines_are_searched_for_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the other side: with a filter, by errors, and a span of all files in one."""
    monkeypatch.chdir(tmp_path)
    async with looking(tmp_path) as (one, now):
        pane = await merge(one)
        await one.filter("Runtime(Error)")
        await one.until(lambda: not pane.count)
        await one.sees("no line matches Runtime(Error) (looked through")
        await one.keys("pageup")
        await one.until(lambda: pane.count == 1)
        await one.keys("escape")
        await one.until(lambda: pane.following)
        await one.keys("E")
        await one.until(lambda: not pane.fetching and pane.past is not None)
        await one.until(lambda: any("RuntimeError" in line for line in pane.shown()))
        begin, end = now - 600, now - 541
        await one.keys("S")
        await one.until(lambda: isinstance(one.app.screen, AskLine))
        await one.write(f"{stamp(begin).replace(' ', 'T')} {stamp(end).replace(' ', 'T')}")
        await one.keys("enter")
        await one.sees("lines saved to")
        (saved,) = list_of(tmp_path)
        said = "".join(line.strip("▌ ") for line in one.screen().splitlines())
        assert len(saved.read_text().splitlines()) == GPUS * 60 * 3 + 1
        assert str(tmp_path)[:20] in said


async def test_any_logs_are_chosen_for_the_panes(tmp_path: Path) -> None:
    """By what is typed and marked; kept, merged too; the first pane has the keys at once."""
    async with looking(tmp_path) as (one, _):
        first = one.app.focused
        assert isinstance(first, FilePane)
        assert first is panes(one)[0]
        await one.sees("▸")
        await one.keys("pageup")
        await one.until(lambda: not first.following)
        assert all(pane.following for pane in panes(one)[1:])

        await one.keys("L")
        await one.until(lambda: isinstance(one.app.screen, SourcesScreen))
        for typed in ("5", "run", "agent"):
            one.app.screen.query_one("Input").value = typed  # type: ignore[attr-defined]
            await one.until(lambda t=typed: t in one.app.screen.lines[0].name)  # type: ignore[misc, attr-defined]
            await one.keys("space")
        await one.sees("3 marked")
        await one.keys("enter")

        def names() -> list[str]:
            return [pane.source for pane in panes(one)]

        await one.until(lambda: names() == ["gpu5", "run", "agent"])
        await one.until(lambda: all(pane.count for pane in panes(one)))
        assert one.app.focused is panes(one)[0]
        await one.keys("M")
        await one.until(lambda: names() == ["all"])
        pane = panes(one)[0]
        await one.until(lambda: pane.count)
        labels = {line[:5].strip() for line in pane.held()}
        assert labels == {"5", "run", "agent"}
        await one.keys("M", "f")
        await one.keys("l")
        await one.until(lambda: names() == ["gpu5", "run", "agent"])
        await one.keys("L")
        await one.until(lambda: isinstance(one.app.screen, SourcesScreen))
        await one.sees("[x] gpu5")
        await one.keys("space", "enter")  # all of them again
        await one.until(lambda: "gpu0" in names())


async def test_what_a_log_does_not_have_is_said(tmp_path: Path) -> None:
    """A time before or after it, and a filter that nothing matches."""
    async with looking(tmp_path) as (one, now):
        await one.keys("3")
        await one.until(lambda: len(panes(one)) == 1)
        pane = panes(one)[0]
        await one.until(lambda: pane.count)
        await to(one, now - 2 * HOUR)
        await one.sees(f"gpu3's log begins {stamp(now - HOUR)[11:]}")
        assert "a banner" in pane.shown()[0] or "line 0" in pane.shown()[0]
        await to(one, now + 2 * HOUR)
        await one.sees(f"gpu3's log ends {stamp(now - 1)[11:]}")
        await one.keys("escape")
        await one.filter("zzzznothing")
        await one.sees("no line matches zzzznothing (looked through")
        await one.sees("PageUp looks further back)")
        await one.keys("pageup")
        await one.until(lambda: "further" not in one.screen())
        whole = one.app.state.logs["gpu3"].size
        await one.sees(f"no line matches zzzznothing (looked through {size(whole)})")
