"""One GPU in a box."""

from __future__ import annotations

import textwrap

from console.text import bar, duration, moment, number, percent, visible
from console.widgets.gpu import (
    CHOSEN,
    View,
    again,
    alone_in_words,
    memory_text,
    past_rows,
    phase_parts,
    sign_of,
    slots_text,
    use_tone,
)
from console.widgets.paint import Line, Part, cut, gpu_style, spread, width_of
from remote.protocol import ServerState

CARD_HEIGHT = 5
"""Rows of a card with one row of history; more rows go to the history."""

WIDE_CARD = 44
"""Cells from which on a card tells the limit of its power, and how busy it is."""

LEAST_CAUSE = 8
"""Cells of a cause that are worth beginning it."""


def card_lines(view: View, width: int, height: int = CARD_HEIGHT) -> list[Line]:
    """One GPU in a box of ``width`` by ``height`` cells, a gap at the right included."""
    wide = width - 1
    inner = wide - 4
    server, card = view.server, view.card
    sign, tone, word = sign_of(view)
    words = word
    if word == "ready":
        words += again(server)
    elif word == "silent":
        words = f"silent {duration(view.now - (server.silent_since or view.now))}"
    edge = (
        "bold accent"
        if view.focused
        else tone
        if word in ("failed", "stalled", "silent")
        else "warn"
        if view.odd
        else "faint"
    )
    head: list[Part] = [
        (CHOSEN if view.focused else " ", edge),
        (f"{view.gpu}", f"bold {gpu_style(view.gpu)}"),
        (f" {sign} ", tone),
    ]
    slots = slots_text(view)
    room = wide - 4 - width_of(head) - len(slots) - 4
    head.append((f"{cut(words, max(3, room))} ", tone))
    tail: list[Part] = [(f" {slots} ", "dim" if view.faded else "bold strong")]
    dashes = wide - 2 - width_of(head) - width_of(tail) - 1
    lines: list[Line] = [
        [("╭", edge), *head, ("─" * max(0, dashes), edge), *tail, ("─╮", edge), (" ", "text")]
    ]
    lines += [
        [("│ ", edge), *spread(row, [], inner), (" │", edge), (" ", "text")]
        for row in _card_body(view, inner, height - 2)
    ]
    if card is None:
        return [*lines, _bottom([], edge, wide)]
    shown = "dim" if view.faded else "text"
    foot: list[Part] = [
        (" ", edge),
        (f"{number(card.temperature_c)}°C", "bold warn" if "temperature_c" in view.odd else shown),
        (f" {number(card.power_w)}", shown),
        (
            f"/{number(card.power_limit_w)}" if wide >= WIDE_CARD and card.power_limit_w else "",
            "dim",
        ),
        ("W", shown),
    ]
    if card.memory_total_mib:
        foot.append((f" {memory_text(card)}", shown))
    if wide >= WIDE_CARD and card.utilization is not None:
        foot.append((f" {percent(card.utilization)} busy", shown))
    foot.append((" ", edge))
    return [*lines, _bottom(foot, edge, wide, view)]


def deaths(server: ServerState, now: float, room: int) -> str:
    """``died 3×, last 03:05: CUDA out of memory``, or as much of it as there is room for."""
    brief = f"died {server.died}×"
    dated = f"{brief}, last {moment(server.died_at, now)}"
    whole = f"{dated}: {visible(server.died_of)}"
    if room >= min(len(whole), len(dated) + 2 + LEAST_CAUSE):
        return cut(whole, room)
    return next((text for text in (dated, brief) if len(text) <= room), "")


def _meter(label: str, fraction: float | None, room: int, view: View) -> list[Part]:
    """``kv ███░░ 61%`` with a bar of ``room`` cells."""
    filled, rest = bar(fraction, room)
    tone = use_tone(view, fraction)
    return [
        (f"{label} ", "dim"),
        (filled, "info" if tone == "text" else tone),
        (rest, "on-panel"),
        (f"{percent(fraction):>4}", tone),
    ]


def _card_body(view: View, width: int, height: int) -> list[Line]:
    """What stands in the box: the cause of a failure, the phase of a start, or numbers."""
    server = view.server
    if server.state in ("failed", "stalled") and server.cause:
        words = textwrap.wrap(visible(server.cause), width)[:height]
        return [[(text, "bad")] for text in words + [""] * (height - len(words))]
    past: list[Line] = [
        [(text, "dim" if view.faded else gpu_style(view.gpu))]
        for text in past_rows(view, width, height - 2)
    ]
    if server.state in ("starting", "warming"):
        doing, since = phase_parts(view)
        return [[doing], *past, [since]]
    shown = "dim" if view.faded else "text"
    strong = "dim" if view.faded or server.gen_tok_s is None else "bold strong"
    speed: list[Part] = [
        (number(server.gen_tok_s), "bold warn" if "gen_tok_s" in view.odd else strong),
        (" tok/s", "dim"),
    ]
    right: list[Part] = []
    if server.queued:
        right += [("queue ", "dim"), (f"{server.queued}", shown)]
    if server.state == "draining":
        right = [(visible(server.phase).removeprefix("draining: ") or "drains", "warn")]
    elif view.suspects:
        told = alone_in_words(view, width)
        right = [(told, "dim" if view.faded else "warn")]
        if width_of(speed) + 1 + len(told) > width:
            speed = []
    elif server.dispatch in ("pause", "abort"):
        right = [(f"{server.dispatch}d ".replace("abortd", "aborted"), "warn"), *right]
    if server.died and server.state == "ready":
        room = width - width_of(speed) - width_of(right) - 3
        right = [(deaths(server, view.now, room), "warn"), ("  " if right else "", "text"), *right]
    if server.retractions and width >= WIDE_CARD - 4:
        right = [("retracted ", "dim"), (f"{server.retractions:,}  ", shown), *right]
    room = max(2, width - len("kv mamba ") - 2 * len(" 61%") - 2)
    meters = [
        *_meter("kv", server.kv_usage, room // 2, view),
        ("  ", "text"),
        *_meter("mamba", server.mamba_usage, room - room // 2, view),
    ]
    return [spread(speed, right, width), *past, meters]


def _bottom(foot: list[Part], edge: str, wide: int, view: View | None = None) -> Line:
    tail: list[Part] = []
    if view is not None and view.info is not None and view.info.epoch is not None:
        tail = [(f" e{view.info.epoch} ", "dim")]
    dashes = wide - 3 - width_of(foot) - width_of(tail)
    return [
        ("╰─", edge),
        *foot,
        ("─" * max(0, dashes - 1), edge),
        *tail,
        ("─╯", edge),
        (" ", "text"),
    ][: None if dashes > 0 else 4]
