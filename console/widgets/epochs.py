"""An epoch as a row of a table: what it gave, and what was changed for it."""

from __future__ import annotations

from typing import Final

from console import model
from console.text import gpu_time, moment, number, percent, visible
from console.widgets.paint import Line, Part, clip, pad
from remote.protocol import Epoch

_HEAD: Final = (
    ("epoch", 6),
    ("since", 12),
    ("tok/s/GPU", 11),
    ("slots", 7),
    ("mamba", 7),
    ("kv", 6),
    ("measured", 12),
)

MEASURED_FROM: Final = 90
"""Cells from which on it is told for how long an epoch was measured."""


def head_line(width: int) -> Line:
    """The names of the columns."""
    shown = _HEAD if width >= MEASURED_FROM else _HEAD[:-1]
    head: list[Part] = [(pad(word, wide, ">"), "dim") for word, wide in shown]
    return clip([*head, ("  what was changed", "dim")], width)


def epoch_line(state: model.State, epoch: Epoch, chosen: bool, now: float, width: int) -> Line:
    """One epoch: what it gave, and what was changed for it."""
    best = model.winner(state.epochs)
    ids = [e.id for e in state.epochs]
    index = ids.index(epoch.id)
    changes = model.flag_changes(state.epochs[index - 1].flags, epoch.flags) if index else []
    now_runs = model.current_epoch(state)
    current = now_runs is not None and now_runs.id == epoch.id
    star = best is not None and best.id == epoch.id
    line: list[Part] = [
        ("▸" if chosen else " ", "bold accent"),
        (pad(f"{epoch.id}", 5, ">"), "bold strong" if current else "text"),
        (pad(moment(epoch.since, now), 12, ">"), "text"),
        (pad(number(epoch.tok_s_per_gpu), 11, ">"), "bold good" if star else "text"),
        (pad(number(epoch.max_running), 7, ">"), "text"),
        (pad(percent(epoch.mamba_usage), 7, ">"), "text"),
        (pad(percent(epoch.kv_usage), 6, ">"), "text"),
    ]
    if width >= MEASURED_FROM:
        line.append((pad(gpu_time(epoch.seconds or None), 12, ">"), "dim"))
    line.append(("  ", "text"))
    if star:
        line.append(("best  ", "bold good"))
    elif model.barely_measured(epoch) and len(state.epochs) > 1:
        line.append(("measured too briefly to compare  ", "dim"))
    if current:
        line.append(("runs now  ", "accent"))
    words = "; ".join(c.text for c in changes) if changes else (epoch.why or "first flags")
    line.append((visible(words), "text"))
    line.append((f"  {visible(epoch.who)}" if epoch.who else "", "dim"))
    return clip(line, width)
