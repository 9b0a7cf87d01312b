"""Epochs and events as marks on a time axis, and who stands apart now."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from console import model, reckon
from console.text import number, percent
from console.widgets.paint import Line, Part, gpu_style
from remote.marks import BAD, NONE, PLAIN, WARN, weight
from remote.protocol import Event

_SIGNS = {BAD: ("✖", "bold bad"), WARN: ("▲", "warn"), PLAIN: ("·", "dim")}
_EPOCH = BAD + 1


def mark_line(
    state: model.State,
    start: float,
    until: float,
    left: int,
    width: int,
    focus: int | None,
    past: Sequence[Event] = (),
) -> Line:
    """One line of ``width`` cells over an axis that begins after ``left``: what happened when.

    ``e3`` stands where epoch 3 began. Of events in one cell the gravest is shown; with a GPU
    chosen, those of other GPUs are not. ``past``: events that the state does not hold any more.
    """
    room = width - left
    cells: list[tuple[int, str, str]] = [(0, " ", "text")] * max(0, room)
    if room < 8 or until <= start:
        return []

    def at(time: float) -> int | None:
        share = (time - start) / (until - start)
        return min(room - 1, int(share * room)) if 0 <= share <= 1 else None

    for event in (*past, *state.events):
        if focus is not None and event.gpu not in (None, focus):
            continue
        place, heavy = at(event.time), weight(event)
        if place is not None and heavy != NONE and heavy >= cells[place][0]:
            cells[place] = (heavy, *_SIGNS[heavy])
    for epoch in state.epochs:
        place = at(epoch.since)
        if place is None:
            continue
        label = f"e{epoch.id}"
        place = min(place, room - len(label))
        for offset, char in enumerate(label):
            cells[place + offset] = (_EPOCH, char, "bold accent")
    parts: list[Part] = [(" " * left, "text")]
    for _, char, style in cells:
        if parts[-1][1] == style:
            parts[-1] = (parts[-1][0] + char, style)
        else:
            parts.append((char, style))
    return parts


def now_of(state: model.State, metric: str) -> dict[int, float]:
    """The newest value of a series of every GPU that tells one."""
    found: dict[int, float] = {}
    for gpu in state.numbers:
        server, card = state.servers.get(gpu), state.gpus.get(gpu)
        for source in (server if server is not None and server.state == "ready" else None, card):
            value = getattr(source, metric, None)
            if isinstance(value, int | float):
                found[gpu] = float(value)
    return found


def apart(state: model.State, metric: str) -> set[int]:
    """GPUs that stand out in a series."""
    return {odd.gpu for odd in reckon.outliers(state) if odd.metric == metric}


def spread_parts(state: model.State, metric: str, *, share: bool) -> list[Part]:
    """``643–674, middle 660``, each end with its GPU; one that stands out is marked."""
    values = now_of(state, metric)
    if len(values) < 2:
        return []
    odd = apart(state, metric)

    def one(gpu: int) -> list[Part]:
        text = percent(values[gpu]) if share else number(values[gpu])
        tone = "bold warn" if gpu in odd else "text"
        return [(text, tone), (f" ({gpu})", tone if gpu in odd else gpu_style(gpu))]

    low = min(values, key=lambda g: values[g])
    high = max(values, key=lambda g: values[g])
    middle = median(values.values())
    said = percent(middle) if share else number(middle)
    return [*one(low), (" … ", "dim"), *one(high), (f"  middle {said}", "dim")]
