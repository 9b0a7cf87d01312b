"""Going back: which epoch, with what it gave, and only after a word."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from console.screens.rollback import EpochRows, RollbackScreen
from remote.protocol import Epoch, Rollback
from tests.console.screen.driver import Driven, driven, painted


async def a_try_too_many(one: Driven) -> None:
    """A third epoch runs, and nobody knows yet what it gives."""
    flags = {**one.story.epochs[-1].flags, "mem-fraction-static": 0.91}
    one.story.epochs.append(Epoch(3, one.story.now, flags, "ops", "a try"))
    for server in one.story.servers:
        server.epoch = 3
    one.story.tell()
    await one.keys("b")
    await one.until(lambda: isinstance(one.app.screen, RollbackScreen))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_any_epoch_can_be_gone_back_to_and_the_plan_follows(size: tuple[int, int]) -> None:
    """The best one is offered first; another by keys; nothing is done before the word."""
    async with driven(size) as one:
        await a_try_too_many(one)
        await one.sees("mem-fraction-static 0.91 → 0.85")
        rows = painted(one.app.screen.query_one(EpochRows))
        assert [row for row in rows if "▸" in row and "662" in row and "best" in row]
        assert [row for row in rows if "602" in row and "▸" not in row]
        assert "↑↓ or j k choose   ⏎ goes on with it   esc leaves" in one.screen()
        await one.keys("j")
        await one.sees("mem-fraction-static 0.91 → 0.8")
        await one.sees("--epoch 1")
        await one.keys("enter")
        await one.sees("type rollback and press ⏎: back to epoch 1")
        await one.write("roll")
        await one.keys("enter")
        assert isinstance(one.app.screen, RollbackScreen)
        await one.keys("escape")
        await one.sees("⏎ goes on with it")
        await one.keys("up", "enter")
        await one.sees("back to epoch 2")
        await one.write("rollback")
        await one.keys("enter")
        await one.until(lambda: [r.epoch for r in one.sent(Rollback) if not r.dry_run] == [2])


async def test_what_the_agent_refuses_cannot_be_agreed_to() -> None:
    """Its reason stands where the plan would."""
    async with driven() as one:
        first = one.story.epochs[1]
        one.story.epochs[1] = replace(first, flags={**first.flags, "mem-fraction-static": 7.0})
        await a_try_too_many(one)
        await one.sees("mem-fraction-static must lie between 0 and 1")
        await one.keys("enter")
        assert "goes on with it" in one.screen()
        await one.keys("escape")
        await one.until(lambda: not isinstance(one.app.screen, RollbackScreen))
        assert not [r for r in one.sent(Rollback) if not r.dry_run]


async def test_without_another_epoch_it_is_said() -> None:
    """And no dialog opens."""
    async with driven() as one:
        del one.story.epochs[0]
        for server in one.story.servers:
            server.epoch = 1
        one.story.epochs[0] = Epoch(1, one.story.began, one.story.epochs[0].flags)
        one.story.tell()
        await one.until(lambda: len(one.app.state.epochs) == 1)
        await one.keys("b")
        await one.sees("there is no other epoch to go back to")


async def test_that_the_present_epoch_is_the_best_is_said() -> None:
    """Then any other one is slower, so far as anybody knows."""
    async with driven() as one:
        await one.keys("b")
        await one.sees("the present epoch, 2, is the best measured")
