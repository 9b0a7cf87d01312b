"""Windows over the past: followed, zoomed, moved, and loaded from the other side."""

from __future__ import annotations

import asyncio

import pytest

from console.lookback import RECENT_S, SPANS, Lookback
from console.model import State
from remote.protocol import (
    Event,
    History,
    Marks,
    ReadHistory,
    ReadMarks,
    Request,
    Result,
    ServerState,
)


class Journal:
    """Answers with one sample in the middle of what is asked for."""

    def __init__(self) -> None:
        self.now = 100_000.0
        self.asked: list[ReadHistory] = []
        self.run: tuple[float, float | None] | None = None

    async def ask(self, request: Request) -> Result | None:
        """See :class:`Lookback`."""
        if isinstance(request, ReadMarks):
            return Marks([Event(1, request.since, "server.failed", "error", "")])
        assert isinstance(request, ReadHistory)
        self.asked.append(request)
        middle = (request.since + (request.until or self.now)) / 2
        return History([middle], {"gen_tok_s": [[7.0]]})

    def lookback(self) -> Lookback:
        """One on this journal's clock."""
        return Lookback(self.ask, lambda: self.now, lambda: self.run)

    def live(self, lookback: Lookback, seconds: float) -> bool:
        """A snapshot after so long; whether the window must be loaded anew."""
        self.now += seconds
        servers = {0: ServerState(0, "ready", gen_tok_s=5.0)}
        return lookback.add(State(time=self.now, servers=servers))


async def test_it_begins_with_the_newest_and_loads_what_was_before() -> None:
    """Cards and charts each over their own span."""
    journal = Journal()
    lookback = journal.lookback()
    await lookback.load()
    assert [r.since for r in journal.asked] == [journal.now - RECENT_S, journal.now - SPANS[1]]
    assert lookback.recent.top("gen_tok_s") == lookback.window.top("gen_tok_s") == 7.0
    assert (lookback.text, lookback.end) == ("15m", journal.now)
    journal.live(lookback, 1)
    assert lookback.end == journal.now


async def test_a_window_of_the_past_stands_still() -> None:
    """However long one looks at it; what comes meanwhile is not in it, and it does not empty."""
    journal = Journal()
    lookback = journal.lookback()
    assert lookback.move(-1)
    end = lookback.end
    assert end == journal.now - SPANS[1] / 2
    await lookback.load_window()
    assert journal.asked[-1].until == end
    shown = lookback.window.column("gen_tok_s", 0, end)
    for _ in range(50):
        journal.live(lookback, 10)
    assert lookback.end == end
    assert lookback.window.column("gen_tok_s", 0, lookback.end) == shown
    assert lookback.text.startswith("15m to ")


def test_later_than_now_follows_again() -> None:
    """Half a window at a time, or at once."""
    journal = Journal()
    lookback = journal.lookback()
    assert not lookback.move(1)
    assert lookback.move(-1)
    assert lookback.move(-1)
    assert lookback.move(1)
    assert lookback.end < journal.now
    assert lookback.move(1)
    assert lookback.end == journal.now
    assert lookback.move(-1)
    assert lookback.follow()
    assert not lookback.follow()


def test_zooming_ends_at_the_spans_there_are() -> None:
    """And keeps where one looks."""
    lookback = Journal().lookback()
    lookback.move(-1)
    end = lookback.until
    assert sum(lookback.zoom(1) for _ in range(20)) == len(SPANS) - 2
    assert lookback.window.span == SPANS[-1]
    assert sum(lookback.zoom(-1) for _ in range(20)) == len(SPANS) - 1
    assert (lookback.window.span, lookback.until) == (SPANS[0], end)


async def test_a_window_that_was_left_is_not_filled() -> None:
    """The answer may come when one looks elsewhere already."""
    journal = Journal()
    lookback = journal.lookback()
    plain = journal.ask

    async def late(request: Request) -> Result | None:
        if isinstance(request, ReadHistory):
            lookback.zoom(1)
        return await plain(request)

    lookback._ask = late
    await lookback.load_window()
    assert lookback.window.span == SPANS[2]
    assert lookback.window.top("gen_tok_s") == pytest.approx(0.0)


async def test_samples_do_not_wait_for_marks() -> None:
    """An agent of another version does not know that question and says nothing."""
    journal = Journal()
    lookback = journal.lookback()
    plain, never = journal.ask, asyncio.Event()

    async def older(request: Request) -> Result | None:
        if isinstance(request, ReadMarks):
            await never.wait()
        return await plain(request)

    lookback._ask = older
    loading = asyncio.create_task(lookback.load())
    await asyncio.sleep(0.05)
    assert lookback.loaded
    assert lookback.window.top("gen_tok_s") == 7.0
    never.set()
    await loading
    assert lookback.events


async def test_the_whole_run_is_a_window_of_its_own() -> None:
    """It begins where the run began, keeps room for what comes, and is read anew once that is
    used up."""
    journal = Journal()
    journal.run = (journal.now - 10_000, None)
    lookback = journal.lookback()
    assert lookback.all()
    assert lookback.text == "the whole run, 2h46m"
    assert journal.now - lookback.window.span < journal.now - 10_000
    await lookback.load_window()
    assert lookback.loaded
    assert [e.kind for e in lookback.events] == ["server.failed"]
    assert not journal.live(lookback, 500)
    before = lookback.window
    assert journal.live(lookback, 1_000)
    assert lookback.window is not before
    assert lookback.window.span >= 11_500
    assert not lookback.events
    assert lookback.all()
    assert (lookback.whole, lookback.text) == (False, "15m")


def test_the_window_of_an_ended_run_is_that_run() -> None:
    """Not the time since."""
    journal = Journal()
    journal.run = (journal.now - 90_000, journal.now - 50_000)
    lookback = journal.lookback()
    assert lookback.all()
    assert (lookback.window.span, lookback.until) == (40_000, journal.now - 50_000)
    assert not journal.live(lookback, 100_000)
    assert lookback.follow()
    assert lookback.until is None


def test_zooming_goes_through_the_whole_run() -> None:
    """Between the next shorter and the next longer window, both ways."""
    journal = Journal()
    journal.run = (journal.now - 10_000, None)
    lookback = journal.lookback()
    seen = []
    while lookback.zoom(1):
        seen.append("run" if lookback.whole else lookback.window.span)
    assert seen == [SPANS[2], "run", *SPANS[3:]]
    seen = []
    while lookback.zoom(-1):
        seen.append("run" if lookback.whole else lookback.window.span)
    assert seen == [*reversed(SPANS[3:-1]), "run", *reversed(SPANS[:3])]
    assert lookback.window.span == SPANS[0]


def test_a_target_without_a_run_has_no_such_window() -> None:
    """Nothing changes."""
    lookback = Journal().lookback()
    assert not lookback.all()
    assert lookback.text == "15m"


def test_an_earlier_window_names_its_day() -> None:
    """Where that is not today."""
    journal = Journal()
    lookback = journal.lookback()
    while lookback.zoom(1):
        pass
    lookback.move(-1)
    assert lookback.text.startswith("30d to 12-")


async def test_a_young_run_is_shown_whole_until_it_fills_the_first_window() -> None:
    """Unless somebody chose another one."""
    journal = Journal()
    journal.run = (journal.now - 60, None)
    lookback = journal.lookback()
    await lookback.load()
    assert (lookback.whole, lookback.window.span) == (True, SPANS[0])
    assert journal.live(lookback, 300)
    assert (lookback.whole, lookback.window.span) == (True, 420)
    assert journal.live(lookback, 600)
    assert (lookback.whole, lookback.window.span) == (False, SPANS[1])
    journal.run = None
    early = journal.lookback()
    await early.load()
    assert not journal.live(early, 10)
    journal.run = (journal.now, None)
    assert journal.live(early, 10), "it began while it was looked at"
    assert early.whole
    assert not journal.live(early, 10)
    chosen = journal.lookback()
    journal.run = (journal.now - 60, None)
    assert chosen.zoom(1)
    await chosen.load()
    assert chosen.window.span == SPANS[2]
