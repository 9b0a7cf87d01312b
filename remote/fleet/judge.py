"""Is a server with other flags better? Its throughput against its neighbours', with the spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["better", "worse", "same", "too early"]

BLOCK = 5
"""Samples (seconds) that are averaged before spread is measured: neighbours in time are alike."""

LEAST_BLOCKS = 12
LEAST_TOKENS = 20_000.0
"""Below so much of either nothing is said."""

MATTERS = 0.03
"""A difference smaller than this share is none, however sure it is."""

SURE = 2.0
"""Standard errors that a difference must be away from none."""


@dataclass(frozen=True)
class Judgement:
    """What the numbers say so far."""

    verdict: Verdict
    ratio: float | None = None
    """The canary's throughput over the mean of the others."""
    text: str = ""


def _blocks(samples: Sequence[float]) -> list[float]:
    return [
        statistics.fmean(samples[n : n + BLOCK]) for n in range(0, len(samples) - BLOCK + 1, BLOCK)
    ]


def _error(values: Sequence[float]) -> float:
    """Standard error of their mean, as a share of it."""
    if len(values) < 2:
        return math.inf
    mean = statistics.fmean(values)
    return statistics.stdev(values) / math.sqrt(len(values)) / mean if mean else math.inf


def judge(
    canary: Sequence[float],
    others: Mapping[int, Sequence[float]],
    *,
    base: float | None = None,
) -> Judgement:
    """Compare tokens a second, one sample a second, of the same seconds.

    Only seconds in which a server was as busy as it is meant to be belong into the samples.
    ``base`` stands in where there are no others: the mean that the old flags gave.
    """
    mine = _blocks(canary)
    theirs = {gpu: blocks for gpu, s in others.items() if len(blocks := _blocks(s)) > 1}
    tokens = sum(canary)
    if len(mine) < LEAST_BLOCKS or tokens < LEAST_TOKENS:
        return Judgement(
            "too early",
            text=f"too early: {len(canary)} s and {tokens:,.0f} tokens under load so far",
        )
    if theirs:
        means = [statistics.fmean(blocks) for blocks in theirs.values()]
        reference = statistics.fmean(means)
        within = math.sqrt(sum(_error(b) ** 2 for b in theirs.values())) / len(theirs)
        between = _error(means) if len(means) > 1 else 0.0
        error = math.hypot(_error(mine), max(within, between))
        against = f"{len(theirs)} other{'s' if len(theirs) > 1 else ''}"
    elif base:
        reference, error, against = base, _error(mine), "the old flags before"
    else:
        return Judgement("too early", text="nothing to compare with: no other server is busy")
    if not reference:
        return Judgement("too early", text="nothing to compare with: the others make no tokens")
    ratio = statistics.fmean(mine) / reference
    spread = ratio * error
    margin = max(MATTERS, SURE * spread)
    verdict: Verdict = "same"
    if ratio > 1 + margin:
        verdict = "better"
    elif ratio < 1 - margin:
        verdict = "worse"
    elif SURE * spread > 2 * MATTERS:
        verdict = "too early"
    text = (
        f"{verdict}: {statistics.fmean(mine):,.0f} against {reference:,.0f} tok/s of {against}, "
        f"{ratio:.2f} ± {SURE * spread:.2f} times, {len(canary)} s"
    )
    return Judgement(verdict, ratio, text)
