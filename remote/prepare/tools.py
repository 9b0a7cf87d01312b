"""Tools of a row as OpenAI's ``tools=``, and calls pasted into texts as ``tool_calls``.

The server's chat template writes the tools and the call format itself, in the way its model
was trained on. So what a dataset pasted into texts (Hermes' ``<tools>`` block and format
rules, ``<tool_call>`` and ``<tool_response>`` blocks) is lifted out.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import msgspec

from remote.prepare.rows import Drop, Message, Notes

MIN_SYSTEM = 20
"""What is left of a system text after the pasted tools went is sent from this length on."""

_TYPES = {
    "string": ("string", "str", "text", "char", "character", "date", "datetime", "uuid", "url"),
    "integer": ("integer", "int", "long", "short", "byte", "bigint", "int32", "int64"),
    "number": ("number", "float", "double", "decimal", "real"),
    "boolean": ("boolean", "bool"),
    "array": ("array", "list", "tuple", "set", "arraylist", "sequence", "iterable", "vector"),
    "object": ("object", "dict", "dictionary", "map", "mapping", "hashmap", "hashtable", "json"),
    "null": ("null", "none", "nonetype", "void"),
}
_TYPE_OF = {alias: name for name, aliases in _TYPES.items() for alias in aliases}
_ANY = frozenset({"any", "typing.any", "unknown", "mixed", "variant", "*"})
_generic = re.compile(r"\s*([A-Za-z_.0-9]+)\s*[\[<(](.*)[\])>]\s*\Z", re.DOTALL)


def _split(text: str, at: str) -> list[str]:
    """Split outside brackets."""
    parts, depth, begin = [], 0, 0
    for n, char in enumerate(text):
        depth += (char in "[<(") - (char in "])>")
        if char == at and depth == 0:
            parts.append(text[begin:n])
            begin = n + 1
    parts.append(text[begin:])
    return [part.strip() for part in parts if part.strip()]


def json_type(text: str) -> tuple[dict[str, Any], bool]:
    """JSON Schema of a type as datasets write it, and whether it says "optional".

    ``List[float]`` → array of numbers; ``str, optional`` → string, True; ``dict`` → object;
    ``any`` → no restriction, as is what is not known at all.
    """
    parts = _split(text, ",")
    optional = any(p.lower().startswith(("optional", "default")) for p in parts[1:])
    head = parts[0] if parts else ""
    alternatives = _split(head, "|")
    if len(alternatives) > 1:
        return _union([json_type(a)[0] for a in alternatives]), optional
    found = _generic.match(head)
    if found is None:
        plain = head.lower().removeprefix("typing.").strip()
        name = _TYPE_OF.get(plain)
        return ({"type": name} if name else {}), optional
    outer, inner = found[1].lower().removeprefix("typing."), _split(found[2], ",")
    if outer == "optional":
        schema, _ = json_type(found[2])
        return schema, True
    if outer == "union":
        return _union([json_type(p)[0] for p in inner]), optional
    if outer == "literal":
        values = [p.strip("'\"") for p in inner]
        return {"type": "string", "enum": values}, optional
    name = _TYPE_OF.get(outer)
    if name == "array":
        items = [json_type(p)[0] for p in inner if p != "..."]
        same = items and all(item == items[0] for item in items)
        return {"type": "array", **({"items": items[0]} if same and items[0] else {})}, optional
    return ({"type": name} if name else {}), optional


def _union(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    if any(not s for s in schemas):
        return {}
    if all(s.keys() == {"type"} for s in schemas):
        names = list(dict.fromkeys(s["type"] for s in schemas))
        return {"type": names[0] if len(names) == 1 else names}
    return {"anyOf": schemas}


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_pattern(value: Any) -> bool:
    try:
        re.compile(value)
    except (TypeError, re.error):
        return False
    return True


# What the JSON Schema 2020-12 metaschema asks of a keyword's value; SGLang refuses a request
# with a tool whose parameters break it. A value that breaks it is left out.
_CHECKS: dict[str, Any] = {
    **dict.fromkeys(("title", "description", "format", "$ref"), lambda v: isinstance(v, str)),
    # What names a schema or depends on another keyword says nothing to a model.
    **dict.fromkeys(
        ("$id", "$schema", "$anchor", "$comment", "$vocabulary", "dependentRequired"),
        lambda v: False,
    ),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        _is_number,
    ),
    "multipleOf": lambda v: _is_number(v) and v > 0,
    **dict.fromkeys(
        (
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "minContains",
            "maxContains",
        ),
        _is_count,
    ),
    **dict.fromkeys(
        ("uniqueItems", "readOnly", "writeOnly", "deprecated"), lambda v: isinstance(v, bool)
    ),
    **dict.fromkeys(("enum", "examples"), lambda v: isinstance(v, list)),
    "pattern": _is_pattern,
}
_SUBSCHEMA = (
    "items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_SUBSCHEMAS_BY_NAME = (
    "properties", "$defs", "definitions", "patternProperties", "dependentSchemas",
)  # fmt: skip
_SUBSCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")


def fix_schema(schema: Any, notes: Notes, depth: int = 0) -> Any:
    """The schema as JSON Schema 2020-12: foreign types mapped, what is malformed left out.

    Each mapped type is noted as ``type:FROM>TO``.

    Raises:
        Drop: it nests deeper than any real tool does.
    """
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        notes.add("schema_repaired")
        return json_type(schema)[0] if isinstance(schema, str) else {}
    if depth > 64:
        raise Drop("bad_tools", "schema nested too deeply")
    fixed: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in schema.items():
        check = _CHECKS.get(key)
        if key == "type":
            extra = _fix_type(value, notes)
        elif key in _SUBSCHEMAS_BY_NAME:
            if isinstance(value, dict):
                fixed[key] = {
                    k: fix_schema(v, notes, depth + 1)
                    for k, v in value.items()
                    if key != "patternProperties" or _is_pattern(k)
                }
            else:
                notes.add("schema_repaired")
        elif key == "required":
            if isinstance(value, list):
                fixed[key] = list(dict.fromkeys(v for v in value if isinstance(v, str)))
            elif value is not True and value is not False:
                notes.add("schema_repaired")
        elif key == "items" and isinstance(value, list):
            # A list of schemas is prefixItems since 2020-12.
            fixed["prefixItems"] = [fix_schema(v, notes, depth + 1) for v in value]
        elif key in _SUBSCHEMA:
            fixed[key] = fix_schema(value, notes, depth + 1)
        elif key in _SUBSCHEMAS:
            if isinstance(value, list) and value:
                fixed[key] = [fix_schema(v, notes, depth + 1) for v in value]
            else:
                notes.add("schema_repaired")
        elif check is not None and not check(value):
            if value is not None:
                notes.add("schema_repaired")
        else:
            fixed[key] = value
    if "prefixItems" in fixed and not fixed["prefixItems"]:
        del fixed["prefixItems"]
    fixed = {**extra, **fixed} if extra else fixed
    _lift_required(schema, fixed)
    return fixed


def _fix_type(value: Any, notes: Notes) -> dict[str, Any]:
    if isinstance(value, list):
        named = [_fix_type(v, notes) for v in value if isinstance(v, str)]
        return _union(named) if named else {}
    if not isinstance(value, str):
        notes.add("schema_repaired")
        return {}
    if value in _TYPES:
        return {"type": value}
    schema, _ = json_type(value)
    notes.add(f"type:{value[:40]}>{schema.get('type', 'any')}")
    return schema


def _lift_required(schema: dict[str, Any], fixed: dict[str, Any]) -> None:
    """A property that says ``"required": true`` of itself (JSON Schema draft 3) is required."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return
    own = [k for k, v in properties.items() if isinstance(v, dict) and v.get("required") is True]
    if own:
        fixed["required"] = list(dict.fromkeys([*fixed.get("required", []), *own]))


def _is_flat(parameters: dict[str, Any]) -> bool:
    """Whether it maps argument names straight to descriptions (xLAM), and is no JSON Schema."""
    if "properties" in parameters or "$ref" in parameters:
        return False
    return all(
        isinstance(v, dict) and ("type" in v or "description" in v) for v in parameters.values()
    )


def _from_flat(parameters: dict[str, Any], notes: Notes) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, entry in parameters.items():
        text = entry.get("type")
        optional = "default" in entry or entry.get("required") is False
        rest = {k: v for k, v in entry.items() if k not in ("type", "required")}
        if isinstance(text, str):
            mapped, says_optional = json_type(text)
            optional = optional or says_optional
            rest = {**rest, **mapped}
        properties[name] = fix_schema(rest, notes)
        if not optional:
            required.append(name)
    notes.add("flat_parameters")
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema


def _references(schema: Any, root: dict[str, Any]) -> bool:
    """Whether every ``$ref`` points to something within the schema itself."""
    if isinstance(schema, list):
        return all(_references(v, root) for v in schema)
    if not isinstance(schema, dict):
        return True
    target = schema.get("$ref")
    if isinstance(target, str):
        at: Any = root
        if not target.startswith("#"):
            return False
        for step in target[1:].strip("/").split("/"):
            if step:
                at = at.get(step) if isinstance(at, dict) else None
        if at is None:
            return False
    return all(_references(v, root) for v in schema.values())


def literal(text: str) -> Any:
    """JSON, else a Python literal (datasets hold both).

    Raises:
        ValueError: neither.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        raise ValueError("neither JSON nor a Python literal") from None


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
    elif _is_flat(raw):
        tool["parameters"] = _from_flat(raw, notes)
    else:
        schema = fix_schema(raw, notes)
        if schema.get("type") != "object":
            # Parameters are an object whatever a dataset calls them.
            schema = {**schema, "type": "object"}
        schema.setdefault("properties", {})
        if not _references(schema, schema):
            raise Drop("unresolved_ref", str(function.get("name"))[:80])
        tool["parameters"] = schema
    if isinstance(function.get("strict"), bool):
        tool["strict"] = function["strict"]
    return tool


# --- What was pasted into texts ---

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
