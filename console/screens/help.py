"""Every key, from the registry."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll

from console.action import Action
from console.actions import ACTIONS, key_name
from console.registry.look import MOVES
from console.screens.modal import Modal
from console.widgets.gpu import STATE_SIGN
from console.widgets.paint import Line, Part, Tall, pad

if TYPE_CHECKING:
    from console.app import StokerApp


WORDS: Final = (
    (
        "set aside",
        (
            "Finished, but its answer is of no use (looped, empty, a bad tool call): not "
            "among the results. U tries those again."
        ),
    ),
    (
        "on probation",
        (
            "Answers of a server that has just come up: its first ones wait until they are "
            "seen to be sound."
        ),
    ),
    (
        "sent again",
        "An attempt failed (timeout, server gone); the same prompt is on its way once more.",
    ),
    ("suspects", "Prompts that may kill servers; each is tried alone on one."),
)
"""What the screens call things, and what is meant."""


def _off(changes: bool) -> Callable[[Action], bool]:
    """What may not be done here comes behind what may."""
    return lambda action: action.changes and not changes


def help_lines(
    screen: str, width: int, *, changes: bool = True, replay: bool = False
) -> list[Line]:
    """Groups of actions, those of the screen in front first, and what moves on that screen; help
    texts wrap in their column. Of a recording those that play it stand first; where nothing may be
    changed, those that would stand last."""
    lines: list[Line] = []
    groups = list(dict.fromkeys(a.group for a in ACTIONS))
    first = {"logs": "Logs", "fleet": "Fleet", "config": "Fleet", "run": "Run"}.get(screen, "Look")
    if replay:
        first = "Replay"
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

    def refused(group: str) -> bool:
        return not changes and all(a.changes for a in ACTIONS if a.group == group)

    def late(group: str) -> bool:
        return not changes and any(a.changes for a in ACTIONS if a.group == group)

    for group in sorted(groups, key=lambda g: (g != first, late(g))):
        off = "  (not here: this console only looks)" if refused(group) else ""
        lines.append([(group, "bold strong"), (off, "dim")])
        inside = sorted((a for a in ACTIONS if a.group == group), key=_off(changes))
        for action in inside:
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
    lines.append([("Words", "bold strong")])
    for word, meaning in WORDS:
        row("", word, meaning)
    lines.append([])
    lines.append([("Cards", "bold strong")])
    for state, (sign, style) in STATE_SIGN.items():
        lines.append([(f"  {sign}        ", style), (state, "text")])
    return lines


class HelpText(Tall):
    """The lines, as tall as they are."""

    app: StokerApp

    def __init__(self, screen: str) -> None:
        super().__init__()
        self._for = screen

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        app = self.app
        changes, replay = not app.outbox.read_only, app.replay is not None
        return help_lines(self._for, width, changes=changes, replay=replay)


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
