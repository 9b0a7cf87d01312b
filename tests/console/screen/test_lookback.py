"""Windows over the past: followed, zoomed, moved, and loaded from the other side."""

from __future__ import annotations

import pytest

from console.lookback import RECENT_S, SPANS, Lookback
from console.model import State
from remote.protocol import History, ReadHistory, Request, Result, ServerState


class Journal:
    """Answers with one sample in the middle of what is asked for."""

    def __init__(self) -> None:
        self.now = 100_000.0
        self.asked: list[ReadHistory] = []

    async def ask(self, request: Request) -> Result | None:
        """See :class:`Lookback`."""
        assert isinstance(request, ReadHistory)
        self.asked.append(request)
        middle = (request.since + (request.until or self.now)) / 2
        return History([middle], {"gen_tok_s": [[7.0]]})

    def lookback(self) -> Lookback:
        """One on this journal's clock."""
        return Lookback(self.ask, lambda: self.now)

    def live(self, lookback: Lookback, seconds: float) -> None:
        """A snapshot after so long."""
        self.now += seconds
        servers = {0: ServerState(0, "ready", gen_tok_s=5.0)}
        lookback.add(State(time=self.now, servers=servers))


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
        lookback.zoom(1)
        return await plain(request)

    lookback._ask = late
    await lookback.load_window()
    assert lookback.window.span == SPANS[2]
    assert lookback.window.top("gen_tok_s") == pytest.approx(0.0)
