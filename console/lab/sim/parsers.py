"""SGLang's parsers of model output, as far as a Qwen3 model needs them.

Thinking: ``srt/parser/reasoning_parser.py``. Tool calls: ``srt/function_call/
qwen3_coder_detector.py`` and, for models that write JSON, the ``qwen25``/``hermes`` form.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any, NamedTuple

FORCED = ("qwen3-thinking", "minimax", "gpt-oss", "deepseek-r1")
"""Reasoning parsers that take everything before ``</think>`` for thinking."""

_JSON = ("qwen", "qwen25", "hermes")
"""Parsers of calls that are written as JSON."""

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>]*)>(.*?)(?:</function>|$)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>]*)>(.*?)(?:</parameter>|(?=<parameter=)|$)", re.DOTALL)


class Call(NamedTuple):
    """One call found in the text; ``arguments`` is JSON.

    ``place``: parsers of JSON give the place of the tool among those offered, others count calls.
    """

    name: str
    arguments: str
    place: int = 0


def separate(text: str, *, thinking: bool, before: str = "", new: bool = False) -> tuple[str, str]:
    """(reasoning, content). ``thinking``: the text begins inside a thought.

    ``before`` is the assistant's own text that this one continues. ``new``: as 0.5.23 does it,
    which strips nothing.
    """
    if "<think>" in before:
        thinking = True
    if "</think>" in before:
        thinking = False
    if not (thinking or "<think>" in text):
        return "", text
    text = text.removeprefix("<think>") if new else text.replace("<think>", "").strip()
    if "</think>" not in text:
        return (text, "") if "</think>" not in before else ("", text)
    reasoning, content = text.split("</think>", 1)
    return reasoning, content if new else content.strip()


def calls(text: str, tools: list[dict[str, Any]], parser: str) -> tuple[str, list[Call]]:
    """(text before the first call, calls); the whole text where there are none.

    ``tools`` are the functions that were offered.
    """
    if "<tool_call>" not in text or not tools:
        return text, []
    before = text[: text.find("<tool_call>")]
    if parser in _JSON:
        found = _json_calls(text, tools)
        return (before.strip(), found) if found else (text, [])
    found = _coder_calls(text, tools)
    return (before, found) if found else (text, [])


def _json_calls(text: str, tools: list[dict[str, Any]]) -> list[Call]:
    """Calls of tools that were offered; others, and what is no JSON, are left out."""
    places: dict[Any, int] = {tool.get("name"): n for n, tool in enumerate(tools)}
    found: list[Call] = []
    for body in _CALL.findall(text):
        try:
            call = json.loads(body)
        except ValueError:
            continue
        name = call.get("name") if isinstance(call, dict) else None
        if isinstance(name, str) and name in places:
            arguments = call.get("parameters") or call.get("arguments", {})
            found.append(Call(name, json.dumps(arguments, ensure_ascii=False), places[name]))
    return found


def _coder_calls(text: str, tools: list[dict[str, Any]]) -> list[Call]:
    """Every call, of whatever name; one that was cut off too."""
    found: list[Call] = []
    known = {tool.get("name"): tool for tool in tools}
    for body in _CALL.findall(text) or [text]:
        for name, inner in _FUNCTION.findall(body):
            parameters = (known.get(name) or {}).get("parameters")
            kinds = parameters.get("properties", {}) if isinstance(parameters, dict) else {}
            values = {
                key: _value(_trim(value), kinds.get(key))
                for key, value in _PARAMETER.findall(inner)
            }
            found.append(Call(name, json.dumps(values, ensure_ascii=False), len(found)))
    return found


def _trim(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")


def _value(text: str, schema: Any) -> Any:
    if text.lower() == "null":
        return None
    if not isinstance(schema, dict):
        return text
    kind = str(schema.get("type", "string")).strip().lower()
    if kind in ("string", "str", "text", "varchar", "char", "enum"):
        return text
    if kind in ("boolean", "bool", "binary"):
        return text.lower() == "true"
    try:
        if kind.startswith(("int", "uint", "long", "short", "unsigned")):
            return int(text)
        if kind.startswith(("num", "float")):
            number = float(text)
            whole = "." not in text and "e" not in text.lower()
            return int(number) if whole and number.is_integer() else number
    except ValueError:
        return text
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
