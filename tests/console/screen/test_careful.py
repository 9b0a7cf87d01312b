"""What a slip of the finger must not do: words, questions, and a console that only looks."""

from __future__ import annotations

from console.screens.confirm import Confirm
from console.screens.fleet import FleetScreen
from console.screens.logs import LogsScreen
from remote.protocol import (
    Down,
    Restart,
    RunControl,
    Up,
)
from tests.console.screen.driver import driven


async def test_one_gpu_needs_a_key_all_need_a_word() -> None:
    """Blast radius."""
    async with driven() as one:
        await one.keys("3", "d")
        await one.until(lambda: isinstance(one.app.screen, Confirm))
        assert "GPU 3" in one.screen()
        assert "stoker down ct200 --gpu 3" in one.screen()
        await one.keys("n")
        assert one.sent(Down) == []
        await one.keys("d", "y")
        await one.until(lambda: one.sent(Down))
        assert one.sent(Down)[0].gpus == [3]
        await one.keys("escape", "d")
        await one.until(lambda: isinstance(one.app.screen, Confirm))
        await one.keys("y", "enter")
        assert len(one.sent(Down)) == 1
        await one.write("down")
        await one.keys("enter")
        await one.until(lambda: len(one.sent(Down)) == 2)
        assert one.sent(Down)[1].gpus is None


async def test_ending_the_run_needs_a_word_and_a_pause_says_what_it_does() -> None:
    """Both touch every server; only one of them is undone by a key."""
    async with driven() as one:
        await one.keys("x")
        await one.until(lambda: isinstance(one.app.screen, Confirm))
        await one.sees("prompts are left")
        assert "in flight end first" in one.screen()
        await one.keys("y", "enter")
        assert one.sent(RunControl) == []
        await one.keys("escape", "p")
        await one.sees("pause: 2")
        await one.until(lambda: one.sent(RunControl) == [RunControl(do="pause")])


async def test_read_only_looks_and_never_sends() -> None:
    """Every changing key says why it does nothing."""
    async with driven(read_only=True) as one:
        assert "READ-ONLY" in one.screen()
        for key in ("r", "u", "d", "b", "s", "p", "x", "R"):
            await one.keys(key)
            assert isinstance(one.app.screen, FleetScreen)
        await one.sees("read-only")
        await one.keys("l")
        assert isinstance(one.app.screen, LogsScreen)
        assert not one.sent(Restart) + one.sent(Up) + one.sent(Down) + one.sent(RunControl)
