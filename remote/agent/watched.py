"""Until when something was watched: so that the next agent can tell of a time in which nothing
was."""

from __future__ import annotations

import time
from typing import Final

from msgspec import Struct

from remote.journal import Journal

BEAT_S: Final = 5.0
"""So often it is noted that somebody watches."""

_NOTE: Final = "watched"
"""The name under which the journal keeps it."""


class Beat(Struct, frozen=True):
    """The last that was seen."""

    at: float
    servers: list[int] = []
    """GPUs whose server was up."""
    run: bool = False
    """Whether a run was at work."""
    ended: bool = False
    """The agent has left in order after it."""


class Watched:
    """Notes what is watched, and tells of what was not."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._last: Beat | None = None

    def read_back(self) -> Beat | None:
        """What the agent before saw last, where it did not end in order; the journal is open."""
        self._last = self._journal.noted(_NOTE, Beat)
        return self._last if self._last is not None and not self._last.ended else None

    def beat(self, now: float, servers: list[int], run: bool) -> None:
        """Somebody watches, and this is there."""
        last = self._last
        same = last is not None and (last.servers, last.run, last.ended) == (servers, run, False)
        if same and last is not None and 0 <= now - last.at < BEAT_S:
            return
        self._last = Beat(round(now, 1), servers, run)
        self._journal.note(_NOTE, self._last)

    def over(self, now: float) -> None:
        """The agent leaves in order."""
        servers, run = (self._last.servers, self._last.run) if self._last else ([], False)
        self._journal.note(_NOTE, Beat(round(now, 1), servers, run, ended=True))


def gap(last: Beat, now: float, servers: list[int], run: bool) -> str:
    """A line on the time since ``last``, by what is there now."""
    since = time.strftime("%H:%M:%S", time.gmtime(last.at))
    watched = f"nothing was watched for {_span(now - last.at)}, since {since} UTC"
    parts = [f"{watched}: the agent ended without a word (killed, or the machine with it)"]
    gone = [gpu for gpu in last.servers if gpu not in servers]
    total, stayed = len(last.servers), len(last.servers) - len(gone)
    if total and not gone:
        parts.append("its server went on" if total == 1 else f"all {total} servers went on")
    elif gone:
        names = ", ".join(map(str, gone))
        parts.append(f"{stayed} of {total} servers went on, GPU {names} ended meanwhile")
    if last.run:
        parts.append("the run went on" if run else "the run ended meanwhile")
    return "; ".join(parts)


def _span(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
