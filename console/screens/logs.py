"""Server logs side by side, followed live."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from math import ceil
from typing import Any

from textual.app import ComposeResult
from textual.containers import Container

from console import clocks, model
from console.logfile import LogError, OutsideError, outside
from console.logstyle import ACCESS_OR_NOISE, NOISE
from console.screens.ask import AskLine
from console.screens.base import StokerScreen
from console.screens.log_save import Saver
from console.screens.sources import SourcesScreen
from console.sift import Filter, compiled
from console.widgets.file_pane import FilePane
from console.widgets.filter_line import FilterLine
from console.widgets.log_pane import LogPane
from console.widgets.merged_pane import MergedPane
from console.widgets.pane import Pane

_QUIET = (
    "every line is shown",
    "health checks and pollers are hidden",
    "every access line is hidden",
)

PANES = (1, 2, 4, 8)

LEAST_LINES = 6
"""Lines of a log that are worth a pane."""

PULL_S = 0.25
"""Seconds between two looks of a pane for new lines."""

TURNS = 4
"""Panes look in so many turns: a key that comes while all of them are painted would wait."""

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


def fitting(count: int, width: int, height: int) -> int:
    """The most panes, at most ``count``, of which each has its head and enough lines; 0 of 0."""
    most = min(count, 1)
    for n in range(2, count + 1):
        if height // grid(n, width, height)[1] > LEAST_LINES:
            most = n
    return most


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
        self.saver = Saver(self)
        self._turn = 0
        self._layout: tuple[object, ...] = ()
        self._shown: list[LogPane] = []
        """The panes of that layout. Those of the one before may still be on their way out, and
        whoever gave them the keys would have them answer to nothing."""
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
    def wanted(self) -> list[str]:
        """Those that were chosen, else all."""
        chosen = self.app.front.chosen_logs
        found = self.everything
        return [source for source in found if source in chosen] or found

    @property
    def sources(self) -> list[str]:
        """Those shown now."""
        found = self.wanted
        if self.merged:
            return found
        if self.app.focus_gpu is not None:
            return [f"gpu{self.app.focus_gpu}"]
        if not found:
            return []
        first = self.first % len(found)
        turned = found[first:] + found[:first]
        return turned[: self.fitting]

    @property
    def fitting(self) -> int:
        """Panes of those asked for that the terminal has room for."""
        return fitting(min(self.panes, len(self.wanted)), self.size.width, self.rows - 2)

    # --- the parts ---

    def body(self) -> ComposeResult:
        """See :class:`StokerScreen`."""
        yield Container(id="panes")
        yield FilterLine()

    def on_mount(self) -> None:
        """Panes pull four times a second, and only while this screen is in front."""
        if self.app.size.width < 100:
            self.panes = 4
        self._pulling = self.set_interval(PULL_S / TURNS, self.pull)

    def on_screen_suspend(self) -> None:
        """Hidden: nothing is pulled."""
        self._pulling.pause()

    def on_screen_resume(self) -> None:
        """In front again."""
        self._pulling.resume()
        super().on_screen_resume()

    def lay_out(self) -> None:
        """Panes for the sources that are wanted now."""
        wanted = self.sources
        width, height = self.size
        if not width or not wanted:
            return
        count = 1 if self.merged else len(wanted)
        columns, rows = grid(count, width, height - 2)
        layout = ((self.merged, *wanted), columns, rows)
        if layout == self._layout:
            return
        changed = not self._layout or self._layout[0] != layout[0]
        self._layout = layout
        box = self.query_one("#panes")
        box.styles.grid_size_columns = columns
        box.styles.grid_size_rows = rows
        if changed:
            before, self._shown = (
                self._shown,
                ([MergedPane(wanted)] if self.merged else [FilePane(source) for source in wanted]),
            )
            if self.focused in before:
                self.set_focus(None)
            with self.app.batch_update():
                box.remove_children()
                box.mount_all(self._shown)
            self._filling = True
            self.call_after_refresh(self._filled)
            self.app.targets.resubscribe()

    def _filled(self) -> None:
        self._filling = False
        pattern = compiled(self.sought) if self.sought else None
        panes = self._shown
        for pane in panes:
            pane.alone = len(panes) == 1
            pane.turn(raw=self.raw, state=self.app.state)
            pane.seek_out(pattern)
            pane.reload(self.app.state, self.filter)
        if panes and self.focused is None:
            self.set_focus(panes[0])  # so that the keys that move have something to move
        self.retitle()
        self._go_there()

    @property
    def filter(self) -> Filter:
        """What the panes show."""
        text = self.query_one(FilterLine).text
        return Filter(text, hide=(None, NOISE, ACCESS_OR_NOISE)[self.quiet])

    def pull(self) -> None:
        """New lines into the panes whose turn it is."""
        self._turn = (self._turn + 1) % TURNS
        if self.app.screen_stack[0] is not self:
            return
        panes = self._shown[self._turn :: TURNS]
        for pane in panes:
            if pane.flooded:  # nobody reads that fast: half as many pictures will do
                pane.flooded = False
            else:
                pane.pull(self.app.state)
        self.retitle(panes)

    def retitle(self, panes: Sequence[LogPane] | None = None) -> None:
        """New titles where something in them changed."""
        for pane in self._shown if panes is None else panes:
            pane.others = self._others if pane is self._shown[-1] else ""
            pane.turn(raw=self.raw, state=self.app.state)
            pane.retitle(self.app.state)

    @property
    def _others(self) -> str:
        """That there are more logs than panes, and the key that shows them."""
        if self.merged or self.app.focus_gpu is not None:
            return ""
        more = len(self.wanted) - len(self._shown)
        return f"{more} more, n" if more > 0 else ""

    def show(self) -> None:
        """See :class:`StokerScreen`."""
        super().show()
        self.retitle()

    # --- what can be done ---

    @property
    def chosen(self) -> LogPane | None:
        """The pane with the focus, else the first."""
        here = [pane for pane in self._shown if pane is self.focused]
        return next(iter(here or self._shown), None)

    async def act(self, name: str) -> bool:
        """See :class:`StokerScreen`."""
        match name:
            case "logs.pause":
                panes = list(self._shown)
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
                clock = self.clock()
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
                self.saver.ask(self.chosen)
            case "logs.copy":
                one = self.chosen
                if one is not None:
                    self.app.copy_to_clipboard("\n".join(one.shown()))
                    self.app.say(f"{len(one.shown())} lines copied")
            case "logs.panes":
                self.app.focus_gpu = None
                index = PANES.index(self.panes) if self.panes in PANES else 0
                self.panes = PANES[(index + 1) % len(PANES)]
            case "logs.choose":
                self.app.push_screen(SourcesScreen(self.everything, self._chosen), self.choose)
            case "logs.next":
                self.app.focus_gpu = None
                count = len(self.wanted)
                shown = self.fitting
                self.first = (self.first + shown) % count if shown < count else 0
            case "logs.error":
                self.to_next(back=False)
            case "logs.before":
                self.to_next(back=True)
            case _:
                return False
        self.show()
        return True

    @property
    def _chosen(self) -> list[str]:
        """What the list of logs begins with: those that were chosen before, if any."""
        return [source for source in self.everything if source in self.app.front.chosen_logs]

    def choose(self, sources: list[str] | None) -> None:
        """Other logs in the panes; an empty list: all of them, page by page."""
        if sources is None:
            return
        self.app.front.chosen_logs = tuple(sources)
        self.app.focus_gpu = None
        self.first = 0
        if sources:
            self.panes = next((n for n in PANES if n >= len(sources)), PANES[-1])
            more = len(sources) - self.fitting
            if more > 0 and not self.merged:
                self.app.say(f"{len(sources)} logs, {self.fitting} at once: n shows the others")
        self.show()

    def clock(self) -> str:
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
        for pane in self._shown:
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
        lines = outside([error for error in problems if isinstance(error, OutsideError)])
        lines += [str(error) for error in problems if not isinstance(error, OutsideError)]
        if lines:
            self.app.say("; ".join(dict.fromkeys(lines)), "warning")
        self.retitle()

    def jump(self, text: str | None) -> None:
        """Every pane at one time."""
        if not text:
            return
        when = clocks.moment_of(text, self.newest())
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
        panes = list(self._shown)
        if self._due is not None and panes:
            when, self._due = self._due, None
            self.app.spawn(self._all(panes, lambda pane: pane.to_time(when)))

    def newest(self) -> str:
        """The latest moment that a time typed without a day can mean, in this machine's clock."""
        state = self.app.state
        east = state.host.clock_east_s
        held = [at for pane in self._shown if (at := pane.newest()) is not None]
        now = clocks.stamp_at(model.agent_now(state, self.app.now()))
        return max([now, *(clocks.here(at, east) for at in held)])

    def refilter(self) -> None:
        """Everything held, through the filter as it is now."""
        wanted = self.filter
        for pane in self._shown:
            pane.reload(self.app.state, wanted)
        self.retitle()

    def on_descendant_focus(self) -> None:
        """Another pane has the keys: its title says so."""
        self.retitle()

    def on_descendant_blur(self) -> None:
        """The same."""
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
        held = [p for p in self._shown if not p.following or p.fetching]
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
