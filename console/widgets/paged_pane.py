"""A pane that follows live and reads back through the files on the other side."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from console import model
from console.logfile import LogError, OutsideError, Past
from console.logstyle import ERROR
from console.sift import far
from console.text import percent, size
from console.widgets.log_pane import LogPane
from console.widgets.paint import Part

PAGES = 8
"""Pages, or searches, that one key may fetch until something is found that is shown."""


class PagedPane(LogPane):
    """Lines of the rings while it follows, else pages of the files: :attr:`past`."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.past: Past[Any] | None = None
        """What is shown of the files themselves, while one looks back."""
        self._turn = 0
        """Grows with everything that makes a page on its way unwanted."""

    # --- what the files are ---

    @property
    def one(self) -> str:
        """The one log that this is; empty for several as one."""
        return self.source

    @abstractmethod
    def past_of(self, state: model.State) -> Past[Any] | None:
        """The files from where the lines that came live end; None where there are none yet."""

    @abstractmethod
    def past_from_start(self) -> Past[Any]:
        """The files from their first line on."""

    @abstractmethod
    async def past_at(self, when: str) -> Past[Any]:
        """The files from a little before the first line at or after a time. Raises LogError."""

    # --- the title ---

    def place_parts(self, state: model.State) -> list[Part]:
        """See :class:`LogPane`; the place in the files."""
        parts = super().place_parts(state)
        if self.past is not None:
            first, _, whole = self.past.span
            share = percent(first / max(1, whole))
            parts = [(f"from {share} of {size(whole)} ", "bold info")]
        return parts

    @property
    def further(self) -> str:
        """See :class:`LogPane`."""
        past = self.past
        if past is None:
            return "PageUp looks further back"
        ways = [("PageUp", past.more_before), ("PageDown", past.more_behind)]
        keys = " and ".join(key for key, more in ways if more)
        return f"{keys} look{'' if ' ' in keys else 's'} further" if keys else ""

    # --- following and looking back ---

    def reload(self, state: model.State, wanted: Any) -> None:
        """See :class:`LogPane`; looking back ends with it."""
        self._leave()
        if self.past is not None:
            self.past = None
            self.following = True

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

    def _arrived(self, turn: int) -> None:
        """Nothing is on its way any more, unless something else was asked for meanwhile."""
        if not self._gone(turn):
            self.fetching = False

    def action_start(self) -> None:
        """The first line of the files."""
        self.app.spawn(self._go_to(self.past_from_start(), self._set_out()))

    def wants_before(self) -> None:
        """See :class:`Pane`: the files have what the rings dropped."""
        if not self.fetching:
            self.app.spawn(self._page(back=True))

    def wants_after(self) -> bool:
        """See :class:`Pane`."""
        if self.past is None or not self.past.more_behind:
            return False
        if not self.fetching:
            self.app.spawn(self._page(back=False))
        return True

    async def to_time(self, when: str) -> None:
        """See :class:`LogPane`; from the files themselves. Raises OutsideError where they have
        nothing of that time: their start or end is shown then."""
        turn = self._set_out()
        try:
            past = await self.past_at(when)
        except LogError:
            self._arrived(turn)
            raise
        await self._go_to(past, turn)
        if self._gone(turn):
            return
        if not self.on_top(when):
            last = self.newest()
            if self._filter.text or last is None:
                raise LogError(f"{self.source}: nothing to show from that time on")
            raise OutsideError(self.one, "ends", self.told(last))
        first = None if past.more_before or past.grep else self.oldest()
        if first is not None and when < first:
            raise OutsideError(self.one, "begins", self.told(first))

    async def to_next(self, *, back: bool) -> None:
        """See :class:`LogPane`; over the whole files. Forward from the newest line, where there is
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
            wanted = ERROR if self._sought is None else far(self._sought)
            grep = f"^(?=.*?{self.grep})(?=.*?(?:{wanted}))" if self.grep else wanted
            way = back or live
            place = await past.look(self.app.outbox.ask, grep, lambda: self._gone(turn), back=way)
        finally:
            self._arrived(turn)
        if self._gone(turn):
            return
        if place is None:
            where = "before this" if way else "from here to the end of the log"
            what = "error" if self._sought is None else "match"
            raise LogError(f"{self.source}: no {what} {where}")
        turn = self._set_out()
        there = self.past_from_start()
        there.first = there.next = place
        await self._go_to(there, turn)
        if not self._gone(turn):
            self.jump(max(0, self._top))

    @property
    def grep(self) -> str:
        """The filter as the other side searches by it; nothing for one it cannot do."""
        found = self._filter
        return "" if found.pattern is None or found.inverted else far(found.pattern)

    def _kept(self, past: Past[Any]) -> list[tuple[int, str]]:
        self.hidden = 0
        first, behind, _ = past.span
        self.looked = behind - first
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
                before, place = past.count, past.span
                came = await (past.back(ask) if back else past.on(ask))
                if self._gone(turn):
                    return
                kept = self._kept(past)
                if not came and (
                    past.span == place or not (past.more_before if back else past.more_behind)
                ):
                    break
                if len(kept) > len(self._lines) or past.count < before:
                    break
            self.past = past
            self.show_lines(kept, self._top)
        finally:
            self._arrived(turn)

    async def _enter(self, turn: int) -> Past[Any] | None:
        """From the rings to the files: the same lines, now with their place in them."""
        past = self.past_of(self.app.state)
        if past is None:
            return None
        below = self.rows if self.following else len(self._lines) - self._start()
        rows = max(self.rows, len(self._lines))
        await past.back(self.app.outbox.ask, min(9_000, rows))
        if self._gone(turn):
            return None
        kept = self._kept(past)
        if kept:
            self.following = False
            self._top = kept[max(0, len(kept) - below)][0]
        return past

    async def _go_to(self, past: Past[Any], turn: int) -> None:
        """Show the files from the place on at which this begins, some lines before it above; with
        a filter, from the first that passes it. Nothing happens where that is not wanted any
        more."""
        try:
            kept: list[tuple[int, str]] = []
            for _ in range(PAGES):
                came = await past.on(self.app.outbox.ask)
                if self._gone(turn):
                    return
                kept = self._kept(past)
                if len(kept) >= self.rows or (not came and not past.more_behind):
                    break
            await past.back(self.app.outbox.ask)
            if self._gone(turn):
                return
            kept = self._kept(past)
            self.past = past
            self.show_lines(kept, next((n for n, _ in kept if n >= 0), kept[-1][0] if kept else 0))
        finally:
            self._arrived(turn)
