"""A link that is lost, mute or broken, or has nobody at its end: the console goes on."""

from __future__ import annotations

import asyncio
import time

from textual.widgets import Input

from console.app import StokerApp
from console.screens.confirm import Confirm
from console.screens.events import EventsScreen
from console.screens.logs import LogsScreen
from remote.protocol import (
    Down,
    Request,
    Result,
    RunControl,
    Snapshot,
)
from tests.console.screen.driver import driven
from tests.console.screen.story import Story


async def test_a_lost_link_freezes_nothing_and_is_seen() -> None:
    """State, age and greying; keys work; no changing action is sent into the dark."""
    async with driven() as one:
        one.story.lose()
        one.app.state = type(one.app.state)(**{**vars(one.app.state), "received": time.time() - 42})
        await one.until(lambda: "reconnecting" in one.screen() and "data 4" in one.screen())
        assert "no answer from 10.1.2.6" in one.screen()
        await one.keys("d")
        await one.sees("nothing was sent")
        await one.keys("l")
        assert isinstance(one.app.screen, LogsScreen)
        await one.keys("f")
        one.story.find()
        await one.sees("● connected")


async def test_a_link_that_does_not_answer_freezes_nothing() -> None:
    """Requests are on their way beside the screen: keys go on working meanwhile."""
    async with driven() as one:
        never = asyncio.Event()

        async def mute(request: Request, timeout: float = 30) -> Result:
            one.story.calls.append(request)
            await never.wait()
            raise AssertionError

        one.story.call = mute  # type: ignore[method-assign]
        await one.keys("p", "plus", "left_square_bracket", "3", "d", "y")
        await one.until(lambda: one.sent(Down))
        assert one.sent(RunControl)
        await one.keys("l")
        await one.until(lambda: isinstance(one.app.screen, LogsScreen))
        await one.keys("T")
        await one.until(lambda: isinstance(one.app.focused, Input))
        await one.write("17:05")
        await one.keys("enter", "e")
        await one.until(lambda: isinstance(one.app.screen, EventsScreen))


async def test_a_feed_that_breaks_does_not_take_the_screen_down() -> None:
    """A bug in the link is shown as what it is."""

    class Broken(Story):
        async def run(self) -> None:
            self.on_message(Snapshot(time=1.0, seq=1, full=True))
            await asyncio.sleep(0)
            raise RuntimeError("a bug")

    app = StokerApp(lambda m, l: Broken(m, l), name="x", remember=False)  # noqa: E741
    async with app.run_test(size=(120, 40)) as pilot:
        for _ in range(100):
            await pilot.pause(0.02)
            if app.state.link.state == "failed":
                break
        assert "RuntimeError: a bug" in app.state.link.text
        await pilot.press("l", "f", "e")
        assert app.is_running


async def test_a_target_without_an_agent_gets_one_by_a_key() -> None:
    """Also where the link is down: that is what it mends."""
    async with driven() as one:
        one.story.lose("ct200 has no agent yet: `stoker deploy ct200` brings it")
        await one.sees("D deploy")
        await one.keys("D")
        await one.until(lambda: isinstance(one.app.screen, Confirm))
        await one.keys("y")
        await one.sees("the agent is current")
        await one.until(lambda: one.app.state.link.state == "connected")
