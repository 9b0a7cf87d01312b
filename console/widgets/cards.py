"""All GPUs in one widget: cards where there is room, a table where there is not.

One widget for the whole fleet keeps the compositor out of it; sixty-four GPUs cost as much as
eight. :func:`arrange` chooses the form, everything else only paints it.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal

from textual import events
from textual.message import Message

from console import model, reckon
from console.text import UNKNOWN, bar, duration, moment, number, percent, short, spark, visible
from console.trend import nice_top, shrink
from console.widgets.paint import (
    Line,
    Painted,
    Part,
    clip,
    cut,
    gpu_style,
    pad,
    spread,
    width_of,
)
from remote.protocol import GpuState, ServerInfo, ServerState

if TYPE_CHECKING:
    from console.app import StokerApp

CARD_MIN = 29
CARD_HEIGHT = 5
"""Rows of a card with one row of history; more rows go to the history."""

MOST_SPARK = 4

WIDE_CARD = 44
"""Cells from which on a card tells the limit of its power, and how busy it is."""

ROW_MIN, ROW_LEAST = 26, 16
"""Cells of a row that tells throughput and cache, and of one with nothing but slots: where there
is no room for all GPUs otherwise, seeing each one comes first."""

BRIEF = 13
"""Cells of a GPU where not even rows have room: what it is, how full, how fast."""

CHOSEN = "▸"
"""In front of the GPU that actions mean: colour alone is no sign."""

STATE_SIGN = {
    "ready": ("●", "good"),
    "warming": ("◐", "info"),
    "starting": ("◔", "info"),
    "draining": ("◑", "warn"),
    "stalled": ("▲", "bad"),
    "silent": ("▲", "warn"),
    "failed": ("✖", "bad"),
    "stopped": ("○", "dim"),
    "foreign": ("◇", "warn"),
}


@dataclass(frozen=True)
class Form:
    """How the fleet is laid out: cards of a size, rows in so many columns, or one short text a GPU,
    so many a row."""

    kind: Literal["cards", "rows", "brief"]
    columns: int
    height: int
    each: int = 1
    """Rows of one card."""


def arrange(count: int, width: int, height: int) -> Form:
    """The best form for ``count`` GPUs in an area of at most ``height`` rows."""
    count = max(1, count)
    most = max(1, width // CARD_MIN)
    rows = ceil(count / most)
    if most >= 2 and rows * CARD_HEIGHT <= height:
        each = min(CARD_HEIGHT + MOST_SPARK - 1, max(CARD_HEIGHT, height // 2 // rows))
        return Form("cards", ceil(count / rows), rows * each, each)
    columns = 1
    for least in (ROW_MIN, ROW_LEAST):
        while ceil(count / columns) + 1 > height and width // (columns + 1) >= least:
            columns += 1
    if ceil(count / columns) + 1 > height:
        across = max(1, width // BRIEF)
        return Form("brief", across, min(max(1, height), ceil(count / across)))
    return Form("rows", columns, min(height, ceil(count / columns) + 1))


@dataclass(frozen=True)
class View:
    """What is known of one GPU, and its near past."""

    gpu: int
    info: ServerInfo | None
    server: ServerState
    card: GpuState | None
    speeds: tuple[float | None, ...]
    top: float
    odd: frozenset[str]
    focused: bool
    faded: bool
    now: float
    suspects: int = 0
    """Prompts that are to be tried alone, where this server is kept for one of them."""


def _use(fraction: float | None) -> str:
    if fraction is None:
        return "dim"
    return "bad" if fraction >= 0.97 else "warn" if fraction >= 0.9 else "text"


def seen_as(server: ServerState) -> str:
    """What a server is, a key of :data:`STATE_SIGN`: one that gives no sign of life is ``silent``,
    whatever it was when it gave the last one."""
    return "silent" if reckon.silent(server) else server.state


def _state(view: View) -> tuple[str, str, str]:
    """Sign, style and word."""
    word = seen_as(view.server)
    sign, style = STATE_SIGN.get(word, ("?", "warn"))
    return sign, "dim" if view.faded else style, word


def _spark(view: View, width: int, rows: int = 1) -> list[str]:
    return spark(shrink(list(view.speeds), 2 * width), view.top, width, rows)


def _slots(view: View) -> str:
    running = view.server.running
    most = view.info.max_running if view.info else None
    if running is None and most is None:
        return UNKNOWN
    return f"{UNKNOWN if running is None else running}/{UNKNOWN if most is None else most}"


def _memory(card: GpuState | None) -> str:
    if card is None or not card.memory_total_mib:
        return UNKNOWN
    return f"{(card.memory_used_mib or 0) / 1024:.0f}/{card.memory_total_mib / 1024:.0f}G"


def _meter(label: str, fraction: float | None, room: int, view: View) -> list[Part]:
    """``kv ███░░ 61%`` with a bar of ``room`` cells."""
    filled, rest = bar(fraction, room)
    tone = "dim" if view.faded else _use(fraction)
    return [
        (f"{label} ", "dim"),
        (filled, "info" if tone == "text" else tone),
        (rest, "on-panel"),
        (f"{percent(fraction):>4}", tone),
    ]


def card_lines(view: View, width: int, height: int = CARD_HEIGHT) -> list[Line]:
    """One GPU in a box of ``width`` by ``height`` cells, a gap at the right included."""
    wide = width - 1
    inner = wide - 4
    server, card = view.server, view.card
    sign, tone, word = _state(view)
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
    slots = _slots(view)
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
        foot.append((f" {_memory(card)}", shown))
    if wide >= WIDE_CARD and card.utilization is not None:
        foot.append((f" {percent(card.utilization)} busy", shown))
    foot.append((" ", edge))
    return [*lines, _bottom(foot, edge, wide, view)]


def _phase(view: View) -> tuple[Part, Part]:
    """What a start is at; for how long, and how long it took the last time."""
    server = view.server
    since = "" if server.phase_since is None else duration(view.now - server.phase_since)
    if since and server.phase_usual_s is not None:
        since += f" of {duration(server.phase_usual_s)}"
    tone = "dim" if view.faded else "info"
    return (visible(server.phase) or server.state, tone), (since, "dim")


def again(server: ServerState) -> str:
    """How often it has come back after it had died, beside the word of its state."""
    return f" ↻{server.died}" if 0 < server.died < 100 else ""


LEAST_CAUSE = 8
"""Cells of a cause that are worth beginning it."""


def deaths(server: ServerState, now: float, room: int) -> str:
    """``died 3×, last 03:05: CUDA out of memory``, or as much of it as there is room for."""
    brief = f"died {server.died}×"
    dated = f"{brief}, last {moment(server.died_at, now)}"
    whole = f"{dated}: {visible(server.died_of)}"
    if room >= min(len(whole), len(dated) + 2 + LEAST_CAUSE):
        return cut(whole, room)
    return next((text for text in (dated, brief) if len(text) <= room), "")


def alone_in_words(view: View, width: int) -> str:
    """What a server does that is kept for one suspect, in ``width`` cells."""
    words = f"1 of {view.suspects} suspects alone"
    return cut(f"tries {words}" if len(words) + len("tries ") <= width else words, width)


def _card_body(view: View, width: int, height: int) -> list[Line]:
    """What stands in the box: the cause of a failure, the phase of a start, or numbers."""
    server = view.server
    if server.state in ("failed", "stalled") and server.cause:
        words = textwrap.wrap(visible(server.cause), width)[:height]
        return [[(text, "bad")] for text in words + [""] * (height - len(words))]
    past: list[Line] = [
        [(text, "dim" if view.faded else gpu_style(view.gpu))]
        for text in _spark(view, width, height - 2)
    ]
    if server.state in ("starting", "warming"):
        doing, since = _phase(view)
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
    sign, tone, label = _state(view)
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
        "run/max": (_slots(view), "dim" if view.faded else "bold strong"),
        "tok/s": (number(server.gen_tok_s), "bold warn" if "gen_tok_s" in view.odd else text),
        "": (_spark(view, past)[0], "dim" if view.faded else gpu_style(view.gpu)),
        "queue": (number(server.queued), text),
        "kv": (percent(server.kv_usage), "dim" if view.faded else _use(server.kv_usage)),
        "mamba": (percent(server.mamba_usage), "dim" if view.faded else _use(server.mamba_usage)),
        "°C": (
            number(card.temperature_c if card else None),
            "bold warn" if "temperature_c" in view.odd else text,
        ),
        "W": (number(card.power_w if card else None), text),
        "limit": (number(card.power_limit_w if card else None), "dim"),
        "busy": (percent(card.utilization if card else None), text),
        "retr": (number(server.retractions), "warn" if server.retractions else text),
        "memory": (_memory(card), text),
        "epoch": (UNKNOWN if info is None or info.epoch is None else f"{info.epoch}", text),
    }
    phase: Line = []
    if server.state in ("starting", "warming"):
        doing, since = _phase(view)
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
    sign, tone, word = _state(view)
    number_of = f"{CHOSEN if view.focused else ''}{view.gpu}"
    text = f"{_slots(view)} {short(view.server.gen_tok_s)}" if word == "ready" else word
    head: list[Part] = [(number_of, f"bold {gpu_style(view.gpu)}"), (f"{sign} ", tone)]
    return spread([*head, (cut(text, width - 1 - width_of(head)), tone)], [], width)


def _brief_lines(views: list[View], columns: int, height: int, width: int) -> list[Line]:
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


def _suspects(state: model.State, gpu: int) -> int:
    """How many are to be tried alone, where this server is kept for one of them; else 0."""
    server = state.servers.get(gpu)
    if server is None or not server.alone or server.state != "ready" or state.progress is None:
        return 0
    return max(1, state.progress.suspects)


class Cards(Painted):
    """The fleet, one card or one row a GPU; a click or a number key focuses one."""

    app: StokerApp

    class Chosen(Message):
        """A GPU was clicked; twice opens its log."""

        def __init__(self, gpu: int, twice: bool) -> None:
            super().__init__()
            self.gpu = gpu
            self.twice = twice

    def __init__(self) -> None:
        super().__init__()
        self.form = Form("cards", 4, 12)

    def views(self) -> list[View]:
        """Every GPU's view."""
        app = self.app
        state = app.state
        odd: dict[int, set[str]] = {}
        for outlier in reckon.outliers(state):
            odd.setdefault(outlier.gpu, set()).add(outlier.metric)
        trend = app.lookback.recent
        top = nice_top(trend.top("gen_tok_s"))
        faded = model.stale(state, app.now())
        at = model.told_now(state, app.now())
        return [
            View(
                gpu,
                state.infos.get(gpu),
                state.servers.get(gpu) or ServerState(gpu),
                state.gpus.get(gpu),
                tuple(trend.column("gen_tok_s", gpu, state.time)),
                top,
                frozenset(odd.get(gpu, ())),
                app.focus_gpu == gpu,
                faded,
                at,
                _suspects(state, gpu),
            )
            for gpu in state.numbers
        ]

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        views = self.views()
        if not views:
            return [[("  no servers known yet", "dim")]]
        columns = self.form.columns
        each = width // columns
        lines: list[Line] = []
        if self.form.kind == "cards":
            for start in range(0, len(views), columns):
                tall = self.form.each
                boxes = [card_lines(v, each, tall) for v in views[start : start + columns]]
                lines += [[p for box in boxes for p in box[i]] for i in range(tall)]
            return lines
        if self.form.kind == "brief":
            return _brief_lines(views, columns, height, width)
        shown = row_columns(each - 1)
        rows = max(1, height - 1)
        head: list[Part] = []
        for heading, wide, _ in shown:
            head.append((pad(heading, wide, "<" if heading in ("state", "") else ">"), "dim"))
            head.append((" ", "text"))
        head = spread(head, [], each)
        count = min(columns, ceil(len(views) / rows)) or 1
        per = ceil(len(views) / count)
        lines.append([p for _ in range(count) for p in head])
        fits = min(per, rows)
        if per > rows:
            hidden = [v for n, v in enumerate(views) if n % per >= rows - 1]
            fits -= 1
        for row in range(fits):
            line: list[Part] = []
            for column in range(count):
                index = column * per + row
                if index < len(views):
                    line += row_line(views[index], shown, each)
            lines.append(clip(line, width))
        if per > rows:
            lines.append([(f"  {len(hidden)} more do not fit here", "bold warn")])
        return lines

    def beside(self, gpu: int | None, across: int, down: int) -> int | None:
        """The GPU so many places from another one; the first or last where none was chosen, the
        same at an edge. None where there are no GPUs."""
        numbers = self.app.state.numbers
        if gpu not in numbers:
            return None if not numbers else numbers[0 if across + down > 0 else -1]
        columns = self.form.columns
        if self.form.kind != "rows":
            by = across + down * columns
        else:
            by = across * ceil(len(numbers) / columns) + down
        at = numbers.index(gpu) + by
        return numbers[at] if 0 <= at < len(numbers) else gpu

    def gpu_at(self, x: int, y: int) -> int | None:
        """The GPU painted at an offset."""
        numbers = self.app.state.numbers
        if not numbers:
            return None
        columns = self.form.columns
        column = min(columns - 1, x // max(1, self.size.width // columns))
        if self.form.kind == "cards":
            index = (y // self.form.each) * columns + column
        elif self.form.kind == "brief":
            if ceil(len(numbers) / columns) > self.form.height:
                return None  # they stand in another order
            index = y * columns + column
        else:
            per = ceil(len(numbers) / columns)
            index = column * per + y - 1 if y else -1
        return numbers[index] if 0 <= index < len(numbers) else None

    def on_click(self, event: events.Click) -> None:
        """Focus what was clicked."""
        gpu = self.gpu_at(event.x, event.y)
        if gpu is not None:
            self.post_message(self.Chosen(gpu, event.chain >= 2))
