"""Everything that happened, with a filter."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import msgspec
from textual import events
from textual.app import ComposeResult
from textual.message import Message

from console.clocks import stamp_at
from console.deeds import logs_at
from console.eventsift import choice
from console.model import MAX_EVENTS, agent_now
from console.screens.base import StokerScreen
from console.sift import Filter
from console.text import short
from console.widgets.filter_line import FilterLine
from console.widgets.paint import Part, spread
from console.widgets.pane import Pane
from remote.protocol import Event, Events, ReadEvents

PAGE = 5_000
"""Events that an agent gives at once."""

BACK = 500
"""Events that going up fetches."""

HELD = 20_000
"""Events that are held here; who looks further back saves them, or filters."""

_MARK = {"info": " ", "warning": "▲", "error": "✖"}
_LINE = re.compile(r"\S+ \S+ (.)")


def event_text(event: Event) -> str:
    """One event as a line of text."""
    gpu = f"gpu{event.gpu} " if event.gpu is not None else ""
    who = f"  — {event.who}" if event.who else ""
    return (
        f"{stamp_at(event.time)} {_MARK.get(event.level, '?')} {event.kind:<16} "
        f"{gpu}{event.text}{who}"
    )


def _style(line: str) -> str:
    mark = _LINE.match(line)
    return {"▲": "warn", "✖": "bad"}.get(mark.group(1) if mark else "", "text")


class EventPane(Pane):
    """Events by their ids; up and down choose one, and going up fetches older ones."""

    MOST = HELD

    class Older(Message):
        """What is before the first one held is wanted."""

    def __init__(self) -> None:
        super().__init__(_style, id="list")
        self.today = ""

    def text_of(self, raw: str) -> str:
        """See :class:`Pane`; the day only where it is not today."""
        text = super().text_of(raw)
        return text[11:] if text.startswith(self.today) else text[5:]

    def turn(self, today: str) -> None:
        """Another day has begun."""
        if today != self.today:
            self.today = today
            self._strips.clear()
            self.refresh()

    def action_move(self, by: int) -> None:
        """See :class:`Pane`; moves the choice, and scrolls where it must."""
        if not self._lines:
            super().action_move(by)
            return
        start, last = self._start(), len(self._lines) - 1
        bottom = min(last, start + self.rows - 1)
        places = range(start, bottom + 1)
        at = next((i for i in places if self._lines[i][0] == self.chosen), None)
        if at is None:  # it is not on the screen: begin at the edge that one moves away from
            at = (bottom + 1 if by < 0 else start - 1) if not self.following else bottom + 1
        if by < 0 and at + by < 0:
            self.wants_before()
        if by > 0 and at + by > last:
            self.follow()
            return
        wanted = max(0, min(last, at + by))
        self.choose(self._lines[wanted][0])
        if not start <= wanted <= bottom or self.following:
            top = min(wanted, start) if wanted < start else max(start, wanted - self.rows + 1)
            self.hold()
            self._top = self._lines[top][0]
            self.refresh()

    def wants_before(self) -> None:
        """See :class:`Pane`."""
        self.post_message(self.Older())

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel scrolls and chooses nothing."""
        event.stop()
        super().action_move(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel."""
        event.stop()
        super().action_move(3)

    async def on_click(self, event: events.Click) -> None:
        """Choose what was clicked; twice opens it."""
        place = self._start() + event.y - 1
        if event.y > 0 and place < len(self._lines):
            self.hold()
            self.choose(self._lines[place][0])
            if event.chain > 1:
                await self.app.run_action("act('events.open')")


class EventsScreen(StokerScreen):
    """One list, newest at the bottom, following."""

    SCREEN = "events"

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, Event] = {}
        """Every event that is in the list, or would be without the filter, by its id."""
        self._loading = False
        self._reached = False
        """Whether nothing is before the first of them."""
        self._fetched = False
        """Whether some of them were not pushed here but asked for."""

    def body(self) -> ComposeResult:
        """See :class:`StokerScreen`."""
        yield EventPane()
        yield FilterLine(
            "a regular expression (! in front: not), and level=warning kind=server gpu=3 who=kim",
            lambda text: choice(text).problem or Filter(choice(text).rest).problem,
        )

    def on_mount(self) -> None:
        """The list has the keys."""
        self.query_one(EventPane).focus()

    def lay_out(self) -> None:
        """See :class:`StokerScreen`; takes in what came."""
        pane = self.query_one(EventPane)
        state = self.app.state
        pane.turn(stamp_at(agent_now(state, self.app.now()))[:10])
        fresh = [e for e in state.events if e.id not in self._held]
        if fresh:
            newest = max(self._held, default=0)
            self._held |= {e.id: e for e in fresh}
            if fresh[0].id > newest:
                wanted = choice(self.query_one(FilterLine).text)
                pane.add([(e.id, event_text(e)) for e in fresh if wanted.keeps(e)])
            else:
                self.refill()  # older ones came, asked for elsewhere
        if pane.following and not self._loading and len(self._held) > MAX_EVENTS:
            self._forget()
        count = f"{pane.count} of {len(self._held)} " if self.query_one(FilterLine).text else ""
        right: list[Part] = [(count or f"{len(self._held)} ", "dim")]
        if not pane.following:
            right.insert(0, ("held  ", "bold warn"))
        if self._loading:
            right.insert(0, ("reading …  ", "bold info"))
        elif not self._reached and (skipped := state.skipped.get("events")):
            some = "" if self._fetched else f"{short(skipped)} "
            right.insert(0, (f"{some}older: page up  ", "warn"))
        title = spread([(" Events", "bold text")], right, pane.size.width)
        pane.set_title([(text, f"{style} on-panel") for text, style in title])

    def _forget(self) -> None:
        """Hold only what is pushed here."""
        self._held = {e.id: e for e in self.app.state.events}
        self._reached = self._fetched = False

    async def act(self, name: str) -> bool:
        """See :class:`StokerScreen`."""
        match name:
            case "filter":
                self.query_one(FilterLine).open()
            case "events.save":
                self.app.spawn(self.export())
            case "events.open":
                await self.open_logs()
            case _:
                return False
        return True

    @property
    def chosen(self) -> Event | None:
        """The event that keys mean, where one was chosen."""
        number = self.query_one(EventPane).chosen
        return None if number is None else self._held.get(number)

    async def open_logs(self) -> None:
        """The logs around the chosen event, or the newest one: of its GPU where it has one."""
        pane = self.query_one(EventPane)
        number = pane.last if pane.chosen is None else pane.chosen
        event = None if number is None else self._held.get(number)
        if event is None:
            self.app.say("there is no event here")
            return
        await logs_at(self.app, event.gpu, event.time)

    def on_event_pane_older(self) -> None:
        """Fetch what is before the first one held."""
        if self._loading or self._reached:
            return
        if len(self._held) >= HELD:
            self.app.say(f"{HELD:,} events are held here: S saves all of them to a file")
            return
        self._loading = True
        self.app.spawn(self._back())

    async def _back(self) -> None:
        """Fetch older events until one more of them is shown."""
        pane = self.query_one(EventPane)
        shown = pane.count
        try:
            while self._held and len(self._held) < HELD and pane.count <= shown:
                first = min(self._held)
                found = await self.app.outbox.ask(ReadEvents(limit=BACK, before=first), timeout=60)
                if not isinstance(found, Events) or not self.is_attached or not self._loading:
                    return
                older = {e.id: e for e in found.events if e.id < first}
                self._reached = len(older) < BACK
                self._held = older | self._held
                self._fetched = True
                self.refill()
                pane.hold()
                if self._reached:
                    return
        finally:
            self._loading = False
            self.show()

    async def export(self) -> None:
        """All events of the journal that pass the filter, one JSON object a line, here."""
        which = choice(self.query_one(FilterLine).text)
        wanted = Filter(which.rest)
        chosen: list[bytes] = []
        before: int | None = None
        while True:
            found = await self.app.outbox.ask(ReadEvents(limit=PAGE, before=before), timeout=60)
            if not isinstance(found, Events):
                return
            page = [e for e in found.events if before is None or e.id < before]
            some = [e for e in page if which.keeps(e)]
            kept = {n for n, _ in wanted.sift([(e.id, event_text(e)) for e in some])}
            chosen += [msgspec.json.encode(e) for e in reversed(some) if e.id in kept]
            if len(page) < PAGE:
                break
            before = page[0].id
        path = Path.cwd() / f"stoker-events-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        text = b"".join(line + b"\n" for line in reversed(chosen))
        try:
            await asyncio.to_thread(path.write_bytes, text)
        except OSError as error:
            self.app.say(f"{path}: {error.strerror}", "error")
        else:
            self.app.say(f"{len(chosen):,} events saved to {path}")

    def on_filter_line_wanted(self) -> None:
        """Another filter."""
        self.refill()
        self.show()

    def refill(self) -> None:
        """All events there are, through the filter as it is."""
        wanted = choice(self.query_one(FilterLine).text)
        held = [(n, event_text(e)) for n, e in sorted(self._held.items()) if wanted.keeps(e)]
        self.query_one(EventPane).set_filter(Filter(wanted.rest), held)

    def on_pane_held(self, message: Pane.Held) -> None:
        """Who follows again needs none of what was fetched."""
        if message.pane.following:
            self._loading = False  # what is on its way is not wanted any more
            self._forget()
            self.refill()
        self.show()

    def on_pane_refused(self, message: Pane.Refused) -> None:
        """A filter that takes too long."""
        self.query_one(FilterLine).refuse(message.problem)

    def on_filter_line_entered(self) -> None:
        """Back to the list."""
        self.query_one(EventPane).focus()

    def back(self) -> bool:
        """Escape: the filter first."""
        return self.query_one(FilterLine).let_go()
