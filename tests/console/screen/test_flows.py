"""The console as an operator drives it: by keyboard, against a feed that answers as an agent's."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual import events
from textual.widgets import Input

from console import flags, model, prefs, themes
from console.app import StokerApp
from console.config import Target
from console.model import GAP, LogRing
from console.proposal import STRATEGIES
from console.screens.config import Starts
from console.screens.confirm import Confirm
from console.screens.events import EventsScreen
from console.screens.fleet import FleetScreen, heights
from console.screens.lines import LinesScreen
from console.screens.logs import LogsScreen, fitting, grid
from console.screens.restart import RestartScreen
from console.widgets.cards import Cards, arrange
from console.widgets.chart import Chart
from console.widgets.filter_line import MOST, FilterLine
from console.widgets.log_pane import LogPane
from console.widgets.pane import Pane
from console.widgets.swap import SwapPanel
from remote.protocol import (
    Decide,
    Down,
    Epoch,
    Event,
    Happened,
    LogPart,
    Request,
    Restart,
    Result,
    RunControl,
    RunStart,
    Skipped,
    Snapshot,
    Up,
)
from tests.console.screen.driver import Driven, driven, painted
from tests.console.screen.story import Story, connect


@pytest.mark.parametrize(
    ("size", "gpus"),
    [((80, 24), 8), ((120, 40), 8), ((220, 60), 64), ((80, 24), 64), ((120, 40), 1), ((40, 12), 8)],
)
async def test_every_gpu_is_on_the_screen(size: tuple[int, int], gpus: int) -> None:
    """As a card or as a row, down to sizes where only numbers are left."""
    async with driven(size, gpus=gpus) as one:
        cards = one.app.screen.query_one(Cards)
        if size[1] >= 24:
            columns, every = range(size[0]), set(range(gpus))

            def shown() -> set[int | None]:
                return {cards.gpu_at(x, y) for x in columns for y in range(cards.size.height)}

            await one.until(lambda: shown() >= every and "do not fit" not in one.screen())
        text = one.screen()
        assert f"{one.app.state.progress.completed:,}"[:-2] in text  # type: ignore[union-attr]
        assert all(len(line) <= size[0] for line in text.splitlines())
        if size[0] >= 80:
            assert "SIMULATED HARDWARE" in text
            assert "37/37" in text or "36/37" in text


async def test_what_is_wrong_and_which_key_helps_are_on_the_first_screen() -> None:
    """A failed server is a red box with its cause, and the key stands beside the notice."""
    async with driven((80, 24)) as one:
        one.story.servers[3].state = "failed"
        one.story.servers[3].cause = "CUDA out of memory"
        one.story.tell()
        await one.until(lambda: "GPU 3 failed: CUDA out of memory" in one.screen())
        assert "u up" in one.screen()


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
        await one.until(lambda: "did you mean no_buffer" in one.screen())
        dialog.query_one(Input).value = "mamba-scheduler-strategy=no_buffer"
        await one.keys("enter")
        await one.write("mem-fraction-static=0.9")
        await one.keys("enter")
        assert "0.85 → 0.9" in one.screen()
        await one.keys("enter")
        await one.until(lambda: "72 predicted" in one.screen())
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
        await one.until(lambda: "×1.95" in one.screen())
        assert "×1.58" in one.screen()
        await one.keys("escape")
        await one.until(lambda: "×1.95" not in one.screen())


async def test_the_word_is_typed_without_help_and_each_way_has_its_own_plan() -> None:
    """No flag is offered to complete it; what another strategy costs is asked for anew."""
    async with driven() as one:
        await one.keys("r", "enter")
        await one.until(lambda: "type restart" in one.screen())
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


async def canary(one: Driven) -> None:
    """Start one, and wait until it is judged."""
    await one.keys("r")
    await one.write("mamba-scheduler-strategy=no_buffer")
    await one.keys("enter", "enter")
    await one.until(lambda: "type restart" in one.screen())
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


async def test_taking_back_from_several_servers_needs_a_word() -> None:
    """A key beside the one that keeps would restart them all."""
    async with driven(rate=1.0) as one:
        await one.keys("r", "enter")
        await one.until(lambda: "type restart" in one.screen())
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


@pytest.mark.parametrize(("size", "gpus"), [((80, 24), 8), ((120, 40), 8), ((220, 60), 64)])
async def test_any_gpu_is_chosen_by_arrows_and_seen_without_colour(
    size: tuple[int, int], gpus: int
) -> None:
    """As they stand on the screen; enter opens the chosen one's log."""
    async with driven(size, gpus=gpus) as one:
        app = one.app
        cards = app.screen.query_one(Cards)
        assert "▸" not in "".join(painted(cards))
        await one.keys("enter")
        await one.sees("choose a GPU first")
        await one.keys("down")
        assert app.focus_gpu == 0
        await one.keys("up", "left")
        assert app.focus_gpu == 0
        await one.keys(*["down", "right"] * 12, *["j"] * gpus, *["right"] * gpus)
        chosen = app.focus_gpu
        assert chosen is not None
        assert chosen >= gpus - (gpus // cards.form.columns)
        await one.until(lambda: f"▸{chosen:>2}" in one.screen() or f"▸{chosen} " in one.screen())
        await one.keys("k")
        assert app.focus_gpu != chosen
        await one.keys("enter")
        await one.until(lambda: isinstance(app.screen, LogsScreen))
        await one.until(lambda: one.story.wanted.logs.keys() == {f"gpu{app.focus_gpu}"})


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_start_tells_its_phase_and_its_time_once(size: tuple[int, int]) -> None:
    """Uncut in a row, too."""
    async with driven(size) as one:
        server = one.story.servers[2]
        server.state, server.phase = "starting", "capturing graphs"
        server.phase_since = one.story.now - 12
        one.story.tell()
        await one.sees("capturing graphs")
        await one.until(lambda: re.search(r" 1\ds of 6s {2}", one.screen()))
        assert one.screen().count(" of 6s") == 1


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


async def test_a_run_that_died_has_nothing_in_flight() -> None:
    """Its last numbers are those of a process that is gone."""
    async with driven((160, 90)) as one:
        await one.sees("in flight")
        assert "prompts/s" in one.screen()
        one.story.alive = False
        one.story.tell()
        await one.sees("not running")
        assert "in flight" not in one.screen()
        assert "prompts/s" not in one.screen().splitlines()[2]
        await one.keys("g")
        await one.until(lambda: one.screen().count("not running") > 8)


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


async def test_the_run_screen_says_where_sources_disagree() -> None:
    """The batch files are asked themselves."""
    async with driven() as one:
        await one.keys("g")
        await one.sees("progress.json says")


async def test_answers_are_looked_at_and_searched() -> None:
    """Newest first, one in full, foreign text harmless."""
    async with driven() as one:
        await one.keys("g", "a")
        await one.sees("9870 ok")
        await one.keys("enter")
        await one.sees("What is [bold]7[/] times 6?")
        assert "42, n 0 ␛[2J" in one.screen()
        await one.keys("escape", "slash")
        await one.until(lambda: isinstance(one.app.focused, Input))
        await one.write("n 17")
        await one.keys("enter")
        await one.until(lambda: "9853 length" in one.screen() and "9862 ok" not in one.screen())
        await one.keys("tab")
        await one.sees("too long")
        await one.keys("escape")
        await one.sees("Outcomes")


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
        await one.keys(*["down"] * 20)
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


async def test_a_refused_plan_stays_in_the_dialog() -> None:
    """The agent's own words, and nothing is lost of what was typed."""
    async with driven() as one:
        await one.keys("r")
        await one.write("-context-length")
        await one.keys("enter")
        one.story.connected = False
        await one.keys("enter")
        await one.until(lambda: "not connected" in one.screen())
        assert isinstance(one.app.screen, RestartScreen)
        assert one.app.screen.proposal.edits == {"context-length": None}
        await one.keys("escape")
        assert isinstance(one.app.screen, FleetScreen)


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


async def test_read_only_looks_and_never_sends() -> None:
    """Every changing key says why it does nothing."""
    async with driven(read_only=True) as one:
        assert "READ-ONLY" in one.screen()
        for key in ("r", "u", "d", "b", "s", "p", "x", "R"):
            await one.keys(key)
            assert isinstance(one.app.screen, FleetScreen)
        await one.until(lambda: "read-only" in one.screen())
        await one.keys("l")
        assert isinstance(one.app.screen, LogsScreen)
        assert not one.sent(Restart) + one.sent(Up) + one.sent(Down) + one.sent(RunControl)


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


async def test_the_run_is_paused_resumed_and_started() -> None:
    """One key each; `s` does what is needed."""
    async with driven() as one:
        await one.keys("p")
        await one.until(lambda: one.sent(RunControl))
        assert one.sent(RunControl)[0].do == "pause"
        one.story.tell()
        await one.until(lambda: "paused" in one.screen())
        await one.keys("s")
        await one.until(lambda: len(one.sent(RunControl)) == 2)
        assert one.sent(RunControl)[1].do == "resume"
        await one.keys("x")
        await one.write("stop")
        await one.keys("enter")
        await one.until(lambda: len(one.sent(RunControl)) == 3)
        one.story.tell()
        await one.until(lambda: not one.app.state.run.alive)
        await one.keys("s")
        await one.until(lambda: one.sent(RunStart))


async def test_a_lost_link_freezes_nothing_and_is_seen() -> None:
    """State, age and greying; keys work; no changing action is sent into the dark."""
    async with driven() as one:
        one.story.lose()
        one.app.state = type(one.app.state)(**{**vars(one.app.state), "received": time.time() - 42})
        await one.until(lambda: "reconnecting" in one.screen() and "data 4" in one.screen())
        assert "no answer from 10.1.2.6" in one.screen()
        await one.keys("d")
        await one.until(lambda: "nothing was sent" in one.screen())
        await one.keys("l")
        assert isinstance(one.app.screen, LogsScreen)
        await one.keys("f")
        one.story.find()
        await one.until(lambda: "● connected" in one.screen())


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
        await one.until(lambda: "held" in one.screen())
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
        await one.until(lambda: "not a regular expression" in one.screen())
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
        await one.until(lambda: "1,000,000"[:3] and "nul" in "".join(pane.shown()))
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
        await one.until(lambda: "12k skipped" in one.screen())


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
        at = [line.partition("│")[2].strip()[:8] for line in pane.shown() if ":" in line]
        assert at == sorted(at)
        assert len({line.partition("│")[0] for line in pane.shown()}) > 4
        one.story.on_message(LogPart("gpu3", 1, 0, 0, ["[2099-01-01 00:00:00] the latest"]))
        await one.until(
            lambda: any("    3│01-01 00:00:00 the latest" in line for line in pane.shown())
        )
        await one.keys("M")
        await one.until(lambda: len(list(one.app.screen.query(LogPane))) == 8)


async def test_events_can_be_filtered() -> None:
    """By what stands in the line."""
    async with driven() as one:
        await one.keys("e")
        assert isinstance(one.app.screen, EventsScreen)
        pane = one.app.screen.query_one(Pane)
        await one.until(lambda: pane.count >= 10)
        await one.keys("slash")
        await one.until(lambda: isinstance(one.app.focused, Input))
        await one.write("verdict")
        await one.until(lambda: pane.count == 1)
        await one.keys("escape")
        await one.until(lambda: pane.count >= 10)
        await one.keys("escape")
        await one.until(lambda: isinstance(one.app.screen, FleetScreen))


async def test_events_that_come_late_are_listed_in_their_place() -> None:
    """Older ones may be asked for later; what the agent left out is counted."""
    async with driven() as one:
        newest = one.app.state.events[-1].id
        one.story.on_message(Happened(Event(newest + 100, time.time(), "x", text="a late one")))
        await one.keys("e")
        pane = one.app.screen.query_one(Pane)
        await one.until(lambda: any("a late one" in line for line in pane.shown()))
        old = [Event(-n, time.time() - 9_000, "x", text=f"old {n}") for n in range(5)]
        one.app.state = model.with_events(one.app.state, old)
        one.story.on_message(Skipped("events", 1_234))
        await one.until(lambda: any("old 3" in line for line in pane.shown()))
        assert "a late one" in pane.shown()[-1]
        await one.sees("1.2k older: page up")


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
            await one.until(lambda: "stoker restart ct200" in one.screen())
            await one.keys("escape", "f", "colon")
            await one.until(lambda: "Search" in one.screen() or "Restart" in one.screen())
            await one.write("roll")
            await one.until(lambda: "Roll back" in one.screen())


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


async def test_resizing_relays_everything() -> None:
    """From a wall to a phone and back."""
    async with driven((220, 60)) as one:
        for size in ((80, 24), (40, 10), (20, 5), (120, 40)):
            await one.pilot.resize_terminal(*size)
            await one.pilot.pause(0.05)
        await one.until(lambda: "tok/s per GPU" in one.screen())


async def test_plots_are_drawn_and_follow_zoom_and_focus() -> None:
    """In a process of their own."""
    async with driven() as one:

        def dots() -> list[bool]:
            charts = one.app.screen.query(Chart)
            return [any("⠀" < c <= "⣿" for c in "".join(painted(chart))) for chart in charts]

        await one.until(lambda: dots() and all(dots()), 60)
        await one.until(lambda: "┤" in one.screen(), 30)
        await one.keys("plus")
        await one.until(lambda: "5m" in one.screen())
        await one.keys("m")
        await one.until(lambda: "running requests" in one.screen())


async def test_themes_are_switched_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next session starts with the theme of the last."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for expected in ("dark", "light"):
        app = StokerApp(connect(now=time.time()), name="ct200")
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.pause()
            assert app.theme == expected
            await pilot.press("t")
            await pilot.pause()
    assert prefs.read().theme == "high-contrast"


def test_shipped_themes_load_and_a_bad_one_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake in a user's file never stops the console."""
    folder = tmp_path / "stoker" / "themes"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('primary = "#ff0000"\n')
    (folder / "bad.toml").write_text('primary = "#ff0000"\ncolour = "x"\n')
    (folder / "worse.toml").write_text('primary = "#gg0000"\n')
    (folder / "worst.toml").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found, problems = themes.load_all()
    assert [t.name for t in found] == ["dark", "light", "high-contrast", "colour-blind", "mine"]
    assert len(problems) == 3
    assert all("\n" not in p for p in problems if "bad" in p or "worse" in p)


def test_heights_never_exceed_the_screen() -> None:
    """At any size, with anything to say."""
    for height in range(5, 90):
        for width in (20, 80, 120, 220):
            for gpus in (1, 2, 8, 16, 64):
                for swap in (0, 6, 12):
                    rows = heights(width, height, gpus, 5, swap)
                    used = (
                        5 + rows.notices + rows.form.height + rows.swap + rows.plots + rows.events
                    )
                    assert used <= max(height, 5 + rows.notices + rows.form.height)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 16, 63, 64])
def test_forms_hold_every_gpu(count: int) -> None:
    """Cards where there is room, rows elsewhere."""
    form = arrange(count, 220, 60)
    if form.kind == "cards":
        assert form.columns * (form.height // form.each) >= count
    else:
        assert form.columns * (form.height - 1) >= count


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_panes_fill_their_grid(count: int) -> None:
    """No size leaves a pane out."""
    for size in ((80, 24), (120, 40), (220, 60), (30, 8)):
        columns, rows = grid(count, *size)
        assert columns * rows >= count


def test_a_ring_marks_its_own_lines() -> None:
    """So that they can be told from the log's."""
    ring = LogRing(10)
    ring.add(LogPart("gpu0", 1, 0, 5, ["x"], skipped=3))
    assert ring.since(0)[1][0].startswith(GAP)


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
