"""A prompt on its way through the run."""

from __future__ import annotations

from remote.generate.partial import Partial
from remote.generate.prompts import Prompt
from remote.generate.talk import Talk, talk_of


class Job:
    """One prompt that is in flight or waits to be sent again. Compared by identity."""

    __slots__ = (
        "alone",
        "attempts",
        "avoid",
        "crowded_out",
        "deaths",
        "free",
        "hedged",
        "index",
        "line",
        "lone_deaths",
        "partial",
        "prompt",
        "refused",
        "reseeds",
        "rooms",
        "sends",
        "sent_at",
        "talk",
        "waits",
        "witness",
    )

    def __init__(self, index: int, line: bytes, prompt: Prompt) -> None:
        self.index = index
        self.line = line
        self.prompt = prompt
        self.talk: Talk | None = talk_of(prompt)
        self.partial: Partial | None = None
        """What an interrupted answer had; the next request goes on from there."""
        self.attempts = 0
        """Times it was sent and answered, or failed by its own fault."""
        self.sends = 0
        """Times it was sent; part of the request id."""
        self.sent_at = 0.0
        self.free = 0
        """Failures that were not clearly its own and did not count."""
        self.waits = 0
        """Times in a row that a server told it to come back later."""
        self.crowded_out: dict[str, int] | None = None
        """How often each server (its key) did so while it took another prompt."""
        self.reseeds = 0
        """Answers thrown away for their outcome, each followed by another seed."""
        self.avoid: object = None
        """The server that failed it last: another one that has room is tried first."""
        self.refused: dict[str, bool] | None = None
        """The servers (their keys) that won't have it, and whether another one's answer to it
        speaks against them."""
        self.rooms: dict[str, int] | None = None
        """``max_tokens`` that a server's context leaves room for, where that is less than asked."""
        self.deaths = 0
        """Deaths of servers that it may have caused."""
        self.witness = False
        """Was in flight when a server died, whatever it died of."""
        self.lone_deaths = 0
        """Servers that died with nothing but this prompt in flight."""
        self.alone = False
        """Was in flight in two deaths: sent once more with nothing else on its server."""
        self.hedged = False
        """Was sent to a second server at the end of the run."""

    def refuse(self, key: str, *, tells: bool) -> None:
        """That server won't have it; ``tells``: if another one does, something is wrong there."""
        self.refused = {**(self.refused or {}), key: tells}

    def refuse_for_now(self, key: str) -> None:
        """That server told it to come back later, though it takes others."""
        counts = self.crowded_out or {}
        self.crowded_out = {**counts, key: counts.get(key, 0) + 1}

    def narrow(self, key: str, room: int) -> bool:
        """Ask that server for no more than so many tokens; whether that is news."""
        known = (self.rooms or {}).get(key)
        if known is not None and known <= room:
            return False
        self.rooms = {**(self.rooms or {}), key: room}
        return True
