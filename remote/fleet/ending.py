"""Why a server ended, by what is left of it: the exit record and the log."""

from __future__ import annotations

import signal
import time

from remote.fleet import identity
from remote.fleet.records import Exit, Running
from remote.sglang.causes import Cause
from remote.sglang.loglines import LogReader

OUTSIDE = "ended"
"""Code of an end that somebody else has asked for: it is no failure, and nothing to mend."""

_SHUTDOWN = 600.0
"""A machine that is started again was being shut down for no longer than so many seconds."""


def judge(
    running: Running | None, ended: Exit | None, reader: LogReader, *, served: bool, busy: bool
) -> Cause:
    """Why a server that was wanted up has ended; with the code :data:`OUTSIDE` where somebody
    else told it to. ``served`` says whether it had been ready, ``busy`` whether it had work."""
    if (restart := _machine_restarted(running, ended)) is not None:
        return restart
    if reader.cause is not None:
        return reader.cause
    if reader.draining:
        left = f", with {reader.remaining} requests left" if reader.remaining else ""
        text = f"ended by a SIGTERM that did not come from here{left}"
        return Cause(OUTSIDE, text, again=False)
    phase = ("while serving" if busy else "while idle") if served else f"while {reader.phase}"
    if ended is None:
        return Cause("unknown", f"ended {phase}; how is unknown, its holder was killed too")
    if ended.status == -signal.SIGTERM:  # SGLang obeys one at once until it has served
        text = f"ended {phase} by a SIGTERM that did not come from here"
        return Cause(OUTSIDE, text, again=False)
    return Cause("exit", f"{describe_status(ended.status)} {phase}")


def _machine_restarted(running: Running | None, ended: Exit | None) -> Cause | None:
    """Host or container went down and took the server with it."""
    if running is None or not running.is_of_earlier_boot:
        return None
    began = identity.began(1)
    if ended is not None and (began is None or began - ended.ended > _SHUTDOWN):
        return None  # it had ended before
    at = f" at {time.strftime('%Y-%m-%d %H:%M', time.gmtime(began))} UTC" if began else ""
    return Cause("restart", f"the machine was restarted{at}, and it ended with it")


def describe_status(status: int | None) -> str:
    """A wait status in words: ``ended with exit status 1``, ``was killed by SIGKILL``."""
    if status is None:
        return "ended, nobody knows how,"
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
