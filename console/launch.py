"""The console from the command line: on targets, or on a recording."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from console import model
from console.app import ListedApp, StokerApp
from console.config import ConfigError
from console.feed import Feed, connect_agent
from console.watch import Source
from remote.protocol import Message

if TYPE_CHECKING:
    from console.config import Target
    from console.replay import Recorded


def run_console(
    targets: Sequence[Target], first: str | None, *, theme: str = "", debug: bool = False
) -> int:
    """The console on ``targets``, until the operator leaves it; the exit status.

    It opens on the one called ``first``, or on the list of them where that is None.
    """
    check_terminal()
    sources = [Source(t.name, connect_agent(t), t.read_only, t) for t in targets]
    listed = first is None and len(sources) > 1
    kind = ListedApp if listed else StokerApp
    app = kind(sources, name=first or sources[0].name, theme=theme, tracebacks=debug)
    app.run()
    return app.return_code or 0


def check_terminal() -> None:
    """Raise ConfigError where there is no terminal: the screen would wait for one for ever."""
    if os.environ.get("TEXTUAL_DRIVER"):
        return  # the screen is a browser's (`stoker serve`)
    # The screen is painted on standard error's terminal and read from standard input's.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            "the console needs a terminal; without one, `stoker status`, `stoker logs -f` "
            "and `stoker lab --headless` say what it shows"
        )


def run_replay(recorded: Recorded, name: str, *, theme: str = "") -> None:
    """The same screens on a recording, until they are left."""
    from console.replay import ReplayFeed

    def connect(
        on_message: Callable[[Message], None], on_link: Callable[[model.Link], None]
    ) -> Feed:
        return ReplayFeed(recorded, on_message, on_link)

    StokerApp(connect, name=name, read_only=True, theme=theme).run()
