"""All logs in one pane, by time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from console import clocks, model
from console.logfile import stamp
from console.sift import Filter
from console.widgets.log_pane import LogPane

BAR = "│"
"""Between a line of the merged view and where it is from."""


class MergedPane(LogPane):
    """Every log in one, by time; each line begins with where it is from."""

    def __init__(self, sources: Callable[[], list[str]]) -> None:
        super().__init__("all")
        self._sources = sources
        self._seen = 0
        """Lines taken in so far: the number of the next."""
        self._from: dict[str, int] = {}
        self._at: dict[str, str] = {}
        """The last time in each log, in their clock."""
        self._came: dict[str, deque[tuple[int, str]]] = {}
        """Of logs without times, when lines came: from which number on, and the time."""

    def own(self, raw: str) -> str:
        """See :class:`LogPane`."""
        return raw.partition(BAR)[2]

    def text_of(self, raw: str) -> str:
        """See :class:`Pane`."""
        label, bar, line = raw.partition(BAR)
        return f"{label}{bar}{super().text_of(line)}"

    def _fresh(self, state: model.State) -> list[str]:
        """New lines of all logs in the order of their times; one without a time stays behind the
        one before it."""
        found: list[tuple[str, str]] = []
        for source in self._sources():
            ring = state.logs.get(source)
            if ring is None or not ring.end:
                continue
            known = source in self._from
            start, lines = ring.since(self._from.get(source, 0))
            self._from[source] = ring.end
            if lines and known and source not in self._at:
                now = clocks.stamp_at(model.agent_now(state, self.app.now()), self._east)
                came = self._came.setdefault(source, deque(maxlen=model.MAX_LINES))
                came.append((start, now))
            label = source.removeprefix("gpu")
            begins = stamp(lines) or ""
            for place, line in enumerate(lines, start):
                if at := stamp([line]):
                    self._at[source] = at
                else:
                    at = self._at.get(source) or self._arrived(source, place) or begins
                found.append((at, f"{label:>5}{BAR}{line}"))
        found.sort(key=lambda one: one[0])
        return [line for _, line in found]

    def _arrived(self, source: str, place: int) -> str:
        """When a line of a log without times came, empty where it was there before."""
        came = self._came.get(source, ())
        return next((at for start, at in reversed(came) if start <= place), "")

    def pull(self, state: model.State) -> None:
        """See :class:`LogPane`."""
        if self._seen and any(
            ring.end and source not in self._from
            for source in self._sources()
            if (ring := state.logs.get(source)) is not None
        ):
            self.reload(state, self._filter)  # the past of one that was not there before
        elif fresh := self._fresh(state):
            start, self._seen = self._seen, self._seen + len(fresh)
            self.add(zip(range(start, self._seen), fresh, strict=True))

    def reload(self, state: model.State, wanted: Filter) -> None:
        """See :class:`LogPane`."""
        self._from, self._at = {}, {}
        fresh = self._fresh(state)
        self._seen = len(fresh)
        self.set_filter(wanted, enumerate(fresh))

    def wants_before(self) -> None:
        """See :class:`Pane`: files are paged one at a time."""
        self.app.say("one log at a time goes further back: M, then choose it")
