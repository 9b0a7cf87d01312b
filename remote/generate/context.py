"""Whether a prompt and its answer fit the server's context, before it is sent."""

from __future__ import annotations

import re

MARGIN = 16
"""Tokens left free, since chat templates add some of their own."""
_STRICT = 1.15
"""How much denser than the densest prompt seen so far a prompt may be."""

# SGLang 0.5.12 (managers/tokenizer_manager.py) and vLLM 0.32 (entrypoints/openai).
_SAID = (
    re.compile(
        r"maximum context length of (?P<context>\d+) tokens\. You requested a total of \d+ "
        r"tokens: (?P<prompt>\d+) tokens"
    ),
    re.compile(
        r"maximum context length is (?P<context>\d+) tokens and your request has "
        r"(?P<prompt>\d+) input tokens"
    ),
)

_AT_MOST = re.compile(r"supports at most (\d+) completion tokens")
_SPOKEN_OF = re.compile(r"context length|maximum allowed length|maximum model length", re.I)


class Fit:
    """Learns how many bytes a token has here, so that most prompts need no counting."""

    def __init__(self) -> None:
        self._densest = 1.0
        """Bytes of a prompt's line per token, of the densest one so far."""
        self._seen = 0
        self._low = float("inf")

    def learn(self, size: int, tokens: int) -> None:
        """A prompt's line had so many bytes, and the server counted so many tokens."""
        if tokens > 0:
            self._seen += 1
            self._low = min(self._low, size / tokens)
            if self._seen >= 100:
                self._densest = max(0.5, self._low / _STRICT)

    def surely(self, size: int, max_tokens: int, context: int) -> bool:
        """Whether prompt and answer fit without any doubt."""
        return size / self._densest + max_tokens + MARGIN <= context


def room(tokens: int, context: int) -> int:
    """Tokens left for the answer; below 1 where there is none."""
    return context - tokens - MARGIN


def room_said(message: str) -> int | None:
    """The room that a server's refusal speaks of; None where there is none, or no such word."""
    for pattern in _SAID:
        if match := pattern.search(message):
            left = room(int(match["prompt"]), int(match["context"]))
            return left if left >= 1 else None
    if most := _AT_MOST.search(message):
        return int(most[1])
    return None


def spoken_of(message: str) -> bool:
    """Whether a refusal speaks of the prompt's length at all."""
    return _SPOKEN_OF.search(message) is not None
