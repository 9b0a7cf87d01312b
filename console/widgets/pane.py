"""A pane of foreign lines: follows or holds, filters, cuts when painted, never slides.

Lines are kept as text and made into strips only when they are on the screen. The offset is the
pane's own: a growing virtual size would lay the whole screen out anew with every line.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Region
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from console.model import MAX_CHARS, MAX_LINES
from console.patience import TooLongError, at_most
from console.sift import LIMIT, Filter, last_state
from console.text import visible
from console.widgets.paint import Line, Palette

MARK_S = 0.05
"""So long may it look for what to mark in one line that is painted."""


def marked(text: str, style: Style, marks: Sequence[tuple[int, int, Style]]) -> list[Segment]:
    """The text in one style, but for its marks (start, end, style); of two that overlap the later
    one shows."""
    edges = sorted({0, len(text), *(min(e, len(text)) for s, t, _ in marks for e in (s, t))})
    segments = []
    for start, end in pairwise(edges):
        look = next((m[2] for m in reversed(marks) if m[0] <= start < m[1]), style)
        segments.append(Segment(text[start:end], look))
    return segments


class Pane(Widget, can_focus=True):
    """One log or list: a title line, then lines."""

    ALLOW_SELECT = True
    MOST: ClassVar[int] = MAX_LINES
    """Lines that are held here."""
    BINDINGS: ClassVar[list[BindingType]] = [
        ("up,k", "move(-1)"),
        ("down,j", "move(1)"),
        ("pageup", "page(-1)"),
        ("pagedown", "page(1)"),
        ("home", "move(-1000000)"),
        ("ctrl+home", "start"),
        ("end,G", "follow"),
        ("left", "shift(-16)"),
        ("right", "shift(16)"),
    ]

    class Held(Message):
        """Following or holding changed."""

        def __init__(self, pane: Pane) -> None:
            super().__init__()
            self.pane = pane

    class Refused(Message):
        """The filter cannot be used: why, in one line."""

        def __init__(self, problem: str) -> None:
            super().__init__()
            self.problem = problem

    def __init__(self, style_of: Callable[[str], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._style_of = style_of
        self._chars = 0
        self._lines: deque[tuple[int, str]] = deque(maxlen=self.MOST)
        self._filter = Filter()
        self.hidden = 0
        """Lines that were left out as noise, of those that came by."""
        self._sought: re.Pattern[str] | None = None
        self._marking = True
        """Whether matches are marked: not with a pattern that takes too long."""
        self.chosen: int | None = None
        """Number of the line that keys mean, where there is one."""
        self._top = 0
        """Number of the first line shown, while holding."""
        self.following = True
        self.flooded = False
        """Whether more lines came at once than can be seen."""
        self.pending = 0
        """Lines that came while holding and were not taken in, so that nothing slides."""
        self._left = 0
        self._first = 0
        """Position in ``_lines`` of the first line painted."""
        self._strips: dict[tuple[int, int, int], Strip] = {}
        self._palette: Palette | None = None
        self._title: Line = []

    # --- content ---

    def set_title(self, line: Line) -> None:
        """What stands above the lines."""
        if line != self._title:
            self._title = line
            self.refresh(Region(0, 0, max(1, self.size.width), 1))

    def set_filter(self, wanted: Filter, lines: Iterable[tuple[int, str]]) -> None:
        """Another filter: ``lines`` is everything there is."""
        self._filter = wanted
        self._marking = True
        self.pending = self.hidden = 0
        self._lines = deque(maxlen=self.MOST)
        self._strips.clear()
        self._lines.extend(self._sifted(lines))
        self.refresh()

    def _sifted(self, lines: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
        """Lines that pass the filter; one that cannot be used is told."""
        well = not self._filter.problem
        found = self._filter.sift(lines)
        self.hidden += self._filter.hid
        if well and self._filter.problem:
            self.post_message(self.Refused(self._filter.problem))
        return found

    def add(self, lines: Iterable[tuple[int, str]]) -> None:
        """New lines with their numbers. Repaints where it must."""
        fresh = self._sifted(lines)
        if not fresh:
            return
        room = self.MOST - len(self._lines)
        if not self.following and (self.pending or len(fresh) > room):
            self.pending += len(fresh)
            return
        self.flooded = len(fresh) > self.rows
        short = len(self._lines) < self.rows
        self._lines.extend(fresh)
        self._chars += sum(len(line) for _, line in fresh)
        if self._chars > 2 * MAX_CHARS:  # what fell out at the limit of lines was never taken off
            self._chars = sum(len(line) for _, line in self._lines)
            while self._chars > MAX_CHARS and self.following:
                self._chars -= len(self._lines.popleft()[1])
        if self.following or short:
            self.refresh()

    @property
    def rows(self) -> int:
        """Lines that can be seen at once."""
        return max(0, self.size.height - 1)

    @property
    def behind(self) -> int:
        """Lines below what is shown."""
        return max(0, len(self._lines) - self._start() - self.rows) + self.pending

    @property
    def count(self) -> int:
        """Lines that pass the filter and are held here."""
        return len(self._lines)

    @property
    def last(self) -> int | None:
        """Number of the last of them."""
        return self._lines[-1][0] if self._lines else None

    def _start(self) -> int:
        most = max(0, len(self._lines) - self.rows)
        if self.following:
            return most
        # Numbers only grow: how many lines with a smaller number than the top one are held?
        low, high = 0, len(self._lines)
        while low < high:
            middle = (low + high) // 2
            if self._lines[middle][0] < self._top:
                low = middle + 1
            else:
                high = middle
        return min(low, most)

    # --- moving ---

    def hold(self) -> None:
        """Stay at the lines shown now."""
        if self.following and self._lines:
            start = self._start()
            self.following = False  # the same lines are shown: nothing of them is painted anew
            self._top = self._lines[start][0]
            self.post_message(self.Held(self))

    def follow(self) -> None:
        """Show the newest line from now on."""
        if not self.following:
            self.following = True
            self.post_message(self.Held(self))
        self._left = 0
        self.choose(None)
        self.refresh()

    def action_follow(self) -> None:
        """The key."""
        self.follow()

    def action_page(self, by: int) -> None:
        """Scroll by what can be seen, one line kept."""
        self.action_move(by * max(1, self.rows - 1))

    def action_start(self) -> None:
        """The very first line; a pane that can fetch it does."""
        self.action_move(-(1 << 40))

    def action_move(self, by: int) -> None:
        """Scroll; at the end, follow again."""
        if not self._lines:
            if by < 0:
                self.wants_before()
            elif not self.wants_after():
                self.follow()
            return
        start = self._start()
        most = max(0, len(self._lines) - self.rows)
        wanted = max(0, min(most, start + by))
        if by < 0 and start + by < 0:
            self.wants_before()
        if wanted >= most and by > 0:
            if self.wants_after():
                self._top = self._lines[most][0]
                self.refresh()
            else:
                self.follow()
            return
        if wanted != start or by < 0:
            if self.following:
                self.following = False
                self.post_message(self.Held(self))
            self._top = self._lines[wanted][0]
            self.refresh()

    def blank(self) -> str:
        """What stands where no line is to be shown."""
        return ""

    def wants_before(self) -> None:
        """One would go on above the first line held; a pane that can fetch it does."""

    def wants_after(self) -> bool:
        """One would go on below the last line held; True where there is more than that."""
        return False

    def show_lines(self, lines: Iterable[tuple[int, str]], top: int | None = None) -> None:
        """Show just these, held still, ``top`` first."""
        self._lines = deque(lines)
        self._strips.clear()
        self.pending = 0
        self.following = False
        if top is not None:
            self._top = top
        self.refresh()

    def action_shift(self, by: int) -> None:
        """Scroll sideways."""
        left = max(0, self._left + by)
        if left != self._left:
            self._left = left
            self._strips.clear()
            self.refresh()

    def jump(self, number: int) -> None:
        """Hold with this line, chosen, at the top third."""
        if self.following:
            self.following = False
            self.post_message(self.Held(self))
        self.choose(number)
        self._top = number
        start = self._start()
        self._top = self._lines[max(0, start - self.rows // 3)][0] if self._lines else 0
        self.refresh()

    def choose(self, number: int | None) -> None:
        """Another line is the one that keys mean."""
        if number != self.chosen:
            self.chosen = number
            self._strips.clear()
            self.refresh()

    def find(
        self, wanted: Callable[[str], bool], *, back: bool = False, wrap: bool = True
    ) -> int | None:
        """The next line that is ``wanted`` behind the chosen one, or before it, or of those on the
        screen; from the other end again where it may ``wrap``."""
        lines = list(self._lines)
        start = self._start()
        shown = range(start, min(start + self.rows, len(lines)))
        on = next((i for i in shown if lines[i][0] == self.chosen), None)
        if back:
            at = on if on is not None else len(lines) if self.following else start
            order = [*range(at - 1, -1, -1), *range(len(lines) - 1, at - 1, -1)]
            some = at
        else:
            at = on + 1 if on is not None else start
            order = [*range(at, len(lines)), *range(at)]
            some = len(lines) - at
        for index in order if wrap else order[:some]:
            if wanted(lines[index][1]):
                found: int = lines[index][0]
                return found
        return None

    def seek_out(self, pattern: re.Pattern[str] | None) -> None:
        """Mark what matches, wherever it stands; hide nothing."""
        self._sought = pattern
        self._marking = True
        self._strips.clear()
        self.refresh()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel."""
        event.stop()
        self.action_move(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel."""
        event.stop()
        self.action_move(3)

    # --- painting ---

    @property
    def palette(self) -> Palette:
        """Styles of the theme on this pane's background."""
        if self._palette is None:
            self._palette = Palette(self.app.theme_variables, self.rich_style)
        return self._palette

    def notify_style_update(self) -> None:
        """Another theme or focus: other colours."""
        super().notify_style_update()
        self._palette = None
        self._strips.clear()

    def on_resize(self) -> None:
        """Another width: other cuts."""
        self._strips.clear()

    def render_line(self, y: int) -> Strip:
        """See :class:`Widget`."""
        width = self.size.width
        palette = self.palette
        if y == 0:
            segments = [Segment(t, palette[s]) for t, s in self._title if t]
            return Strip(segments).adjust_cell_length(width, palette["text"])
        if y == 1:
            self._first = self._start()
        if not self._lines:
            note = wrap(self.blank(), max(8, width))[y - 1 : y]
            segments = [Segment(text, palette["dim"]) for text in note]
            return Strip(segments).adjust_cell_length(width, palette["text"])
        index = (self._first if y > 1 else self._start()) + y - 1
        if index >= len(self._lines):
            return Strip.blank(width, palette["text"])
        number, raw = self._lines[index]
        selection = self.text_selection
        key = (number, self._left, width)
        strip = self._strips.get(key) if selection is None else None
        if strip is None:
            strip = self._strip(raw, index, selection)
            if selection is None:
                if len(self._strips) > 400:
                    self._strips.clear()
                self._strips[key] = strip
        return strip

    def text_of(self, raw: str) -> str:
        """A line as it is shown, harmless."""
        return visible(last_state(raw), LIMIT)

    def _marks(self, text: str, style: Style) -> list[tuple[int, int, Style]]:
        """What of a line stands out: what the filter matched, and what is sought."""
        found: list[tuple[int, int, Style]] = []
        if self._sought is None and self._filter.pattern is None:
            return found
        wanted = [(self._sought, self.palette["reverse accent"])]
        if not self._filter.inverted:
            wanted.insert(0, (self._filter.pattern, style + Style(bold=True, underline=True)))
        try:
            with at_most(MARK_S):
                for pattern, look in wanted:
                    if pattern is not None:
                        found += [(*m.span(), look) for m in pattern.finditer(text)]
        except TooLongError:
            self._marking = False
            return []
        return [mark for mark in found if mark[0] < mark[1]]

    def _strip(self, raw: str, index: int, selection: Selection | None) -> Strip:
        width = self.size.width
        text = self.text_of(raw)
        style = self.palette[self._style_of(raw)]
        if self.chosen is not None and self._lines[index][0] == self.chosen:
            style += Style(bgcolor=self.palette["text on-panel"].bgcolor, bold=True)
        marks = self._marks(text, style) if self._marking else []
        if selection is not None and (span := selection.get_span(index + 1)) is not None:
            start, end = span
            marks.append((start, len(text) if end == -1 else end, style + Style(reverse=True)))
        strip = Strip(marked(text, style, marks))
        if self._left:
            strip = strip.crop(self._left, self._left + width)
        elif cell_len(text) > width:
            strip = Strip([*strip.crop(0, width - 1), Segment("›", self.palette["dim"])])
        strip = strip.adjust_cell_length(width, style)
        return strip.apply_offsets(self._left, index + 1)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The chosen text, as it is shown."""
        text = "\n".join(["", *(self.text_of(line) for _, line in self._lines)])
        return selection.extract(text), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Paint the choice."""
        self._strips.clear()
        self.refresh()

    def shown(self) -> list[str]:
        """The lines that are on the screen now, for copying and for tests."""
        start = self._start()
        return [
            self.text_of(self._lines[i][1])
            for i in range(start, min(len(self._lines), start + self.rows))
        ]
