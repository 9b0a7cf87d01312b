"""Rings the terminal's bell, and asks it for a notification where somebody looks elsewhere."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from console import calls

if TYPE_CHECKING:
    from textual.app import App

GATHER_S: Final = 0.5
"""What comes within so long of the first is one call."""


class Ringer:
    """The bell of an app's terminal."""

    def __init__(self, app: App[None]) -> None:
        self._app = app
        self._texts: list[str] = []
        self.touched = time.monotonic()
        """When somebody was last here (monotonic)."""

    def touch(self) -> None:
        """Somebody is here."""
        self.touched = time.monotonic()

    def call(self, text: str) -> None:
        """Call for this, once together with all that comes at the same time."""
        if not self._texts:
            self._app.set_timer(GATHER_S, self._ring)
        self._texts.append(text)

    def _ring(self) -> None:
        texts, self._texts = self._texts, []
        app = self._app
        app.bell()
        idle = time.monotonic() - self.touched > calls.IDLE_S
        driver = app._driver
        if (idle or not app.app_focus) and driver is not None and not app.is_headless:
            driver.write(calls.sequence(calls.summary(texts), tmux="TMUX" in os.environ))
