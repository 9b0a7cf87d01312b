"""A bound on how long something may compute on the loop's own thread.

Made for regular expressions that an operator types: one with a repetition inside a repetition can
take longer than anybody waits, and nothing else would run meanwhile. Python's ``re`` looks for
signals while it matches, so that an alarm can end it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator


class TooLongError(Exception):
    """It took longer than it may."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise :class:`TooLongError` in the block once it has taken so long. Where there are no
    alarms (another thread than the main one, Windows) nothing bounds it."""
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, ring)
    began = time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # somebody else's alarm goes on
            spent = time.monotonic() - began
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - spent), interval)
