"""What an interrupted answer had so far, and how it grows: values only.

An answer of ``/generate`` is kept as token ids, so that what follows is what would have followed.
A chat answer carries no ids: its text is kept, and encoded anew where it is continued, so that the
tokens at that one seam may differ. A tool call that was begun there is made again: what the
server's parser left of it is no text to go on from.
"""

from __future__ import annotations

import zlib
from array import array
from itertools import chain
from typing import Any, Literal

import msgspec
from msgspec import Struct

from remote.generate.outcomes import Answer
from remote.generate.records import Usage

THINK, THINK_END = "<think>", "</think>"

Opening = Literal["open", "closed", "free"]
"""How a rendered prompt ends: inside a thought, behind one that was closed at once (thinking is
off), or before either, so that the model itself says which."""


class Segment(Struct):
    """One part of an answer, made in one request."""

    server: str
    epoch: int | None
    tokens: int
    endpoint: Literal["chat", "generate"]
    latency_s: float
    finished_at: str


class Partial(Struct):
    """The parts of an unfinished answer; a new one is made where it grows or shrinks."""

    identity: str
    """Of the servers that may go on with it."""
    segments: list[Segment]
    prompt_tokens: int
    prompt_ids: list[int] = []
    """The rendered prompt; empty while only text is known."""
    parts: list[list[int]] = []
    """Generated ids, one list a segment; empty while only text is known."""
    reasoning: str = ""
    """The text of a chat answer, while there are no ids."""
    content: str = ""
    finish: dict[str, Any] | None = None
    """It is whole, and only its parsing was interrupted: the finish reason of ``/generate``."""
    checksum: int = 0
    """Of all ids: one outside the vocabulary would end the server that it is sent to."""
    turns: list[dict[str, Any]] = []
    """The answered turns of the conversation whose open turn this is."""

    @property
    def tokens(self) -> int:
        """Output tokens of all parts."""
        return sum(segment.tokens for segment in self.segments)

    @property
    def ids(self) -> list[int]:
        """All generated ids."""
        return list(chain.from_iterable(self.parts))

    @property
    def latency_s(self) -> float:
        """Seconds that all parts took."""
        return sum(segment.latency_s for segment in self.segments)


def from_chat(answer: Answer, segment: Segment, identity: str) -> Partial | None:
    """What a chat answer that was broken off is worth; None where nothing of it can be kept."""
    # A character that was cut in the middle, and a blank that belongs to the next word's token.
    reasoning = (answer.reasoning or "").rstrip("\ufffd ")
    content = (answer.content or "").rstrip("\ufffd ")
    if THINK in content or THINK_END in content:
        content, _, rest = content.partition(THINK_END)
        if answer.reasoning or not rest:
            return None  # a parser that we do not understand
        content = content + THINK_END + rest
    if not (reasoning or content):
        return None
    return Partial(
        identity,
        [segment],
        answer.usage.prompt_tokens,
        reasoning=reasoning,
        content=content,
    )


def raw_text(partial: Partial, opening: Opening) -> str:
    """The text of a chat answer as the model wrote it behind a prompt that ends so."""
    thought, content = partial.reasoning, partial.content
    if not thought:
        return content
    # 0.5.12 strips line ends around both texts, 0.5.23 leaves them.
    if opening != "open":
        thought = THINK + ("" if thought.startswith("\n") else "\n") + thought
    if not content:
        return thought
    end = THINK_END if thought.endswith("\n") else f"\n{THINK_END}"
    return thought + end + ("" if content.startswith("\n") else "\n\n") + content


def with_ids(partial: Partial, prompt_ids: list[int], text_ids: list[int]) -> Partial:
    """The same with its text encoded."""
    parts = [text_ids, *([] for _ in partial.segments[1:])]
    return _sealed(
        msgspec.structs.replace(
            partial,
            prompt_ids=prompt_ids,
            prompt_tokens=partial.prompt_tokens or len(prompt_ids),
            parts=parts,
            reasoning="",
            content="",
        )
    )


def grown(
    base: Partial | None,
    segment: Segment,
    ids: list[int],
    *,
    identity: str,
    prompt_ids: list[int],
    prompt_tokens: int = 0,
    finish: dict[str, Any] | None = None,
) -> Partial:
    """``base`` and one more part."""
    return _sealed(
        Partial(
            identity,
            [*(base.segments if base else ()), segment],
            base.prompt_tokens if base else prompt_tokens or len(prompt_ids),
            prompt_ids,
            [*(base.parts if base else ()), ids],
            finish=finish,
        )
    )


def without(partial: Partial, server: str) -> Partial | None:
    """What was made before anything came from this server; None where that is nothing."""
    for number, segment in enumerate(partial.segments):
        if segment.server == server:
            if not number or not partial.parts:
                return None
            return _sealed(
                msgspec.structs.replace(
                    partial,
                    segments=partial.segments[:number],
                    parts=partial.parts[:number],
                    finish=None,
                )
            )
    return partial


def usage(partial: Partial, reasoning_tokens: int) -> Usage:
    """Of the whole answer: the original's prompt, every part's tokens."""
    return Usage(partial.prompt_tokens, partial.tokens, min(reasoning_tokens, partial.tokens))


def encode(partial: Partial, turns: list[dict[str, Any]]) -> msgspec.Raw:
    """As ``pending.jsonl`` keeps it, with the conversation's turns so far."""
    kept = msgspec.structs.replace(partial, turns=turns)
    return msgspec.Raw(msgspec.json.encode(kept))


def decode(data: msgspec.Raw) -> Partial | None:
    """What :func:`encode` wrote; None where it is damaged."""
    try:
        partial = msgspec.json.decode(data, type=Partial)
    except msgspec.DecodeError:
        return None
    whole = partial.checksum == _checksum(partial)
    sound = len(partial.parts) in (0, len(partial.segments)) and bool(partial.segments)
    return partial if whole and sound else None


def _sealed(partial: Partial) -> Partial:
    partial.checksum = _checksum(partial)
    return partial


def _checksum(partial: Partial) -> int:
    if not partial.prompt_ids:
        return 0
    try:
        ids = array("i", chain(partial.prompt_ids, *partial.parts))
    except OverflowError:
        return -1
    return zlib.crc32(ids.tobytes())
