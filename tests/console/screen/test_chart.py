"""Plots, drawn as the drawing process draws them."""

from __future__ import annotations

from typing import Any

import pytest

from console.model import State
from console.text import moment
from console.trend import Trend
from console.widgets import chart
from console.widgets.chart import THROUGHPUT, Chart, request
from console.widgets.marks import apart, mark_line, spread_parts
from console.widgets.plot_worker import draw
from remote.protocol import Epoch, Event, GpuState, History, ServerState
from tests.console.screen.driver import driven


@pytest.mark.parametrize(("width", "height"), [(30, 6), (73, 30), (110, 44)])
def test_a_plot_fills_the_room_it_was_given(width: int, height: int) -> None:
    """Also more than the 80×24 of a terminal that is not there."""
    trend = Trend(300, 60)
    times = [float(t) for t in range(1_000, 1_300, 5)]
    trend.load(History(times, {"gen_tok_s": [[600.0 + t % 50 for t in times]]}))
    rows = draw(request(THROUGHPUT, trend, 1_300.0, width, height, [1_100.0], None))
    assert len(rows) == height
    assert max(sum(len(text) for text, _ in row) for row in rows) == width


def marks(state: State, focus: int | None = None, width: int = 54) -> str:
    """The line over an axis of fifty cells that begins in the fifth, for a hundred seconds."""
    return "".join(text for text, _ in mark_line(state, 1_000.0, 1_100.0, 4, width, focus))


def test_epochs_and_events_stand_where_they_happened() -> None:
    """The gravest of what falls together; another GPU's not where one is chosen."""
    state = State(
        epochs=(Epoch(1, 900.0, {}), Epoch(2, 1_050.0, {}), Epoch(12, 1_099.9, {})),
        events=(
            Event(1, 1_010.0, "server.ready", "info", "", 0),
            Event(2, 1_020.0, "alert", "warning", "", None),
            Event(3, 1_020.5, "server.failed", "error", "", 3),
            Event(4, 1_021.0, "run.started", "info", "", None),
            Event(5, 1_030.0, "swap.step", "info", "", 1),
            Event(6, 1_051.0, "server.failed", "error", "", 1),
            Event(7, 2_000.0, "server.failed", "error", "", 1),
        ),
    )
    line = marks(state)
    assert len(line) == 54
    found = {place - 4: sign for place, sign in enumerate(line) if sign != " "}
    assert found == {5: "·", 10: "✖", 25: "e", 26: "2", 47: "e", 48: "1", 49: "2"}
    chosen = marks(state, focus=0)
    assert chosen[4 + 10] == "▲"
    assert marks(State()).strip() == ""
    assert marks(state, width=10) == ""


def test_the_ends_of_what_is_now_name_their_gpus() -> None:
    """And who stands apart is marked, in any number of GPUs."""
    servers = {
        g: ServerState(g, "ready", gen_tok_s=300.0 if g == 40 else 600 + g) for g in range(64)
    }
    state = State(servers=servers, gpus={g: GpuState(g, temperature_c=60) for g in range(64)})
    assert apart(state, "gen_tok_s") == {40}
    parts = spread_parts(state, "gen_tok_s", share=False)
    assert "".join(t for t, _ in parts) == "300 (40) … 663 (63)  middle 630"
    assert parts[0] == ("300", "bold warn")
    assert spread_parts(State(servers={0: servers[0]}), "gen_tok_s", share=False) == []


async def test_drawing_is_tried_again_and_a_frozen_picture_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After three failures in a row each minute; meanwhile the old picture is grey, with why."""
    monkeypatch.setattr(chart, "AGAIN_S", 3_600.0)
    async with driven() as one:
        shown = one.app.screen.query(Chart)
        await one.until(lambda: shown and all(c._rows for c in shown))
        plotter = one.app.plotter
        works = plotter._ask
        tries: list[object] = []

        async def broken(ask: dict[str, Any]) -> dict[str, Any]:
            tries.append(ask)
            raise OSError("the drawing process ended")

        monkeypatch.setattr(plotter, "_ask", broken)
        for _ in range(chart.PATIENCE):
            await plotter.draw({})
        await one.sees("plots: the drawing process ended")
        first = shown.first()
        styles = {style for line in first._lines[2:] for text, style in line if "⠀" < text <= "⣿"}
        assert styles <= {"dim"}
        tried = len(tries)
        assert await plotter.draw({}) is None
        assert len(tries) == tried
        monkeypatch.setattr(plotter, "_ask", works)
        monkeypatch.setattr(chart, "AGAIN_S", 0.0)
        await one.until(lambda: not plotter.problem)
        await one.until(lambda: "plots:" not in one.screen())


def test_an_earlier_window_has_its_own_times_on_the_axis() -> None:
    """Not those of one that ends now: ``15d ago`` would be wrong by half a month."""
    trend = Trend(30 * 86_400, 60)
    day = 86_400.0
    follows = request(THROUGHPUT, trend, 400 * day, 110, 20, [], None)
    assert follows["x"][1][0] == "30d00h ago"
    assert follows["x"][1][-1] == "now"
    earlier = request(THROUGHPUT, trend, 385 * day, 110, 20, [], None, now=400 * day)
    assert earlier["x"][1] == [moment(at * day, 400 * day) for at in (355, 362.5, 370, 377.5, 385)]
    near = request(
        THROUGHPUT, Trend(900, 60), 400 * day + 60, 110, 20, [], None, now=400 * day + 99
    )
    assert near["x"][1][-1] == moment(400 * day + 60, 400 * day + 99)


def test_marks_of_the_past_stand_beside_those_that_are_held() -> None:
    """Each once, the gravest in front."""
    state = State(events=(Event(9, 1_050.0, "server.ready", "info", "", 0),))
    past = [
        Event(2, 1_020.0, "server.failed", "error", "", 3),
        Event(9, 1_050.0, "server.ready", "info", "", 0),
    ]
    line = "".join(t for t, _ in mark_line(state, 1_000.0, 1_100.0, 4, 54, None, past))
    assert {place - 4: sign for place, sign in enumerate(line) if sign != " "} == {10: "✖", 25: "·"}
