"""A swap by keys: from the dialog to its end, and the canary that is kept or taken back."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from textual.widgets import Input

from console import flags, model
from console.proposal import STRATEGIES
from console.screens.confirm import Confirm
from console.screens.fleet import FleetScreen
from console.screens.restart import RestartScreen
from console.widgets.swap import SwapPanel
from remote.protocol import (
    Decide,
    Restart,
)
from tests.console.screen.driver import Driven, driven


async def test_the_restart_dialog_from_key_to_swap() -> None:
    """Edit with completion, see difference and predicted slots, type the word, watch the steps."""
    async with driven(rate=20.0) as one:
        await one.keys("r")
        await one.until(lambda: isinstance(one.app.screen, RestartScreen))
        await one.write("mamba-sch")
        await one.keys("tab")
        dialog = one.app.screen
        assert isinstance(dialog, RestartScreen)
        assert dialog.query_one(Input).value == "mamba-scheduler-strategy=extra_buffer"
        dialog.query_one(Input).value = "mamba-scheduler-strategy=no_bufer"
        await one.keys("enter")
        await one.sees("did you mean no_buffer")
        dialog.query_one(Input).value = "mamba-scheduler-strategy=no_buffer"
        await one.keys("enter")
        await one.write("mem-fraction-static=0.9")
        await one.keys("enter")
        assert "0.85 → 0.9" in one.screen()
        await one.keys("enter")
        await one.sees("72 predicted")
        assert "extra_buffer → no_buffer" in one.screen()
        assert "57.3 GiB of pools" in one.screen()
        await one.write("yes")
        await one.keys("enter")
        await one.sees("nothing was done")
        assert all(r.dry_run for r in one.sent(Restart))
        await one.write("restart")
        await one.keys("enter")
        await one.until(lambda: not one.sent(Restart)[-1].dry_run)
        asked = one.sent(Restart)[-1]
        assert asked.set_flags == {
            "mamba-scheduler-strategy": "no_buffer",
            "mem-fraction-static": 0.9,
        }
        assert (asked.dry_run, asked.gpus, asked.strategy) == (False, None, "rolling")
        await one.until(lambda: "under way" in one.screen() and "drain" in one.screen())
        one.story.advance(600)
        one.story.tell()
        await one.sees("×1.95")
        assert "×1.58" in one.screen()
        await one.keys("escape")
        await one.until(lambda: "×1.95" not in one.screen())


async def test_the_word_is_typed_without_help_and_each_way_has_its_own_plan() -> None:
    """No flag is offered to complete it; what another strategy costs is asked for anew."""
    async with driven() as one:
        await one.keys("r", "enter")
        await one.sees("type restart")
        dialog = one.app.screen
        assert isinstance(dialog, RestartScreen)
        entry = dialog.query_one(Input)
        assert flags.complete("r", dialog.proposal.after, dialog.target.book) is not None
        await one.write("r")
        for _ in range(5):
            await one.pilot.pause()
        assert entry._suggestion == ""
        await one.until(lambda: {r.strategy for r in one.sent(Restart)} == set(STRATEGIES))
        before = len(one.sent(Restart))
        await one.keys("tab")
        await one.until(lambda: len(one.sent(Restart)) >= before + 3)
        assert one.sent(Restart)[before].strategy == "canary"
        await one.sees("one GPU first")
        assert entry.value == "r"
        assert all(r.dry_run for r in one.sent(Restart))


async def test_a_refused_plan_stays_in_the_dialog() -> None:
    """The agent's own words, and nothing is lost of what was typed."""
    async with driven() as one:
        await one.keys("r")
        await one.write("-context-length")
        await one.keys("enter")
        one.story.connected = False
        await one.keys("enter")
        await one.sees("not connected")
        assert isinstance(one.app.screen, RestartScreen)
        assert one.app.screen.proposal.edits == {"context-length": None}
        await one.keys("escape")
        assert isinstance(one.app.screen, FleetScreen)


async def canary(one: Driven) -> None:
    """Start one, and wait until it is judged."""
    await one.keys("r")
    await one.write("mamba-scheduler-strategy=no_buffer")
    await one.keys("enter", "enter")
    await one.sees("type restart")
    await one.keys("tab")
    await one.sees("one GPU first")
    await one.write("restart")
    await one.keys("enter")
    await one.until(lambda: not one.sent(Restart)[-1].dry_run)
    await one.keys("K")
    await one.sees("nothing waits for")  # it may wrap there
    one.story.advance(60)
    one.story.tell()
    await one.sees("canary GPU 0: ×1.58")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_canary_is_kept_by_a_key(size: tuple[int, int]) -> None:
    """What it waits for stands there with the keys; then the other servers follow."""
    async with driven(size) as one:
        await one.keys("K")
        await one.sees("no swap is under way")
        assert isinstance(one.app.screen, FleetScreen)
        await canary(one)
        await one.sees("K keep")
        await one.sees("B take back")
        await one.keys("K")
        await one.until(lambda: isinstance(one.app.screen, Confirm))
        assert "stoker confirm ct200" in one.screen()
        await one.keys("n")
        assert one.sent(Decide) == []
        await one.keys("K", "y")
        await one.until(lambda: one.sent(Decide) == [Decide(keep=True)])
        one.story.advance(600)
        one.story.tell()
        await one.sees("×1.95")


async def test_a_canary_is_taken_back_by_a_key() -> None:
    """The cost is that of the servers it has, not of the fleet."""
    async with driven() as one:
        await canary(one)
        await one.keys("B")
        await one.until(lambda: isinstance(one.app.screen, Confirm))
        assert "stoker confirm --back ct200" in one.screen()
        now = re.search(r"Now: (\d+) requests in flight", one.screen())
        assert now is not None
        assert 0 < int(now[1]) <= 72  # of one server, not of eight
        await one.keys("y")
        await one.until(lambda: one.sent(Decide) == [Decide(keep=False)])
        await one.sees("rolled back")


async def test_taking_back_from_several_servers_needs_a_word() -> None:
    """A key beside the one that keeps would restart them all."""
    async with driven(rate=1.0) as one:
        await one.keys("r", "enter")
        await one.sees("type restart")
        await one.write("restart")
        await one.keys("enter")
        await one.until(lambda: not one.sent(Restart)[-1].dry_run)
        one.story.advance(50)
        one.story.tell()
        await one.until(lambda: len(model.touched(one.app.state.swap)) > 1)  # type: ignore[arg-type]
        await one.keys("B")
        await one.until(lambda: isinstance(one.app.screen, Confirm))
        await one.sees("from 2 servers of ct200")
        await one.keys("y")
        assert one.sent(Decide) == []
        await one.keys("backspace")
        await one.write("back")
        await one.keys("enter")
        await one.until(lambda: one.sent(Decide) == [Decide(keep=False)])


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_why_a_swap_failed_can_be_read_to_its_end(size: tuple[int, int]) -> None:
    """However long the cause is, also on a small screen."""
    why = (
        "GPU 0 did not start: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.41 "
        "GiB. GPU 0 has a total capacity of 94.97 GiB of which 1.12 GiB is free [the end]"
    )
    async with driven(size) as one:
        await canary(one)
        swap = one.story.swap
        assert swap is not None
        steps = [
            replace(s, state="failed", text=why) if s.state == "doing" else s for s in swap.steps
        ]
        text = "GPU 0 failed with the new flags; it has the old ones again, the others kept theirs"
        one.story.swap = replace(
            swap, state="failed", ended=one.story.now, text=f"{text} (the whole)", steps=steps
        )
        one.story.tell()
        await one.sees("(the whole)")
        await one.sees("[the end]")
        await one.sees("esc hides")  # once no note stands over it
        await one.keys("escape")
        await one.until(lambda: "[the end]" not in one.screen())


async def test_an_ended_swap_takes_two_lines_of_a_small_terminal() -> None:
    """What it brought is told, and the latest events are seen beneath."""
    async with driven((80, 24)) as one:
        await canary(one)
        swap = one.story.swap
        assert swap is not None
        text = "epoch 3 stands: 1.58 times the tokens a second of epoch 2, and more was said of it"
        one.story.swap = replace(swap, state="done", ended=one.story.now, text=text)
        one.story.tell()
        await one.sees("esc hides")
        assert one.app.screen.query_one(SwapPanel).size.height <= 2
