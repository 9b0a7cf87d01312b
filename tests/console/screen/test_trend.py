"""What the charts are drawn from: samples in buckets, and round scales."""

from __future__ import annotations

from dataclasses import replace

import pytest

from console.model import State
from console.trend import Trend, nice_top, shrink, steps_of
from remote.protocol import (
    GpuState,
    History,
    ServerState,
)


def test_a_trend_is_the_same_watched_or_loaded() -> None:
    """History and live samples land in the same buckets; a hole stays a hole."""
    trend = Trend(100, 10)
    trend.load(
        History([1000, 1010, 1020], {"gen_tok_s": [[1.0, None, 3.0]], "unknown": [[1.0, 1.0, 1.0]]})
    )
    state = State(
        time=1035, servers={0: ServerState(0, "ready", gen_tok_s=5.0), 1: ServerState(1, "stopped")}
    )
    trend.add(state)
    assert trend.column("gen_tok_s", 0, 1035, 4) == [1.0, None, 3.0, 5.0]
    assert trend.gpus("gen_tok_s") == [0]
    trend.add(replace(state, time=1036, servers={0: ServerState(0, "ready", gen_tok_s=7.0)}))
    assert trend.column("gen_tok_s", 0, 1036, 1) == [6.0]
    assert trend.top("gen_tok_s") == 6.0


def test_a_trend_is_bounded() -> None:
    """A day of seconds takes no more room than its points."""
    trend = Trend(100, 10)
    for second in range(5_000):
        trend.add(State(time=float(second), gpus={0: GpuState(0, power_w=1.0)}))
    assert len(trend._sums["power_w"][0]) <= 12


@pytest.mark.parametrize(("step", "span"), [(10.0, 300.0), (60.0, 900.0), (2.5, 300.0)])
def test_coarse_samples_leave_no_holes(step: float, span: float) -> None:
    """Ten seconds' means in buckets of two: each fills the time that it stands for."""
    trend = Trend(span, 150)
    times = [1_000.0 + n * step for n in range(int(span / step))]
    trend.load(History(times, {"gen_tok_s": [[5.0] * len(times)]}))
    held = trend.column("gen_tok_s", 0, 1_000.0 + span - 0.01)
    assert None not in held[1:]
    gone = [None if 3 <= n < 6 else 5.0 for n in range(len(times))]
    trend.clear()
    trend.load(History(times, {"gen_tok_s": [gone]}))
    assert None in trend.column("gen_tok_s", 0, 1_000.0 + span - 0.01)[1:]


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (640, 800), (1043, 1500), (37, 50), (0.61, 0.8), (100, 100)]
)
def test_scales_are_round(value: float, top: float) -> None:
    """And never below the value."""
    assert nice_top(value) == pytest.approx(top)
    assert (nice_top(value) / steps_of(nice_top(value))) > 0


def test_shrinking_keeps_means_and_holes() -> None:
    """No more values than can be drawn."""
    assert shrink([1.0, 3.0, None, None], 2) == [2.0, None]
    assert shrink([1.0], 5) == [1.0]
