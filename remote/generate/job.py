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
        "deaths",
        "free",
        "hedged",
        "index",
        "limit",
        "line",
        "partial",
        "prompt",
        "reseeds",
        "sends",
        "sent_at",
        "talk",
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
        """Failures that were not its own and did not count."""
        self.reseeds = 0
        """Answers thrown away for their outcome, each followed by another seed."""
        self.avoid: object = None
        """The server that failed it last: another one is tried first."""
        self.limit: int | None = None
        """``max_tokens`` that its context leaves room for, where that is less than asked."""
        self.deaths = 0
        """Servers that died, each of them alone, with this prompt in flight."""
        self.alone = False
        """Was in flight in two deaths: sent once more with nothing else on its server."""
        self.hedged = False
        """Was sent to a second server at the end of the run."""
