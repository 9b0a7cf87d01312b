"""Server logs side by side, followed live."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from textual.app import ComposeResult
from textual.containers import Container
from textual.css.query import NoMatches

from console import clocks, model
from console.logfile import LogError, between, save
from console.logstyle import ACCESS_OR_NOISE, NOISE
from console.screens.ask import AskLine
from console.screens.base import StokerScreen
from console.sift import Filter, compiled
from console.widgets.filter_line import FilterLine
from console.widgets.log_pane import FilePane, LogPane
from console.widgets.merged_pane import MergedPane
from console.widgets.pane import Pane

_QUIET = (
    "every line is shown",
    "health checks and pollers are hidden",
    "every access line is hidden",
)

PANES = (1, 2, 4, 8)

EARLIER_S = 10.0
"""Of an event's logs, so much from before it is shown."""


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


async def _once(lines: list[str]) -> AsyncIterator[list[str]]:
    yield lines


class LogsScreen(StokerScreen):
    """One to eight panes."""

    SCREEN = "logs"

    def __init__(self) -> None:
        super().__init__()
        self.panes = 8
        self.first = 0
        self.merged = False
        self.quiet = 1
        """0 every line, 1 without health checks and pollers, 2 without any access line."""
        self.raw = False
        """Whether lines are shown as they stand in their files."""
        self.sought = ""
        """What is marked and jumped to, instead of errors."""
        self._layout: tuple[object, ...] = ()
        self._filling = False
        """Whether panes were made that have no lines yet."""
        self._due: str | None = None
        """A time, in the clock of the logs, that panes go to once they are there."""

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
        yield FilterLine()

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
                MergedPane(lambda: self.everything) if source == "all" else FilePane(source)
                for source in wanted
            ]
            with self.app.batch_update():
                box.remove_children()
                box.mount_all(panes)
            self._filling = True
            self.call_after_refresh(self._filled)
            self.app.targets.resubscribe()

    def _filled(self) -> None:
        self._filling = False
        pattern = compiled(self.sought) if self.sought else None
        for pane in self.query(LogPane):
            pane.turn(raw=self.raw, state=self.app.state)
            pane.seek_out(pattern)
            pane.reload(self.app.state, self.filter)
        self.retitle()
        self._go_there()
        if len(self.query(LogPane)) == 1:
            self.query_one(LogPane).focus()

    @property
    def filter(self) -> Filter:
        """What the panes show."""
        text = self.query_one(FilterLine).text
        return Filter(text, hide=(None, NOISE, ACCESS_OR_NOISE)[self.quiet])

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
            pane.turn(raw=self.raw, state=self.app.state)
            pane.retitle(self.app.state)

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
                self.query_one(FilterLine).open()
            case "logs.noise":
                self.quiet = (self.quiet + 1) % 3
                self.refilter()
                self.app.say(_QUIET[self.quiet])
            case "logs.time":
                clock = self._clock()
                example = "17:05 or 17:05:30" + (f", {clock}" if clock else "")
                self.app.push_screen(AskLine("Show every pane from a time on", example), self.jump)
            case "logs.raw":
                self.raw = not self.raw
                self.app.say("lines as in the file" if self.raw else "batch lines in short")
            case "logs.find":
                self.app.push_screen(
                    AskLine("Mark and go to what matches", "regular expression; nothing: errors"),
                    self.seek_out,
                )
            case "logs.merge":
                self.merged = not self.merged
            case "logs.save":
                self.ask_save()
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
                self.to_next(back=False)
            case "logs.before":
                self.to_next(back=True)
            case _:
                return False
        self.show()
        return True

    def _clock(self) -> str:
        """Whose clock times are in, where it makes a difference."""
        return clocks.differing(self.app.state.host.clock_east_s, self.app.now())

    def seek_out(self, text: str | None) -> None:
        """Mark what matches in every pane, and go to the next in the chosen one."""
        if text is None:
            return
        try:
            pattern = compiled(text) if text else None
        except ValueError as error:
            self.app.say(str(error), "error")
            return
        self.sought = text
        for pane in self.query(LogPane):
            pane.seek_out(pattern)
        if text:
            self.to_next(back=False)

    def to_next(self, *, back: bool) -> None:
        """The chosen pane's next error, or match of what is sought; or the one before."""
        one = self.chosen
        if one is not None:
            one.focus()
            self.app.spawn(self._all([one], lambda pane: pane.to_next(back=back)))

    async def _all(
        self, panes: Sequence[LogPane], go: Callable[[LogPane], Coroutine[Any, Any, None]]
    ) -> None:
        """Let panes go somewhere together; why they cannot is told once."""
        told = await asyncio.gather(*(go(pane) for pane in panes), return_exceptions=True)
        problems = [error for error in told if error is not None]
        for error in problems:
            if not isinstance(error, LogError):
                raise error
        if problems:
            self.app.say("; ".join(dict.fromkeys(map(str, problems))), "warning")
        self.retitle()

    def jump(self, text: str | None) -> None:
        """Every pane at one time."""
        if not text:
            return
        when = clocks.moment_of(text, self._newest())
        if when is None:
            self.app.say(f"{text!r} is no time: type 17:05 or 2026-11-29 17:05:30", "error")
            return
        self._due = clocks.there(when, self.app.state.host.clock_east_s)
        self._go_there()

    def show_at(self, at: float) -> None:
        """The logs around a moment (Unix time), once there are panes."""
        self.merged = False
        self._due = clocks.stamp_at(at - EARLIER_S, self.app.state.host.clock_east_s)
        self.lay_out()
        if not self._filling:
            self._go_there()

    def _go_there(self) -> None:
        panes = list(self.query(LogPane))
        if self._due is not None and panes:
            when, self._due = self._due, None
            self.app.spawn(self._all(panes, lambda pane: pane.to_time(when)))

    def _newest(self) -> str:
        """The latest moment that a time typed without a day can mean, in this machine's clock."""
        state = self.app.state
        east = state.host.clock_east_s
        held = [at for pane in self.query(LogPane) if (at := pane.newest()) is not None]
        now = clocks.stamp_at(model.agent_now(state, self.app.now()))
        return max([now, *(clocks.here(at, east) for at in held)])

    def ask_save(self) -> None:
        """What to save of the chosen pane."""
        pane = self.chosen
        if pane is None:
            return
        example = "from 17:05 to 17:20, of the whole file; nothing: what is held here"
        if not isinstance(pane, FilePane):
            example = "enter: what is held here"
        clock = self._clock() if isinstance(pane, FilePane) else ""
        question = f"Save lines of {pane.source}" + (f" ({clock})" if clock else "")
        self.app.push_screen(AskLine(question, example), lambda text: self.save(pane, text))

    def save(self, pane: LogPane, text: str | None) -> None:
        """What the pane holds, or a span of its whole file, as a file here."""
        if text is None:
            return
        name = f"stoker-{pane.source}-{time.strftime('%Y%m%d-%H%M%S')}.log"
        if not text.strip():
            self.app.spawn(self._write(name, _once(list(pane.held()))))
            return
        words = text.replace(" to ", " ").removeprefix("from ").split()
        newest, east = self._newest(), self.app.state.host.clock_east_s
        times = [at for word in words if (at := clocks.moment_of(word, newest)) is not None]
        if not isinstance(pane, FilePane) or len(times) != 2 or len(words) != 2:
            example = "17:05 17:20, or 2026-11-29T17:05 2026-11-30T03:00"
            self.app.say(f"type two times: {example}", "error")
        elif times[1] < times[0]:
            self.app.say(f"{words[1]} is before {words[0]}", "error")
        else:
            self.app.say("saving …")
            begin, end = (clocks.there(at, east) for at in times)
            pages = between(self.app.outbox.ask, pane.source, begin, end)
            self.app.spawn(self._write(name, pages))

    async def _write(self, name: str, pages: AsyncIterator[list[str]]) -> None:
        try:
            count, problem = await save(Path(name), pages)
        except OSError as error:
            self.app.say(f"{name}: {error.strerror}", "error")
            return
        if problem and count:
            self.app.say(f"incomplete: {count:,} lines saved to {name}, then: {problem}", "error")
        elif problem:
            self.app.say(f"{problem}; nothing was saved", "error")
        elif count:
            self.app.say(f"{count:,} lines saved to {name}")
        else:
            self.app.say("there are no such lines; nothing was saved", "warning")

    def refilter(self) -> None:
        """Everything held, through the filter as it is now."""
        wanted = self.filter
        for pane in self.query(LogPane):
            pane.reload(self.app.state, wanted)
        self.retitle()

    def on_filter_line_wanted(self) -> None:
        """Another filter."""
        self.refilter()

    def on_pane_refused(self, message: Pane.Refused) -> None:
        """A filter that takes too long."""
        self.query_one(FilterLine).refuse(message.problem)

    def on_filter_line_entered(self) -> None:
        """Back to the panes."""
        self.set_focus(self.chosen)

    def back(self) -> bool:
        """Escape: the filter first, then holding."""
        if self.query_one(FilterLine).let_go():
            return True
        held = [p for p in self.query(LogPane) if not p.following or p.fetching]
        for pane in held:
            pane.follow()
        return bool(held)

    def on_pane_held(self, message: Pane.Held) -> None:
        """A pane that follows again takes in what it left out."""
        pane = message.pane
        if not isinstance(pane, LogPane):
            return
        if pane.following and pane.incomplete:
            pane.reload(self.app.state, self.filter)
        pane.retitle(self.app.state)
