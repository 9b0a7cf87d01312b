"""What is said in the corner of the screen: the newest, short, and soon gone where there is little
room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from console.actions import ACTIONS
from console.widgets.paint import cut

if TYPE_CHECKING:
    from console.app import StokerApp

SMALL: Final = 30
"""Terminal rows under which there is little room."""
WIDTH: Final = 54
"""Cells of a line there, see the stylesheet."""
MOST, MOST_SMALL = 3, 2
"""So many at once; older ones make room."""

_TITLES: Final = frozenset(action.title.lower() for action in ACTIONS)


KEPT_S: Final = 60.0
"""For so long what has to be seen is there, whatever else is said meanwhile."""


def say(
    app: StokerApp,
    text: str,
    severity: Literal["information", "warning", "error"],
    *,
    keep: bool = False,
) -> None:
    """One more; never markup. With ``keep`` it is shown whole, and no other takes its place.

    It takes the place of one that says the same, and of one of the same action.
    """
    small = app.size.height < SMALL
    long, short, most = (5, 3, MOST_SMALL) if small else (8, 4, MOST)
    error = severity == "error"
    if small and not keep:
        rows = 2 if severity == "information" else 3
        text = cut(" ".join(text.split()), rows * min(WIDTH, app.size.width - 6))
    app.notify(
        text, severity=severity, markup=False, timeout=KEPT_S if keep else long if error else short
    )
    app.call_later(_make_room, app, most)


def take_back(app: StokerApp, text: str) -> None:
    """It is so no more: what was said is gone before its time."""
    for old in list(app._notifications):
        if old.message == text:
            app._unnotify(old)


def _subject(text: str) -> str:
    """The action that a text begins with, as refusals do; empty where it names none."""
    head, colon, _ = text.partition(":")
    return head.lower() if colon and head.lower() in _TITLES else ""


def _make_room(app: StokerApp, most: int) -> None:
    said: set[str] = set()
    count = 0
    for old in reversed(list(app._notifications)):
        kept = old.timeout >= KEPT_S
        about = _subject(old.message) or old.message
        if (about in said and (not kept or about == old.message)) or (not kept and count >= most):
            app._unnotify(old)
        elif not kept:
            count += 1
        said.add(about)
