"""Server logs side by side, followed live."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Container
from textual.css.query import NoMatches
from textual.widgets import Input

from console import model
from console.logfile import Past, moment_of, seek, stamp
from console.screens.ask import AskLine
from console.screens.base import StokerScreen
from console.text import UNKNOWN, number, percent, short, size
from console.widgets.cards import STATE_SIGN
from console.widgets.paint import Part, fit, gpu_style, spread, width_of
from console.widgets.pane import Filter, Pane

ACCESS = re.compile(r'"(?:GET|POST|PUT|DELETE) /')
"""Access lines of the HTTP server."""

if TYPE_CHECKING:
    from console.app import StokerApp
    from remote.protocol import Request, Result

NOISE = re.compile(
    r'"(?:GET|POST) /(?:health|health_generate|metrics|v1/loads|get_load|server_info|'
    r"get_server_info|model_info|ping|ready)\b|#new-token: 1,.*#running-req: 0,"
)
"""Access lines of pollers, and the one-token prefill of a health check on an idle server."""

ACCESS_OR_NOISE = re.compile(f"{NOISE.pattern}|{ACCESS.pattern}")

_QUIET = (
    "every line is shown",
    "health checks and pollers are hidden",
    "every access line is hidden",
)

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


def log_style(line: str) -> str:
    """The colour of a line by what it tells; SGLang's lines carry no level."""
    if _BATCH.search(line[:80]):
        return "text" if "Decode" in line[:60] else "dim"
    line = line[:500]
    if line.startswith(model.GAP):
        return "warn"
    if ACCESS.search(line):
        return "bad" if re.search(r'" 5\d\d\b', line) else "dim"
    if _BAD.search(line):
        return "bad"
    if _WARN.search(line):
        return "warn"
    if _PHASE.search(line):
        return "good"
    return "text"


BAR = "│"
"""Between a line of the merged view and where it is from."""

PANES = (1, 2, 4, 8)


def grid(count: int, width: int, height: int) -> tuple[int, int]:
    """Columns and rows for so many panes: half a hundred cells wide where that is possible."""
    columns = min(count, max(1, width // 52))
    if columns == 1 and count > 2 and width >= 76:
        columns = 2
    rows = ceil(count / columns)
    while rows * 4 > height and columns < count:
        columns += 1
        rows = ceil(count / columns)
    return ceil(count / rows), rows


class LogPane(Pane):
    """One log, with the state of its process in the title."""

    app: StokerApp

    def __init__(self, source: str) -> None:
        super().__init__(log_style)
        self.source = source
        self.past: Past | None = None
        """What is shown of the file itself, while one looks back."""
        self.loading = False
        self.seen = 0
        """Number of the first line of the ring that is not here yet."""
        self.version = -1

    def text_of(self, raw: str) -> str:
        """The day and the brackets of SGLang's time stamp are left out: panes are narrow."""
        return _STAMP.sub(r"\1 ", super().text_of(raw), count=1)

    @property
    def gpu(self) -> int | None:
        """The GPU of a server's log."""
        return int(self.source[3:]) if self.source.startswith("gpu") else None

    def retitle(self, state: model.State, key: str) -> None:
        """Name, state of the process, and what is not shown."""
        width = self.size.width
        if width < 8:
            return
        left: list[Part] = []
        gpu = self.gpu
        if gpu is not None:
            server = state.servers.get(gpu)
            sign, tone = STATE_SIGN.get(server.state if server else "stopped", ("?", "warn"))
            left = [(f" {gpu} ", f"bold {gpu_style(gpu)}"), (sign, tone)]
            if server is not None:
                word = server.phase or server.state
                left.append((f" {word}", tone))
                if server.state == "ready":
                    info = state.infos.get(gpu)
                    slots = UNKNOWN if info is None else number(info.max_running)
                    left.append((f" {number(server.running)}/{slots}", "text"))
                    left.append((f" {number(server.gen_tok_s)} tok/s", "dim"))
        else:
            left = [(f" {self.source} ", "bold accent")]
        right: list[Part] = []
        ring = state.logs.get(self.source)
        if ring is not None and ring.skipped:
            right.append((f"{short(ring.skipped)} skipped ", "warn"))
        if self.loading:
            right.append(("reading … ", "bold info"))
        if self.past is not None:
            place = self.past.first / max(1, self.past.size)
            right.append((f"from {percent(place)} of {size(self.past.size)} ", "bold info"))
        elif not self.following:
            right.append((f"held, {short(self.behind)} below ", "bold warn"))
        focused = self.has_focus
        line = spread(left, right, width)
        if focused:
            line = [(text, f"{style} on-panel bold") for text, style in line]
            gap = width - width_of(line)
            line.append((" " * gap, "text on-panel"))
        else:
            line = [(text, f"{style} on-panel") for text, style in line]
        self.set_title(line)

    def pull(self, state: model.State) -> None:
        """Take in what came to the ring since the last time."""
        ring = state.logs.get(self.source)
        if ring is None or ring.version == self.version or self.past is not None:
            return
        self.version = ring.version
        start, lines = ring.since(self.seen)
        self.seen = ring.end
        self.add(zip(range(start, start + len(lines)), lines, strict=True))

    def reload(self, state: model.State, wanted: Filter) -> None:
        """All of the ring, through another filter; looking back ends with it."""
        if self.past is not None:
            self.past = None
            self.following = True
        ring = state.logs.get(self.source)
        start, lines = (0, list[str]()) if ring is None else ring.since(0)
        self.seen = 0 if ring is None else ring.end
        self.version = -1 if ring is None else ring.version
        self.set_filter(wanted, zip(range(start, start + len(lines)), lines, strict=True))

    # --- the whole file ---

    def action_start(self) -> None:
        """The first line of the file."""
        self.app.spawn(self.go_to(0))

    def wants_before(self) -> None:
        """See :class:`Pane`: the file has what the ring dropped."""
        if not self.loading:
            self.app.spawn(self.page(back=True))

    def wants_after(self) -> bool:
        """See :class:`Pane`."""
        past = self.past
        if past is None or past.next >= past.size:
            return False
        if not self.loading:
            self.app.spawn(self.page(back=False))
        return True

    @property
    def grep(self) -> str:
        """The filter as the other side searches by it; nothing for one it cannot do."""
        found = self._filter
        if found.pattern is None or found.inverted:
            return ""
        return f"(?i){found.text}" if found.pattern.flags & re.IGNORECASE else found.text

    async def page(self, *, back: bool) -> None:
        """Fetch a page before or behind what is shown, and keep the line on top where it is."""
        self.loading = True
        try:
            past = self.past
            if past is None:
                past = await self._enter()
                if past is None:
                    return
            top = self._top
            for _ in range(8):  # a page of nothing but noise is no page
                before = past.count
                came = await (past.back(self.ask) if back else past.on(self.ask))
                kept = [(n, line) for n, line in past.lines() if self._filter.keeps(line)]
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
        past = Past(self.source, self.grep)
        past.size = max(ring.size, ring.next)
        rows = max(self.rows, len(self._lines))
        await past.back(self.ask, ring.next, min(9_000, rows))
        kept = [(n, line) for n, line in past.lines() if self._filter.keeps(line)]
        if not kept:
            return past
        self.following = False
        self._top = kept[0][0]
        return past

    async def ask(self, request: Request) -> Result | None:
        """A question to the agent; the reason of a refusal is told."""
        return await self.app.ask(request)

    def newest(self) -> list[tuple[int, str]]:
        """Every line held here."""
        return list(self._lines)

    def to_time(self, when: str) -> None:
        """Put the first line at or after a time on top."""
        for place, line in self._lines:
            at = stamp([line.partition(BAR)[2] if isinstance(self, MergedPane) else line])
            if at is not None and at >= when:
                self.hold()
                self._top = place
                self.refresh()
                return

    async def go_to(self, offset: int) -> None:
        """Show the file from a place on."""
        self.loading = True
        try:
            past = Past(self.source, "")
            past.size = offset
            await past.on(self.ask, offset)
            await past.back(self.ask)
            kept = [(n, line) for n, line in past.lines() if self._filter.keeps(line)]
            top = next((n for n, _ in kept if n >= 0), None)
            self.past = past
            self.show_lines(kept, top)
        finally:
            self.loading = False


class MergedPane(LogPane):
    """Every log in one, by time; each line begins with where it is from."""

    def __init__(self, wanted: Callable[[], list[str]]) -> None:
        super().__init__("all")
        self._style_of = lambda line: log_style(line.partition(BAR)[2])
        self._wanted = wanted
        self._from: dict[str, int] = {}
        self._at: dict[str, str] = {}

    def text_of(self, raw: str) -> str:
        """See :class:`Pane`."""
        label, bar, line = raw.partition(BAR)
        return f"{label}{bar}{super().text_of(line)}"

    def _fresh(self, state: model.State) -> list[str]:
        """New lines of all logs in the order of their times; one without a time stays behind the
        one before it."""
        found: list[tuple[str, str]] = []
        for source in self._wanted():
            ring = state.logs.get(source)
            if ring is None:
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
        if fresh := self._fresh(state):
            start, self.seen = self.seen, self.seen + len(fresh)
            self.add(zip(range(start, self.seen), fresh, strict=True))

    def reload(self, state: model.State, wanted: Filter) -> None:
        """See :class:`LogPane`."""
        self._from, self._at = {}, {}
        fresh = self._fresh(state)
        self.seen = len(fresh)
        self.set_filter(wanted, enumerate(fresh))

    def wants_before(self) -> None:
        """See :class:`Pane`: files are paged one at a time."""
        self.app.say("one log at a time goes further back: M, then choose it")

    def wants_after(self) -> bool:
        """See :class:`Pane`."""
        return False

    async def go_to(self, offset: int) -> None:
        """Stays with what is held."""


class LogsScreen(StokerScreen):
    """One to eight panes."""

    SCREEN = "logs"

    def __init__(self) -> None:
        super().__init__()
        self.panes = 8
        self.first = 0
        self.filter_text = ""
        self.merged = False
        self.quiet = 1
        """0 every line, 1 without health checks and pollers, 2 without any access line."""
        self._layout: tuple[object, ...] = ()

    # --- which logs ---

    @property
    def everything(self) -> list[str]:
        """All sources there are."""
        return [*(f"gpu{n}" for n in self.app.state.numbers), "run", "agent"]

    @property
    def sources(self) -> list[str]:
        """Those shown now."""
        found = self.everything
        if self.merged:
            return found
        if self.app.focus_gpu is not None:
            return [f"gpu{self.app.focus_gpu}"]
        if not found:
            return []
        first = self.first % len(found)
        turned = found[first:] + found[:first]
        return turned[: self.panes]

    # --- the parts ---

    def body(self) -> ComposeResult:
        """See :class:`StokerScreen`."""
        yield Container(id="panes")
        entry = Input(
            id="filter",
            classes="line-input",
            placeholder="show lines that match this regular expression; ! in front: that do not",
        )
        entry.display = False
        yield entry

    def on_mount(self) -> None:
        """Panes pull four times a second, and only while this screen is in front."""
        if self.app.size.width < 100:
            self.panes = 4
        self._pulling = self.set_interval(0.25, self.pull)

    def on_screen_suspend(self) -> None:
        """Hidden: nothing is pulled."""
        self._pulling.pause()

    def on_screen_resume(self) -> None:
        """In front again."""
        self._pulling.resume()
        super().on_screen_resume()

    def lay_out(self) -> None:
        """Panes for the sources that are wanted now."""
        wanted = ["all"] if self.merged else self.sources
        width, height = self.size
        if not width or not wanted:
            return
        columns, rows = grid(len(wanted), width, height - 2)
        layout = (tuple(wanted), columns, rows)
        if layout == self._layout:
            return
        changed = not self._layout or self._layout[0] != layout[0]
        self._layout = layout
        box = self.query_one("#panes")
        box.styles.grid_size_columns = columns
        box.styles.grid_size_rows = rows
        if changed:
            panes = [
                MergedPane(lambda: self.everything) if source == "all" else LogPane(source)
                for source in wanted
            ]
            with self.app.batch_update():
                box.remove_children()
                box.mount_all(panes)
            self.call_after_refresh(self._filled)
            self.app.resubscribe()

    def _filled(self) -> None:
        for pane in self.query(LogPane):
            pane.reload(self.app.state, self.filter)
        self.retitle()
        if len(self.query(LogPane)) == 1:
            self.query_one(LogPane).focus()

    @property
    def filter(self) -> Filter:
        """What the panes show."""
        return Filter(self.filter_text, hide=(None, NOISE, ACCESS_OR_NOISE)[self.quiet])

    def pull(self) -> None:
        """New lines into every pane."""
        if self.app.screen_stack[0] is not self:
            return
        for pane in self.query(LogPane):
            pane.pull(self.app.state)
        self.retitle()

    def retitle(self) -> None:
        """New titles where something in them changed."""
        for pane in self.query(LogPane):
            pane.retitle(self.app.state, "")

    def show(self) -> None:
        """See :class:`StokerScreen`."""
        super().show()
        self.retitle()

    # --- what can be done ---

    @property
    def chosen(self) -> LogPane | None:
        """The pane with the focus, else the first."""
        if isinstance(self.focused, LogPane):
            return self.focused
        try:
            return self.query(LogPane).first()
        except NoMatches:
            return None

    async def act(self, name: str) -> bool:
        """See :class:`StokerScreen`."""
        match name:
            case "logs.pause":
                panes = list(self.query(LogPane))
                hold = any(p.following for p in panes)
                for pane in panes:
                    if hold:
                        pane.hold()
                    else:
                        pane.follow()
            case "filter":
                entry = self.query_one("#filter", Input)
                entry.display = True
                entry.value = self.filter_text
                self.call_after_refresh(entry.focus)  # the key itself must not be typed
            case "logs.noise":
                self.quiet = (self.quiet + 1) % 3
                self.refilter()
                self.app.say(_QUIET[self.quiet])
            case "logs.time":
                self.app.push_screen(
                    AskLine("Show every pane from a time on", "17:05 or 17:05:30"), self.jump
                )
            case "logs.merge":
                self.merged = not self.merged
            case "logs.save":
                self.save()
            case "logs.copy":
                one = self.chosen
                if one is not None:
                    self.app.copy_to_clipboard("\n".join(one.shown()))
                    self.app.say(f"{len(one.shown())} lines copied")
            case "logs.panes":
                self.app.focus_gpu = None
                index = PANES.index(self.panes) if self.panes in PANES else 0
                self.panes = PANES[(index + 1) % len(PANES)]
            case "logs.next":
                self.app.focus_gpu = None
                count = len(self.everything)
                self.first = (self.first + self.panes) % count if self.panes < count else 0
            case "logs.error":
                one = self.chosen
                found = None if one is None else one.find(lambda line: log_style(line) == "bad")
                if one is not None and found is not None:
                    one.focus()
                    one.jump(found)
                else:
                    self.app.say("no error in what is held here")
            case _:
                return False
        self.show()
        return True

    async def jump(self, text: str | None) -> None:
        """Every pane at one time."""
        if not text:
            return
        now = stamp([line for pane in self.query(LogPane) for _, line in pane.newest()])
        day = (now or "").split(" ")[0] or time.strftime("%Y-%m-%d")
        when = moment_of(text, day)
        if when is None:
            self.app.say(f"{text!r} is no time: type 17:05 or 2026-11-29 17:05:30", "error")
            return

        async def one(pane: LogPane) -> None:
            if isinstance(pane, MergedPane):
                pane.to_time(when)
                return
            offset = await seek(self.app.ask, pane.source, when)
            if offset is not None:
                await pane.go_to(offset)
                pane.to_time(when)

        await asyncio.gather(*(one(pane) for pane in self.query(LogPane)))
        self.retitle()

    def save(self) -> None:
        """What the chosen pane holds, as a file here."""
        pane = self.chosen
        if pane is None:
            return
        name = f"stoker-{pane.source}-{time.strftime('%Y%m%d-%H%M%S')}.log"
        lines = [line for _, line in pane.newest()]
        try:
            Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
        except OSError as error:
            self.app.say(f"{name}: {error.strerror}", "error")
        else:
            self.app.say(f"{len(lines):,} lines saved to {name}")

    def refilter(self) -> None:
        """Everything held, through the filter as it is now."""
        wanted = self.filter
        for pane in self.query(LogPane):
            pane.reload(self.app.state, wanted)
        self.retitle()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The filter works while it is typed; a mistake is told and changes nothing."""
        wanted = Filter(event.value)
        event.input.set_class(bool(wanted.problem), "bad")
        event.input.border_subtitle = wanted.problem
        if not wanted.problem and event.value != self.filter_text:
            self.filter_text = event.value
            self.refilter()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep it, back to the panes."""
        if problem := Filter(event.value).problem:
            self.app.say(problem, "error")
            return
        event.input.display = bool(event.value)
        self.set_focus(self.chosen)

    def back(self) -> bool:
        """Escape: the filter first, then holding."""
        entry = self.query_one("#filter", Input)
        if entry.display or self.filter_text:
            entry.display = False
            entry.value = self.filter_text = ""
            self.refilter()
            self.set_focus(self.chosen)
            return True
        held = [p for p in self.query(LogPane) if not p.following]
        for pane in held:
            pane.follow()
        return bool(held)

    def on_pane_held(self, message: Pane.Held) -> None:
        """A pane that follows again takes in what it left out."""
        pane = message.pane
        if isinstance(pane, LogPane) and pane.following and (pane.pending or pane.past):
            pane.reload(self.app.state, self.filter)
        self.retitle()


__all__ = ["LogPane", "LogsScreen", "fit", "grid", "log_style"]
