"""Leaving in order when the terminal is closed or the console is told to end: what was seen is
remembered, the link and the drawing process are closed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import termios
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from console.app import StokerApp

ENDS: Final = (signal.SIGHUP, signal.SIGTERM)
"""A terminal that was closed, a console that is asked to leave."""

AT_MOST_S: Final = 6.0
"""An orderly end that takes longer, for one as nothing takes what is painted any more, is none."""


class Leaving:
    """Of one app."""

    def __init__(self, app: StokerApp) -> None:
        self._app = app
        self._last: threading.Timer | None = None

    def watch(self) -> None:
        """Obey signals from now on; a second one does what it always does."""
        loop = asyncio.get_running_loop()
        for sign in ENDS:
            # Tests run apps in other threads, where signals cannot be taken.
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                loop.add_signal_handler(sign, self._leave, sign)

    def _leave(self, sign: signal.Signals) -> None:
        loop = asyncio.get_running_loop()
        for one in ENDS:
            loop.remove_signal_handler(one)
        self._last = threading.Timer(AT_MOST_S, os._exit, [128 + sign])
        self._last.daemon = True
        self._last.start()
        self._app.looks.keep()
        self._app.exit(return_code=128 + sign)

    def look(self) -> None:
        """Leave where the terminal is gone without a signal: under `nohup` the console would read
        nothing from it for ever, as fast as it can."""
        fileno = getattr(getattr(self._app, "_driver", None), "fileno", None)
        if isinstance(fileno, int):
            try:
                termios.tcgetattr(fileno)
            except termios.error as error:
                if error.args[0] == errno.EIO:  # a browser's pipe is no terminal, and is there
                    self._leave(signal.SIGHUP)

    def over(self) -> None:
        """The app has ended; what follows may take its time."""
        if self._last is not None:
            self._last.cancel()
