"""Panes of logs: what all of them have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from console import clocks, model
from console.batchline import compact
from console.logfile import LogError, stamp
from console.logstyle import log_style
from console.patience import TooLongError, at_most
from console.sift import LIMIT, SIFT_S, Filter, last_state
from console.text import plain, short, size, visible
from console.widgets.paint import Part, spread
from console.widgets.pane import Pane

if TYPE_CHECKING:
    from console.app import StokerApp

COMPACT = 200
"""In panes narrower than this, batch lines are told in a few words: the numbers stand at their
end."""

CLOCK = 500
"""So many times are kept in this machine's clock."""

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
        self.looked = 0
        """Characters that were looked through for what is shown."""
        self.others = ""
        """What is said of logs that have no pane."""
        self.alone = True
        """Whether it is the only pane, so that nobody asks which one has the keys."""
        self._east: int | None = None
        self._today = ""
        self._clock: dict[str, str] = {}
        """Times of the logs as they are told here: many lines bear the same one."""

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
        when = self.told(f"{found[2]} {found[3]}")
        rest = text[found.end() :]
        if self.size.width < COMPACT:
            rest = compact(rest) or rest
        return f"{when}{found[4] or ''}{found[5] or ''} {rest}"

    def told(self, at: str) -> str:
        """A time of the logs in this machine's clock, without the day where it is today's."""
        told = self._clock.get(at)
        if told is None:
            when = clocks.here(at, self._east)
            told = when[11:] if when[:10] == self._today else when[5:]
            if len(self._clock) >= CLOCK:
                self._clock.clear()
            self._clock[at] = told
        return told

    def turn(self, *, raw: bool, state: model.State) -> None:
        """Show lines raw or not, and as it fits the clocks of now."""
        east = state.host.clock_east_s
        today = clocks.stamp_at(model.agent_now(state, self.app.now()))[:10]
        if (raw, east, today) != (self.raw, self._east, self._today):
            self.raw, self._east, self._today = raw, east, today
            self._clock.clear()
            self._strips.clear()
            self.refresh()

    def name_parts(self, state: model.State) -> list[Part]:
        """Whose lines these are: the left of the title."""
        return [(f" {self.source} ", "bold accent")]

    def place_parts(self, state: model.State) -> list[Part]:
        """Where one looks, and what is not shown: the right of the title."""
        parts = [(f"{self.others} ", "info")] if self.others else []
        if self.hidden:
            parts.append((f"{short(self.hidden)} noise hidden ", "dim"))
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
        left = self.name_parts(state)
        if self.has_focus and not self.alone:
            left = [("▸", "bold accent"), (left[0][0].lstrip(), left[0][1]), *left[1:]]
        line = spread(left, right, width)
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

    def oldest(self) -> str | None:
        """The first time in what is held here, in the clock of the logs."""
        lines = (stamp([self.own(line)]) for _, line in self._lines)
        return next((at for at in lines if at is not None), None)

    def add_looked(self, lines: list[str], start: int) -> None:
        """New lines, the first one's number is ``start``; they count as looked through."""
        self.looked += sum(map(len, lines)) + len(lines)
        self.add(zip(range(start, start + len(lines)), lines, strict=True))
        if not self._lines:
            self.refresh()  # how much was looked through

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
        raise NotImplementedError

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
        raise NotImplementedError

    @property
    def further(self) -> str:
        """Where more could be found than was looked through; empty where that was all."""
        return ""

    def blank(self) -> str:
        """See :class:`Pane`: that nothing matches, which is not a server that says nothing."""
        wanted = visible(self._filter.text, 60)
        if not self.looked:
            return ""
        if not wanted:
            return "every line here is hidden as noise: o shows them"
        further = f"; {self.further}" if self.further else ""
        return f"no line matches {wanted} (looked through {size(self.looked)}{further})"
