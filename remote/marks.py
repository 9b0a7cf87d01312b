"""What of everything that happened is worth a mark on a time axis, and which where room is short.

Pure functions: the console marks with them what it holds, the agent thins with them what it sends.
"""

from __future__ import annotations

from collections.abc import Iterable

from remote.protocol import Event

_SHOWN = ("run.", "swap.", "action", "server.ready", "server.restart")
"""Beginnings of the kinds of events that are marked though nothing is wrong."""
_PASSED = ("swap.step", "action.done", "run.message", "verdict")

BAD, WARN, PLAIN, NONE = 3, 2, 1, 0


def weight(event: Event) -> int:
    """How grave it is on the axis, :data:`BAD` to :data:`PLAIN`; :data:`NONE` is not marked."""
    if event.level == "error":
        return BAD
    if event.kind in _PASSED:
        return NONE
    if event.level == "warning":
        return WARN
    return PLAIN if event.kind.startswith(_SHOWN) else NONE


def thin(events: Iterable[Event], since: float, until: float, points: int) -> list[Event]:
    """Of each GPU's events (and of those of none) the gravest in each of ``points`` equal parts of
    the time from ``since`` to ``until``, by id; of two as grave, the later."""
    kept: dict[tuple[int, int | None], Event] = {}
    if not since < until or points < 1:
        return []
    for event in events:
        if not since <= event.time <= until or (heavy := weight(event)) == NONE:
            continue
        place = (int((event.time - since) / (until - since) * points), event.gpu)
        before = kept.get(place)
        if before is None or (heavy, event.id) >= (weight(before), before.id):
            kept[place] = event
    return sorted(kept.values(), key=lambda e: e.id)
