"""A prompt on its way through the run."""

from __future__ import annotations

from typing import Any

from remote.generate.prompts import Prompt


class Job:
    """One prompt that is in flight or waits to be sent again. Compared by identity."""

    __slots__ = (
        "attempts",
        "avoid",
        "free",
        "index",
        "line",
        "prompt",
        "ready_at",
        "reseeds",
        "sends",
        "turns",
    )

    def __init__(self, index: int, line: bytes, prompt: Prompt) -> None:
        self.index = index
        self.line = line
        self.prompt = prompt
        self.attempts = 0
        """Times it was sent and answered, or failed by its own fault."""
        self.sends = 0
        """Times it was sent; part of the request id."""
        self.free = 0
        """Failures that were not its own and did not count."""
        self.reseeds = 0
        """Answers thrown away for their outcome, each followed by another seed."""
        self.avoid: object = None
        """The server that failed it last: another one is tried first."""
        self.ready_at = 0.0
        self.turns: list[dict[str, Any]] = []
        """Answers to the earlier user turns of a conversation asked turn by turn."""
