"""The table of epochs: each is a starting point for a restart."""

from __future__ import annotations

from console.screens.config import Starts
from console.screens.restart import RestartScreen
from remote.protocol import (
    Epoch,
)
from tests.console.screen.driver import driven, painted


async def test_an_earlier_epoch_is_a_starting_point() -> None:
    """Chosen in the table, its difference is what the dialog opens with."""
    async with driven() as one:
        await one.keys("c", "enter")
        await one.sees("these flags run already")
        await one.keys("down", "enter")
        await one.until(lambda: isinstance(one.app.screen, RestartScreen))
        assert isinstance(one.app.screen, RestartScreen)
        assert one.app.screen.proposal.edits == {"mem-fraction-static": 0.80}
        await one.keys("enter")
        await one.sees("0.85 → 0.8")


async def test_a_click_chooses_the_epoch_it_points_at() -> None:
    """Also in a table that has scrolled; below the last row it chooses nothing."""
    async with driven((120, 24)) as one:
        one.story.epochs[:0] = [Epoch(n - 40, 1_000.0 + n, {"x": n}) for n in range(40)]
        for server in one.story.servers:
            server.epoch = len(one.story.epochs)
        one.story.tell()
        await one.keys("c")
        await one.sees("epoch")
        table = one.app.screen.query_one(Starts)
        one.burst(*["down"] * 20)
        await one.until(lambda: table.chosen == 20)
        await one.pilot.pause()
        shown = [int(line[1:6]) for line in painted(table)[1:]]
        await one.pilot.click(Starts, offset=(5, 3))
        await one.pilot.pause()
        assert [line[:6] for line in painted(table) if line[0] == "▸"] == [f"▸{shown[2]:>5}"]
    async with driven((120, 40)) as one:
        await one.keys("c")
        await one.sees("epoch")
        table = one.app.screen.query_one(Starts)
        await one.keys("down")
        await one.pilot.click(Starts, offset=(5, table.size.height - 1))
        await one.pilot.pause()
        assert table.chosen == 1
