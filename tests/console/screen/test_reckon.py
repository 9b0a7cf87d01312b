"""What follows from a state: sums, ends, who is the odd one out, and what a step costs."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from console import model, reckon
from console.model import Link, State, reduce
from remote.protocol import (
    Progress,
    RunState,
)
from tests.console.screen.told import NOW, told


def test_fleet_sums() -> None:
    """Over servers that told a value; what nobody told is unknown, not 0."""
    story, state = told()
    sums = reckon.fleet(state)
    assert (sums.servers, sums.ready) == (8, 8)
    assert sums.max_running == 8 * 37
    assert sums.gen_tok_s == pytest.approx(sum(story.tok_s(s) for s in story.servers))
    empty = reckon.fleet(State())
    assert empty.gen_tok_s is None
    assert empty.power_w is None


def test_the_odd_one_out_is_named() -> None:
    """A slow server and a hot card; none when all are alike."""
    story, state = told()
    assert reckon.outliers(state) == []
    story.servers[5].speed = 0.5
    story.servers[2].heat = 30
    odd = reckon.outliers(reduce(state, story.snapshot(), NOW))
    assert {(o.gpu, o.metric) for o in odd} == {(5, "gen_tok_s"), (2, "temperature_c")}
    assert "GPU 5 is" in odd[0].text


def test_a_server_that_came_back_just_now_is_no_outlier() -> None:
    """It fills its slots first; what is slow after that is slow."""
    story, state = told()
    story.servers[5].speed = 0.5
    state = reduce(state, story.snapshot(), NOW)

    def odd(seconds: float) -> list[int]:
        servers = dict(state.servers)
        since = state.time - seconds
        servers[5] = msgspec.structs.replace(servers[5], steady_since=since)
        found = reckon.outliers(replace(state, servers=servers))
        return [o.gpu for o in found if o.metric == "gen_tok_s"]

    assert odd(2) == []
    assert odd(29) == []
    assert odd(31) == [5]


def slow_fifth(**progress: object) -> list[int]:
    """The outliers by throughput where one of eight is at half speed and the run is like that."""
    story, state = told()
    story.servers[5].speed = 0.5
    state = reduce(state, story.snapshot(), NOW)
    assert state.progress is not None
    told_so = msgspec.structs.replace(state.progress, **progress)
    run = msgspec.structs.replace(state.run, progress=told_so)
    found = reckon.outliers(replace(state, run=run))
    return [o.gpu for o in found if o.metric == "gen_tok_s"]


def test_no_outliers_where_the_run_does_not_fill_the_slots() -> None:
    """It leaves, pauses, or has hardly anything left: what each server still has is chance."""
    assert slow_fifth() == [5]
    assert slow_fifth(status="draining") == []
    assert slow_fifth(status="paused") == []
    assert slow_fifth(remaining=40) == []


def test_a_server_that_tries_a_suspect_alone_is_no_outlier() -> None:
    story, state = told()
    story.servers[5].speed = 0.5
    state = reduce(state, story.snapshot(), NOW)
    servers = dict(state.servers)
    servers[5] = msgspec.structs.replace(servers[5], alone=True)
    assert [o.gpu for o in reckon.outliers(replace(state, servers=servers))] == []


def test_eta_has_a_range_from_independent_rates() -> None:
    """Prompts a second and tokens a second bound it."""
    progress = Progress(
        total=1000, completed=100, rate_per_sec=0.1, eta_hours=2.5, remaining=900,
        tok_s=200.0, avg_output_tokens=1000.0, elapsed_hours=0.2,
    )  # fmt: skip
    state = State(run=RunState(alive=True, progress=progress))
    found = reckon.eta(state)
    assert found.hours == 2.5
    assert found.low == pytest.approx(900 * 1000 / 200 / 3600)
    assert found.high == pytest.approx(2.5)
    assert found.at == 9000
    assert reckon.eta(State()).hours is None


def test_overall_rate_counts_all_sessions() -> None:
    """Resumed work over all elapsed time."""
    assert reckon.overall_rate(Progress(completed=7200, elapsed_hours=2)) == pytest.approx(1.0)
    assert reckon.overall_rate(Progress(completed=7200)) is None


def test_what_is_old_stands_still() -> None:
    """Three hours without a word: the end does not move, and no start goes on."""
    story, state = told()
    first = reckon.eta(state).at
    assert first is not None
    lost = reduce(state, Link("reconnecting", "no answer"), NOW + 10_800)
    assert reckon.eta(lost).at == first
    assert model.told_now(lost, NOW + 3) == pytest.approx(story.now + 3)
    assert model.told_now(lost, NOW + 10_800) == pytest.approx(story.now + model.STALE_S)
    assert model.told_at(lost) == NOW


def test_the_end_of_a_recording_is_on_its_own_clock() -> None:
    """Not counted from when somebody looks at it."""
    _, state = told()
    hours = reckon.eta(state).hours
    assert hours is not None
    played = replace(state, link=Link("replay"), received=NOW + 90_000)
    assert reckon.eta(played).at == pytest.approx(state.time + hours * 3600)


def test_the_cost_of_a_restart_is_said() -> None:
    """What is in flight, what pauses, what stays."""
    _, state = told()
    text = reckon.swap_cost(state, range(8))
    assert "in flight" in text
    assert "finished prompts stay" in text
    assert reckon.swap_cost(State(), [0]) == "nothing is in flight"


def test_what_ending_the_run_costs_is_said() -> None:
    """What is in flight, who idles, what is left."""
    _, state = told()
    text = reckon.stop_cost(state)
    assert "requests in flight end first" in text
    assert "then 8 servers idle" in text
    assert "183,139 prompts are left" in text
    assert reckon.stop_cost(State()) == "no run is generating"
