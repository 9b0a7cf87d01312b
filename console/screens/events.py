"""Everything that happened, with a filter."""

from __future__ import annotations

import re

from textual.app import ComposeResult
from textual.widgets import Input

from console.screens.base import StokerScreen
from console.text import clock
from console.widgets.paint import spread
from console.widgets.pane import Filter, Pane
from remote.protocol import Event

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
        self.filter_text = ""
        self._seen = 0

    def body(self) -> ComposeResult:
        """See :class:`StokerScreen`."""
        yield Pane(_style, id="list")
        entry = Input(
            id="filter", classes="line-input", placeholder="regular expression; ! inverts"
        )
        entry.display = False
        yield entry

    def on_mount(self) -> None:
        """The list has the keys."""
        self.query_one(Pane).focus()

    def show(self) -> None:
        """See :class:`StokerScreen`."""
        super().show()
        pane = self.query_one(Pane)
        events = self.app.state.events
        fresh = [e for e in events if e.id > self._seen]
        if fresh:
            self._seen = fresh[-1].id
            pane.add([(e.id, event_text(e)) for e in fresh])
        right = f"{pane.count} of {len(events)} " if self.filter_text else f"{len(events)} "
        held = "" if pane.following else "held  "
        title = spread(
            [(" Events", "bold text")], [(held, "bold warn"), (right, "dim")], pane.size.width
        )
        pane.set_title([(text, f"{style} on-panel") for text, style in title])

    async def act(self, name: str) -> bool:
        """See :class:`StokerScreen`."""
        if name != "filter":
            return False
        entry = self.query_one("#filter", Input)
        entry.display = True
        self.call_after_refresh(entry.focus)  # the key itself must not be typed
        return True

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        wanted = Filter(event.value)
        if not wanted.problem:
            self.filter_text = event.value
            self.query_one(Pane).set_filter(
                wanted, [(e.id, event_text(e)) for e in self.app.state.events]
            )
            self.show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Back to the list."""
        if problem := Filter(event.value).problem:
            self.app.say(problem, "error")
            return
        event.input.display = bool(event.value)
        self.query_one(Pane).focus()

    def back(self) -> bool:
        """Escape: the filter first."""
        entry = self.query_one("#filter", Input)
        if not entry.display and not self.filter_text:
            return False
        entry.value = ""
        entry.display = False
        self.query_one(Pane).focus()
        return True
