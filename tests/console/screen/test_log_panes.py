"""Logs side by side: chosen, filtered, held, merged, and harmless whatever is in them."""

from __future__ import annotations

import re

import pytest
from textual import events
from textual.widgets import Input

from console.screens.logs import LogsScreen, fitting, grid
from console.widgets.filter_line import MOST, FilterLine
from console.widgets.log_pane import LogPane
from remote.protocol import (
    LogPart,
)
from tests.console.screen.driver import driven


async def test_logs_side_by_side_filter_hold_and_follow() -> None:
    """Only what the screen needs is asked for; the filter works while it is typed."""
    async with driven((220, 60)) as one:
        await one.until(lambda: one.story.wanted.snapshots)
        assert one.story.wanted.logs == {}
        await one.keys("l")
        await one.until(lambda: len(one.story.wanted.logs) == 8)
        await one.until(lambda: all(p.count for p in one.app.screen.query(LogPane)))
        await one.keys("slash")
        await one.until(lambda: isinstance(one.app.focused, Input))
        await one.write("prefill")
        panes = list(one.app.screen.query(LogPane))
        await one.until(lambda: all("Prefill" in line for p in panes for line in p.held()))
        assert all(" P 1 new · " in line for p in panes for line in p.shown())
        await one.keys("enter", "escape")
        await one.until(lambda: any(" D 37 req · kv " in line for line in panes[0].shown()))
        await one.keys("V")
        await one.until(lambda: any("] Decode batch, #running" in x for x in panes[0].shown()))
        await one.keys("V")
        await one.keys("space")
        before = panes[0].shown()
        one.story.on_message(LogPart("gpu0", 1, 0, 0, ["a brand new line"] * 50))
        await one.until(lambda: panes[0].behind >= 50)
        assert panes[0].shown()[: len(before)] == before
        await one.sees("held")
        await one.keys("space")
        await one.until(lambda: "a brand new line" in panes[0].shown())
        await one.keys("f")
        await one.until(lambda: one.story.wanted.logs == {})


async def test_holding_never_slides_even_when_the_ring_turns_over() -> None:
    """Ten thousand lines come while one reads; afterwards all that is held is there."""
    async with driven(elapsed=200) as one:
        await one.keys("1", "l")
        await one.until(lambda: len(list(one.app.screen.query(LogPane))) == 1)
        pane = one.app.screen.query_one(LogPane)
        await one.until(lambda: pane.count > pane.rows)
        await one.keys("space")
        before = pane.shown()
        for burst in range(20):
            lines = [f"flood {burst} {n}" for n in range(500)]
            one.story.on_message(LogPart("gpu1", 1, 0, 0, lines))
            await one.pilot.pause(0.02)
        await one.until(lambda: pane.behind >= 5_000)
        assert pane.shown() == before
        await one.keys("space")
        await one.until(lambda: pane.shown()[-1] == "flood 19 499")


async def test_a_bad_pattern_is_told_and_changes_nothing() -> None:
    """Half a regular expression is what one always types first."""
    async with driven() as one:
        await one.keys("l")
        await one.until(lambda: all(p.count for p in one.app.screen.query(LogPane)))
        counts = [p.count for p in one.app.screen.query(LogPane)]
        await one.keys("slash")
        await one.pilot.press("left_parenthesis")
        await one.keys("enter")
        await one.sees("not a regular expression")
        assert [p.count for p in one.app.screen.query(LogPane)] >= counts


async def test_a_paste_without_brackets_is_one_search() -> None:
    """Six thousand keys, each its own: looked for once they rest, cut at the most a filter has."""
    async with driven() as one:
        await one.keys("l")
        await one.until(lambda: all(p.count for p in one.app.screen.query(LogPane)))
        screen = one.app.screen
        assert isinstance(screen, LogsScreen)
        searches = 0
        plain = screen.refilter

        def counted() -> None:
            nonlocal searches
            searches += 1
            plain()

        screen.refilter = counted  # type: ignore[method-assign]
        await one.keys("slash")
        await one.until(lambda: isinstance(one.app.focused, Input))
        entry = one.app.focused
        assert isinstance(entry, FilterLine)
        for _ in range(6_000):
            one.app.post_message(events.Key("x", "x"))
        await one.until(lambda: len(entry.text) == MOST)
        await one.sees(f"{MOST} characters at most")
        assert entry.value == "x" * MOST
        assert searches < 20
        assert all(p.count == 0 for p in screen.query(LogPane))
        await one.keys("escape")
        await one.until(lambda: all(p.count for p in screen.query(LogPane)))


async def test_hostile_lines_are_shown_not_obeyed() -> None:
    """Markup is text, control sequences are seen, errors have their colour."""
    async with driven((220, 60)) as one:
        await one.keys("0", "l")
        await one.until(lambda: one.app.screen.query(LogPane))
        hostile = [
            "[bold red]markup[/] [link=x]",
            "\x1b[2J\x1b[1;1Hgone",
            "\x1b]52;c;cm0=\x07",
            "wide 界界 combining e\u0301 bidi \u202ecba\u202c",
            "nul \x00 bell \x07",
            "x" * 1_000_000,
        ]
        one.story.on_message(LogPart("gpu0", 1, 0, 0, hostile))
        pane = one.app.screen.query_one(LogPane)
        await one.until(lambda: "nul" in "".join(pane.shown()))
        text = one.screen()
        assert "[bold red]markup[/] [link=x]" in text
        assert "␛[2J␛[1;1Hgone" in text
        assert not any(ord(c) < 0x20 and c != "\n" for c in text)


async def test_skipped_lines_are_counted_in_the_title() -> None:
    """A flood on the other side."""
    async with driven() as one:
        await one.keys("0", "l")
        one.story.on_message(LogPart("gpu0", 1, 0, 0, ["before"]))
        await one.sees("before")  # what was skipped before somebody looked is in the file alone
        one.story.on_message(LogPart("gpu0", 1, 0, 0, ["after"], skipped=12_345))
        await one.sees("12k skipped")


async def test_panes_choose_and_turn() -> None:
    """1, 2, 4, 8 panes; the run and the agent too."""
    async with driven() as one:
        await one.keys("l")
        await one.until(lambda: len(list(one.app.screen.query(LogPane))) == 8)
        await one.keys("v")
        await one.until(lambda: len(list(one.app.screen.query(LogPane))) == 1)
        await one.keys("v")
        await one.until(lambda: len(list(one.app.screen.query(LogPane))) == 2)
        for _ in range(4):
            await one.keys("n")
        await one.until(lambda: set(one.story.wanted.logs) == {"run", "agent"})


async def test_all_logs_in_one_by_time() -> None:
    """Lines of eight servers, the run and the agent, in order."""
    async with driven(elapsed=60) as one:
        await one.keys("l")
        await one.until(lambda: len(list(one.app.screen.query(LogPane))) == 8)
        await one.keys("M")
        await one.until(lambda: len(list(one.app.screen.query(LogPane))) == 1)
        await one.until(lambda: set(one.story.wanted.logs) >= {"gpu0", "gpu7", "run", "agent"})
        pane = one.app.screen.query_one(LogPane)
        await one.until(lambda: pane.count > 80)
        told = [re.search(r"│\s*(\d\d:\d\d:\d\d) ", line) for line in pane.shown()]
        at = [found[1] for found in told if found]  # what has no time keeps the place it came in
        assert len(at) > 20
        assert at == sorted(at)
        assert len({line.partition("│")[0] for line in pane.shown()}) > 4
        one.story.on_message(LogPart("gpu3", 1, 0, 0, ["[2099-01-01 00:00:00] the latest"]))
        await one.until(
            lambda: any("    3│01-01 00:00:00 the latest" in line for line in pane.shown())
        )
        await one.keys("M")
        await one.until(lambda: len(list(one.app.screen.query(LogPane))) == 8)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_panes_fill_their_grid(count: int) -> None:
    """No size leaves a pane out."""
    for size in ((80, 24), (120, 40), (220, 60), (30, 8)):
        columns, rows = grid(count, *size)
        assert columns * rows >= count


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("size", [(40, 10), (80, 24), (120, 40), (220, 60)])
def test_every_pane_has_enough_lines(count: int, size: tuple[int, int]) -> None:
    """However many were chosen on a larger terminal."""
    width, height = size[0], size[1] - 2
    most = fitting(count, width, height)
    assert 1 <= most <= count
    assert height // grid(most, width, height)[1] >= 7
    if size == (120, 40):
        assert most == count
