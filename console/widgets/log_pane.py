"""Panes of logs: one log followed live and read back through its file, or all of them in one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from console import model
from console.logfile import Past, seek, stamp
from console.text import UNKNOWN, number, percent, short, size
from console.widgets.cards import STATE_SIGN
from console.widgets.paint import Part, gpu_style, spread
from console.widgets.pane import Filter, Pane

if TYPE_CHECKING:
    from console.app import StokerApp

ACCESS = re.compile(r'"(?:GET|POST|PUT|DELETE) /')
"""Access lines of the HTTP server."""

NOISE = re.compile(
    r'"(?:GET|POST) /(?:health|health_generate|metrics|v1/loads|get_load|server_info|'
    r"get_server_info|model_info|ping|ready)\b|#new-token: 1,.*#running-req: 0,"
)
"""Access lines of pollers, and the one-token prefill of a health check on an idle server."""

ACCESS_OR_NOISE = re.compile(f"{NOISE.pattern}|{ACCESS.pattern}")

BAR = "│"
"""Between a line of the merged view and where it is from."""

_BAD = re.compile(
    r"\b(?:error|exception|traceback|fatal|sigquit|killed|crashed|out of memory|unhealthy|"
    r"watchdog timeout|leak detected|aborted)\b|\w+(?:Error|Exception)\b|failed",
    re.IGNORECASE,
)
_WARN = re.compile(r"\bwarn(?:ing)?\b|deprecat|retract|pool is full|rotated|skipped", re.IGNORECASE)
_PHASE = re.compile(
    r"Load weight|Cache is allocated|Memory pool|Capture .*(?:begin|end)|fired up|"
    r"Application startup|Uvicorn running|server_args=|max_total_num_tokens=|Port \d+: OK|"
    r"Starting generation|healthy"
)
_STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d(?:\.\d+)?)\] ?")
_BATCH = re.compile(r"\] (?:Decode|Prefill) batch")
_SERVER_ERROR = re.compile(r'" 5\d\d\b')


def log_style(line: str) -> str:
    """The colour of a line by what it tells; SGLang's lines carry no level."""
    if _BATCH.search(line[:80]):
        return "text" if "Decode" in line[:60] else "dim"
    line = line[:500]
    if line.startswith(model.GAP):
        return "warn"
    if ACCESS.search(line):
        return "bad" if _SERVER_ERROR.search(line) else "dim"
    if _BAD.search(line):
        return "bad"
    if _WARN.search(line):
        return "warn"
    if _PHASE.search(line):
        return "good"
    return "text"


class LogPane(Pane):
    """Lines that come to the rings of logs, under a title."""

    app: StokerApp

    def __init__(self, source: str) -> None:
        super().__init__(lambda raw: log_style(self.own(raw)))
        self.source = source
        self.loading = False
        """Whether a page of a file is on its way."""

    def own(self, raw: str) -> str:
        """Of a line that is held here, what its log has of it."""
        return raw

    def text_of(self, raw: str) -> str:
        """The day and the brackets of SGLang's time stamp are left out: panes are narrow."""
        return _STAMP.sub(r"\1 ", super().text_of(raw), count=1)

    def name_parts(self, state: model.State) -> list[Part]:
        """Whose lines these are: the left of the title."""
        return [(f" {self.source} ", "bold accent")]

    def place_parts(self, state: model.State) -> list[Part]:
        """Where one looks, and what is not shown: the right of the title."""
        if self.following:
            return []
        return [(f"held, {short(self.behind)} below ", "bold warn")]

    def retitle(self, state: model.State) -> None:
        """The title as it is now."""
        width = self.size.width
        if width < 8:
            return
        right = self.place_parts(state)
        if self.loading:
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

    def to_error(self) -> bool:
        """Jump to the next line that tells of an error; whether there is one."""
        found = self.find(lambda raw: log_style(self.own(raw)) == "bad")
        if found is not None:
            self.focus()
            self.jump(found)
        return found is not None

    async def to_time(self, when: str) -> None:
        """Put the first line at or after a time on top, of those held here."""
        for place, line in self._lines:
            at = stamp([self.own(line)])
            if at is not None and at >= when:
                self.hold()
                self._top = place
                self.refresh()
                return


class FilePane(LogPane):
    """One log, with the state of its process in the title; reads back through the whole file."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.past: Past | None = None
        """What is shown of the file itself, while one looks back."""
        self._seen = 0
        """Number of the first line of the ring that is not here yet."""

    def name_parts(self, state: model.State) -> list[Part]:
        """See :class:`LogPane`; a server's state and load."""
        if not self.source.startswith("gpu"):
            return super().name_parts(state)
        gpu = int(self.source[3:])
        server = state.servers.get(gpu)
        sign, tone = STATE_SIGN.get(server.state if server else "stopped", ("?", "warn"))
        parts: list[Part] = [(f" {gpu} ", f"bold {gpu_style(gpu)}"), (sign, tone)]
        if server is not None:
            parts.append((f" {server.phase or server.state}", tone))
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

    def action_start(self) -> None:
        """The first line of the file."""
        self.app.spawn(self._go_to(0))

    def wants_before(self) -> None:
        """See :class:`Pane`: the file has what the ring dropped."""
        if not self.loading:
            self.app.spawn(self._page(back=True))

    def wants_after(self) -> bool:
        """See :class:`Pane`."""
        past = self.past
        if past is None or past.next >= past.size:
            return False
        if not self.loading:
            self.app.spawn(self._page(back=False))
        return True

    async def to_time(self, when: str) -> None:
        """See :class:`LogPane`; from the file itself."""
        offset = await seek(self.app.ask, self.source, when)
        if offset is not None:
            await self._go_to(offset)
            await super().to_time(when)

    @property
    def _grep(self) -> str:
        """The filter as the other side searches by it; nothing for one it cannot do."""
        found = self._filter
        if found.pattern is None or found.inverted:
            return ""
        return f"(?i){found.text}" if found.pattern.flags & re.IGNORECASE else found.text

    def _kept(self, past: Past) -> list[tuple[int, str]]:
        return self._sifted(past.lines())

    async def _page(self, *, back: bool) -> None:
        """Fetch a page before or behind what is shown, and keep the line on top where it is."""
        self.loading = True
        try:
            past = self.past
            if past is None:
                past = await self._enter()
                if past is None:
                    return
            top = self._top
            ask = self.app.ask
            for _ in range(8):  # a page of nothing but noise is no page
                before = past.count
                came = await (past.back(ask) if back else past.on(ask))
                kept = self._kept(past)
                if not came and not (back and past.first > 0):
                    break
                if len(kept) > len(self._lines) or past.count < before:
                    break
            self.past = past
            self.show_lines(kept, top)
        finally:
            self.loading = False

    async def _enter(self) -> Past | None:
        """From the ring to the file: the same lines, now with their place in it."""
        ring = self.app.state.logs.get(self.source)
        if ring is None or ring.next <= 0:
            return None
        past = Past(self.source, self._grep)
        past.size = max(ring.size, ring.next)
        rows = max(self.rows, len(self._lines))
        await past.back(self.app.ask, ring.next, min(9_000, rows))
        kept = self._kept(past)
        if kept:
            self.following = False
            self._top = kept[0][0]
        return past

    async def _go_to(self, offset: int) -> None:
        """Show the file from a place on."""
        self.loading = True
        try:
            past = Past(self.source)
            past.size = offset
            await past.on(self.app.ask, offset)
            await past.back(self.app.ask)
            kept = self._kept(past)
            top = next((n for n, _ in kept if n >= 0), None)
            self.past = past
            self.show_lines(kept, top)
        finally:
            self.loading = False


class MergedPane(LogPane):
    """Every log in one, by time; each line begins with where it is from."""

    def __init__(self, sources: Callable[[], list[str]]) -> None:
        super().__init__("all")
        self._sources = sources
        self._seen = 0
        """Lines taken in so far: the number of the next."""
        self._from: dict[str, int] = {}
        self._at: dict[str, str] = {}

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
            _, lines = ring.since(self._from.get(source, 0))
            self._from[source] = ring.end
            label = source.removeprefix("gpu")
            for line in lines:
                at = stamp([line]) or self._at.get(source, "")
                self._at[source] = at
                found.append((at, f"{label:>5}{BAR}{line}"))
        found.sort(key=lambda one: one[0])
        return [line for _, line in found]

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
