"""How far back one looks: the spans of the past that cards and charts show, and their samples."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from console.model import State
from console.text import clock_day, duration
from console.trend import Trend
from remote.protocol import Event, History, Marks, ReadHistory, ReadMarks, Request, Result

RECENT_S: Final = 300.0
"""Span of the cards' own small histories."""

SPANS: Final = (
    300.0,
    900.0,
    3600.0,
    4 * 3600.0,
    12 * 3600.0,
    24 * 3600.0,
    72 * 3600.0,
    7 * 86400.0,
    30 * 86400.0,
)
"""Windows that zooming goes through, in seconds; between them the one of the whole run."""

ROOM: Final = 1.1
"""By so much the window of a whole run that goes on is longer than the run so far: it is not read
anew with each second."""

POINTS: Final = 400

Run = tuple[float, float | None]
"""When the run began and, where it has ended, when that was."""


class Lookback:
    """The cards' near past, and the charts' window: the newest, or one that stands still."""

    def __init__(
        self,
        ask: Callable[[Request], Awaitable[Result | None]],
        newest: Callable[[], float],
        run: Callable[[], Run | None] = lambda: None,
    ) -> None:
        self.recent = Trend(RECENT_S, 150)
        self.window = Trend(SPANS[1], POINTS)
        self.whole = False
        """Whether the window is that of the whole run."""
        self.until: float | None = None
        """Where the window ends, on the agent's clock; None follows the newest data."""
        self.loaded = False
        """Whether the journal has answered for this window."""
        self._chosen = False
        """Whether somebody chose the window: else a young run is shown whole."""
        self.events: Sequence[Event] = ()
        """What is marked in the window, as far as it was there when it was loaded."""
        self._ask = ask
        self._newest = newest
        self.run = run
        """When the run began, and ended; None where there is none."""

    @property
    def end(self) -> float:
        """Where the window ends, on the agent's clock; the last data when that is old."""
        return self._newest() if self.until is None else self.until

    @property
    def text(self) -> str:
        """The window in words."""
        run = self.run() if self.whole else None
        if run is not None:
            began, ended = run
            over = duration((self._newest() if ended is None else ended) - began)
            return f"the whole run, {over}"
        span = duration(self.window.span).replace("m00s", "m").replace("h00m", "h")
        span = span.replace("d00h", "d")
        return span if self.until is None else f"{span} to {clock_day(self.until, self._newest())}"

    def add(self, state: State) -> bool:
        """What is now becomes what was; whether the window has to be loaded anew, since the run
        has outgrown it."""
        self.recent.add(state)
        if self.until is None:
            self.window.add(state)
        run = self.run()
        if run is not None and not self.whole and self._is_young(run):
            return self._show_whole()  # it began under the eyes of this console
        if run is None or not self.whole or self._newest() - run[0] <= self.window.span:
            return False
        if not self._chosen and self._length(run) > SPANS[1]:
            return self._show(SPANS[1], None)
        return self._show_whole()

    def clear(self) -> None:
        """Forget everything: another time of a recording."""
        self.recent.clear()
        self.window.clear()
        self.events = ()

    # --- Each says whether the window is another one now, to be loaded. ---

    def zoom(self, by: int) -> bool:
        """A longer (1) or shorter (-1) window; on the way, that of the whole run."""
        self._chosen = True
        run = self.run()
        if self.whole:
            inside = sum(span < self._length(run) for span in SPANS) if run is not None else 0
            index = inside if by > 0 else inside - 1
            return self._show(SPANS[min(len(SPANS) - 1, max(0, index))], None)
        index = SPANS.index(self.window.span) + by
        if run is not None:
            length = self._length(run)
            beyond = (0.0, *SPANS, math.inf)  # as far as zooming would go
            low, high = sorted((self.window.span, beyond[index + 1]))
            if low < length < high and index >= 0:
                return self._show_whole()
        return self._show(SPANS[min(len(SPANS) - 1, max(0, index))], self.until)

    def all(self) -> bool:
        """The whole run, or back from it; False as well where there is no run."""
        self._chosen = True
        if self.whole:
            return self._show(SPANS[1], None)
        return self.run() is not None and self._show_whole()

    def move(self, by: int) -> bool:
        """The window half its length earlier (-1) or later (1); at the newest data it follows."""
        self._chosen = True
        span = self.window.span
        if self.whole:
            span = max((s for s in SPANS if s <= span), default=SPANS[0])
        until = self.end + by * span / 2
        return self._show(span, until if until < self._newest() else None)

    def follow(self) -> bool:
        """Back to the newest data."""
        self._chosen = True
        span = self.window.span if not self.whole else SPANS[1]
        return self._show(span, None)

    def _is_young(self, run: Run) -> bool:
        """Whether it is to be shown whole, since nobody chose another window."""
        return not self._chosen and run[1] is None and self._length(run) < SPANS[1] / ROOM

    def _length(self, run: Run) -> float:
        return (self._newest() if run[1] is None else run[1]) - run[0]

    def _show_whole(self) -> bool:
        run = self.run()
        if run is None:
            return False
        began, ended = run
        if ended is None:
            span = max(SPANS[0], math.ceil(ROOM * (self._newest() - began) / 60) * 60)
        else:
            span = max(60.0, ended - began)
        return self._show(span, ended, whole=True)

    def _show(self, span: float, until: float | None, *, whole: bool = False) -> bool:
        if (span, until, whole) == (self.window.span, self.until, self.whole):
            return False
        self.until, self.whole = until, whole
        self.window = Trend(span, POINTS)
        self.events, self.loaded = (), False
        return True

    # --- the journal on the other side has it ---

    async def load(self) -> None:
        """Fill both with what was before this console."""
        run = self.run()
        if run is not None and self._is_young(run):
            self._show_whole()
        recent = self.recent
        found = await self._ask(ReadHistory(self._newest() - recent.span, None, recent.points))
        if isinstance(found, History):
            recent.load(found)
        await self.load_window()

    async def load_window(self) -> None:
        """Fill the window; one that was left meanwhile stays as it is."""
        window = self.window
        since = self.end - window.span
        await asyncio.gather(self._load_samples(window, since), self._load_marks(window, since))

    async def _load_samples(self, window: Trend, since: float) -> None:
        found = await self._ask(ReadHistory(since, self.until, window.points))
        if isinstance(found, History) and window is self.window:
            window.load(found)
            self.loaded = True

    async def _load_marks(self, window: Trend, since: float) -> None:
        """Not waited for by the samples: an agent that does not know the question says nothing."""
        marks = await self._ask(ReadMarks(since, self.until, window.points // 2))
        if isinstance(marks, Marks) and window is self.window:
            self.events = marks.events
