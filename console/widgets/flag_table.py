"""A list of flags: what runs now, what is edited, SGLang's own default, what it takes and means."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from console import model
from console.flags import Row, choices_text, default_text, kind_text
from console.text import visible
from console.widgets.paint import Line, Painted, Part, clip, pad

DETAIL = 3
"""Lines about the chosen flag, where there is room."""


def row_line(row: Row, chosen: bool, name_width: int, width: int) -> Line:
    """One flag; help and default where there is room."""
    line: list[Part] = [
        ("▸ " if chosen else "  ", "bold accent"),
        (pad(visible(row.name), name_width), "bold text" if row.edited else "text"),
    ]
    changed = row.edited and model.flag_text(row.now) != model.flag_text(row.then)
    value: list[Part]
    if changed:
        old, new = visible(model.flag_text(row.now)), visible(model.flag_text(row.then))
        value = [(f"{old} ", "dim"), ("→ ", "accent")]
        value += [(new, "bold warn")] if row.then is not None else [("taken out", "bold bad")]
    elif row.now is None or row.now is False:
        value = [(visible(default_text(row.info)) or "–", "dim")]
    else:
        value = [(visible(model.flag_text(row.now)), "bold strong")]
    if width < 100:
        return clip([*line, *value], width)
    room = max(26, min(44, width // 4))
    value = clip(value, room - 1)
    line += value
    line.append((" " * (room - sum(len(text) for text, _ in value)), "text"))
    line.append((pad(visible(kind_text(row.info)), 18), "dim"))
    if row.info is not None:
        line.append((visible(" ".join(row.info.help.split())), "dim"))
    return clip(line, width)


def detail_lines(row: Row, width: int, height: int) -> list[Line]:
    """What is known of one flag."""
    info = row.info
    if info is None:
        return [[("not a flag known here", "warn")]]
    default = default_text(info)
    head: list[Part] = [(visible(row.name), "bold accent"), (f"  {kind_text(info)}", "text")]
    head.append((f"  by default {visible(default)}" if default else "  no default", "dim"))
    says = " ".join(info.help.split()) or "SGLang says nothing about it."
    text = visible(f"{choices_text(info)}. {says}" if info.choices else says)
    lines: list[Line] = [clip(head, width)]
    rows = textwrap.wrap(text, max(20, width))
    if len(rows) > height - 1:
        rows = [*rows[: height - 2], f"{rows[height - 2][: width - 2]} …"] if height > 1 else []
    for part in rows:
        lines.append([(part, "dim")])  # noqa: PERF401 - the list is one of lines of any length
    return lines[:height]


class FlagTable(Painted):
    """The rows with a cursor, and below them what is known of the chosen one.

    Whoever has the table sets :attr:`rows` and shows it anew.
    """

    rows: Sequence[Row] = ()
    empty = "no flag is set: SGLang's own defaults"
    focused_here = True
    """Whether the cursor is in this table."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = 0

    @property
    def chosen(self) -> Row | None:
        """The row under the cursor."""
        if not self.rows:
            return None
        self.cursor = max(0, min(self.cursor, len(self.rows) - 1))
        return self.rows[self.cursor]

    def choose(self, name: str) -> None:
        """Put the cursor on a flag, where it is in the list."""
        names = [row.name for row in self.rows]
        if name in names:
            self.cursor = names.index(name)

    def move(self, by: int) -> None:
        """The cursor up or down."""
        if self.rows:
            self.cursor = max(0, min(len(self.rows) - 1, self.cursor + by))
        self.show()

    def _room(self, height: int) -> int:
        return height - DETAIL if height > DETAIL else height

    def first(self, height: int) -> int:
        """The first row shown of so many lines."""
        room = self._room(height)
        return max(0, min(self.cursor - room // 2, len(self.rows) - room))

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        chosen = self.chosen
        if chosen is None:
            return [[(self.empty, "dim")]]
        room = self._room(height)
        longest = max(len(row.name) for row in self.rows)
        name_width = min(longest + 2, 40 if width >= 100 else 34)
        first = self.first(height)
        lines = [
            row_line(row, self.focused_here and row is chosen, name_width, width)
            for row in self.rows[first : first + room]
        ]
        if room < height:
            lines += [[] for _ in range(room - len(lines))]
            lines += detail_lines(chosen, width, height - room)
        return lines
