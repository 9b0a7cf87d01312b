"""Everything that happened, with a filter."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import msgspec
from textual.app import ComposeResult

from console.screens.base import StokerScreen
from console.text import clock, short
from console.widgets.filter_line import FilterLine
from console.widgets.paint import Part, spread
from console.widgets.pane import Filter, Pane
from remote.protocol import Event, Events, ReadEvents

MOST = 5_000
"""Newest events that are saved: what an agent gives at once."""

_MARK = {"info": " ", "warning": "▲", "error": "✖"}


def event_text(event: Event) -> str:
    """One event as a line of text."""
    gpu = f"gpu{event.gpu} " if event.gpu is not None else ""
    who = f"  — {event.who}" if event.who else ""
    return (
        f"{clock(event.time)} {_MARK.get(event.level, '?')} {event.kind:<16} {gpu}{event.text}{who}"
    )


def _style(line: str) -> str:
    mark = re.match(r"\S+ (.)", line)
    return {"▲": "warn", "✖": "bad"}.get(mark.group(1) if mark else "", "text")


class EventsScreen(StokerScreen):
    """One list, newest at the bottom, following."""

    SCREEN = "events"

    def __init__(self) -> None:
        super().__init__()
        self._first = self._last = 0
        """Ids of the oldest and the newest event that are in the list."""

    def body(self) -> ComposeResult:
        """See :class:`StokerScreen`."""
        yield Pane(_style, id="list")
        yield FilterLine()

    def on_mount(self) -> None:
        """The list has the keys."""
        self.query_one(Pane).focus()

    def lay_out(self) -> None:
        """See :class:`StokerScreen`; takes in what came."""
        pane = self.query_one(Pane)
        state = self.app.state
        events = state.events
        if events and not self._first <= events[0].id <= self._last:
            self.refill()  # older ones came, asked for later
        elif events and events[-1].id > self._last:
            pane.add([(e.id, event_text(e)) for e in events if e.id > self._last])
            self._last = events[-1].id
        count = f"{pane.count} of {len(events)} " if self.query_one(FilterLine).text else ""
        right: list[Part] = [(count or f"{len(events)} ", "dim")]
        if not pane.following:
            right.insert(0, ("held  ", "bold warn"))
        if skipped := state.skipped.get("events"):
            right.insert(0, (f"{short(skipped)} before were not sent  ", "warn"))
        title = spread([(" Events", "bold text")], right, pane.size.width)
        pane.set_title([(text, f"{style} on-panel") for text, style in title])

    async def act(self, name: str) -> bool:
        """See :class:`StokerScreen`."""
        match name:
            case "filter":
                self.query_one(FilterLine).open()
            case "events.save":
                self.app.spawn(self.export())
            case _:
                return False
        return True

    async def export(self) -> None:
        """All events of the journal that pass the filter, one JSON object a line, here."""
        wanted = Filter(self.query_one(FilterLine).text)
        found = await self.app.ask(ReadEvents(limit=MOST), timeout=60)
        if not isinstance(found, Events):
            return
        lines = wanted.sift([(e.id, event_text(e)) for e in found.events])
        kept = {number for number, _ in lines}
        chosen = [e for e in found.events if e.id in kept]
        name = f"stoker-events-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        text = "".join(msgspec.json.encode(e).decode() + "\n" for e in chosen)
        try:
            await asyncio.to_thread(Path(name).write_text, text, "utf-8")
        except OSError as error:
            self.app.say(f"{name}: {error.strerror}", "error")
        else:
            self.app.say(f"{len(chosen):,} events saved to {name}")

    def on_filter_line_wanted(self) -> None:
        """Another filter."""
        self.refill()
        self.show()

    def refill(self) -> None:
        """All events there are, through the filter as it is."""
        events = self.app.state.events
        wanted = Filter(self.query_one(FilterLine).text)
        self.query_one(Pane).set_filter(wanted, [(e.id, event_text(e)) for e in events])
        if events:
            self._first, self._last = events[0].id, events[-1].id

    def on_pane_refused(self, message: Pane.Refused) -> None:
        """A filter that takes too long."""
        self.query_one(FilterLine).refuse(message.problem)

    def on_filter_line_entered(self) -> None:
        """Back to the list."""
        self.query_one(Pane).focus()

    def back(self) -> bool:
        """Escape: the filter first."""
        return self.query_one(FilterLine).let_go()
