"""What is the same on every screen: what is wrong, what is said in the corner, the palette, themes,
and questions that are not worth asking."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from console import palette, reckon
from console.actions import BY_NAME
from console.config import Target
from console.flags import Row
from console.screens import answers
from console.screens.lines import LinesScreen
from console.widgets import flag_table
from console.widgets.alert_line import AlertLine
from remote.protocol import (
    FlagInfo,
    ReadAnswers,
    RunState,
)
from tests.console.screen.driver import driven


async def test_the_list_of_answers_is_live_at_its_top(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for anew and says how old it is; whoever has scrolled keeps what is there."""
    monkeypatch.setattr(answers, "POLL_S", 0.5)
    async with driven() as one:
        await one.keys("a")
        await one.sees("tok  ")
        await one.sees(" old")
        assert "r reload" in one.screen()
        before = len(one.sent(ReadAnswers))
        await one.until(lambda: len(one.sent(ReadAnswers)) >= before + 2)
        await one.keys("down", "down")
        await one.sees("old, held")
        held = len(one.sent(ReadAnswers))
        await one.pilot.pause(1.5)
        assert len(one.sent(ReadAnswers)) <= held + 1
        await one.keys("up", "up")
        await one.until(lambda: len(one.sent(ReadAnswers)) > held + 1)


async def test_what_would_do_nothing_is_said_and_not_asked() -> None:
    """Nothing failed, all servers are up; otherwise the question has the number."""
    async with driven() as one:
        await one.keys("u")
        await one.sees("all 8 servers are up already")
        assert not one.app.covered
        progress = one.app.state.progress
        assert progress is not None
        assert reckon.pointless(one.app.state, "run.retry", []) == (
            "" if progress.failed else "nothing failed: no prompt to try again"
        )
        none = msgspec.structs.replace(progress, failed=0, set_aside=0)
        state = replace(one.app.state, run=RunState(alive=True, progress=none))
        assert reckon.pointless(state, "run.retry", []).startswith("nothing failed")
        some = msgspec.structs.replace(progress, failed=7, failures={"HTTP 400": 4, "timeout": 3})
        state = replace(one.app.state, run=RunState(alive=True, progress=some))
        assert reckon.pointless(state, "run.retry", []) == ""
        assert reckon.retry_means(state, aside=False) == "7 failed (4 HTTP 400, 3 timeout)"


async def test_little_is_said_at_once_where_there_is_little_room() -> None:
    """The newest, in two or three lines each."""
    async with driven((80, 24)) as one:
        for number in range(9):
            one.app.say(f"something happened {number} " + "and much is to be told of it " * 9)
        await one.sees("something happened 8")
        assert len(one.app._notifications) == 2
        assert "something happened 6" not in one.screen()


async def test_on_a_narrow_terminal_what_is_said_is_wrapped_up_to_the_edge() -> None:
    """Every word of it, and nothing of the line behind it at its end."""
    async with driven((40, 12)) as one:
        one.app.say("nothing new is sent, what is in flight may end, and that is all")
        await one.sees("nothing new is sent")
        rows = [row for row in one.screen().splitlines() if "▌" in row]
        words = " ".join(" ".join(row.partition("▌")[2].split()) for row in rows)
        assert words == "nothing new is sent, what is in flight may end, and that is all"
        assert len(rows) == 2
        await one.pilot.resize_terminal(100, 24)
        one.app.say("short")
        await one.sees("short")
        row = next(row for row in one.screen().splitlines() if "short" in row)
        assert row.partition("▌")[2].strip() == "short"


@pytest.mark.parametrize("key", ["l", "c", "g", "e"])
async def test_every_screen_tells_the_worst_in_one_row(key: str) -> None:
    """None while nothing is wrong; then one, with its key."""
    async with driven((80, 24)) as one:
        await one.keys(key)
        await one.until(lambda: one.app.screen.query(AlertLine))
        line = one.app.screen.query_one(AlertLine)
        await one.pilot.pause()
        assert not line.display
        one.story.servers[3].state = "failed"
        one.story.servers[3].cause = "CUDA out of memory"
        one.story.tell()
        await one.sees("GPU 3 failed: CUDA out of memory")
        await one.sees("u up")
        assert line.size.height == 1


async def test_the_first_key_for_another_theme_finds_one() -> None:
    """Also before they are laid out."""
    async with driven() as one:
        one.app.wardrobe._names = []
        one.app.wardrobe.turn()
        assert one.app.theme == "light"


async def test_the_palette_finds_what_is_meant_and_shows_its_key() -> None:
    """Titles before help, words before letters."""
    assert palette.closeness("concurr", BY_NAME["run.concurrency"]) == 2
    assert palette.closeness("requests", BY_NAME["run.concurrency"]) == 4
    assert palette.closeness("concurr", BY_NAME["restart"]) == 0
    async with driven() as one:
        await one.keys("ctrl+p")
        await one.pilot.pause()
        await one.write("concurr")
        await one.sees("C  Requests at once")


@pytest.mark.parametrize("width", [78, 118])
def test_columns_of_flags_have_gaps_and_headings(width: int) -> None:
    """A long name is cut before its value; the type is told at any width."""
    info = FlagInfo("checkpoint-engine-wait-weights-before-ready", "bool", default=False)
    row = Row(info.name, None, False, None, info)
    columns = flag_table.widths(len(row.name), width)
    text = "".join(part for part, _ in flag_table.row_line(row, False, columns, width))
    assert re.search(r"(ready|…) +off +switch", text)
    head = "".join(part for part, _ in flag_table.head_line(columns, width))
    assert head.index("takes") == text.index("switch")
    assert head.index("value") == text.index("off")


async def test_every_screen_help_and_palette_open_at_every_size() -> None:
    """And leave again."""
    for size in ((80, 24), (220, 60)):
        async with driven(size) as one:
            for key, word in (
                ("c", "epoch"),
                ("g", "Outcomes"),
                ("e", "verdict"),
                ("l", " req · kv "),
                ("question_mark", "Keys"),
            ):
                await one.keys(key)
                await one.sees(word)
            await one.keys("escape", "y")
            await one.sees("stoker restart ct200")
            await one.keys("escape", "f", "colon")
            await one.until(lambda: "Search" in one.screen() or "Restart" in one.screen())
            await one.write("roll")
            await one.sees("Roll back")


async def test_lines_to_copy_name_the_configuration() -> None:
    """Another shell finds it by nothing else."""
    file = Path("/my files/stoker.toml")
    async with driven() as one:
        one.app.front.target = Target("ct200", "root@pve", one.app.front.state.target, file=file)  # type: ignore[arg-type]
        await one.keys("y")
        await one.until(lambda: isinstance(one.app.screen, LinesScreen))
        lines = one.app.screen.lines()  # type: ignore[attr-defined]
        ours = [line for line in lines if line.startswith("stoker ")]
        assert len(ours) > 8
        assert all(line.endswith(" --config '/my files/stoker.toml'") for line in ours)
        await one.keys("escape", "D")
        await one.sees("stoker deploy ct200 --config '/my files/stoker.toml'")


async def test_a_picture_that_cannot_be_saved_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder the console was started in may be gone."""
    async with driven() as one:
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        await one.keys("P")
        await one.sees("the picture was not saved")
        monkeypatch.chdir(tmp_path)
        await one.keys("P")
        await one.until(lambda: list(tmp_path.glob("*.svg")))
