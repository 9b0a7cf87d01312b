"""The Events screen: its title stays, and what is shown is chosen by level, kind, GPU and who."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from textual.widgets import Input

from console import model
from console.eventsift import choice
from console.screens.events import EventPane, EventsScreen
from console.screens.fleet import FleetScreen
from console.widgets.filter_line import FilterLine
from console.widgets.pane import Pane
from remote.protocol import (
    Event,
    Happened,
    Skipped,
)
from tests.console.screen.driver import Driven, driven

BEGAN = time.time() - 1_000
EVENTS = [
    Event(1, BEGAN, "server.ready", "info", "GPU 3: ready after 40 s", 3),
    Event(2, BEGAN, "server.failed", "error", "GPU 3: out of memory", 3),
    Event(3, BEGAN, "alert", "warning", "GPU 5: 88 °C", 5),
    Event(4, BEGAN, "action", "info", "down GPU 3, 5", None, "Kim@laptop"),
    Event(5, BEGAN, "action.refused", "warning", "run start: no server is up", None, "kim@laptop"),
    Event(6, BEGAN, "swap.done", "info", "swap 2: GPU 13 and all others", None, "ops"),
]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", [1, 2, 3, 4, 5, 6]),
        ("level=warning", [2, 3, 5]),
        ("level=err", [2]),
        ("kind=server", [1, 2]),
        ("kind=server.f,swap", [2, 6]),
        ("gpu=3", [1, 2, 4]),
        ("gpu=5,13", [3, 4, 6]),
        ("who=kim", [4, 5]),
        ("gpu=3 level=error", [2]),
        ("gpu=", [1, 2, 3, 4, 5, 6]),
        ("level=", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_words_choose(text: str, ids: list[int]) -> None:
    """One or several; one that is being typed leaves all."""
    wanted = choice(text)
    assert not wanted.problem
    assert [e.id for e in EVENTS if wanted.keeps(e)] == ids


def test_what_is_left_is_the_pattern() -> None:
    """Wherever it stands, with its blanks; what has no sense is said."""
    assert choice("out  of memory").rest == "out  of memory"
    assert choice("gpu=3 out of memory level=error").rest == "out of memory"
    assert choice("!ready kind=server").rest == "!ready"
    assert choice("xgpu=3").rest == "xgpu=3"
    assert choice("level=bad").problem == "level=bad: info, warning or error"
    assert choice("gpu=x").problem == "gpu=x: numbers with commas between, as gpu=0,3"


def saved(folder: Path) -> list[int]:
    """The GPUs of the events in the one file there."""
    (path,) = folder.iterdir()
    return [json.loads(line)["gpu"] for line in path.read_text().splitlines()]


async def filtered(one: Driven, text: str) -> None:
    """Type a filter to its end."""
    await one.keys("e", "slash")
    await one.until(lambda: isinstance(one.app.focused, FilterLine))
    await one.write(text)
    await one.keys("enter")
    await one.until(lambda: one.app.screen.query_one(FilterLine).text == text)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (220, 60)])
async def test_a_filter_takes_a_line_of_the_list_not_of_the_screen(size: tuple[int, int]) -> None:
    """The title stays, nothing scrolls, the key line is where it was."""
    async with driven(size) as one:
        await one.keys("e")
        await one.sees(" Events")
        keys = one.screen().split("\n")[-1]
        await filtered(one, "fail")
        pane = one.app.screen.query_one(EventPane)
        await one.until(lambda: pane.size.height == size[1] - 3)
        lines = one.screen().split("\n")
        assert lines[1].startswith(" Events")
        assert " of " in lines[1]
        assert lines[-1] == keys
        assert not one.app.screen.show_vertical_scrollbar
        await one.keys("escape")
        await one.until(lambda: pane.size.height == size[1] - 2)


async def test_a_choice_holds_for_what_comes_and_for_what_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the screen and in the file, of which the whole path is told; a mistake is marked."""
    monkeypatch.chdir(tmp_path)
    async with driven() as one:
        await filtered(one, "gpu=3 level=error memory")
        pane = one.app.screen.query_one(EventPane)
        await one.until(lambda: pane.count == 0)
        one.story.say("server.failed", "GPU 3: out of memory", gpu=3, level="error")
        one.story.say("server.failed", "GPU 4: out of memory", gpu=4, level="error")
        one.story.say("alert", "GPU 3: memory", gpu=3, level="warning")
        await one.until(lambda: pane.count == 1)
        await one.keys("S")
        await one.sees("1 events saved to")
        assert saved(tmp_path) == [3]
        said = "".join(one.screen().split())
        assert str(tmp_path)[:20] in said
        await one.keys("slash")
        await one.until(lambda: isinstance(one.app.focused, FilterLine))
        line = one.app.screen.query_one(FilterLine)
        line.value = "level=bad"
        await one.until(lambda: line.has_class("bad"))
        await one.keys("enter")
        await one.sees("info, warning or error")


async def test_events_can_be_filtered() -> None:
    """By what stands in the line."""
    async with driven() as one:
        await one.keys("e")
        assert isinstance(one.app.screen, EventsScreen)
        pane = one.app.screen.query_one(Pane)
        await one.until(lambda: pane.count >= 10)
        await one.keys("slash")
        await one.until(lambda: isinstance(one.app.focused, Input))
        await one.write("verdict")
        await one.until(lambda: pane.count == 1)
        await one.keys("escape")
        await one.until(lambda: pane.count >= 10)
        await one.keys("escape")
        await one.until(lambda: isinstance(one.app.screen, FleetScreen))


async def test_events_that_come_late_are_listed_in_their_place() -> None:
    """Older ones may be asked for later; what the agent left out is counted."""
    async with driven() as one:
        newest = one.app.state.events[-1].id
        one.story.on_message(Happened(Event(newest + 100, time.time(), "x", text="a late one")))
        await one.keys("e")
        pane = one.app.screen.query_one(Pane)
        await one.until(lambda: any("a late one" in line for line in pane.shown()))
        old = [Event(-n, time.time() - 9_000, "x", text=f"old {n}") for n in range(5)]
        one.app.state = model.with_events(one.app.state, old)
        one.story.on_message(Skipped("events", 1_234))
        await one.until(lambda: any("old 3" in line for line in pane.shown()))
        assert "a late one" in pane.shown()[-1]
        await one.sees("1.2k older: page up")
