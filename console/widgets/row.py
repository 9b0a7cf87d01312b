"""One GPU in a line of a table, or in one short text."""

from __future__ import annotations

from math import ceil

from console.text import UNKNOWN, number, percent, short, visible
from console.widgets.gpu import (
    CHOSEN,
    View,
    again,
    alone_in_words,
    memory_text,
    past_rows,
    phase_parts,
    seen_as,
    sign_of,
    slots_text,
    use_tone,
)
from console.widgets.paint import Line, Part, cut, gpu_style, pad, spread, width_of

ROW_MIN, ROW_LEAST = 26, 16
"""Cells of a row that tells throughput and cache, and of one with nothing but slots: where there
is no room for all GPUs otherwise, seeing each one comes first."""

_Column = tuple[str, int, int]
"""Heading, width, rank: columns of a low rank are left out first."""

ROW_COLUMNS: tuple[_Column, ...] = (
    ("gpu", 3, 99),
    ("state", 10, 90),
    ("run/max", 7, 98),
    ("tok/s", 6, 97),
    ("", 8, 40),
    ("queue", 5, 70),
    ("kv", 4, 80),
    ("mamba", 5, 85),
    ("retr", 5, 15),
    ("°C", 3, 75),
    ("W", 4, 50),
    ("limit", 5, 10),
    ("busy", 4, 20),
    ("memory", 7, 45),
    ("epoch", 5, 30),
)


_OF_TOKENS = ("state", "run/max", "tok/s", "", "queue", "kv", "mamba")
"""Columns side by side that say nothing of a server before it is up: its phase stands there."""


def row_columns(width: int) -> list[_Column]:
    """The columns that fit ``width``, in their order."""
    kept = set()
    used = 0
    for column in sorted(ROW_COLUMNS, key=lambda c: -c[2]):
        need = column[1] + 1
        if used + need <= width:
            kept.add(column)
            used += need
    spare = min(40, max(0, width - used))
    return [(h, w + (spare if h == "" else 0), r) for h, w, r in ROW_COLUMNS if (h, w, r) in kept]


def row_line(view: View, columns: list[_Column], width: int) -> list[Part]:
    """One GPU in one line of exactly ``width`` cells."""
    server, card, info = view.server, view.card, view.info
    sign, tone, label = sign_of(view)
    text = "dim" if view.faded else "text"
    if label == "draining" and server.phase:
        label = visible(server.phase).removeprefix("draining: ").replace(" in flight", " left")
    if label == "ready":
        label += again(server)
    past = next((wide for heading, wide, _ in columns if heading == ""), 0)
    number_of = f"{CHOSEN}{view.gpu:>2}" if view.focused else f"{view.gpu:>3}"
    colour = "reverse warn" if view.odd else f"bold {gpu_style(view.gpu)}"
    cells: dict[str, Part] = {
        "gpu": (number_of, colour),
        "state": (f"{sign} {label}", tone),
        "run/max": (slots_text(view), "dim" if view.faded else "bold strong"),
        "tok/s": (number(server.gen_tok_s), "bold warn" if "gen_tok_s" in view.odd else text),
        "": (past_rows(view, past)[0], "dim" if view.faded else gpu_style(view.gpu)),
        "queue": (number(server.queued), text),
        "kv": (percent(server.kv_usage), use_tone(view, server.kv_usage)),
        "mamba": (
            percent(server.mamba_usage),
            use_tone(view, server.mamba_usage),
        ),
        "°C": (
            number(card.temperature_c if card else None),
            "bold warn" if "temperature_c" in view.odd else text,
        ),
        "W": (number(card.power_w if card else None), text),
        "limit": (number(card.power_limit_w if card else None), "dim"),
        "busy": (percent(card.utilization if card else None), text),
        "retr": (number(server.retractions), "warn" if server.retractions else text),
        "memory": (memory_text(card), text),
        "epoch": (UNKNOWN if info is None or info.epoch is None else f"{info.epoch}", text),
    }
    phase: Line = []
    if server.state in ("starting", "warming"):
        doing, since = phase_parts(view)
        phase = [(f"{sign} ", tone), doing, ("  ", "text"), since]
    elif view.suspects:
        phase = [(f"{sign} ", tone), (alone_in_words(view, 30), "dim" if view.faded else "warn")]
    line: list[Part] = []
    spare = 0
    for heading, wide, _ in columns:
        if phase and heading in _OF_TOKENS:
            spare += wide + 1
            continue
        if spare:
            line += [*spread(phase, [], spare - 1), (" ", "text")]
            spare = 0
        value, style = cells[heading]
        line.append((pad(value, wide, "<" if heading in ("state", "") else ">"), style))
        line.append((" ", "text"))
    if spare:
        line += spread(phase, [], spare)
    if server.cause and server.state in ("failed", "stalled"):
        keep = [*line[: 4 if width >= ROW_MIN else 2]]
        cause = server.cause if width >= ROW_MIN else f"{sign} {server.state}"
        line = [*keep, (cut(cause, max(4, width - width_of(keep) - 1)), "bad")]
    line = spread(line, [], width)
    if view.focused:
        line = [(value, f"{style} on-panel bold") for value, style in line]
    return line


def brief_part(view: View, width: int) -> list[Part]:
    """``0● 37/37 669`` in exactly ``width`` cells; of one that is not ready, its state."""
    sign, tone, word = sign_of(view)
    number_of = f"{CHOSEN if view.focused else ''}{view.gpu}"
    text = f"{slots_text(view)} {short(view.server.gen_tok_s)}" if word == "ready" else word
    head: list[Part] = [(number_of, f"bold {gpu_style(view.gpu)}"), (f"{sign} ", tone)]
    return spread([*head, (cut(text, width - 1 - width_of(head)), tone)], [], width)


def brief_lines(views: list[View], columns: int, height: int, width: int) -> list[Line]:
    """Several GPUs a row, in their order; where they do not all fit, those in a bad state first."""
    each = width // columns
    if ceil(len(views) / columns) > height:
        views = sorted(views, key=lambda v: (seen_as(v.server) == "ready", v.gpu))
    shown = views[: columns * height]
    lines: list[Line] = [
        [part for view in shown[at : at + columns] for part in brief_part(view, each)]
        for at in range(0, len(shown), columns)
    ]
    if len(shown) < len(views):
        more: list[Part] = [(f" +{len(views) - len(shown)}", "bold warn")]
        lines[-1] = spread(lines[-1], more, width)
    return lines
