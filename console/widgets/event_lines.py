"""Events as lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from console.model import agent_now
from console.text import clock_day, visible
from console.widgets.paint import Line, Painted, Part, clip, gpu_style, pad
from remote.protocol import Event

if TYPE_CHECKING:
    from console.app import StokerApp

ELSEWHERE = frozenset({"swap.step", "action.done"})
"""Kinds that the fleet screen shows in another place, as they happen."""

LEVEL = {"info": ("·", "dim"), "warning": ("▲", "warn"), "error": ("✖", "bad")}


def event_line(event: Event, width: int, now: float, *, kind: bool) -> Line:
    """Time (with its day where that is not the day of ``now``), mark, GPU, text, who."""
    sign, style = LEVEL.get(event.level, ("?", "warn"))
    line: list[Part] = [(f"{clock_day(event.time, now)} ", "dim"), (f"{sign} ", style)]
    if kind:
        line.append((pad(visible(event.kind), 16) + " ", "dim"))
    if event.gpu is not None:
        line.append((f"{event.gpu} ", f"bold {gpu_style(event.gpu)}"))
    line.append((visible(event.text), "text" if event.level == "info" else style))
    if event.who:
        line.append((f"  {visible(event.who)}", "dim"))
    return clip(line, width)


def tail_lines(found: Sequence[Event], width: int, height: int, now: float) -> list[Line]:
    """The newest events that fit, newest at the bottom."""
    if not found:
        return [[("no events yet", "dim")]]
    told: list[Event] = []
    for event in reversed(found):
        if event.kind not in ELSEWHERE:
            told.append(event)
            if len(told) == height:
                break
    return [event_line(e, width, now, kind=width >= 110) for e in reversed(told)]


class EventTail(Painted):
    """The latest events on the fleet screen."""

    app: StokerApp

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        now = agent_now(self.app.state, self.app.now())
        return tail_lines(self.app.state.events, width, height, now)
