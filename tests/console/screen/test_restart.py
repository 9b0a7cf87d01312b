"""The restart dialog and the Config screen, by keys: every flag, every way, what is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.widgets import Input

from console.proposal import How
from console.screens.ask import AskLine
from console.screens.config import ConfigScreen, Starts
from console.screens.restart import RestartScreen
from console.widgets.flag_table import FlagTable
from console.widgets.paint import Painted
from console.widgets.plan import how_lines, wrapped
from remote.protocol import (
    Epoch,
    FlagCatalogue,
    Flags,
    ReadFlags,
    Request,
    Restart,
    Result,
    Verdict,
)
from tests.console.screen.driver import Driven, driven, painted


async def dialog(one: Driven) -> RestartScreen:
    """Opened by its key."""
    await one.keys("r")
    await one.until(lambda: isinstance(one.app.screen, RestartScreen))
    screen = one.app.screen
    assert isinstance(screen, RestartScreen)
    await one.until(lambda: screen.target.book.certain)
    return screen


async def put(one: Driven, text: str) -> None:
    """Type a whole line."""
    one.app.screen.query_one("#edit", Input).value = text
    await one.keys("enter")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (220, 60)])
async def test_every_way_is_chosen_by_keys_with_its_cost(size: tuple[int, int]) -> None:
    """Strategy, answers under way, servers at once, confirmation: all reach the agent."""
    async with driven(size) as one:
        screen = await dialog(one)
        await put(one, "mem-fraction-static=0.9")
        await put(one, "")
        await one.sees("type restart")
        await one.sees("192 GPU-seconds without tokens")
        await one.sees("292 answers with 395,000 tokens are broken off")
        if size[1] > 34:  # all ways at once
            await one.sees("waits up to 83 s a server")
            await one.sees("395,000 tokens thrown away")
            await one.sees("8 of 8 servers at a time for 24 s")
        await one.keys("down", "tab")
        await one.sees("waits up to 83 s a server")
        await one.keys("tab")
        await one.sees("about 292 answers are broken off, 395,000 tokens")
        await one.keys("shift+tab", "down", "tab", "down", "tab", "tab")
        await one.until(lambda: any(r.at_once == 2 for r in one.sent(Restart)))
        await one.sees("2 of 8 servers")
        line = screen.proposal.shell_line()
        assert "--in-flight drain --at-once 2 --confirm-within 10" in line
        lines = painted(screen.query_one("#plan", Painted))
        assert all(len(text) <= size[0] for text in lines)
        assert not any(not r.dry_run for r in one.sent(Restart))
        await one.write("restart")
        await one.keys("enter")
        await one.until(lambda: not one.sent(Restart)[-1].dry_run)
        asked = one.sent(Restart)[-1]
        assert (asked.strategy, asked.in_flight, asked.at_once) == ("rolling", "drain", 2)
        assert asked.confirm_within_min == 10
        assert asked.set_flags == {"mem-fraction-static": 0.9}


async def test_one_gpu_is_asked_by_a_key_and_has_no_strategy() -> None:
    """Its ways are turned with the arrows; a key begins."""
    async with driven() as one:
        await one.keys("3")
        screen = await dialog(one)
        await put(one, "")
        await one.sees("y restarts")
        await one.sees("Restart GPU 3 of ct200")
        assert "rolling" not in one.screen()
        await one.keys("right")
        assert screen.proposal.how.in_flight == "drain"
        await one.keys("left", "y")
        await one.until(lambda: not one.sent(Restart)[-1].dry_run)
        assert one.sent(Restart)[-1].gpus == [3]
        assert one.sent(Restart)[-1].in_flight == "continue"


async def test_mistakes_are_told_before_anything_is_asked() -> None:
    """By SGLang's own catalogue: unknown names, wrong values, secrets."""
    async with driven() as one:
        await dialog(one)
        for typed, says in (
            ("mem-fracton-static=0.9", "has no flag mem-fracton-static; did you mean"),
            ("attention-backend=flashinfr", "did you mean flashinfer"),
            ("attention-backend=zzz", "not 'zzz', but one of"),
            ("max-running-requests=many", "takes a whole number"),
            ("enable-metrics=7", "takes no value"),
            ("api-key=x", "credentials_file"),
            ("port=1", "set by Stoker"),
        ):
            await put(one, typed)
            await one.sees(says)
        assert one.sent(Restart) == []
        await put(one, "tensor-parallel-size=1")  # an alias
        screen = one.app.screen
        assert isinstance(screen, RestartScreen)
        assert list(screen.proposal.edits) == ["tp-size"] or list(screen.proposal.edits) == [
            "tensor-parallel-size"
        ]


async def test_words_search_every_flag_and_tab_takes_the_chosen_one() -> None:
    """By name first, then by help."""
    async with driven() as one:
        screen = await dialog(one)
        table = screen.query_one(FlagTable)
        set_now = len(table.rows)
        await one.write("recurrent")
        await one.until(lambda: 0 < len(table.rows) < 12)
        names = [row.name for row in table.rows]
        assert "mamba-ssm-dtype" in names
        while table.chosen is not None and table.chosen.name != "mamba-ssm-dtype":
            await one.keys("down")
        await one.keys("tab")
        assert screen.query_one("#edit", Input).value == "mamba-ssm-dtype=bfloat16"
        screen.query_one("#edit", Input).value = ""
        await one.until(lambda: len(table.rows) == set_now)


async def test_edits_are_kept_until_they_are_used_or_dropped() -> None:
    """They stand in Config, in the command lines, and in the dialog when it is opened again."""
    async with driven() as one:
        await dialog(one)
        await put(one, "mem-fraction-static=0.9")
        await put(one, "-enable-metrics")
        await one.keys("escape")
        await one.sees("2 edits are kept")
        await one.keys("c")
        await one.sees("2 edited: r restarts with them")
        await one.sees("0.85 → 0.9")
        await one.sees("taken out")
        await one.keys("y")
        await one.sees("--set mem-fraction-static=0.9 --unset enable-metrics")
        await one.keys("escape")
        screen = await dialog(one)
        assert screen.proposal.edits == {"mem-fraction-static": 0.9, "enable-metrics": None}
        await one.keys("escape", "backspace")
        await one.sees("2 edits dropped")
        screen = await dialog(one)
        assert screen.proposal.edits == {}


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (220, 60)])
async def test_config_lists_searches_and_edits_every_flag(size: tuple[int, int]) -> None:
    """What runs first, then all of SGLang's; the chosen one with its choices and default."""
    async with driven(size) as one:
        await one.keys("c")
        await one.sees("387 flags of SGLang 0.5.12")
        table = one.app.screen.query_one(FlagTable)
        assert len(table.rows) > 300
        await one.keys("tab", "end")
        assert table.cursor == len(table.rows) - 1
        await one.keys("slash")
        await one.until(lambda: isinstance(one.app.focused, Input))
        await one.write("schedule policy")
        await one.until(lambda: any(r.name == "schedule-policy" for r in table.rows))
        one.app.screen.query_one("#search", Input).value = "schedule-policy"
        await one.until(lambda: len(table.rows) == 1)
        await one.keys("enter")
        await one.sees("by default fcfs")
        await one.sees("lpm")
        await one.keys("enter")
        await one.until(lambda: isinstance(one.app.screen, RestartScreen))
        assert one.app.screen.query_one("#edit", Input).value == "schedule-policy="
        await one.write("lpm")
        await one.keys("enter", "escape")
        await one.sees("→ lpm")
        await one.keys("escape")
        await one.until(lambda: len(table.rows) > 300)
        assert isinstance(one.app.screen, ConfigScreen)


async def test_a_recipe_is_a_starting_point() -> None:
    """Its flags are the dialog's edits; what it would not change is not asked for."""
    async with driven() as one:
        await one.keys("c")
        await one.sees("387 flags")
        starts = one.app.screen.query_one(Starts)
        names = [start.name for start in starts.found]
        await one.keys(*["j"] * names.index("more slots"), "enter")
        await one.until(lambda: isinstance(one.app.screen, RestartScreen))
        assert isinstance(one.app.screen, RestartScreen)
        assert one.app.screen.proposal.edits == {
            "mamba-scheduler-strategy": "no_buffer",
            "mem-fraction-static": 0.9,
        }


async def test_read_only_shows_every_flag_and_edits_none() -> None:
    """Looking is free."""
    async with driven(read_only=True) as one:
        await one.keys("c")
        await one.sees("387 flags")
        await one.keys("tab", "enter")
        await one.sees("opened read-only")
        assert isinstance(one.app.screen, ConfigScreen)


async def test_an_agent_that_cannot_tell_its_flags_leaves_the_short_list() -> None:
    """Names that are not on it are asked about, not refused."""
    async with driven() as one:
        plain = one.story.call

        async def call(request: Request, timeout: float = 30) -> Result:
            if isinstance(request, ReadFlags):
                return FlagCatalogue([])
            return await plain(request, timeout)

        one.story.call = call  # type: ignore[method-assign]
        await one.keys("r")
        await one.until(lambda: isinstance(one.app.screen, RestartScreen))
        await put(one, "no-such-flag=3")
        await one.sees("not a flag known here")
        await one.keys("enter")
        await one.sees("no-such-flag")
        screen = one.app.screen
        assert isinstance(screen, RestartScreen)
        assert screen.proposal.edits == {"no-such-flag": 3}


async def test_edits_outlive_a_refusal() -> None:
    """A restart that the agent did not take can be tried again without typing."""
    async with driven() as one:
        screen = await dialog(one)
        await put(one, "mem-fraction-static=0.9")
        await put(one, "")
        await one.sees("type restart")
        await one.until(lambda: len(screen.proposal.plans) == 3)
        one.story.connected = False
        await one.write("restart")
        await one.keys("enter")
        await one.sees("not connected")
        one.story.connected = True
        screen = await dialog(one)
        assert screen.proposal.edits == {"mem-fraction-static": 0.9}


async def test_the_line_to_type_in_stays_in_sight_when_the_terminal_shrinks() -> None:
    """A split of tmux must not hide what is asked for."""
    async with driven((120, 40)) as one:
        await dialog(one)
        for change in ("mem-fraction-static=0.9", "context-length=16384", "decode-log-interval=20"):
            await put(one, change)
        await put(one, "")
        await one.sees("type restart")
        await one.pilot.resize_terminal(80, 24)
        await one.until(lambda: one.app.size.width == 80)
        await one.sees("type restart, then enter")


async def test_a_late_plan_does_not_take_what_is_typed_for_an_answer() -> None:
    """SGLang's parser may take two minutes; by then somebody types on, a `y` maybe."""
    async with driven() as one:
        await one.keys("3")
        screen = await dialog(one)
        plain, told = one.story.call, asyncio.Event()

        async def call(request: Request, timeout: float = 30) -> Result:
            if isinstance(request, Restart):
                await told.wait()
            return await plain(request, timeout)

        one.story.call = call  # type: ignore[method-assign]
        await put(one, "")
        await one.sees("asking for the plan")
        await one.keys("y")
        told.set()
        await one.sees("the plan is there")
        line = screen.query_one("#edit", Input)
        assert (screen.step, line.value) == ("edit", "y")
        assert len(one.sent(Restart)) == 1
        await one.keys("backspace", "enter")  # the one that came is shown
        await one.sees("y restarts")
        await one.keys("y")
        await one.until(lambda: not one.sent(Restart)[-1].dry_run)


async def test_a_name_in_brackets_is_no_markup() -> None:
    """What stands in the border is text."""
    async with driven() as one:
        one.app.front.name = "ct[red]200"
        await dialog(one)
        await one.sees("of ct[red]200")
        await one.keys("escape", "d")
        await one.sees("servers of ct[red]200")


def test_what_is_cut_ends_with_an_ellipsis() -> None:
    """A way that is not chosen has one line, the chosen one three."""
    text = "one two three four five six seven"
    assert wrapped(text, 15, 3) == ["one two three", "four five six", "seven"]
    assert wrapped(text, 15, 1) == ["one two three…"]
    assert wrapped(text, 15, 2) == ["one two three", "four five six…"]
    lines = how_lines(How(), "strategy", {}, 8, 60, brief=False)
    shown = ["".join(part for part, _ in line) for line in lines]
    assert any("canary" in line and line.endswith("…") for line in shown)
    assert not any(line.endswith("…") for line in shown if "rolling" in line)


async def test_what_is_edited_is_saved_as_a_starting_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a name, for every target; taken like a recipe; removed by the key pressed twice."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "stoker" / "presets"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text("[flags")
    async with driven(remember=True) as one:

        def own() -> list[str]:
            return [start.name for start in one.app.screen.query_one(Starts).found if start.own]

        await one.keys("c")
        await one.sees("preset left out")
        await one.keys("S")
        await one.sees("nothing is edited")
        await dialog(one)
        await put(one, "mem-fraction-static=0.9")
        await put(one, "-enable-metrics")
        await one.keys("escape", "S")
        await one.until(lambda: isinstance(one.app.screen, AskLine))
        await one.write("night [run]")
        await one.keys("enter")
        await one.sees("night [run]")
        assert (folder / "night-run.toml").is_file()
        await one.keys("backspace")
        await one.until(lambda: one.app.front.draft == {})
        table = one.app.screen.query_one(Starts)
        table.chosen = [s.name for s in table.found].index("night [run]")
        await one.keys("enter")
        await one.until(lambda: isinstance(one.app.screen, RestartScreen))
        assert isinstance(one.app.screen, RestartScreen)
        assert one.app.screen.proposal.edits == {"mem-fraction-static": 0.9, "enable-metrics": None}
        await one.keys("escape", "X")
        await one.sees("the same key again removes")
        assert own() == ["night [run]"]
        await one.keys("X")
        await one.until(lambda: own() == [])
        assert not (folder / "night-run.toml").exists()
        await one.keys("X")
        await one.sees("only starting points that you saved")


async def test_one_key_takes_what_the_verdict_proposes() -> None:
    """Into the edits, where it is seen and can be dropped; nothing is done yet."""
    async with driven((80, 24)) as one:
        change: Flags = {"mamba-scheduler-strategy": "no_buffer", "mem-fraction-static": 0.9}
        better = "mamba-scheduler-strategy=no_buffer mem-fraction-static=0.9: 72 slots"
        one.story.verdict = Verdict(
            one.story.now, "1.9/s", False, remedy=better, remedy_flags=change
        )
        one.story.tell()
        await one.sees("Better: mamba-scheduler-strategy=no_buffer")
        screen = await dialog(one)
        await one.sees("tab takes what is proposed: mamba-scheduler-strategy=no_buffer")
        await one.keys("tab")
        await one.sees("2 changed")
        assert screen.proposal.edits == change
        assert "what is proposed" not in one.screen()
        assert not [r for r in one.sent(Restart) if not r.dry_run]


async def test_another_word_is_answered_and_begins_nothing() -> None:
    """A wrong word and a bare enter are told, and a plan that comes in meanwhile leaves that."""
    async with driven((80, 24)) as one:
        screen = await dialog(one)
        await put(one, "mem-fraction-static=0.9")
        await put(one, "")
        await one.sees("(type restart here)")
        for typed in ("restrat", ""):
            screen.mistyped = ""
            await one.write(typed)
            await one.keys("enter")
            await screen.ask_costs()
            await one.sees("that was not 'restart'; nothing was done")
        assert not any(not r.dry_run for r in one.sent(Restart))


async def test_on_a_mixed_fleet_the_plan_lists_the_servers_whose_flags_change() -> None:
    """After a swap that stopped half-way: the dialog begins with the flags to have, and leaving
    keeps no draft of what nobody typed."""
    async with driven() as one:
        fast = {**one.story.epochs[-1].flags, "mem-fraction-static": 0.91}
        one.story.epochs.append(Epoch(3, one.story.now, fast, "ops", "a try"))
        for server in one.story.servers[:3]:
            server.epoch = 3
        one.story.tell()
        await one.until(lambda: len(one.app.state.epochs) == 3)
        screen = await dialog(one)
        assert screen.proposal.edits == {"mem-fraction-static": 0.91}
        await one.keys("enter")
        await one.until(lambda: screen.step == "plan")
        await one.sees("GPU 3–7, on epoch 2:")
        shown = one.screen()
        assert "GPU 0–2 have these flags already: they go on" in shown
        assert "Restart GPU 3–7 of ct200" in shown
        assert "1 of 5 servers at a time" in shown
        assert "0.85 → 0.91" in shown
        await one.keys("escape", "escape")
        await one.until(lambda: one.app.screen is not screen)
        assert one.app.front.draft == {}


async def test_during_a_swap_the_dialog_says_so_at_once() -> None:
    """Not only once the word is typed."""
    async with driven() as one:
        plan = one.story.restart(Restart(spec=one.story.spec))
        assert plan.swap is not None
        await one.until(lambda: one.app.state.swap is not None)
        await one.keys("r")
        await one.sees("is under way: no other can begin")
