"""What is wrong, and which key helps: the first thing to read."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from console.actions import BY_NAME, key_name
from console.notices import Notice
from console.text import visible
from console.widgets.paint import Line, Painted, Part, clip, cut, spread, width_of

if TYPE_CHECKING:
    from console.app import StokerApp

_OF_ONE = ("restart", "up")

_SIGNS = {
    "error": ("✖", "bad"),
    "warning": ("▲", "warn"),
    "info": ("●", "info"),
    "good": ("✔", "good"),
}

_TONES = {"error": "bold bad", "warning": "warn", "info": "text", "good": "good"}


def notice_lines(found: list[Notice], width: int, height: int) -> list[Line]:
    """As many notices as fit, worst first, each wrapped; the count of the others at the end."""
    if not found:
        return [[("✔ ", "good"), ("nothing stands out", "dim")]]
    blocks = [notice_block(notice, width) for notice in found]
    lines: list[Line] = []
    for index, block in enumerate(blocks):
        left = height - len(lines)
        others = len(blocks) - index - 1
        if len(block) > left or (others and len(block) == left and index > 0 and left < 2):
            return _cut_off(lines, block, len(blocks) - index, left, width)
        lines += block
    return lines


def _cut_off(
    lines: list[Line], block: list[Line], hidden: int, left: int, width: int
) -> list[Line]:
    """Those that fit, and that ``hidden`` more do not, of which ``block`` is the first."""
    if lines and left == 0:
        lines[-1] = spread(lines[-1], [(f" +{hidden}", "bold warn")], width)
    elif not lines or hidden == 1:
        lines += block[:left]
    else:
        others_line: Line = [
            (f"  and {hidden} more: ", "dim"),
            (key_name(BY_NAME["wrong"].keys[0]), "bold accent"),
            (" shows them", "dim"),
        ]
        lines.append(clip(others_line, width))
    return lines


def _key(notice: Notice) -> list[Part]:
    """The key that helps, and what it does."""
    action = BY_NAME.get(notice.action)
    if action is None:
        return []
    # A digit chooses the GPU first: without it the whole fleet would be meant.
    alone = notice.gpu is not None and notice.gpu < 10 and notice.action in _OF_ONE
    first = f" {notice.gpu}" if alone else ""
    return [
        (f"{first} {key_name(action.keys[0])}", "bold accent"),
        (f" {action.title.lower()}", "dim"),
    ]


def notice_row(found: Sequence[Notice], width: int) -> Line:
    """The first of them in one row, with its key and the count of the others."""
    notice = found[0]
    sign, style = _SIGNS[notice.level]
    key = _key(notice)
    if len(found) > 1:
        wrong = key_name(BY_NAME["wrong"].keys[0])
        key += [(f"  +{len(found) - 1}", "bold warn"), (f" {wrong}", "bold accent")]
    text = cut(visible(" ".join(notice.text.split())), max(10, width - 3 - width_of(key)))
    return spread([(f"{sign} ", style), (text, _TONES[notice.level])], key, width)


def notice_block(notice: Notice, width: int, *, chosen: bool = False) -> list[Line]:
    """One of them, wrapped, with the key that helps at the right of its first line."""
    sign, style = _SIGNS[notice.level]
    key = _key(notice)
    room = max(20, width - 3 - sum(len(t) for t, _ in key))
    rows = textwrap.wrap(visible(notice.text), room, break_on_hyphens=False) or [""]
    tone = _TONES[notice.level]
    if chosen:
        tone = f"reverse {tone}"
    block: list[Line] = [spread([(f"{sign} ", style), (rows[0], tone)], key, width)]
    return block + [clip([("  ", "text"), (row, tone)], width) for row in rows[1:]]


class Notices(Painted):
    """The band under the progress header."""

    app: StokerApp

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        return notice_lines(self.app.notices(), width, height)
