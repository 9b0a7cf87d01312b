"""Who looks, and what to tell by webhook while nobody does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from remote.agent.diff import Picture
from remote.agent.eta import over
from remote.agent.webhook import Caller, Webhook, now_utc, span
from remote.journal import Journal
from remote.protocol import Alert, Event
from remote.seen import Seen, seen
from remote.since import Words, account

DIGEST_S: Final = 8 * 3600.0
"""So often is told what happened while nobody looked and a run goes on."""

ENDED: Final = ("run.done", "run.ended", "run.failed")
"""Events after which it is told at once."""

_SEEN, _TOLD = "looked", "webhook"
"""Names of the journal's notes."""

_SIGN: Final = {"error": "✖", "warning": "▲", "good": "✔", "info": "·"}


class Lookers:
    """Counts the consoles, remembers where things stood when the last one left, and calls."""

    def __init__(
        self, journal: Journal, webhook: Webhook, clock: Callable[[], float] = time.time
    ) -> None:
        self._journal = journal
        self._webhook = webhook
        self._clock = clock
        self._caller = Caller()
        self._consoles = 0
        self._seen: Seen | None = None
        self._event = 0
        self._ended = False

    def read_back(self) -> None:
        """What the last agent knew; the journal is open."""
        self._caller = Caller(self._journal.noted(_TOLD, list[Alert]) or ())
        self._seen = self._journal.noted(_SEEN, Seen)
        self._event = self._journal.last_event

    def came(self) -> None:
        """A console is here."""
        self._consoles += 1

    def left(self, picture: Picture) -> None:
        """A console is gone."""
        self._consoles = max(0, self._consoles - 1)
        self._looked(picture)

    def look(self, picture: Picture) -> None:
        """Once a second."""
        now = self._clock()
        told = list(self._caller.told)
        for line in self._caller.look(picture.alerts, now, lambda alert: over(alert, picture)):
            self._webhook.say(line)
        if told != list(self._caller.told):
            self._journal.note(_TOLD, list(self._caller.told.values()))
        fresh = [e for e in self._journal.recent if e.id > self._event]
        self._event = self._journal.last_event
        self._ended = self._ended or any(e.kind in ENDED for e in fresh)
        if self._consoles:
            self._ended = False
            return
        if self._seen is None:
            self._looked(picture)
            return
        long = now - self._seen.time >= DIGEST_S and picture.run.alive
        if self._ended or long:
            self._ended = False
            self._digest(self._seen, picture, now)

    def _digest(self, before: Seen, picture: Picture, now: float) -> None:
        """The same that the console tells one who comes back."""
        events: list[Event] = [e for e in self._journal.recent if e.id > before.event]
        found = account(
            before,
            now=now,
            events=events,
            progress=picture.run.progress,
            alive=picture.run.alive,
            eta_at=_eta_at(picture, now),
            words=Words(now_utc, span),
            alerts=picture.alerts,
        ).lines()
        if found:
            lines = [f"{_SIGN[one.level]} {one.text}" for one in found]
            self._webhook.say(f"since {now_utc(before.time)}:\n" + "\n".join(lines))
        self._looked(picture)

    def _looked(self, picture: Picture) -> None:
        now = self._clock()
        self._seen = seen(
            round(now, 3),
            self._journal.last_event,
            picture.run.progress,
            _eta_at(picture, now),
        )
        self._journal.note(_SEEN, self._seen)


def _eta_at(picture: Picture, now: float) -> float | None:
    progress = picture.run.progress
    if progress is None or progress.eta_hours is None:
        return None
    return now + progress.eta_hours * 3600
