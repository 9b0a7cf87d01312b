"""Whether the tools that a prompt offers could take an answer's calls.

The arguments are held against each tool's JSON Schema. A schema is compiled when the first call of
its tool comes and kept with the text of the tools, since many prompts offer the same ones. A schema
that is none, or points elsewhere, forbids nothing: the server has let it pass, too.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

_KEPT = 256
"""Different texts of tools whose compiled schemas are kept."""

LIBRARY = "jsonschema_rs"


class Function(Struct):
    """The function of a tool call; engines send ``arguments`` as JSON text."""

    name: str | None = None
    arguments: Any = None


class ToolCall(Struct):
    """One tool call of an answer."""

    function: Function | None = None


_calls = msgspec.json.Decoder(list[ToolCall]).decode


class Tools:
    """The tools of a prompt: what each takes, by name."""

    def __init__(self, text: bytes) -> None:
        self._schemas: dict[str, Any] = {}
        self._takes: dict[str, Callable[[Any], bool]] = {}
        try:
            tools = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            tools = None
        for tool in tools if isinstance(tools, list) else ():
            function = tool.get("function") if isinstance(tool, dict) else None
            name = function.get("name") if isinstance(function, dict) else None
            if isinstance(function, dict) and isinstance(name, str):
                self._schemas[name] = function.get("parameters")

    def takes(self, name: str | None, arguments: Any) -> bool:
        """Whether there is a tool of that name, and these are arguments for it."""
        if name not in self._schemas or not isinstance(arguments, dict):
            return False
        assert name is not None
        if name not in self._takes:
            self._takes[name] = _compiled(self._schemas[name])
        return self._takes[name](arguments)


@functools.lru_cache(maxsize=_KEPT)
def _offered(text: bytes) -> Tools:
    return Tools(text)


def good_calls(raw: Raw, tools: Raw | None) -> bool:
    """Whether each call in ``raw`` names a tool in ``tools`` that could take its arguments."""
    if tools is None:
        return False
    try:
        calls = _calls(raw)
        offered = _offered(bytes(tools))
        return all(call.function and _good(call.function, offered) for call in calls)
    except (msgspec.DecodeError, RecursionError):  # a model that goes on opening brackets
        return False


def _good(function: Function, offered: Tools) -> bool:
    arguments = function.arguments
    if isinstance(arguments, str):
        arguments = msgspec.json.decode(arguments)
    return offered.takes(function.name, arguments)


def no_schemas() -> bool:
    """Whether the library is missing here, so that any object passes for arguments."""
    return importlib.util.find_spec(LIBRARY) is None


def _compiled(schema: Any) -> Callable[[Any], bool]:
    if not isinstance(schema, dict) or not schema or no_schemas():
        return _anything
    import jsonschema_rs  # 50 ms, which runs without tool calls can do without

    try:
        valid = jsonschema_rs.validator_for(schema, retriever=_stay_here).is_valid
    except ValueError:
        return _anything

    def check(arguments: Any) -> bool:
        try:
            return valid(arguments)
        except ValueError:
            return True

    return check


def _anything(_: Any) -> bool:
    return True


def _stay_here(uri: str) -> Any:
    """No schema is fetched from anywhere."""
    raise LookupError(uri)
