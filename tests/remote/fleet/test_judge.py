"""The canary's judgement: right for what is so, and not rash."""

from __future__ import annotations

import random

import pytest

from remote.fleet.judge import judge


def series(mean: float, seconds: int, seed: int, noise: float = 0.05) -> list[float]:
    """A server's tokens a second: slow waves and noise, as real ones have."""
    rng = random.Random(seed)
    level, out = 0.0, []
    for _ in range(seconds):
        level = 0.8 * level + rng.gauss(0, noise * 0.6)
        out.append(mean * (1 + level))
    return out


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.8, "better"), (1.15, "better"), (0.8, "worse"), (0.4, "worse")]
)
def test_clear_cases(factor: float, verdict: str) -> None:
    others = {gpu: series(660, 120, gpu) for gpu in range(1, 8)}
    found = judge(series(660 * factor, 120, 99), others)
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(factor, rel=0.06)
    assert verdict in found.text


def test_equals_are_seldom_called_different() -> None:
    wrong = 0
    for seed in range(60):
        others = {gpu: series(660, 120, 1000 * seed + gpu) for gpu in range(1, 8)}
        wrong += judge(series(660, 120, seed), others).verdict in ("better", "worse")
    assert wrong <= 6


def test_too_early() -> None:
    others = {1: series(660, 120, 1), 2: series(660, 120, 2)}
    assert judge(series(1200, 50, 3), others).verdict == "too early"
    assert judge([], {}).verdict == "too early"
    assert judge(series(100, 120, 3), others).verdict == "too early"
    wild = series(660, 60, 5, noise=0.9)
    assert judge(wild, others).verdict == "too early"


def test_alone() -> None:
    mine = series(1200, 120, 1)
    assert judge(mine, {}, base=650).verdict == "better"
    assert judge(mine, {}, base=1500).verdict == "worse"
    assert judge(mine, {}).verdict == "too early"
    assert judge(mine, {1: [0.0] * 120}).verdict == "too early"
