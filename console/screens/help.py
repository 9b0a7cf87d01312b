"""Every key, from the registry."""

from __future__ import annotations

import textwrap

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll

from console.actions import ACTIONS, key_name
from console.registry.look import MOVES
from console.screens.modal import Modal
from console.widgets.cards import STATE_SIGN
from console.widgets.paint import Line, Part, Tall, pad


def help_lines(screen: str, width: int) -> list[Line]:
    """Groups of actions, those of the screen in front first, and what moves on that screen; help
    texts wrap in their column."""
    lines: list[Line] = []
    groups = list(dict.fromkeys(a.group for a in ACTIONS))
    first = {"logs": "Logs", "fleet": "Fleet", "config": "Fleet", "run": "Run"}.get(screen, "Look")
    left = 11 + 18

    def row(keys: str, title: str, text: str) -> None:
        rows = textwrap.wrap(text, max(20, width - left)) or [""]
        names = textwrap.wrap(keys, 8)
        for index in range(max(len(rows), len(names))):
            key = names[index] if index < len(names) else ""
            head: list[Part] = [
                (pad(f"  {key}", 11), "bold accent"),
                (pad(title if not index else "", 18), "bold text"),
            ]
            lines.append([*head, (rows[index] if index < len(rows) else "", "dim")])

    for group in sorted(groups, key=lambda g: g != first):
        lines.append([(group, "bold strong")])
        for action in (a for a in ACTIONS if a.group == group):
            asks = "" if action.danger == "none" else " Asks first."
            row(" ".join(map(key_name, action.keys)), action.title, action.help + asks)
        lines.append([])
        if group == first:
            lines.append([("Moving here", "bold strong")])
            for move in (m for m in MOVES if screen in m.screens):
                digits = move.keys[0] == "0"
                keys = "0 … 9" if digits else " ".join(map(key_name, move.keys))
                row(keys, move.title, move.help)
            lines.append([])
    lines.append([("Cards", "bold strong")])
    for state, (sign, style) in STATE_SIGN.items():
        lines.append([(f"  {sign}        ", style), (state, "text")])
    return lines


class HelpText(Tall):
    """The lines, as tall as they are."""

    def __init__(self, screen: str) -> None:
        super().__init__()
        self._for = screen

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        return help_lines(self._for, width)


class HelpScreen(Modal[None]):
    """A scrollable list over the screen it was asked on."""

    def __init__(self, screen: str) -> None:
        super().__init__()
        self._for = screen

    def compose(self) -> ComposeResult:
        """See :class:`Modal`."""
        with Vertical(classes="dialog") as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc closes"
            with VerticalScroll():
                yield HelpText(self._for)

    def on_key(self, event: events.Key) -> None:
        """Any of the keys that leave."""
        if event.key in ("escape", "question_mark", "q", "enter"):
            event.stop()
            self.dismiss(None)
        elif event.key in ("j", "k"):
            scroll = self.query_one(VerticalScroll)
            scroll.scroll_relative(y=1 if event.key == "j" else -1, animate=False)
