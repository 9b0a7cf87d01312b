"""When Python looks for garbage: never while the console starts, or while somebody types.

Thousands of classes and functions come to life at a start and none of them dies: looking through
them again and again takes a fifth of it. Later a look through everything holds up the loop for
tens of milliseconds, so that it waits for a pause of the keys. What has no cycles goes at once,
as ever; young cycles are looked for as ever, too.
"""

from __future__ import annotations

import gc
import time
from typing import Final

YOUNG: Final = (5_000, 20)
"""Objects between two looks at the youngest, and such looks between two at those that stayed."""
NEVER: Final = 1_000_000_000
PAUSE_S: Final = 3.0
"""After so long without a key nobody is typing."""
EVERY_S: Final = 180.0
LATEST_S: Final = 900.0
"""With keys all the time everything is looked through after so long all the same."""


class Quiet:
    """Of one app. Where :func:`begin` was not called Python goes on as it always does."""

    def __init__(self) -> None:
        self._wanted = not gc.isenabled()
        self._last = time.monotonic()

    def settle(self) -> None:
        """The console is up: what is there now stays; look through what comes after it."""
        if self._wanted:
            gc.freeze()
            gc.set_threshold(*YOUNG, NEVER)
            gc.enable()

    def tidy(self, touched: float) -> None:
        """Look through everything, if it is time for it; ``touched``: when somebody was last here
        (monotonic). To be called every few seconds."""
        now = time.monotonic()
        since = now - self._last
        if self._wanted and since > (EVERY_S if now - touched > PAUSE_S else LATEST_S):
            self._last = now
            gc.collect()


def begin() -> None:
    """No look from now on, until :meth:`Quiet.settle`."""
    gc.disable()
