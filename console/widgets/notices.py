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

LEAST_TEXT = 24
"""Cells of a notice in one row that its key has to leave."""

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
            return _cut_off(lines, found[index:], left, width)
        lines += block
    return lines


def _cut_off(lines: list[Line], hidden: Sequence[Notice], left: int, width: int) -> list[Line]:
    """Those that fit, and that those ``hidden`` do not, or not whole."""
    if lines and left == 0:
        lines[-1] = spread(lines[-1], [(f" +{len(hidden)}", "bold warn")], width)
    elif not lines or len(hidden) == 1:
        lines += _begun(hidden, left, width)
    else:
        others_line: Line = [
            (f"  and {len(hidden)} more: ", "dim"),
            (key_name(BY_NAME["wrong"].keys[0]), "bold accent"),
            (" shows them", "dim"),
        ]
        lines.append(clip(others_line, width))
    return lines


def _begun(found: Sequence[Notice], rows: int, width: int) -> list[Line]:
    """As much of the first one as there is room for: an ellipsis, and the key that shows all."""
    if rows < 2:
        return [notice_row(found, width)]
    block = notice_block(found[0], width)
    hint: list[Part] = [(f"  +{len(found) - 1}", "bold warn")] if len(found) > 1 else []
    hint += [(f"  {key_name(BY_NAME['wrong'].keys[0])}", "bold accent"), (" shows all", "dim")]
    (_, _), (text, tone) = block[rows - 1]
    text = cut(f"{text} …", width - 3 - width_of(hint))
    return [*block[: rows - 1], spread([("  ", "text"), (text, tone)], hint, width)]


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
    wrong: Part = (f" {key_name(BY_NAME['wrong'].keys[0])}", "bold accent")
    whole = visible(" ".join(notice.text.split()))
    if len(found) > 1:
        key += [(f"  +{len(found) - 1}", "bold warn"), wrong]
    elif width_of([(whole, "")]) > width - 3 - width_of(key):
        key.append(wrong)
    if width - 3 - width_of(key) < LEAST_TEXT:
        key = key[-1:]  # what is wrong comes before what helps, which `!` tells
    text = cut(whole, max(10, width - 3 - width_of(key)))
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
