"""How far back one looks: the spans of the past that cards and charts show, and their samples."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from console.model import State
from console.text import clock, duration
from console.trend import Trend
from remote.protocol import History, ReadHistory, Request, Result

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
"""Windows that zooming goes through, in seconds."""


class Lookback:
    """The cards' near past, and the charts' window: the newest, or one that stands still."""

    def __init__(
        self, ask: Callable[[Request], Awaitable[Result | None]], newest: Callable[[], float]
    ) -> None:
        self.recent = Trend(RECENT_S, 150)
        self._span = 1
        self.window = self._new()
        self.until: float | None = None
        """Where the window ends, on the agent's clock; None follows the newest data."""
        self._ask = ask
        self._newest = newest

    def _new(self) -> Trend:
        return Trend(SPANS[self._span], 400)

    @property
    def end(self) -> float:
        """Where the window ends, on the agent's clock; the last data when that is old."""
        return self._newest() if self.until is None else self.until

    @property
    def text(self) -> str:
        """The window in words."""
        span = duration(self.window.span).replace("m00s", "m").replace("h00m", "h")
        return span if self.until is None else f"{span} to {clock(self.until)}"

    def add(self, state: State) -> None:
        """What is now becomes what was."""
        self.recent.add(state)
        if self.until is None:
            self.window.add(state)

    def clear(self) -> None:
        """Forget everything: another time of a recording."""
        self.recent.clear()
        self.window.clear()

    # --- Each says whether the window is another one now, to be loaded. ---

    def zoom(self, by: int) -> bool:
        """A longer (1) or shorter (-1) window."""
        span = min(len(SPANS) - 1, max(0, self._span + by))
        return self._show(span, self.until)

    def move(self, by: int) -> bool:
        """The window half its length earlier (-1) or later (1); at the newest data it follows."""
        until = self.end + by * self.window.span / 2
        return self._show(self._span, until if until < self._newest() else None)

    def follow(self) -> bool:
        """Back to the newest data."""
        return self._show(self._span, None)

    def _show(self, span: int, until: float | None) -> bool:
        if (span, until) == (self._span, self.until):
            return False
        self._span, self.until = span, until
        self.window = self._new()
        return True

    # --- the journal on the other side has it ---

    async def load(self) -> None:
        """Fill both with what was before this console."""
        recent = self.recent
        found = await self._ask(ReadHistory(self._newest() - recent.span, None, recent.points))
        if isinstance(found, History):
            recent.load(found)
        await self.load_window()

    async def load_window(self) -> None:
        """Fill the window; one that was left meanwhile stays as it is."""
        window = self.window
        found = await self._ask(ReadHistory(self.end - window.span, self.until, window.points))
        if isinstance(found, History) and window is self.window:
            window.load(found)
