"""Tools of a row as OpenAI's ``tools=``: unwrapped, as JSON Schema, with names that are allowed."""

from __future__ import annotations

import re
from typing import Any

from remote.prepare import schema as schemas
from remote.prepare.rows import Drop, Notes
from remote.prepare.text import literal


def _as_list(raw: Any, notes: Notes) -> list[Any]:
    value = raw
    for round_ in range(3):
        if not isinstance(value, str):
            break
        if not value.strip():
            return []
        if round_ == 1:
            notes.add("decode_twice")
        try:
            value = literal(value)
        except ValueError:
            lines = [line for line in value.splitlines() if line.strip()]
            if len(lines) < 2:
                raise Drop("bad_tools", value[:80]) from None
            try:
                value = [literal(line) for line in lines]
            except ValueError:
                raise Drop("bad_tools", raw[:80] if isinstance(raw, str) else "") from None
    if value is None:
        return []
    if isinstance(value, dict):
        return [value] if value else []
    if not isinstance(value, list):
        raise Drop("bad_tools", str(value)[:80])
    return value


_bad_name = re.compile(r"[^A-Za-z0-9_-]+")


def safe_name(name: str) -> str:
    """A function name that OpenAI's form allows: 1 to 64 letters, digits, ``_`` and ``-``."""
    return _bad_name.sub("_", name).strip("_")[:64] or "tool"


def parse(raw: Any, notes: Notes) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Tools in OpenAI's form, and the names that had to change (as sent → as in the dataset).

    Takes a list, one dict, JSON text of either, or that text encoded once more; functions
    wrapped as ``{type, function}`` or bare; parameters as JSON Schema or xLAM's flat form.

    Raises:
        Drop: ``bad_tools`` or ``unresolved_ref``; such a row is not sent without its tools.
    """
    tools: list[dict[str, Any]] = []
    by_name: dict[str, dict[str, Any]] = {}
    renamed: dict[str, str] = {}
    for item in _as_list(raw, notes):
        if isinstance(item, str):
            try:
                item = literal(item)
            except ValueError:
                raise Drop("bad_tools", item[:80]) from None
        if not isinstance(item, dict):
            raise Drop("bad_tools", str(item)[:80])
        function: Any = item.get("function", item)
        if isinstance(function, str):
            try:
                function = literal(function)
            except ValueError:
                raise Drop("bad_tools", function[:80]) from None
        if not isinstance(function, dict):
            raise Drop("bad_tools", str(function)[:80])
        own = function.get("name")
        if not isinstance(own, str) or not own.strip():
            raise Drop("bad_tools", "a tool without a name")
        tool = _function(function, notes)
        if own in by_name:
            # The same name twice: the first stands, whatever the second says.
            notes.add("duplicate_tool")
            continue
        by_name[own] = tool
        name = safe_name(own)
        if name != own:
            taken = {t["function"]["name"] for t in tools}
            stem, n = name, 2
            while name in taken or (name != own and name in by_name):
                name = f"{stem[:60]}_{n}"
                n += 1
            renamed[name] = own
            notes.add("rename_tool")
        elif name in renamed:
            # An earlier tool was renamed to what this one is really called.
            other = next(t for t in tools if t["function"]["name"] == name)
            n = 2
            taken = {t["function"]["name"] for t in tools}
            while f"{name[:60]}_{n}" in taken:
                n += 1
            other["function"]["name"] = f"{name[:60]}_{n}"
            renamed[f"{name[:60]}_{n}"] = renamed.pop(name)
        tool["name"] = name
        tools.append({"type": "function", "function": tool})
    return tools, renamed


def _function(function: dict[str, Any], notes: Notes) -> dict[str, Any]:
    tool: dict[str, Any] = {"name": ""}
    description = function.get("description")
    if isinstance(description, str):
        tool["description"] = description
    raw = function.get("parameters", function.get("input_schema"))
    if isinstance(raw, str):
        try:
            raw = literal(raw) if raw.strip() else None
        except ValueError:
            raise Drop("bad_tools", str(raw)[:80]) from None
    if raw is None or raw == {} or raw == []:
        tool["parameters"] = {"type": "object", "properties": {}}
    elif not isinstance(raw, dict):
        raise Drop("bad_tools", "parameters are no object")
    elif schemas.is_flat(raw):
        tool["parameters"] = schemas.from_flat(raw, notes)
    else:
        schema = schemas.fix_schema(raw, notes)
        if schema.get("type") != "object":
            # Parameters are an object whatever a dataset calls them.
            schema = {**schema, "type": "object"}
        schema.setdefault("properties", {})
        if not schemas.references_resolve(schema, schema):
            raise Drop("unresolved_ref", str(function.get("name"))[:80])
        tool["parameters"] = schema
    if isinstance(function.get("strict"), bool):
        tool["strict"] = function["strict"]
    return tool
