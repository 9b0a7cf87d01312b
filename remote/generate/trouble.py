"""Requests that gave no answer, and why."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from remote.generate.outcomes import Answer
from remote.generate.partial import Partial

Cause: TypeAlias = Literal[
    "refused", "reset", "timeout", "busy", "server", "garbage", "abort", "denied", "rejected"
]
"""``busy``: come back later (429, 503 …); ``server``: another 5xx; ``garbage``: not an answer;
``abort``: the server broke the answer off; ``denied``: wrong key, model or path, whatever the
prompt; ``rejected``: this prompt will never do."""


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading JSON from outside raises: also where it is nested deeper than anybody means it."""


class TroubleError(Exception):
    """A request that gave no answer."""

    def __init__(
        self, cause: Cause, text: str, status: int | None = None, after: float | None = None
    ) -> None:
        super().__init__(text)
        self.cause: Cause = cause
        self.text = text
        self.status = status
        self.after = after
        """Seconds that the server asks to wait (Retry-After)."""
        self.answer: Answer | None = None
        """``abort`` of a chat request: what it had so far."""
        self.made = 0
        """Tokens of the request that was broken off."""
        self.partial: Partial | None = None
        """What ``/generate`` had made when it was broken off, or before something else failed."""
        self.final = False
        """``rejected`` before it was sent: no server could do anything with it."""
        self.size: int | None = None
        """``rejected`` for so many tokens, which only a longer context has room for."""


def hopeless(text: str) -> TroubleError:
    """A prompt that no server could do anything with, seen before it was sent."""
    trouble = TroubleError("rejected", text)
    trouble.final = True
    return trouble


def too_long(tokens: int, context: int | None) -> TroubleError:
    """A prompt that a server of that context cannot take."""
    text = f"its {tokens} tokens leave no room in a context of {context}"
    trouble = TroubleError("rejected", text)
    trouble.size = tokens
    return trouble
