"""Lines of a log, or of several as one, as a file here."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from console import clocks, logfile, mergedfile
from console.logfile import save
from console.screens.ask import AskLine
from console.widgets.log_pane import LogPane
from console.widgets.merged_pane import MergedPane

if TYPE_CHECKING:
    from console.screens.logs import LogsScreen


async def _once(lines: list[str]) -> AsyncIterator[list[str]]:
    yield lines


class Saver:
    """Of a screen of logs."""

    def __init__(self, screen: LogsScreen) -> None:
        self._screen = screen

    def ask(self, pane: LogPane | None) -> None:
        """What to save of a pane."""
        if pane is None:
            return
        example = "from 17:05 to 17:20, of the whole file; nothing: what is held here"
        clock = self._screen.clock()
        question = f"Save lines of {pane.source}" + (f" ({clock})" if clock else "")
        app = self._screen.app
        app.push_screen(AskLine(question, example), lambda text: self.save(pane, text))

    def save(self, pane: LogPane, text: str | None) -> None:
        """What the pane holds, or a span of its whole files."""
        if text is None:
            return
        app = self._screen.app
        path = Path(f"stoker-{pane.source}-{time.strftime('%Y%m%d-%H%M%S')}.log").absolute()
        if not text.strip():
            app.spawn(self._write(path, _once(list(pane.held()))))
            return
        words = text.replace(" to ", " ").removeprefix("from ").split()
        newest, east = self._screen.newest(), app.state.host.clock_east_s
        times = [at for word in words if (at := clocks.moment_of(word, newest)) is not None]
        if len(times) != 2 or len(words) != 2:
            example = "17:05 17:20, or 2026-11-29T17:05 2026-11-30T03:00"
            app.say(f"type two times: {example}", "error")
        elif times[1] < times[0]:
            app.say(f"{words[1]} is before {words[0]}", "error")
        else:
            app.say("saving …")
            begin, end = (clocks.there(at, east) for at in times)
            if isinstance(pane, MergedPane):
                pages = mergedfile.between(app.outbox.ask, pane.sources, begin, end)
            else:
                pages = logfile.between(app.outbox.ask, pane.source, begin, end)
            app.spawn(self._write(path, pages))

    async def _write(self, path: Path, pages: AsyncIterator[list[str]]) -> None:
        say = self._screen.app.say
        try:
            count, problem = await save(path, pages)
        except OSError as error:
            say(f"{path}: {error.strerror}", "error")
            return
        if problem and count:
            say(f"incomplete: {count:,} lines saved to {path}, then: {problem}", "error")
        elif problem:
            say(f"{problem}; nothing was saved", "error")
        elif count:
            say(f"{count:,} lines saved to {path}")
        else:
            say("there are no such lines; nothing was saved", "warning")
