"""Conversations whose user turns are asked one by one (``mode: each``).

Every user turn of the row is sent with the model's own answers to the earlier ones; assistant and
tool turns that the row brought along are left out, since they answer somebody else. The whole
becomes one record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from remote.generate.outcomes import Answer
from remote.generate.partial import Segment
from remote.generate.prompts import Prompt
from remote.generate.records import Outcome, Usage


class Talk:
    """One conversation and how far it is."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self._parts: list[list[dict[str, Any]]] = []
        """What is sent before each answer: a user turn and what stands directly before it."""
        part: list[dict[str, Any]] = []
        for message in messages:
            role = message.get("role")
            if role in ("assistant", "tool"):
                continue
            part.append(message)
            if role == "user":
                self._parts.append(part)
                part = []
        self.turns: list[dict[str, Any]] = []
        """The answers so far, as the record has them."""

    @property
    def over(self) -> bool:
        """Every user turn is answered, or one in a way that nothing can follow."""
        return len(self.turns) >= len(self._parts) or self.outcome not in ("ok", "length")

    @property
    def outcome(self) -> Outcome:
        """Of the whole: the worst turn's."""
        order: tuple[Outcome, ...] = ("empty", "bad_tool_call", "looped", "length")
        found = {turn["outcome"] for turn in self.turns}
        return next((outcome for outcome in order if outcome in found), "ok")

    def messages(self, *, last: bool = False) -> list[dict[str, Any]]:
        """What the next request sends; ``last``: what the last one sent."""
        count = len(self.turns) - last
        sent: list[dict[str, Any]] = []
        for part, turn in zip(self._parts, [*self.turns[:count], None], strict=False):
            sent += part
            if turn is not None:
                answer = {"role": "assistant", "content": turn["content"] or ""}
                if turn["tool_calls"]:
                    answer["tool_calls"] = turn["tool_calls"]
                sent.append(answer)
        return sent

    def add(
        self,
        answer: Answer,
        outcome: Outcome,
        server: str,
        latency: float,
        segments: Sequence[Segment] = (),
    ) -> None:
        """The open turn is answered; ``segments`` where it was interrupted in between."""
        calls = answer.tool_calls
        turn = {
            "content": answer.content,
            "reasoning_content": answer.reasoning,
            "tool_calls": None if calls is None else msgspec.json.decode(calls),
            "finish_reason": answer.finish_reason,
            "outcome": outcome,
            "usage": msgspec.to_builtins(answer.usage),
            "server": server,
            "latency_s": round(latency, 3),
        }
        if segments:
            turn["segments"] = msgspec.to_builtins(segments)
            turn["latency_s"] = round(sum(segment.latency_s for segment in segments), 3)
        self.turns.append(turn)

    def forget(self, server: str) -> bool:
        """Drop the answers of a server that turned out degenerate, and all that followed them.

        :returns: whether there were any.
        """
        for number, turn in enumerate(self.turns):
            parts = turn.get("segments", ())
            if turn["server"] == server or any(part["server"] == server for part in parts):
                del self.turns[number:]
                return True
        return False

    def usage(self) -> Usage:
        """Tokens of all turns; a prompt that was sent again with its history counts again."""
        total = Usage()
        for turn in self.turns:
            used = msgspec.convert(turn["usage"], Usage)
            total.prompt_tokens += used.prompt_tokens
            total.completion_tokens += used.completion_tokens
            total.reasoning_tokens += used.reasoning_tokens
        return total

    def latency(self) -> float:
        """Seconds that all turns took."""
        return round(sum((float(turn["latency_s"]) for turn in self.turns), 0.0), 3)


def talk_of(prompt: Prompt) -> Talk | None:
    """The conversation of a prompt that is to be asked turn by turn; None for any other."""
    if prompt.mode != "each":
        return None
    messages: list[dict[str, Any]] = msgspec.json.decode(prompt.messages)
    asks = any(message.get("role") == "user" for message in messages)
    return Talk(messages) if asks else None


def as_raw(messages: list[dict[str, Any]]) -> Raw:
    """Messages as a record keeps them."""
    return Raw(msgspec.json.encode(messages))
