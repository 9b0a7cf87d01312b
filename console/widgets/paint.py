"""Painting on the line API: lines of named styles become strips, and only changed lines repaint.

Textual's own widgets lay text out anew for every change; a status screen that changes some
numbers each second is cheaper as lines that are compared with the last ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from collections.abc import Mapping

Part: TypeAlias = tuple[str, str]
"""Text and the name of its style: ``warn``, ``bold strong``, ``g3``, ``reverse bad`` …"""

Line: TypeAlias = Sequence[Part]

GPU_COLOURS = 8


def gpu_style(gpu: int) -> str:
    """The colour of a GPU in every chart and card."""
    return f"g{gpu % GPU_COLOURS}"


class Palette:
    """Style names → Rich styles of the current theme."""

    _FALLBACK: ClassVar = {
        "text": "foreground",
        "strong": "foreground",
        "dim": "secondary",
        "faint": "panel",
        "good": "success",
        "info": "primary",
        "warn": "warning",
        "bad": "error",
        "accent": "accent",
    }

    def __init__(self, variables: Mapping[str, str], base: Style) -> None:
        self._variables = variables
        self._base = base
        self._styles: dict[str, Style] = {}

    def _colour(self, name: str) -> str | None:
        value = self._variables.get(name) or self._variables.get(self._FALLBACK.get(name, ""))
        if value is None and name.startswith("g"):
            value = self._variables.get(
                ("primary", "warning", "success", "accent")[int(name[1:]) % 4]
            )
        if not value or value.startswith(("auto", "ansi")):
            return None
        return Color.parse(value.split()[0]).hex6

    def __getitem__(self, name: str) -> Style:
        style = self._styles.get(name)
        if style is None:
            words = name.split()
            colour = next((c for w in words if (c := self._colour(w))), None)
            back = next((self._colour(w[3:]) for w in words if w.startswith("on-")), None)
            style = self._base + Style(
                color=colour,
                bgcolor=back,
                bold="bold" in words or None,
                italic="italic" in words or None,
                underline="underline" in words or None,
                reverse="reverse" in words or None,
            )
            self._styles[name] = style
        return style


def width_of(parts: Iterable[Part]) -> int:
    """Cells that the parts take."""
    return sum(cell_len(text) for text, _ in parts)


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells, with an ellipsis where it was cut."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 1 else text[:width]


def pad(text: str, width: int, align: str = "<") -> str:
    """``text`` in exactly ``width`` cells."""
    text = cut(text, width)
    gap = " " * (width - cell_len(text))
    return gap + text if align == ">" else text + gap


def spread(left: Line, right: Line, width: int) -> list[Part]:
    """``left`` and ``right`` at the two ends of a line; ``left`` gives way."""
    room = width - width_of(right)
    kept = clip(left, room - 1 if right else room)
    return [*kept, (" " * max(0, room - width_of(kept)), "text"), *right]


def clip(parts: Line, width: int) -> list[Part]:
    """The parts in at most ``width`` cells."""
    kept: list[Part] = []
    for text, style in parts:
        if width <= 0:
            break
        taken = cell_len(text)
        kept.append((text if taken <= width else cut(text, width), style))
        width -= taken
    return kept


def faded(lines: Iterable[Line]) -> list[Line]:
    """The lines in grey, backgrounds kept: what is no longer so."""

    def grey(style: str) -> str:
        backs = [word for word in style.split() if word.startswith("on-")]
        return " ".join(["dim", *backs])

    return [[(text, grey(style)) for text, style in line] for line in lines]


def fit(groups: Sequence[Line], width: int, gap: str = "   ") -> list[Part]:
    """Groups in a row, as many as fit; those that do not are left out whole."""
    line: list[Part] = []
    used = 0
    for group in groups:
        if not group:
            continue
        wide = width_of(group) + (len(gap) if line else 0)
        if used + wide > width:
            continue
        if line:
            line.append((gap, "text"))
        line += group
        used += wide
    return line


class Painted(Widget):
    """A widget that says its lines; :meth:`show` repaints those that changed."""

    can_focus = False
    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._strips: list[Strip | None] = []
        self._palette: Palette | None = None
        self._painted_size = (0, 0)

    def paint(self, width: int, height: int) -> list[Line]:
        """The lines of a content area of this size; override."""
        raise NotImplementedError

    @property
    def palette(self) -> Palette:
        """Styles of the current theme on this widget's background."""
        if self._palette is None:
            self._palette = Palette(self.app.theme_variables, self.rich_style)
        return self._palette

    def show(self) -> None:
        """Work out the lines anew and repaint what changed. Costs nothing while not visible."""
        width, height = self.size
        if width <= 0 or height <= 0 or not self.display:
            return
        try:
            lines = self.paint(width, height)[:height]
        except Exception as error:
            if getattr(self.app, "strict", True):
                raise
            # A mistake in one part must not take the rest from an operator's eyes.
            lines = [[(cut(f"this part cannot be drawn: {error!r}", width), "bad")]]
        if (width, height) != self._painted_size or len(lines) != len(self._lines):
            self._painted_size = (width, height)
            self._lines = lines
            self._strips = [None] * len(lines)
            self.refresh()
            return
        changed = [y for y, line in enumerate(lines) if line != self._lines[y]]
        if not changed:
            return
        self._lines = lines
        left, top = self.gutter.left, self.gutter.top
        for y in changed:
            self._strips[y] = None
        self.refresh(*(Region(left, top + y, width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        """See :class:`Widget`."""
        if y >= len(self._lines):
            return Strip.blank(self.size.width, self.rich_style)
        strip = self._strips[y]
        if strip is None:
            palette = self.palette
            strip = Strip([Segment(text, palette[style]) for text, style in self._lines[y] if text])
            strip = strip.adjust_cell_length(self.size.width, self.rich_style)
            self._strips[y] = strip
        return strip

    def on_resize(self) -> None:
        """A new size: everything anew."""
        self._painted_size = (0, 0)
        self.show()

    def notify_style_update(self) -> None:
        """A new theme: keep the lines, drop the colours."""
        super().notify_style_update()
        self._palette = None
        self._strips = [None] * len(self._lines)


class Tall(Painted):
    """Painted lines that are as many as they are, whatever the room: for what scrolls."""

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """See :class:`Widget`."""
        return len(self.paint(width, 0))
