"""Quotas: how many, and which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remote.prepare import manifest, mix
from tests.remote.prepare import synthetic
from tests.remote.prepare.conftest import Outcome, recipe_of, write_lines


@given(st.integers(0, 10_000), st.lists(st.floats(0.001, 1000), min_size=1, max_size=12))
def test_largest_remainder_gives_all_and_no_one_a_whole_too_much(
    total: int, shares: list[float]
) -> None:
    parts = mix.largest_remainder(total, shares)
    assert sum(parts) == total
    for part, share in zip(parts, shares, strict=True):
        assert abs(part - total * share / sum(shares)) < 1


def test_shares_divide_what_quotas_leave() -> None:
    recipe = recipe_of(
        {"name": "a", "path": "a", "quota": 100},
        {"name": "b", "path": "b", "share": 2},
        {"name": "c", "path": "c", "share": 1},
        {"name": "d", "path": "d"},
        mix={"total": 1000},
    )
    assert mix.quotas(recipe) == [100, 600, 300, None]


def test_tokens_are_filled_without_skipping() -> None:
    dtype = [("key", "<u8", (2,)), ("rank", "<u8"), ("tokens", "<u4"), ("expected", "<u4")]
    records = np.zeros(4, dtype=dtype)
    records["rank"] = [30, 10, 20, 40]
    records["tokens"] = [5, 100, 50, 1]
    alive = np.arange(4)
    for quota, expected in ((99, []), (100, [1]), (155, [1, 2, 0]), (10_000, [1, 2, 0, 3])):
        assert mix.choose(records, alive, quota, "prompt_tokens").tolist() == expected


def test_a_source_that_runs_dry_is_reported_and_not_replaced(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    write_lines(tmp_path / "few.jsonl", [{"prompt": f"What is tide {n}?"} for n in range(30)])
    synthetic.write(tmp_path / "many.jsonl", 600)
    outcome = run(
        recipe_of(
            {"name": "few", "path": "few.jsonl", "share": 1},
            {"name": "many", "path": "many.jsonl", "share": 1},
            mix={"total": 200},
        )
    )
    document = manifest.describe(outcome.built, tmp_path / "prompts.jsonl")
    few, many = document["sources"]
    assert (few["quota"], few["kept"], few["shortfall"]) == (100, 30, 70)
    assert (many["quota"], many["kept"], many["shortfall"]) == (100, 100, 0)
    assert any("70 short" in line for line in document["warnings"])


def test_planned_and_kept_are_counted_in_three_units(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    code = "Write a Python function that returns the {} of a list of harbours, with a test."
    write_lines(tmp_path / "c.jsonl", [{"prompt": code.format(f"rank{n}")} for n in range(60)])
    write_lines(tmp_path / "g.jsonl", [{"prompt": f"What is tide {n}?"} for n in range(60)])
    outcome = run(
        recipe_of(
            {"name": "code", "path": "c.jsonl", "quota": 40},
            {"name": "other", "path": "g.jsonl", "quota": 40, "domain": "general"},
            mix={"domains": {"code": 0.3, "general": 0.7}},
            expected_output={"code": 3000, "general": 1000},
        )
    )
    found = manifest.mix_of(outcome.built)
    assert found["total"]["prompts"] == 80
    assert found["domains"]["code"]["prompts"] == 40
    assert found["domains"]["code"]["output_tokens"] == 40 * 3000
    assert found["domains"]["general"]["output_tokens"] == 40 * 1000
    assert found["domains"]["code"]["prompt_tokens"] > found["domains"]["general"]["prompt_tokens"]
    # Half of the prompts and three quarters of what they cost: said before the run.
    assert "code is 75% of the expected output, and 30% was wished for" in manifest.warnings(
        outcome.built
    )
    reasons = outcome.built.sources[0].whys
    assert reasons == {"code: text: programming language": 60}
