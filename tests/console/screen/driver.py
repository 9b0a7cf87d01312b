"""An app under test as an operator drives it: keys, patience, and what stands on the screen."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from console.app import StokerApp
from console.config import Target
from console.feed import connect_agent
from console.widgets.filter_line import FilterLine
from console.widgets.paint import Painted
from tests.console.screen.story import Story, connect
from tests.console.screen.told import silent


class Driven:
    """An app under test, its story, and patience."""

    def __init__(self, app: StokerApp, pilot: Pilot[None], story: Story | None = None) -> None:
        self.app = app
        self.pilot = pilot
        self.story = story or silent()  # an app on a real agent tells its own

    async def until(self, true: Callable[[], object], seconds: float = 90) -> None:
        """Wait for a condition."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"it did not come true in time:\n{self.screen()}"
            await self.pilot.pause(0.02)

    async def sees(self, text: str) -> None:
        """Wait until a text is on the screen."""
        await self.until(lambda: text in self.screen())

    async def keys(self, *keys: str) -> None:
        """Press them."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    def burst(self, *keys: str) -> None:
        """Keys that come all at once, as a held key or a slow link brings them: nothing is waited
        for between them."""
        driver = self.app._driver
        assert driver is not None
        for key in keys:
            event = events.Key(key, key if len(key) == 1 else None)
            event.set_sender(self.app)
            driver.send_message(event)

    async def write(self, text: str) -> None:
        """Put a text where the cursor is, as a paste would: a press a letter takes long."""
        focused = self.app.focused
        assert isinstance(focused, Input)
        focused.insert_text_at_cursor(text)
        await self.pilot.pause()

    async def filter(self, text: str) -> None:
        """Type a filter and go back to the lines."""
        await self.keys("slash")
        await self.until(lambda: isinstance(self.app.focused, FilterLine))
        await self.write(text)
        await self.keys("enter")
        await self.until(lambda: self.app.screen.query_one(FilterLine).text == text)

    def screen(self) -> str:
        """Everything on the screen as text."""
        height = self.app.size.height
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text for strip in strips[:height])

    def sent(self, kind: type) -> list[Any]:
        """Requests of a kind that the agent got."""
        return [r for r in self.story.calls if isinstance(r, kind)]


def painted(widget: Painted) -> list[str]:
    """The lines of a widget as text."""
    return ["".join(text for text, _ in line) for line in widget._lines]


@asynccontextmanager
async def driven(
    size: tuple[int, int] = (120, 40),
    read_only: bool = False,
    remember: bool = False,
    **options: Any,
) -> AsyncIterator[Driven]:
    """An app on a story; with ``remember`` the user's folders are read and written."""
    make = connect(**{"now": time.time(), "elapsed": 20, **options})
    app = StokerApp(make, name="ct200", read_only=read_only, remember=remember, strict=True)
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        while not hasattr(make, "story"):  # the feed is made after the first frame
            await pilot.pause(0.02)
        one = Driven(app, pilot, make.story)
        await one.until(lambda: app.state.received is not None)
        await one.until(lambda: "tok/s" in one.screen())
        yield one


@asynccontextmanager
async def on_agent(target: Target, remember: bool = False) -> AsyncIterator[Driven]:
    """An app on a real agent, once it knows anything of it; ``remember`` as in :func:`driven`."""
    app = StokerApp(connect_agent(target), name=target.name, remember=remember, strict=True)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        one = Driven(app, pilot)
        await one.until(lambda: app.state.received is not None, 60)
        yield one
