"""The Run screen: the mix, outcomes by source, the newest answers, retry and concurrency."""

from __future__ import annotations

import pytest
from textual.containers import VerticalScroll
from textual.widgets import Input

from console.screens.answers import AnswersScreen
from console.screens.confirm import Confirm
from console.screens.run import RunText, aside_why
from console.widgets.mix import mix_lines, outcome_lines
from console.widgets.paint import Line, width_of
from remote.protocol import (
    Mix,
    Progress,
    ReadAnswers,
    RetryFailed,
    RunControl,
    RunStart,
    SourceMix,
)
from tests.console.screen.driver import driven


def text(lines: list[Line]) -> list[str]:
    """Lines as one sees them."""
    return ["".join(part for part, _ in line) for line in lines]


def styles(line: Line) -> set[str]:
    return {style for part, style in line if part.strip()}


LOOPED = {"ok": 290, "looped": 10}
MIX = Mix(
    [
        SourceMix("maths", 600, 6_000, 600_000, 300, 3_000, 290_000, LOOPED, 4, 6),
        SourceMix("code", 400, 4_000, 100_000, 20, 200, 5_000, {"ok": 20}),
    ],
    "p.manifest.json",
)  # fmt: skip


@pytest.mark.parametrize("width", [40, 76, 120, 220])
def test_planned_against_finished_at_every_width(width: int) -> None:
    """Nothing runs over; what fits is said, shares apart from the plan stand out."""
    lines = mix_lines(MIX, width)
    assert all(width_of(line) <= width for line in lines)
    shown = text(lines)
    assert shown[2].split()[:3] == ["maths", "600", "300"]
    if width >= 76:
        assert "60.0% → 93.8%" in shown[2]
        assert any("warn" in style for style in styles(lines[2]))
    if width >= 120:
        assert "85.7% → 98.3%" in shown[2]
        assert "p.manifest.json" in shown[0]


def test_what_is_not_known_is_not_made_up() -> None:
    """No plan, no tokens by source: dashes, and no share of nothing."""
    bare = Mix([SourceMix("", None, None, None, 5, None, None, {"?": 5})])
    shown = text(mix_lines(bare, 120))
    assert "(none named)" in shown[2]
    assert "–" in shown[2]
    assert "output tokens" not in shown[1]
    assert "counted" in text(mix_lines(Mix(counting=True), 80))[0]


def test_outcomes_have_a_column_each_and_a_sum() -> None:
    """Only those that occur; the sum in the last line."""
    lines = text(outcome_lines(MIX.sources, 100, {}))
    assert lines[0].split()[-2:] == ["ok", "looped"]
    assert lines[-1].split() == ["all", "310", "10"]


def test_what_waits_to_be_sent_again_is_the_last_column() -> None:
    """By source, as the outcomes; a source that nobody knows is not counted."""
    first = MIX.sources[0].source
    lines = text(outcome_lines(MIX.sources, 100, {first: 7, "unheard of": 2}))
    assert lines[0].rstrip().endswith("looped  to retry")
    assert lines[1].split()[-1] == "7"
    assert lines[-1].split() == ["all", "310", "10", "7"]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (220, 60)])
async def test_everything_of_the_run_is_reached_by_keys(size: tuple[int, int]) -> None:
    """The mix and the newest answers come by themselves; the rest is scrolled to."""
    async with driven(size) as one:
        await one.keys("g")
        await one.sees("Mix, planned against finished")
        await one.sees("infinity-instruct")
        seen = one.screen()
        for _ in range(12):
            await one.keys("pagedown")
            seen += one.screen()
        for words in (
            "Outcomes by source",
            "Newest answers",
            "42, n 0 ␛[2J",
            "Newest that were given up",
            "402k tokens kept",
            "completions_000020 ",
            "here only",
            "in S3",
        ):
            assert words in seen, words
        await one.keys("home")
        assert one.app.screen.query_one(VerticalScroll).scroll_y == 0


async def test_little_travels_for_the_live_look() -> None:
    """A few hundred characters of each answer, and only while the screen is in front."""
    async with driven() as one:
        assert one.sent(ReadAnswers) == []
        await one.keys("g")
        await one.until(lambda: len(one.sent(ReadAnswers)) >= 2)
        assert {r.chars for r in one.sent(ReadAnswers)} == {240}
        assert {r.kind for r in one.sent(ReadAnswers)} == {"done", "failed"}
        text = one.app.screen.query_one(RunText)
        await one.until(lambda: text.told.mix is not None)


async def test_failures_with_reasons_are_tried_again_from_their_list() -> None:
    """Answers, given up on, with the reason; R asks, y sends; those set aside as well."""
    async with driven() as one:
        await one.keys("g", "a")
        await one.until(lambda: isinstance(one.app.screen, AnswersScreen))
        await one.sees("42, n 0")
        await one.keys("R")
        assert isinstance(one.app.screen, AnswersScreen), (
            "there is nothing to retry in what is done"
        )
        await one.keys("tab")
        await one.sees("too long")
        await one.sees("R retry")
        await one.keys("R")
        await one.until(lambda: isinstance(one.app.screen, Confirm))
        assert "stoker run retry-failed ct200" in one.screen()
        await one.keys("y")
        await one.until(lambda: one.sent(RetryFailed))
        await one.keys("a", "tab", "tab")
        await one.sees("set aside")
        await one.keys("R")
        await one.until(lambda: isinstance(one.app.screen, Confirm))
        assert "--set-aside" in one.screen()
        await one.keys("y")
        await one.until(lambda: len(one.sent(RetryFailed)) == 2)
        assert [r.set_aside for r in one.sent(RetryFailed)] == [False, True]


async def test_requests_at_once_are_set_by_key() -> None:
    """A number or auto; nonsense is one line and sends nothing; a pause stays a pause."""
    async with driven() as one:
        await one.keys("g", "C")
        await one.write("lots")
        await one.keys("enter")
        await one.sees("neither a number")
        assert one.sent(RunControl) == []
        await one.keys("C")
        await one.write("64")
        await one.keys("enter")
        await one.until(lambda: one.sent(RunControl))
        assert one.sent(RunControl)[0] == RunControl(do="resume", concurrency=64)
        await one.keys("p")
        await one.until(lambda: one.app.state.progress.status == "paused")  # type: ignore[union-attr]
        await one.keys("C")
        await one.write("auto")
        await one.keys("enter")
        await one.until(lambda: len(one.sent(RunControl)) == 3)
        assert one.sent(RunControl)[2] == RunControl(do="pause", concurrency="auto")


@pytest.mark.parametrize(
    ("number", "says"), [("3", "slots stay empty"), ("4000", "only wait in each server's queue")]
)
async def test_far_too_few_or_many_at_once_are_asked_about(number: str, says: str) -> None:
    """With what it comes to, from any screen that has the key; no sends nothing."""
    async with driven() as one:
        await one.keys("C")
        await one.sees("now auto, a server runs 37")
        await one.write(number)
        await one.keys("enter")
        await one.sees(says)
        await one.sees(f"run resume --concurrency {number}")
        await one.keys("n")
        assert one.sent(RunControl) == []
        await one.keys("C")
        await one.write(number)
        await one.keys("enter", "y")
        await one.until(lambda: one.sent(RunControl))
        assert one.sent(RunControl) == [RunControl(do="resume", concurrency=int(number))]


async def test_a_run_held_at_few_requests_says_so_with_the_key() -> None:
    """As long as it is so."""
    async with driven() as one:
        one.story.concurrency = 3
        one.story.tell()
        await one.sees("held at 3 requests at once on each server: a server runs 37")
        one.story.concurrency = "auto"
        one.story.tell()
        await one.until(lambda: "held at 3" not in one.screen())


def test_why_answers_were_set_aside_is_told_where_it_is_known() -> None:
    """The outcomes tell it where they add up."""
    assert aside_why(Progress(set_aside=42, outcomes={"bad_tool_call": 42, "ok": 9})) == (
        "bad_tool_call 42"
    )
    assert "of no use" in aside_why(Progress(set_aside=42, outcomes={"looped": 3}))


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


async def test_the_run_is_paused_resumed_and_started() -> None:
    """One key each; `s` does what is needed."""
    async with driven() as one:
        await one.keys("p")
        await one.until(lambda: one.sent(RunControl))
        assert one.sent(RunControl)[0].do == "pause"
        one.story.tell()
        await one.sees("paused")
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
