"""All GPUs in one widget: cards where there is room, a table where there is not.

One widget for the whole fleet keeps the compositor out of it; sixty-four GPUs cost as much as
eight. :func:`arrange` chooses the form, everything else only paints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal

from textual import events
from textual.message import Message

from console import model, reckon
from console.trend import nice_top
from console.widgets.card import CARD_HEIGHT, card_lines
from console.widgets.gpu import View
from console.widgets.paint import Line, Painted, Part, clip, pad, spread
from console.widgets.row import ROW_LEAST, ROW_MIN, brief_lines, row_columns, row_line
from remote.protocol import ServerState

if TYPE_CHECKING:
    from console.app import StokerApp

CARD_MIN = 29

MOST_SPARK = 4

BRIEF = 13
"""Cells of a GPU where not even rows have room: what it is, how full, how fast."""


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
            return brief_lines(views, columns, height, width)
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
