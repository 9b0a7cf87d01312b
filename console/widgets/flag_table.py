"""A list of flags: what runs now, what is edited, SGLang's own default, what it takes and means."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from console import model
from console.flags import Row, choices_text, default_text, kind_text
from console.text import visible
from console.widgets.paint import Line, Painted, Part, clip, cut, pad, width_of

DETAIL = 3
"""Lines about the chosen flag, where there is room."""


HEAD = 1
"""The line of headings, where there is room."""


def widths(longest: int, width: int) -> tuple[int, int, int]:
    """Cells of name, value and type, the gaps behind them included, in so wide a table."""
    if width < 100:
        kind = 16
        name = min(longest + 2, max(20, (width - 2 - kind) * 6 // 10))
        return name, max(10, width - 2 - name - kind), kind
    return min(longest + 2, 44), max(26, min(44, width // 4)), 18


def cell(parts: list[Part], width: int) -> list[Part]:
    """Parts in a column of so many cells; a gap stays behind what was cut."""
    kept = clip(parts, width - 1)
    return [*kept, (" " * (width - width_of(kept)), "text")]


def head_line(columns: tuple[int, int, int], width: int) -> Line:
    """What stands in the columns."""
    names = zip(("flag", "value", "takes"), columns, strict=True)
    line: list[Part] = [("  ", "text"), *((pad(name, wide), "dim") for name, wide in names)]
    return clip([*line, ("what it does", "dim")] if width >= 100 else line, width)


def row_line(row: Row, chosen: bool, columns: tuple[int, int, int], width: int) -> Line:
    """One flag; its help where there is room."""
    name, room, kind = columns
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
    line: list[Part] = [
        ("▸ " if chosen else "  ", "bold accent"),
        *cell([(visible(row.name), "bold text" if row.edited else "text")], name),
        *cell(value, room),
        *cell([(visible(kind_text(row.info)), "dim")], kind),
    ]
    if row.info is not None and width >= 100:
        line.append((visible(" ".join(row.info.help.split())), "dim"))
    return clip(line, width)


def about(row: Row, width: int) -> list[Line]:
    """Everything that is known of one flag, however long."""
    info = row.info
    if info is None:
        return [[("not a flag known here", "warn")]]
    facts = [
        ("takes", kind_text(info)),
        ("by default", default_text(info) or "nothing"),
        ("now", model.flag_text(row.now)),
        ("edited to", model.flag_text(row.then) if row.edited else ""),
        ("one of", choices_text(info)),
        ("also called", ", ".join(info.aliases)),
        ("", "an old name: SGLang warns of it" if info.deprecated else ""),
    ]
    lines: list[Line] = []
    for heading, text in facts:
        for index, part in enumerate(textwrap.wrap(visible(text), max(20, width - 13))):
            lines.append([(pad("" if index else heading, 13), "dim"), (part, "text")])
    says = visible(" ".join(info.help.split()) or "SGLang says nothing about it.")
    return [*lines, [], *([(part, "text")] for part in textwrap.wrap(says, max(20, width)))]


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
        more = " … F1 shows all"
        rows = [*rows[: height - 2], cut(rows[height - 2], width - len(more)).rstrip("…") + more]
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
        """Lines for rows of so many in all."""
        if height <= DETAIL:
            return height
        return height - DETAIL - (HEAD if height > DETAIL + HEAD + 1 else 0)

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
        columns = widths(longest, width)
        first = self.first(height)
        headed = room < height - DETAIL
        lines: list[Line] = [head_line(columns, width)] if headed else []
        lines += [
            row_line(row, self.focused_here and row is chosen, columns, width)
            for row in self.rows[first : first + room]
        ]
        if room < height:
            lines += [[] for _ in range(room + headed - len(lines))]
            lines += detail_lines(chosen, width, DETAIL)
        return lines
