"""Plots, drawn as the drawing process draws them."""

from __future__ import annotations

import pytest

from console.trend import Trend
from console.widgets.chart import THROUGHPUT, request
from console.widgets.plot_worker import draw
from remote.protocol import History


@pytest.mark.parametrize(("width", "height"), [(30, 6), (73, 30), (110, 44)])
def test_a_plot_fills_the_room_it_was_given(width: int, height: int) -> None:
    """Also more than the 80×24 of a terminal that is not there."""
    trend = Trend(300, 60)
    times = [float(t) for t in range(1_000, 1_300, 5)]
    trend.load(History(times, {"gen_tok_s": [[600.0 + t % 50 for t in times]]}))
    rows = draw(request(THROUGHPUT, trend, 1_300.0, width, height, [1_100.0], None))
    assert len(rows) == height
    assert max(sum(len(text) for text, _ in row) for row in rows) == width
