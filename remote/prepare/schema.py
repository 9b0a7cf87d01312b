"""JSON Schema 2020-12 out of what datasets write for the parameters of their tools."""

from __future__ import annotations

import re
from typing import Any

from remote.prepare.rows import Drop, Notes

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


def is_flat(parameters: dict[str, Any]) -> bool:
    """Whether it maps argument names straight to descriptions (xLAM), and is no JSON Schema."""
    if "properties" in parameters or "$ref" in parameters:
        return False
    return all(
        isinstance(v, dict) and ("type" in v or "description" in v) for v in parameters.values()
    )


def from_flat(parameters: dict[str, Any], notes: Notes) -> dict[str, Any]:
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


def references_resolve(schema: Any, root: dict[str, Any]) -> bool:
    """Whether every ``$ref`` points to something within the schema itself."""
    if isinstance(schema, list):
        return all(references_resolve(v, root) for v in schema)
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
    return all(references_resolve(v, root) for v in schema.values())
