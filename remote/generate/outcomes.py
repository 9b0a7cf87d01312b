"""What an answer is worth, decided from the answer alone.

The checks are few and cheap; each outcome is one that trainers must be able to tell apart:
cut at ``max_tokens`` (``length``), one phrase over and over (``looped``), nothing that answers
(``empty``), a call that no tool could take (``bad_tool_call``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Raw, Struct

from remote.generate.records import Outcome, Usage

KEPT: frozenset[str] = frozenset({"ok", "length"})
"""Outcomes that go into a batch by default."""

_TAIL = 8192
_NEEDLE = 24
_REPEATS = 8
_REPEATED = 400


class Function(Struct):
    """The function of a tool call; engines send ``arguments`` as JSON text."""

    name: str | None = None
    arguments: Any = None


class ToolCall(Struct):
    """One tool call of an answer."""

    function: Function | None = None


class Answer(Struct):
    """A model's answer, whatever the engine's dialect was."""

    content: str | None
    reasoning: str | None
    tool_calls: Raw | None
    finish_reason: str | None
    usage: Usage
    model: str


_calls = msgspec.json.Decoder(list[ToolCall]).decode


class _ToolFunction(Struct):
    name: str = ""


class _Tool(Struct):
    function: _ToolFunction | None = None


_tools = msgspec.json.Decoder(list[_Tool]).decode


def tool_names(tools: Raw | None) -> frozenset[str]:
    """Names of the tools that a prompt offers."""
    if tools is None:
        return frozenset()
    return frozenset(tool.function.name for tool in _tools(tools) if tool.function)


def judge(answer: Answer, tools: Collection[str]) -> Outcome:
    """The outcome of one answer; ``tools`` are the names that the prompt offered."""
    content = answer.content or ""
    calls = answer.tool_calls
    if loops(content or (answer.reasoning or "")):
        return "looped"
    if calls is not None:
        return _judge_calls(calls, tools, answer.finish_reason)
    if tools and "<tool_call>" in content:
        return "bad_tool_call"  # the engine's parser did not recognise the call
    if answer.finish_reason == "length" and (content.strip() or answer.reasoning):
        return "length"
    return "ok" if content.strip() else "empty"


def _judge_calls(raw: Raw, tools: Collection[str], finish_reason: str | None) -> Outcome:
    try:
        calls = _calls(raw)
    except msgspec.DecodeError:
        return "bad_tool_call"
    for call in calls:
        if call.function is None or call.function.name not in tools:
            return "bad_tool_call"
        arguments = call.function.arguments
        if isinstance(arguments, str):
            try:
                arguments = msgspec.json.decode(arguments)
            except msgspec.DecodeError:
                return "bad_tool_call"
        if not isinstance(arguments, dict):
            return "bad_tool_call"
    return "length" if finish_reason == "length" else "ok"


def loops(text: str) -> bool:
    """Whether the text ends in one phrase over and over.

    The last few characters are looked up in what stands before them; at the distance of the
    latest match the text must repeat itself at least eight times, over 400 characters or more
    (a rule of dashes or a table's border is shorter).
    """
    tail = text[-_TAIL:].rstrip()
    size = len(tail)
    if size < _REPEATED:
        return False
    at = tail.rfind(tail[-_NEEDLE:], 0, size - 1)
    if at < 0:
        return False
    period = size - _NEEDLE - at
    need = max(_REPEATED, _REPEATS * period)
    return need <= size and tail[size - need : size - period] == tail[size - need + period :]
