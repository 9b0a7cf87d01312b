"""Samples as values: what is unknown stays unknown, averages are right, retention is bounded."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from remote import samples
from remote.protocol import SERIES, GpuState, ServerState
from remote.samples import KEEP, Sample

WHEN = 1_800_000_000


def one(time: int, value: float | None, gpus: int = 1) -> Sample:
    servers = [ServerState(gpu=g, gen_tok_s=value) for g in range(gpus)]
    return samples.sample(time, servers, [], gpus)


def test_packing_keeps_numbers_and_gaps() -> None:
    servers = [ServerState(gpu=1, gen_tok_s=680.5, running=37, kv_usage=0.2)]
    cards = [GpuState(gpu=0, temperature_c=61.0)]
    made = samples.sample(WHEN + 0.7, servers, cards, 2)
    back = Sample.unpack(made.time, made.gpus, made.pack())
    history = samples.columns([back], WHEN, WHEN + 1, 1, 1)
    assert history.series["gen_tok_s"] == [[None], [680.5]]
    assert history.series["running"] == [[None], [37.0]]
    assert history.series["temperature_c"] == [[61.0], [None]]


def test_a_row_of_fewer_series_is_filled_with_unknowns() -> None:
    made = one(WHEN, 5.0, gpus=2)
    old = made.pack()[: 4 * 2 * 3]  # three series only
    back = Sample.unpack(WHEN, 2, old)
    assert len(back.data) == len(SERIES) * 2
    assert math.isnan(back.data[-1])
    assert back.data[0] == 5.0


def test_fold_averages_whole_windows_only() -> None:
    start = WHEN - WHEN % 10
    rows = [one(start + i, float(i)) for i in range(25)]
    folded = samples.fold(rows, 10, after=start - 10, before=start + 25)
    assert [s.time for s in folded] == [start, start + 10]
    assert [s.data[0] for s in folded] == [4.5, 14.5]
    assert samples.fold(rows, 10, after=start, before=start + 25)[0].time == start + 10


def test_gaps_stay_gaps() -> None:
    rows = [one(WHEN + i, 1.0) for i in (*range(10), *range(20, 30))]
    history = samples.columns(rows, WHEN, WHEN + 30, 3, 1)
    assert history.series["gen_tok_s"][0] == [1.0, None, 1.0]
    assert len(history.times) == 3


def test_the_coarsest_samples_that_are_fine_enough_are_read() -> None:
    now = float(WHEN)
    assert samples.level(now - 600, now, now, 300) == 1
    assert samples.level(now - 7200, now, now, 300) == 10
    assert samples.level(now - 86400, now, now, 300) == 60
    assert samples.level(now - 86400, now - 86000, now, 300) == 10, "seconds are gone by then"
    assert samples.level(now - 30 * 86400, now - 30 * 86400 + 60, now, 300) == 60


@given(
    points=st.integers(1, 500),
    span=st.floats(0.5, 1e6),
    times=st.lists(st.integers(0, 1_000_000), max_size=40),
)
def test_columns_never_exceed_what_was_asked(points: int, span: float, times: list[int]) -> None:
    rows = [one(WHEN + t, 2.0) for t in sorted(set(times))]
    history = samples.columns(rows, WHEN, WHEN + span, points, 1)
    assert 1 <= len(history.times) <= points
    for columns in history.series.values():
        assert all(len(values) == len(history.times) for values in columns)
        assert all(v is None or v == 2.0 for values in columns for v in values)


def test_upkeep_drops_what_is_old_and_more_when_it_takes_too_much() -> None:
    newest = {1: WHEN, 10: WHEN - 10, 60: WHEN - 60}
    oldest = {1: WHEN - 9000, 10: WHEN - 90000, 60: WHEN - 40 * 86400}
    plan = samples.upkeep(WHEN, newest, oldest, 1000)
    assert plan.folds == ((1, 10, WHEN - 10), (10, 60, WHEN - 60))
    assert dict(plan.drops) == {step: WHEN - keep for step, keep in KEEP.items()}
    fuller = samples.upkeep(WHEN, newest, oldest, samples.MAX_BYTES + 1)
    assert dict(fuller.drops)[60] == oldest[60] + 4 * 86400
    assert dict(fuller.drops)[1] == dict(plan.drops)[1]
