"""The list of logs that the panes are chosen from."""

from __future__ import annotations

from textual.widgets import Input

from console.screens.logs import LogsScreen
from console.screens.sources import TROUBLE, Choice, SourcesScreen, matching
from tests.console.screen.driver import driven


def test_what_is_typed_finds_by_name_and_by_state() -> None:
    """A server by its number alone, first; others that hold it after it."""
    found = [
        *(Choice(f"gpu{n}", (f"gpu{n}",), "● ready" if n else "✖ failed") for n in range(64)),
        Choice("run", ("run",)),
    ]
    assert [one.name for one in matching(found, " 5 ")][:3] == ["gpu5", "gpu15", "gpu25"]
    assert [one.name for one in matching(found, "FAIL")] == ["gpu0"]
    assert [one.name for one in matching(found, "run")] == ["run"]
    assert matching(found, "") == found
    assert not matching(found, "nothing")


async def test_those_in_trouble_are_one_choice() -> None:
    """And of 64 servers any are shown side by side, for as long as the console lives."""
    async with driven(size=(220, 60), gpus=64) as one:
        for gpu in (3, 41):
            one.story.servers[gpu].state = "failed"
        one.story.tell()
        await one.keys("l")
        await one.until(lambda: one.app.current_mode == "logs")
        await one.sees("58 more, n")
        await one.keys("L")
        await one.until(lambda: isinstance(one.app.screen, SourcesScreen))
        await one.write("trouble")
        await one.sees(f"[ ] {TROUBLE} gpu3, gpu41")
        await one.keys("space")
        one.app.screen.query_one(Input).value = "63"
        await one.until(lambda: "63" in one.app.screen.lines[0].name)  # type: ignore[attr-defined]
        await one.keys("space", "enter")
        screen = one.app.screen_stack[0]
        assert isinstance(screen, LogsScreen)
        await one.until(lambda: screen.sources == ["gpu3", "gpu41", "gpu63"])
