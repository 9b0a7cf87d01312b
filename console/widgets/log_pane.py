"""Panes of logs: one log, followed live and read back through its file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from console import clocks, model
from console.batchline import compact
from console.logfile import LogError, Past, first_behind, last_before, seek, stamp
from console.logstyle import ERROR, log_style
from console.patience import TooLongError, at_most
from console.sift import LIMIT, SIFT_S, Filter, far, last_state
from console.text import UNKNOWN, number, percent, plain, short, size
from console.widgets.cards import STATE_SIGN, seen_as
from console.widgets.paint import Part, gpu_style, spread
from console.widgets.pane import Pane

if TYPE_CHECKING:
    from console.app import StokerApp

COMPACT = 200
"""In panes narrower than this, batch lines are told in a few words: the numbers stand at their
end."""

PAGES = 8
"""Pages, or searches, that one key may fetch until something is found that is shown."""

_STAMP = re.compile(
    r"^(\[)?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)([.,]\d+)?(?(1)([^\]]{0,40})\] ?| )"
)


class LogPane(Pane):
    """Lines that come to the rings of logs, under a title."""

    app: StokerApp

    def __init__(self, source: str) -> None:
        super().__init__(lambda raw: log_style(self.own(raw)))
        self.source = source
        self.fetching = False
        """Whether a page of a file is on its way."""
        self.raw = False
        """Whether lines are shown as they stand in the file."""
        self._east: int | None = None
        self._today = ""

    def own(self, raw: str) -> str:
        """Of a line that is held here, what its log has of it."""
        return raw

    def text_of(self, raw: str) -> str:
        """In this machine's clock, the day left out where it is today's, and batch lines in a few
        words: panes are narrow."""
        text = super().text_of(raw)
        if self.raw:
            return text
        found = _STAMP.match(text)
        if found is None:
            return text
        when = clocks.here(f"{found[2]} {found[3]}", self._east)
        when = when[11:] if when[:10] == self._today else when[5:]
        rest = text[found.end() :]
        if self.size.width < COMPACT:
            rest = compact(rest) or rest
        return f"{when}{found[4] or ''}{found[5] or ''} {rest}"

    def turn(self, *, raw: bool, state: model.State) -> None:
        """Show lines raw or not, and as it fits the clocks of now."""
        east = state.host.clock_east_s
        today = clocks.stamp_at(model.agent_now(state, self.app.now()))[:10]
        if (raw, east, today) != (self.raw, self._east, self._today):
            self.raw, self._east, self._today = raw, east, today
            self._strips.clear()
            self.refresh()

    def name_parts(self, state: model.State) -> list[Part]:
        """Whose lines these are: the left of the title."""
        return [(f" {self.source} ", "bold accent")]

    def place_parts(self, state: model.State) -> list[Part]:
        """Where one looks, and what is not shown: the right of the title."""
        parts = [(f"{short(self.hidden)} noise hidden ", "dim")] if self.hidden else []
        if not self.following:
            parts.append((f"held, {short(self.behind)} below ", "bold warn"))
        return parts

    def retitle(self, state: model.State) -> None:
        """The title as it is now."""
        width = self.size.width
        if width < 8:
            return
        right = self.place_parts(state)
        if self.fetching:
            right = [("reading … ", "bold info"), *right]
        tone = " on-panel bold" if self.has_focus else " on-panel"
        line = spread(self.name_parts(state), right, width)
        self.set_title([(text, style + tone) for text, style in line])

    def pull(self, state: model.State) -> None:
        """Take in what came since the last time."""
        raise NotImplementedError

    def reload(self, state: model.State, wanted: Filter) -> None:
        """Everything held on this side, through another filter."""
        raise NotImplementedError

    @property
    def incomplete(self) -> bool:
        """Whether there is more than is held here, so that following has to :meth:`reload`."""
        return self.pending > 0

    def held(self) -> Iterable[str]:
        """Every line held here, oldest first."""
        return (line for _, line in self._lines)

    def newest(self) -> str | None:
        """The last time in what is held here, in the clock of the logs."""
        lines = (stamp([self.own(line)]) for _, line in reversed(self._lines))
        return next((at for at in lines if at is not None), None)

    def bad(self, raw: str) -> bool:
        """Whether a line held here tells of an error."""
        return log_style(self.own(raw)) == "bad"

    def wanted(self, raw: str) -> bool:
        """Whether a line is one that is jumped to: what is sought, else an error."""
        if self._sought is None:
            return self.bad(raw)
        return self._sought.search(plain(last_state(self.own(raw))[:LIMIT])) is not None

    def held_next(self, *, back: bool, wrap: bool) -> int | None:
        """The next line held here that is :meth:`wanted`, as :meth:`find`. Raises LogError."""
        try:
            with at_most(SIFT_S):
                return self.find(self.wanted, back=back, wrap=wrap)
        except TooLongError:
            raise LogError("this takes too long: no repetition inside a repetition") from None

    async def to_next(self, *, back: bool) -> None:
        """Jump to the next line that is :meth:`wanted`, or the one before. Raises LogError."""
        found = self.held_next(back=back, wrap=not back and self.following)
        if found is None:
            raise LogError(f"{self.source}: nothing more that way is held here")
        self.jump(found)

    def on_top(self, when: str) -> bool:
        """Put the first line held here at or after a time on top; whether there is one."""
        for place, line in self._lines:
            at = stamp([self.own(line)])
            if at is not None and at >= when:
                self.hold()
                self._top = place
                self.refresh()
                return True
        return False

    async def to_time(self, when: str) -> None:
        """Put the first line at or after a time (of the logs' clock) on top. Raises LogError."""
        if not self.on_top(when):
            raise LogError(f"{self.source}: nothing that late is held here")


class FilePane(LogPane):
    """One log, with the state of its process in the title; reads back through the whole file."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.past: Past | None = None
        """What is shown of the file itself, while one looks back."""
        self._seen = 0
        """Number of the first line of the ring that is not here yet."""
        self._turn = 0
        """Grows with everything that makes a page on its way unwanted."""

    def name_parts(self, state: model.State) -> list[Part]:
        """See :class:`LogPane`; a server's state and load."""
        if not self.source.startswith("gpu"):
            return super().name_parts(state)
        gpu = int(self.source[3:])
        server = state.servers.get(gpu)
        word = "stopped" if server is None else seen_as(server)
        sign, tone = STATE_SIGN.get(word, ("?", "warn"))
        parts: list[Part] = [(f" {gpu} ", f"bold {gpu_style(gpu)}"), (sign, tone)]
        if server is not None:
            parts.append((f" {server.phase or word}", tone))
            if server.state == "ready":
                info = state.infos.get(gpu)
                slots = UNKNOWN if info is None else number(info.max_running)
                parts.append((f" {number(server.running)}/{slots}", "text"))
                parts.append((f" {number(server.gen_tok_s)} tok/s", "dim"))
        return parts

    def place_parts(self, state: model.State) -> list[Part]:
        """See :class:`LogPane`; lines left out by a flood, and the place in the file."""
        parts = super().place_parts(state)
        if self.past is not None:
            share = self.past.first / max(1, self.past.size)
            parts = [(f"from {percent(share)} of {size(self.past.size)} ", "bold info")]
        ring = state.logs.get(self.source)
        if ring is not None and ring.skipped:
            parts = [(f"{short(ring.skipped)} skipped ", "warn"), *parts]
        return parts

    def pull(self, state: model.State) -> None:
        """See :class:`LogPane`."""
        ring = state.logs.get(self.source)
        if ring is None or ring.end == self._seen or self.past is not None:
            return
        start, lines = ring.since(self._seen)
        self._seen = ring.end
        self.add(zip(range(start, start + len(lines)), lines, strict=True))

    def reload(self, state: model.State, wanted: Filter) -> None:
        """See :class:`LogPane`; looking back ends with it."""
        self._leave()
        if self.past is not None:
            self.past = None
            self.following = True
        ring = state.logs.get(self.source)
        start, lines = (0, list[str]()) if ring is None else ring.since(0)
        self._seen = 0 if ring is None else ring.end
        self.set_filter(wanted, zip(range(start, start + len(lines)), lines, strict=True))

    # --- the whole file ---

    @property
    def incomplete(self) -> bool:
        """See :class:`LogPane`."""
        return super().incomplete or self.past is not None

    def follow(self) -> None:
        """See :class:`Pane`; a page on its way is not wanted any more."""
        self._leave()
        super().follow()

    def _set_out(self) -> int:
        """Begin to fetch; whoever fetched before gives up. Returns what :meth:`_gone` asks for."""
        self._turn += 1
        self.fetching = True
        return self._turn

    def _gone(self, turn: int) -> bool:
        """Whether what was set out for is not wanted any more."""
        return turn != self._turn or not self.is_attached

    def _leave(self) -> None:
        """Nothing that is being fetched is wanted any more."""
        self._turn += 1
        self.fetching = False

    def action_start(self) -> None:
        """The first line of the file."""
        self.app.spawn(self._go_to(0, self._set_out()))

    def wants_before(self) -> None:
        """See :class:`Pane`: the file has what the ring dropped."""
        if not self.fetching:
            self.app.spawn(self._page(back=True))

    def wants_after(self) -> bool:
        """See :class:`Pane`."""
        past = self.past
        if past is None or past.next >= past.size:
            return False
        if not self.fetching:
            self.app.spawn(self._page(back=False))
        return True

    async def to_time(self, when: str) -> None:
        """See :class:`LogPane`; from the file itself."""
        turn = self._set_out()
        try:
            offset = await seek(self.app.outbox.ask, self.source, when)
        except LogError:
            if not self._gone(turn):
                self.fetching = False
            raise
        await self._go_to(offset, turn)
        if not self._gone(turn) and not self.on_top(when):
            raise LogError(f"{self.source}: nothing to show from that time on")

    async def to_next(self, *, back: bool) -> None:
        """See :class:`LogPane`; over the whole file. Forward from the newest line, where there is
        nothing further, it looks back."""
        live = self.past is None and not back
        found = self.held_next(back=back, wrap=live)
        if found is not None:
            self.jump(found)
            return
        turn = self._set_out()
        try:
            past = self.past or await self._enter(turn)
            if past is None or self._gone(turn):
                return
            offset = await self._look(past, turn, back=back or live)
        finally:
            if not self._gone(turn):
                self.fetching = False
        if self._gone(turn):
            return
        if offset is None:
            where = "before this" if back or live else "from here to the end of the log"
            what = "error" if self._sought is None else "match"
            raise LogError(f"{self.source}: no {what} {where}")
        turn = self._set_out()
        await self._go_to(offset, turn)
        if not self._gone(turn):
            self.jump(max(0, self._top))

    async def _look(self, past: Past, turn: int, *, back: bool) -> int | None:
        """Offset of the next line in the file that is :meth:`wanted` and passes the filter."""
        wanted = ERROR if self._sought is None else far(self._sought)
        grep = f"^(?=.*?{self._grep})(?=.*?(?:{wanted}))" if self._grep else wanted
        look = last_before if back else first_behind
        at = past.first if back else past.next
        return await look(self.app.outbox.ask, self.source, at, grep, lambda: self._gone(turn))

    @property
    def _grep(self) -> str:
        """The filter as the other side searches by it; nothing for one it cannot do."""
        found = self._filter
        return "" if found.pattern is None or found.inverted else far(found.pattern)

    def _kept(self, past: Past) -> list[tuple[int, str]]:
        self.hidden = 0
        return self._sifted(past.lines())

    async def _page(self, *, back: bool) -> None:
        """Fetch a page before or behind what is shown, and keep the line on top where it is."""
        turn = self._set_out()
        try:
            past = self.past or await self._enter(turn)
            if past is None or self._gone(turn):
                return
            ask = self.app.outbox.ask
            for _ in range(PAGES):  # a page of nothing but noise is no page
                before = past.count
                came = await (past.back(ask) if back else past.on(ask))
                if self._gone(turn):
                    return
                kept = self._kept(past)
                if not came and not (past.first > 0 if back else past.next < past.size):
                    break
                if len(kept) > len(self._lines) or past.count < before:
                    break
            self.past = past
            self.show_lines(kept, self._top)
        finally:
            if not self._gone(turn):
                self.fetching = False

    async def _enter(self, turn: int) -> Past | None:
        """From the ring to the file: the same lines, now with their place in it."""
        ring = self.app.state.logs.get(self.source)
        if ring is None or ring.next <= 0:
            return None
        past = Past(self.source, self._grep)
        past.size = max(ring.size, ring.next)
        rows = max(self.rows, len(self._lines))
        await past.back(self.app.outbox.ask, ring.next, min(9_000, rows))
        if self._gone(turn):
            return None
        kept = self._kept(past)
        if kept:
            self.following = False
            self._top = kept[0][0]
        return past

    async def _go_to(self, offset: int, turn: int) -> None:
        """Show the file from a place on, some lines before it above; with a filter, from the first
        that passes it. Nothing happens where that is not wanted any more."""
        try:
            past = Past(self.source, self._grep)
            past.size = past.searched = offset
            kept: list[tuple[int, str]] = []
            for page in range(PAGES):
                came = await past.on(self.app.outbox.ask, None if page else offset)
                if self._gone(turn):
                    return
                kept = self._kept(past)
                if len(kept) >= self.rows or (not came and past.next >= past.size):
                    break
            await past.back(self.app.outbox.ask)
            if self._gone(turn):
                return
            kept = self._kept(past)
            self.past = past
            self.show_lines(kept, next((n for n, _ in kept if n >= 0), kept[-1][0] if kept else 0))
        finally:
            if not self._gone(turn):
                self.fetching = False
