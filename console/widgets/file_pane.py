"""The pane of one log."""

from __future__ import annotations

import time

from console import model
from console.logfile import FilePast, seek
from console.sift import Filter
from console.text import UNKNOWN, number, short
from console.widgets.gpu import STATE_SIGN, seen_as
from console.widgets.paged_pane import PagedPane
from console.widgets.paint import Part, gpu_style

SKIPPED_S = 60.0
"""So long does a title tell of lines that a flood left out, unless they are looked at."""


class FilePane(PagedPane):
    """One log, with the state of its process in the title; reads back through the whole file."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self._seen = 0
        """Number of the first line of the ring that is not here yet."""
        self._skipped: int | None = None
        """Lines left out by a flood that were already told of; None until the ring is seen."""
        self._skips = 0
        """All lines left out, and when (Unix time) that number last grew."""
        self._skipped_at = 0.0

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
        """See :class:`PagedPane`; lines left out by a flood, until they were looked at or a while
        has gone by: where they are missing a line says so."""
        parts = super().place_parts(state)
        skipped = 0 if self._skipped is None else self._skips - self._skipped
        if self.past is not None or self.app.now() - self._skipped_at > SKIPPED_S:
            self._skipped = None if self._skipped is None else self._skips
        elif skipped:
            at = time.strftime("%H:%M:%S", time.localtime(self._skipped_at))
            parts = [(f"{short(skipped)} skipped at {at}, PageUp shows them ", "warn"), *parts]
        return parts

    def _note(self, ring: model.LogRing) -> None:
        """Take in how many lines were left out; those of before this pane are told by their line
        alone."""
        if self._skipped is None:
            self._skipped = self._skips = ring.skipped
        elif ring.skipped > self._skips:
            self._skips, self._skipped_at = ring.skipped, self.app.now()

    def pull(self, state: model.State) -> None:
        """See :class:`LogPane`."""
        ring = state.logs.get(self.source)
        if ring is None or ring.end == self._seen or self.past is not None:
            return
        self._note(ring)
        start, lines = ring.since(self._seen)
        self._seen = ring.end
        self.add_looked(lines, start)

    def reload(self, state: model.State, wanted: Filter) -> None:
        """See :class:`PagedPane`."""
        super().reload(state, wanted)
        ring = state.logs.get(self.source)
        start, lines = (0, list[str]()) if ring is None else ring.since(0)
        self._seen = 0 if ring is None else ring.end
        if ring is not None:
            self._note(ring)
        self.looked = sum(map(len, lines)) + len(lines)
        self.set_filter(wanted, zip(range(start, start + len(lines)), lines, strict=True))

    def follow(self) -> None:
        """See :class:`PagedPane`; whoever follows on has seen that lines are missing."""
        if self._skipped is not None:
            self._skipped = self._skips
        super().follow()

    def action_move(self, by: int) -> None:
        """See :class:`Pane`; where a flood left lines out, back through the file, which has
        them."""
        if by < 0 and self.past is None and any(self._gap(line) for _, line in self._lines):
            if not self.fetching:
                self.app.spawn(self._into_file(by))
            return
        super().action_move(by)

    @staticmethod
    def _gap(line: str) -> bool:
        return line.startswith(model.GAP) and "skipped" in line

    async def _into_file(self, by: int) -> None:
        await self._page(back=True)
        if self.past is not None:
            super().action_move(by)

    # --- the file ---

    def past_of(self, state: model.State) -> FilePast | None:
        """See :class:`PagedPane`."""
        ring = state.logs.get(self.source)
        if ring is None or ring.next <= 0:
            return None
        past = FilePast(self.source, ring.next, self.grep)
        past.size = max(ring.size, ring.next)
        return past

    def past_from_start(self) -> FilePast:
        """See :class:`PagedPane`."""
        return FilePast(self.source, 0, self.grep)

    async def past_at(self, when: str) -> FilePast:
        """See :class:`PagedPane`."""
        offset = await seek(self.app.outbox.ask, self.source, when)
        return FilePast(self.source, offset, self.grep)
