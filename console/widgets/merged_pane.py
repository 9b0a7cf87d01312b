"""All logs in one pane, by time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from console import clocks, mergedfile, model
from console.logfile import stamp
from console.mergedfile import BAR, MergedPast, labelled
from console.sift import Filter
from console.widgets.paged_pane import PagedPane
from console.widgets.paint import Part


class MergedPane(PagedPane):
    """Several logs in one, by time; each line begins with where it is from."""

    def __init__(self, sources: Sequence[str]) -> None:
        super().__init__("all")
        self.sources = list(sources)
        self._seen = 0
        """Lines taken in so far: the number of the next."""
        self._from: dict[str, int] = {}
        self._at: dict[str, tuple[str, int]] = {}
        """Where the last line of each log stands: its time, in their clock, and how many lines of
        its log and second it makes."""
        self._came: dict[str, deque[tuple[int, str]]] = {}
        """Of logs without times, when lines came: from which number on, and the time."""

    def own(self, raw: str) -> str:
        """See :class:`LogPane`."""
        return mergedfile.own(raw)

    def name_parts(self, state: model.State) -> list[Part]:
        """See :class:`LogPane`."""
        names = [source.removeprefix("gpu") for source in self.sources]
        those = " ".join(names) if len(names) < 7 else f"{len(names)} logs"
        return [(f" {those} ", "bold accent"), ("by time", "dim")]

    def _sifted(self, lines: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
        """See :class:`Pane`: where a line is from is not looked at, as on the other side."""
        whole = dict(lines)
        kept = super()._sifted((number, self.own(raw)) for number, raw in whole.items())
        return [(number, whole[number]) for number, _ in kept]

    def text_of(self, raw: str) -> str:
        """See :class:`Pane`."""
        label, bar, line = raw.partition(BAR)
        return f"{label}{bar}{super().text_of(line)}"

    def _fresh(self, state: model.State) -> list[str]:
        """New lines of all logs in the order of their times, those of one second by turns, as the
        files are read; one without a time stays behind the one before it. In a log without any
        they stand where they came, and first those that were there before."""
        found: list[tuple[tuple[str, int], str]] = []
        for source in self.sources:
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
            last = self._at.get(source)
            begins = None if last else stamp(lines)
            for place, line in enumerate(lines, start):
                if at := stamp([line]):
                    turn = last[1] + 1 if last and last[0] == at else 1
                    self._at[source] = last = (at, turn)
                where = last or (self._came_at(source, place) or begins or "", 0)
                found.append((where, labelled(source, line)))
        found.sort(key=lambda one: one[0])
        return [line for _, line in found]

    def _came_at(self, source: str, place: int) -> str:
        """When a line of a log without times came, empty where it was there before."""
        came = self._came.get(source, ())
        return next((at for start, at in reversed(came) if start <= place), "")

    def pull(self, state: model.State) -> None:
        """See :class:`LogPane`."""
        if self.past is not None:
            return
        if self._seen and any(
            ring.end and source not in self._from
            for source in self.sources
            if (ring := state.logs.get(source)) is not None
        ):
            self.reload(state, self._filter)  # the past of one that was not there before
        elif fresh := self._fresh(state):
            start, self._seen = self._seen, self._seen + len(fresh)
            self.add_looked(fresh, start)

    def reload(self, state: model.State, wanted: Filter) -> None:
        """See :class:`PagedPane`."""
        super().reload(state, wanted)
        self._from, self._at = {}, {}
        fresh = self._fresh(state)
        self._seen = len(fresh)
        self.looked = sum(map(len, fresh)) + len(fresh)
        self.set_filter(wanted, enumerate(fresh))

    # --- the files ---

    @property
    def one(self) -> str:
        """See :class:`PagedPane`."""
        return ""

    def past_of(self, state: model.State) -> MergedPast:
        """See :class:`PagedPane`."""
        rings = {source: state.logs.get(source) for source in self.sources}
        ends = {s: ring.next for s, ring in rings.items() if ring is not None and ring.next >= 0}
        return MergedPast(self.sources, ends, self.grep)

    def past_from_start(self) -> MergedPast:
        """See :class:`PagedPane`."""
        return MergedPast(self.sources, dict.fromkeys(self.sources, 0), self.grep)

    async def past_at(self, when: str) -> MergedPast:
        """See :class:`PagedPane`."""
        place = await mergedfile.seek(self.app.outbox.ask, self.sources, when)
        return MergedPast(self.sources, place, self.grep)
