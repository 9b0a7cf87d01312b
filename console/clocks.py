"""Two clocks: this machine's, in which everything is shown and typed, and that of the logs.

A log is stamped with the local time of the machine that wrote it. Stamps are compared as text
(``2026-11-29 17:05:30``), so that whatever is typed is brought to their clock first. Where that
clock is not known it counts as the same as ours. Pure functions.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

STAMP: Final = "%Y-%m-%d %H:%M:%S"

_TYPED = re.compile(r"\s*(?:(\d{4}-\d\d-\d\d)[ T])?(\d{1,2}):(\d\d)(?::(\d\d))?\s*")


def moment_of(text: str, newest: str) -> str | None:
    """What a person types for a time, made comparable: ``17:05``, ``17:05:30``, with or without a
    day in front; None where it is no time.

    Without a day it is the last time that the clock showed this before ``newest``, a stamp.
    """
    match = _TYPED.fullmatch(text)
    if match is None:
        return None
    day = match[1] or newest[:10]
    at = f"{day} {int(match[2]):02d}:{match[3]}:{match[4] or '00'}"
    try:
        moment = datetime.strptime(at, STAMP)
    except ValueError:
        return None
    if match[1] is None and at > newest:
        moment -= timedelta(days=1)
    return moment.strftime(STAMP)


def there(when: str, east_s: int | None) -> str:
    """A stamp of ours in the clock of the logs."""
    if east_s is None:
        return when
    return stamp_at(datetime.strptime(when, STAMP).timestamp(), east_s)


def here(when: str, east_s: int | None) -> str:
    """A stamp of a log in our clock; one that is no time as it is."""
    if east_s is None:
        return when
    try:
        far = datetime.fromisoformat(when).replace(tzinfo=timezone(timedelta(seconds=east_s)))
        return far.astimezone().strftime(STAMP)
    except (ValueError, OverflowError):
        return when


def stamp_at(at: float, east_s: int | None = None) -> str:
    """A Unix time as a stamp: of the logs' clock, or of ours where none is given."""
    if east_s is None:
        return datetime.fromtimestamp(at).strftime(STAMP)
    return (datetime.fromtimestamp(at, UTC) + timedelta(seconds=east_s)).strftime(STAMP)


def zone(east_s: int) -> str:
    """``UTC``, ``UTC+2``, ``UTC-3:30``."""
    hours, minutes = divmod(abs(east_s) // 60, 60)
    if not hours and not minutes:
        return "UTC"
    return f"UTC{'-' if east_s < 0 else '+'}{hours}" + (f":{minutes:02d}" if minutes else "")


def differing(east_s: int | None, now: float) -> str:
    """In words where the logs' clock is another one: whose is shown, and how theirs reads."""
    ours = time.localtime(now).tm_gmtoff
    if east_s is None or east_s == ours:
        return ""
    return f"your clock, {zone(ours)}; the logs are written in {zone(east_s)}"
