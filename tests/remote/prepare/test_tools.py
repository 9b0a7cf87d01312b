"""Tools and calls, whatever datasets write for them."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.prepare import calls, tools
from remote.prepare.rows import Drop, Notes
from remote.prepare.schema import json_type

FUNCTION = {"name": "tides", "description": "Tides.", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("text", "schema", "optional"),
    [
        ("str", {"type": "string"}, False),
        ("str, optional", {"type": "string"}, True),
        ("int, default 5", {"type": "integer"}, True),
        ("List[float]", {"type": "array", "items": {"type": "number"}}, False),
        ("list[dict[str, int]]", {"type": "array", "items": {"type": "object"}}, False),
        ("Dict[str, Any]", {"type": "object"}, False),
        ("Optional[int]", {"type": "integer"}, True),
        ("Union[str, int]", {"type": ["string", "integer"]}, False),
        ("str | None", {"type": ["string", "null"]}, False),
        ("Tuple[int, int]", {"type": "array", "items": {"type": "integer"}}, False),
        ("Tuple[int, str]", {"type": "array"}, False),
        ("Literal['m', 'ft']", {"type": "string", "enum": ["m", "ft"]}, False),
        ("any", {}, False),
        ("Callable[[int], str]", {}, False),
        ("HashMap", {"type": "object"}, False),
        ("", {}, False),
    ],
)
def test_types_as_datasets_write_them(text: str, schema: dict[str, Any], optional: bool) -> None:
    assert json_type(text) == (schema, optional)


@pytest.mark.parametrize(
    "raw",
    [
        [FUNCTION],
        FUNCTION,
        [{"type": "function", "function": FUNCTION}],
        {"function": FUNCTION},
        json.dumps([FUNCTION]),
        json.dumps(json.dumps([FUNCTION])),
        str([FUNCTION]),  # a Python literal
        f"{json.dumps(FUNCTION)}\n{json.dumps({**FUNCTION, 'name': 'other'})}",
        [json.dumps(FUNCTION)],
        [{"type": "function", "function": json.dumps(FUNCTION)}],
    ],
)
def test_tools_in_every_wrapping(raw: Any) -> None:
    found, renamed = tools.parse(raw, Notes())
    assert found[0] == {
        "type": "function",
        "function": {
            "name": "tides",
            "description": "Tides.",
            "parameters": {"type": "object", "properties": {}},
        },
    }
    assert renamed == {}


@pytest.mark.parametrize("raw", [None, "", "[]", [], "null", {}])
def test_no_tools_are_no_tools(raw: Any) -> None:
    assert tools.parse(raw, Notes()) == ([], {})


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        ("[{", "bad_tools"),
        ("some words", "bad_tools"),
        ([{"description": "no name"}], "bad_tools"),
        ([7], "bad_tools"),
        ([{"name": "f", "parameters": "oops"}], "bad_tools"),
        ([{"name": "f", "parameters": {"properties": {"a": {"$ref": "#/x"}}}}], "unresolved_ref"),
        ([{"name": "f", "parameters": {"properties": {"a": {"$ref": "other.json"}}}}],
         "unresolved_ref"),
    ],
)  # fmt: skip
def test_tools_that_cannot_be_had_drop_the_row(raw: Any, cause: str) -> None:
    with pytest.raises(Drop) as caught:
        tools.parse(raw, Notes())
    assert caught.value.cause == cause


def test_a_reference_within_the_schema_stays() -> None:
    parameters = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/point"}},
        "$defs": {"point": {"type": "dict"}},
    }
    (tool,) = tools.parse([{"name": "f", "parameters": parameters}], Notes())[0]
    assert tool["function"]["parameters"]["$defs"] == {"point": {"type": "object"}}


def test_renamed_tools_never_meet() -> None:
    raw = [{"name": n} for n in ("a.b", "a b", "a_b", "a/b", "ä" * 70, "x" * 70, "x" * 69)]
    found, renamed = tools.parse(raw, Notes())
    names = [tool["function"]["name"] for tool in found]
    assert len(set(names)) == len(raw)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
    assert "a_b" in names  # whose real name it is
    assert "a_b" not in renamed
    assert sorted(renamed.values()) == sorted(n["name"] for n in raw if n["name"] != "a_b")


def test_malformed_keywords_are_left_out() -> None:
    parameters = {
        "type": "dict",
        "properties": {
            "a": {"type": "integer", "minimum": "0", "required": True, "description": 7},
            "b": {"type": ["string", "NoneType"], "enum": "m"},
            "c": {"type": "list", "items": [{"type": "float"}, {"type": "str"}]},
            "d": "string",
        },
        "required": "a",
    }
    notes = Notes()
    (tool,) = tools.parse([{"name": "f", "parameters": parameters}], notes)[0]
    fixed = tool["function"]["parameters"]
    jsonschema.Draft202012Validator.check_schema(fixed)
    assert fixed["required"] == ["a"]
    assert fixed["properties"]["a"] == {"type": "integer"}
    assert fixed["properties"]["b"] == {"type": ["string", "null"]}
    assert fixed["properties"]["c"]["prefixItems"] == [{"type": "number"}, {"type": "string"}]
    assert fixed["properties"]["d"] == {"type": "string"}
    assert notes["schema_repaired"] >= 4


_any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "type properties required items enum minimum anyOf description default pattern"
                " additionalProperties maxItems format not uniqueItems title x $id $ref $defs else"
                " dependentSchemas patternProperties [".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["type", "properties", "items", "x"]), _any_json))
def test_whatever_comes_out_passes_the_metaschema(schema: dict[str, Any]) -> None:
    try:
        found, _ = tools.parse([{"name": "f", "parameters": schema}], Notes())
    except Drop:
        return
    jsonschema.Draft202012Validator.check_schema(found[0]["function"]["parameters"])


REAL_WORDING = (
    "You are a function calling AI model. You are provided with function signatures within"
    " <tools> </tools> XML tags. You may call one or more functions to assist with the user"
    " query. Don't make assumptions about what values to plug into functions.\n"
    '<tools>\n[{"name": "tides"}]\n</tools>\n'
    "For each function call return a JSON object, with the following pydantic model json schema"
    " for each:\n{'title': 'FunctionCall', 'type': 'object', 'properties': {'name': {'title':"
    " 'Name', 'type': 'string'}}, 'required': ['name']}\nEach function call should be enclosed"
    " within <tool_call> </tool_call> XML tags. You must use <scratch_pad> </scratch_pad> XML"
    " tags to record your reasoning and planning before you call the functions as follows.\n"
    "Example:\n<scratch_pad>\n{scratch_pad}\n</scratch_pad>\n<tool_call>\n{tool_call}\n</tool_call>"
)


def test_nothing_of_a_pasted_system_prompt_is_left() -> None:
    block, rest = calls.lift_block(REAL_WORDING)
    assert block is not None
    assert json.loads(block) == [{"name": "tides"}]
    assert calls.strip_wrapper(rest, []) == ""


def test_a_persona_beside_it_stays() -> None:
    text = "You advise skippers in the Orrin straits.\n" + REAL_WORDING + "\nAnswer in metres."
    _, rest = calls.lift_block(text)
    kept = calls.strip_wrapper(rest, [])
    assert "You advise skippers in the Orrin straits." in kept
    assert "Answer in metres." in kept
    assert "<" not in kept
    assert calls.strip_wrapper(rest, [r"You advise [^.]*\."]) == ""  # what is left is too short


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        "<tool_call>{'name': 'f', 'arguments': {'a': 1}}</tool_call>",
        '<tool_call>[{"name": "f", "arguments": "{\\"a\\": 1}"}]</tool_call>',
        '{"name": "f", "arguments": {"a": 1}}',
    ],
)
def test_calls_pasted_into_texts(text: str) -> None:
    raw = calls.calls_in_role(text)
    call = calls.call(raw[0], "c", {"f": "f"})
    assert json.loads(call["function"]["arguments"]) == {"a": 1}
    assert call["function"]["name"] == "f"


def test_calls_in_xml_and_the_text_around_them() -> None:
    text = "First.\n<function=run>\n<parameter=command>\nls -l\n</parameter>\n</function>\nThen."
    found, rest = calls.calls_in_text(text)
    assert found == [{"name": "run", "arguments": {"command": "ls -l"}}]
    assert rest.split() == ["First.", "Then."]


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        ('<tool_call>{"name": "f", </tool_call>', "bad_history_call"),
        ('<tool_call>{"name": "f"}', "bad_history_call"),
    ],
)
def test_calls_that_are_torn(raw: str, cause: str) -> None:
    with pytest.raises(Drop) as caught:
        calls.calls_in_text(raw)
    assert caught.value.cause == cause


def test_results_leave_their_envelope() -> None:
    text = (
        '<tool_response>\n{"name": "f", "content": {"a": 1}}\n</tool_response>\n'
        "<tool_response>plain</tool_response>"
    )
    assert calls.results_in_text(text) == ['{"a": 1}', "plain"]
    assert calls.results_in_text('{"a": 1}') == ['{"a": 1}']
