"""Gauges and counters by themselves: when they move, and when they stand still."""

from __future__ import annotations

import re

import pytest

from console.lab.sim import capacity, config, flags
from console.lab.sim.engine import Engine
from console.lab.sim.metrics import STALE_S, Histogram, Metrics
from console.lab.sim.settings import Version
from console.lab.sim.work import Decode, Limits, Line, Prefill, Work


def busy(version: Version) -> tuple[Engine, Metrics]:
    """An engine with one short request under way, and its metrics."""
    args = flags.parse(["--model-path", "m", "--enable-metrics"], version)
    resolved = config.resolve(args, version, 97_887)
    pools = capacity.size(resolved.sizing)
    engine = Engine(Limits(pools.max_running, pools.tokens, pools.slots, 5, extra_buffer=True))
    metrics = Metrics(resolved, engine, {})

    def tick(line: Line) -> None:
        if isinstance(line, Prefill | Decode):
            metrics.tick(line)

    engine.emit = tick
    engine.submit(Work("r", 1000, 100, 100), 0.0)
    engine.advance(4.0)
    return engine, metrics


def value(metrics: Metrics, name: str) -> float:
    found = re.search(rf"^sglang:{name}\{{[^}}]*\}} (\S+)$", metrics.text(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
def test_idle_gauges_stand_still_for_half_a_minute_in_the_old_release(version: Version) -> None:
    engine, metrics = busy(version)
    metrics.idle(4.0)
    assert value(metrics, "num_running_reqs") == 1
    engine.advance(20.0)
    assert not engine.running
    metrics.idle(21.0)
    metrics.idle(21.5)
    stale = version == "0.5.12"
    assert value(metrics, "num_running_reqs") == (1 if stale else 0)
    metrics.idle(22.0 + STALE_S)
    assert value(metrics, "num_running_reqs") == 0
    assert value(metrics, "gen_throughput") == 0


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
def test_the_hit_rate_is_zeroed_by_every_decode_line_in_the_old_release(version: Version) -> None:
    engine, metrics = busy(version)
    prefill = Prefill(0, 1, 250, 750, 1000, 4, 0, 0, 0, False, 0.0)
    metrics.tick(prefill)
    assert value(metrics, "cache_hit_rate") == 0.75
    metrics.tick(Decode(1, 1, 1000, 4, True, 20.0, 0))
    assert value(metrics, "cache_hit_rate") == (0 if version == "0.5.12" else 0.75)
    assert engine.totals.decode_tokens > 0


def test_the_decode_counter_grows_with_every_step() -> None:
    engine, metrics = busy("0.5.12")
    pattern = r'sglang:realtime_tokens_total\{[^}]*mode="decode"[^}]*\} (\S+)'

    def tokens() -> float:
        return float(re.findall(pattern, metrics.text())[0])

    before = tokens()
    engine.advance(4.0 + 3 * engine.step_s(1))
    assert tokens() == before + 3


def test_token_usage_is_the_larger_of_both_pools() -> None:
    _, metrics = busy("0.5.12")
    mamba, kv = value(metrics, "mamba_usage"), value(metrics, "full_token_usage")
    assert mamba > kv
    assert value(metrics, "token_usage") == pytest.approx(mamba, abs=0.006)


def test_a_histogram_counts_what_is_at_most_its_bound() -> None:
    histogram = Histogram((1, 5))
    for seen in (0.5, 1, 3, 7):
        histogram.observe(seen)
    lines = list(histogram.lines("h", {"a": 'b"c'}))
    assert lines == [
        'h_sum{a="b\\"c"} 11.5',
        'h_bucket{a="b\\"c",le="1.0"} 2.0',
        'h_bucket{a="b\\"c",le="5.0"} 3.0',
        'h_bucket{a="b\\"c",le="+Inf"} 4.0',
        'h_count{a="b\\"c"} 4.0',
    ]
