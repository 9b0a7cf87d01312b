"""Filters that an operator types: whatever they are, the console answers."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from console.patience import TooLongError, at_most
from console.sift import Filter, compiled, far
from console.widgets.filter_line import FilterLine
from console.widgets.log_pane import LogPane
from console.widgets.pane import Pane
from remote.protocol import Event, Happened, LogPart
from tests.console.screen.driver import driven

ENDLESS = "(a|aa)+$"
LINE = "a" * 1_900 + "!"


def written(folder: Path) -> list[str]:
    """The files there."""
    return [path.read_text() for path in folder.iterdir()]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(", "missing )"),
        ("x{4294967296}", "a number in it is too large"),
        ("(" * 480 + ")" * 480, "nested too deep"),
    ],
)
async def test_a_pattern_that_cannot_be_is_one_line(text: str, why: str) -> None:
    """Whatever it is that ``re`` raises; typed into the line it is marked, and the app lives."""
    assert why in Filter(text).problem
    async with driven() as one:
        await one.keys("e", "slash")
        await one.until(lambda: isinstance(one.app.focused, FilterLine))
        line = one.app.screen.query_one(FilterLine)
        line.max_length = 0
        line.value = text
        await one.until(lambda: line.has_class("bad"))
        await one.keys("enter")
        await one.sees("not a regular expression")


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("error|warn", "an ERROR", True),
        ("Error|warn", "an ERROR", False),
        ("(?s)a.b", "A b", True),
        ("(?i)(?x) A b  # B", "xAB", True),
        ("a|b", "c", False),
    ],
)
def test_a_pattern_means_the_same_on_the_other_side(text: str, line: str, found: bool) -> None:
    """Alone and as a part of another one."""
    pattern = compiled(text)
    assert (pattern.search(line) is not None) == found
    for grep in (far(pattern), f"^(?=.*?{far(pattern)})(?=.*?.)"):
        assert (re.search(grep.encode(), line.encode()) is not None) == found


def test_an_endless_pattern_is_given_up() -> None:
    """And says why; the others' alarm goes on."""
    wanted = Filter(ENDLESS)
    began = time.monotonic()
    before = signal.getitimer(signal.ITIMER_REAL)[0]
    assert wanted.sift([(0, LINE)]) == []
    assert time.monotonic() - began < 5
    assert "takes too long" in wanted.problem
    assert wanted.sift([(0, "x")]) == []
    if before:
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= before


def test_patience_ends_and_leaves_nothing_behind() -> None:
    """The handler of before is back, whether it was in time or not."""
    before = signal.getsignal(signal.SIGALRM)
    with at_most(5):
        pass
    with pytest.raises(TooLongError), at_most(0.05):
        time.sleep(2)
    assert signal.getsignal(signal.SIGALRM) is before


async def test_an_endless_pattern_freezes_no_screen() -> None:
    """In the logs and the events: told, taken back, and mended by typing on."""
    async with driven() as one:
        await one.keys("l")
        await one.until(lambda: one.app.screen.query(LogPane))
        one.story.on_message(LogPart("gpu0", 1, 0, 0, [LINE] * 50))
        await one.keys("slash")
        await one.until(lambda: isinstance(one.app.focused, FilterLine))
        await one.write(ENDLESS)
        await one.sees("takes too long")
        line = one.app.screen.query_one(FilterLine)
        assert line.text == ""
        assert line.has_class("bad")
        await one.until(lambda: all(p.count for p in one.app.screen.query(LogPane)))
        await one.keys("escape", "e")
        one.story.on_message(Happened(Event(9_000, time.time(), "x", "info", LINE)))
        await one.keys("slash")
        await one.until(lambda: isinstance(one.app.focused, FilterLine))
        await one.write(ENDLESS)
        await one.until(lambda: one.app.screen.query_one(FilterLine).has_class("bad"))
        line = one.app.screen.query_one(FilterLine)
        line.value = ""
        await one.write("ready")
        pane = one.app.screen.query_one(Pane)
        await one.until(lambda: 0 < pane.count <= 20)


async def test_events_are_saved_by_key_as_they_are_filtered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One JSON object a line; a folder that cannot be written is one line."""
    monkeypatch.chdir(tmp_path)
    async with driven() as one:
        await one.keys("e", "slash")
        await one.until(lambda: isinstance(one.app.focused, FilterLine))
        await one.write("server.ready")
        await one.keys("enter")
        await one.until(lambda: one.app.screen.query_one(FilterLine).text)
        await one.keys("S")
        await one.sees("8 events saved")
        (text,) = written(tmp_path)
        events = [json.loads(line) for line in text.splitlines()]
        assert [e["gpu"] for e in events] == list(range(8))
        assert {e["kind"] for e in events} == {"server.ready"}
