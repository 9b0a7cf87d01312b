"""Calls, results and tool lists that datasets paste into texts.

The server's chat template writes the tools and the call format itself, in the way its model
was trained on. So what a dataset pasted into texts (Hermes' ``<tools>`` block and format
rules, ``<tool_call>`` and ``<tool_response>`` blocks) is lifted out.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from remote.prepare.rows import Drop, Message
from remote.prepare.text import literal
from remote.prepare.tools import safe_name

MIN_SYSTEM = 20
"""What is left of a system text after the pasted tools went is sent from this length on."""

_block = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_sentence = re.compile(r"[^.!?\n]*(?:[.!?]+(?=\s|\Z)|\n|\Z)")
_call = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_result = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
_xml_call = re.compile(
    r"(?:<tool_call>\s*)?<function=([^>\s]+)>(.*?)</function>(?:\s*</tool_call>)?", re.DOTALL
)
_xml_argument = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)

# Sentences that only explain the pasted block or the format of calls; they would teach the
# model a format that is not the server's. The wording is that of Hermes Function Calling v1's
# system prompts and their many copies.
_wrapper = re.compile(
    r"function[- ]?call|call(?:ing)? (?:one or more )?functions?|signatures?\b|</?tool_call>"
    r"|</?tools>|</?tool_response>|XML tags?|pydantic|FunctionCall|JSON object|scratch_pad"
    r"|what values to plug|guess missing values|available tools|tools? (?:are|is) (?:listed|given)"
    r"|natural conversational language|<function-name>|<args-dict>",
    re.IGNORECASE,
)
_format_line = re.compile(r"^\s*\{[^\n]*(?:FunctionCall|function-name|args-dict)[^\n]*$", re.M)
_example = re.compile(r"(?:Example:\s*)?<scratch_pad>.*?</scratch_pad>", re.DOTALL)


def lift_block(system: str) -> tuple[str | None, str]:
    """The text of a pasted ``<tools>`` block (None where there is none), and the rest."""
    found = [m for m in _block.findall(system) if m.strip()]
    return ("\n".join(found) if found else None), _block.sub("", system)


def strip_wrapper(system: str, patterns: list[str]) -> str:
    """A system text without the sentences around a pasted block; "" if hardly more is left."""
    for pattern in patterns:
        system = re.sub(pattern, "", system, flags=re.DOTALL)
    system = _example.sub("", system)
    system = _call.sub("", system)
    system = _format_line.sub("", system)
    kept = "".join(s for s in _sentence.findall(system) if not _wrapper.search(s))
    kept = re.sub(r"\n{3,}", "\n\n", kept).strip()
    return kept if len(kept) >= MIN_SYSTEM else ""


def _arguments(raw: Any) -> str:
    """Arguments as the JSON text of an object, which is what SGLang parses.

    Raises:
        Drop: ``bad_history_arguments``.
    """
    value = raw
    for _ in range(3):
        if not isinstance(value, str):
            break
        if not value.strip():
            value = {}
            break
        try:
            value = literal(value)
        except ValueError:
            raise Drop("bad_history_arguments", value[:80]) from None
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise Drop("bad_history_arguments", str(raw)[:80])
    if isinstance(raw, str) and _is_json_object(raw):
        return raw
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        raise Drop("bad_history_arguments", str(raw)[:80]) from None


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except msgspec.DecodeError:
        return False


def checked_arguments(text: str) -> str:
    """The text, if it is (still) a JSON object.

    Raises:
        Drop: ``bad_history_arguments``.
    """
    if not _is_json_object(text):
        raise Drop("bad_history_arguments", text[:80])
    return text


def call(raw: Any, call_id: str, names: dict[str, str]) -> dict[str, Any]:
    """One entry of ``tool_calls``; ``names`` maps names in the dataset to names as sent.

    Raises:
        Drop: ``bad_history_call`` or ``bad_history_arguments``.
    """
    if not isinstance(raw, dict):
        raise Drop("bad_history_call", str(raw)[:80])
    function = raw.get("function", raw)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Drop("bad_history_call", str(raw)[:80])
    own = function["name"]
    arguments = function.get("arguments", function.get("parameters"))
    return {
        "id": call_id,
        "type": "function",
        "function": {
            "name": names.get(own) or safe_name(own),
            "arguments": _arguments(arguments),
        },
    }


def calls_in_text(text: str) -> tuple[list[Any], str]:
    """The calls pasted into an assistant's text, still raw, and the text around them.

    Raises:
        Drop: ``bad_history_call``: a block that is neither JSON nor a Python literal.
    """
    found: list[Any] = []
    rest = text
    if "<function=" in text:
        for match in _xml_call.finditer(text):
            arguments = dict(_xml_argument.findall(match[2]))
            found.append({"name": match[1], "arguments": arguments})
        rest = _xml_call.sub("", rest)
    for inner in _call.findall(rest):
        try:
            value = literal(inner)
        except ValueError:
            raise Drop("bad_history_call", inner[:80]) from None
        found.extend(value if isinstance(value, list) else [value])
    rest = _call.sub("", rest)
    if "<tool_call>" in rest:
        raise Drop("bad_history_call", "a <tool_call> that is not closed")
    return found, rest.strip()


def calls_in_role(content: Any) -> list[Any]:
    """The calls of a turn whose role says that it is one (``function_call``).

    Raises:
        Drop: ``bad_history_call``.
    """
    value = content
    if isinstance(value, str):
        if "<tool_call>" in value or "<function=" in value:
            return calls_in_text(value)[0]
        try:
            value = literal(value)
        except ValueError:
            raise Drop("bad_history_call", value[:80]) from None
    return value if isinstance(value, list) else [value]


def results_in_text(text: str) -> list[str]:
    """The results in a tool turn: the content of each ``<tool_response>``, else the text."""
    blocks = _result.findall(text)
    if not blocks:
        return [text]
    return [_result_text(block) for block in blocks]


def _result_text(block: str) -> str:
    try:
        value = literal(block)
    except ValueError:
        return block
    if (
        isinstance(value, dict)
        and "content" in value
        and value.keys()
        <= {
            "name",
            "content",
            "tool_call_id",
            "id",
        }
    ):
        value = value["content"]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return block


def pasted(messages: list[Message]) -> bool:
    """Whether some message still holds a pasted ``<tools>`` block."""
    return any("<tools>" in (m.get("content") or "") for m in messages)
