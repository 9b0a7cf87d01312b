"""The shape of chat answers, whole and streamed."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from console.lab.sim import parsers
from console.lab.sim.answers import Style
from console.lab.sim.config import Config
from console.lab.sim.entry import Entry

Progress = Callable[[Entry], AsyncIterator[int]]
"""Token counts of a request while it runs."""


def usage(entries: list[Entry], config: Config) -> dict[str, Any]:
    """The token counts of an answer."""
    first = entries[0]
    prompt = 0 if first.work.unqueued else first.work.prompt
    made = sum(entry.made for entry in entries)
    reasoning = first.reasoning_tokens() if len(entries) == 1 else 0
    cached = first.work.cached
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + made,
        "completion_tokens": made,
        "prompt_tokens_details": (
            {"cached_tokens": cached} if config.args.enable_cache_report and cached else None
        ),
        "reasoning_tokens": reasoning,
    }
    if config.new:
        details = {"reasoning_tokens": reasoning} if reasoning else None
        usage["completion_tokens_details"] = details
    return usage


class ChatShape:
    """A chat answer from what was generated."""

    def __init__(self, config: Config, body: dict[str, Any], style: Style, before: str) -> None:
        self.config, self.body, self.style, self.before = config, body, style, before
        self.created = int(time.time())
        self.model = body.get("model") or "default"
        args = config.args
        self.reasoning = (
            str(args.reasoning_parser or "") if body.get("separate_reasoning", True) else ""
        )
        self.tool_parser = str(args.tool_call_parser or "")

    def parts(self, text: str) -> tuple[str, str, list[parsers.Call]]:
        """(reasoning, content, calls) of a text."""
        reasoning = ""
        if self.reasoning:
            reasoning, text = parsers.separate(
                text, thinking=self.style.thinking, before=self.before, new=self.config.new
            )
        found: list[parsers.Call] = []
        if self.tool_parser and self.style.tools:
            text, found = parsers.calls(text, self.style.tools, self.tool_parser)
        return reasoning, text, found

    def answer(self, entries: list[Entry]) -> dict[str, Any]:
        """The whole, for a request that was not streamed."""
        choices = []
        for n, entry in enumerate(entries):
            reason, matched = reason_of(entry)
            reasoning, content, found = self.parts(entry.text())
            if found and reason == "stop":
                reason, matched = "tool_calls", None
            message: dict[str, Any] = {
                "role": "assistant",
                "content": content or None,
                "reasoning_content": reasoning or None,
                "tool_calls": _calls(found) if found else None,
            }
            if self.config.new and not found:
                del message["tool_calls"]
            choices.append(
                {
                    "index": n,
                    "message": message,
                    "logprobs": None,
                    "finish_reason": reason,
                    "matched_stop": matched,
                }
            )
        return {
            "id": entries[0].rid if len(entries) == 1 else uuid.uuid4().hex,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage(entries, self.config),
            "metadata": {"weight_version": self.config.args.weight_version},
        }

    def _event(self, rid: str, choices: list[dict[str, Any]], **extra: Any) -> bytes:
        event = {
            "id": rid,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **extra,
        }
        return b"data: " + msgspec.json.encode(event) + b"\n\n"

    @staticmethod
    def _choice(
        n: int, delta: dict[str, Any], reason: str | None = None, matched: Any = None
    ) -> dict[str, Any]:
        return {
            "index": n,
            "delta": delta,
            "logprobs": None,
            "finish_reason": reason,
            "matched_stop": matched,
        }

    async def chunks(self, entries: list[Entry], progress: Progress) -> AsyncIterator[bytes]:
        """Server-sent events of a streamed request."""
        for n, entry in enumerate(entries):
            head = {"reasoning_content": None, "role": "assistant", "content": ""}
            yield self._event(entry.rid, [self._choice(n, head)])
            sent = ("", "")
            async for made in progress(entry):
                sent, delta = self._delta(sent, entry.plan.text(made))
                if delta:
                    yield self._event(entry.rid, [self._choice(n, delta)])
            if entry.future.result() in ("error", "oom"):
                problem = {
                    "object": "error",
                    "message": "Internal server error",
                    "type": "InternalServerError",
                    "param": None,
                    "code": 500,
                }
                yield b"data: " + msgspec.json.encode({"error": problem}) + b"\n\n"
                return
            reason, matched = reason_of(entry)
            found = self.parts(entry.text())[2]
            sent, delta = self._delta(sent, entry.text())
            if delta:
                yield self._event(entry.rid, [self._choice(n, delta)])
            if found:
                for call in _calls(found):
                    delta = {"reasoning_content": None, "tool_calls": [call]}
                    yield self._event(entry.rid, [self._choice(n, delta)])
                reason, matched = ("tool_calls", None) if reason == "stop" else (reason, matched)
            last = self._choice(n, {"reasoning_content": None}, reason, matched)
            yield self._event(entry.rid, [last])
        options = self.body.get("stream_options") or {}
        if options.get("include_usage"):
            yield self._event(entries[0].rid, [], usage=usage(entries, self.config))

    def _delta(self, sent: tuple[str, str], text: str) -> tuple[tuple[str, str], dict[str, Any]]:
        reasoning, content, found = self.parts(text)
        if not found and self.tool_parser and self.style.tools:
            content = content.split("<tool_call>")[0]
        delta: dict[str, Any] = {}
        if len(reasoning) > len(sent[0]):
            delta["reasoning_content"] = reasoning[len(sent[0]) :]
        if len(content) > len(sent[1]):
            delta.setdefault("reasoning_content", None)
            delta["content"] = content[len(sent[1]) :]
        return (max(reasoning, sent[0], key=len), max(content, sent[1], key=len)), delta


def _calls(found: list[parsers.Call]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "index": call.place,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in found
    ]


def reason_of(entry: Entry) -> tuple[str, Any]:
    """(finish_reason, matched_stop)."""
    finish = entry.finish
    return finish["type"], finish.get("matched")
