"""What is said in the corner of the screen: the newest, short, and soon gone where there is little
room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from console.widgets.paint import cut

if TYPE_CHECKING:
    from console.app import StokerApp

SMALL: Final = 30
"""Terminal rows under which there is little room."""
WIDTH: Final = 54
"""Cells of a line there, see the stylesheet."""
MOST, MOST_SMALL = 5, 2
"""So many at once; older ones make room."""


KEPT_S: Final = 60.0
"""For so long what has to be seen is there, whatever else is said meanwhile."""


def say(
    app: StokerApp,
    text: str,
    severity: Literal["information", "warning", "error"],
    *,
    keep: bool = False,
) -> None:
    """One more; never markup. With ``keep`` it is shown whole, and no other takes its place."""
    small = app.size.height < SMALL
    long, short, most = (5, 3, MOST_SMALL) if small else (8, 4, MOST)
    error = severity == "error"
    if small and not keep:
        text = cut(" ".join(text.split()), (3 if error else 2) * WIDTH)
    app.notify(
        text, severity=severity, markup=False, timeout=KEPT_S if keep else long if error else short
    )
    app.call_later(_make_room, app, most)


def _make_room(app: StokerApp, most: int) -> None:
    passing = [one for one in app._notifications if one.timeout < KEPT_S]
    for old in passing[:-most]:
        app._unnotify(old)
