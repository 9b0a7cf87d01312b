"""What an answer is worth."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.generate.outcomes import Answer, judge, loops, thinks_aloud, thoughts
from remote.generate.records import Usage


def answer(
    content: str | None = None,
    reasoning: str | None = None,
    calls: Any = None,
    finish: str | None = "stop",
) -> Answer:
    """An answer as the client reads it."""
    raw = None if calls is None else msgspec.Raw(json.dumps(calls).encode())
    return Answer(content, reasoning, raw, finish, Usage(), "m")


def call(name: str, arguments: Any) -> dict[str, Any]:
    """A tool call in OpenAI's form."""
    return {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}


def tools(*functions: Any) -> msgspec.Raw:
    """Tools of a prompt."""
    offered = [{"type": "function", "function": function} for function in functions]
    return msgspec.Raw(json.dumps(offered).encode())


ADD = tools({"name": "add"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer("Paris."), "ok"),
        (answer("Par", finish="length"), "length"),
        (answer(None, "I was thinking", finish="length"), "length"),
        (answer(None, "I was thinking"), "empty"),
        (answer(""), "empty"),
        (answer(" \n"), "empty"),
        (answer(None, None, finish="length"), "empty"),
        (answer(None, None, [call("add", '{"a": 1}')], "tool_calls"), "ok"),
        (answer(None, None, [call("add", {"a": 1})], "tool_calls"), "ok"),
        (answer(None, None, [call("sub", "{}")], "tool_calls"), "bad_tool_call"),
        (answer(None, None, [call("add", "true")], "length"), "bad_tool_call"),
        (answer(None, None, [call("add", '{"a": ')], "length"), "bad_tool_call"),
        (answer(None, None, [{"function": None}]), "bad_tool_call"),
        (answer(None, None, [{"function": {"name": None}}]), "bad_tool_call"),
        (answer("I will add them.", None, None, "tool_calls"), "bad_tool_call"),
        (answer("<function=add><parameter=a>1</parameter>"), "bad_tool_call"),
        (answer("<think>I was thinking"), "empty"),
        (answer("I was thinking</think>\n\n"), "empty"),
        (answer("<think>I was thinking", finish="length"), "length"),
        (answer("I was thinking</think>Paris."), "ok"),
        (answer("</think>", "I was thinking"), "empty"),
        (answer("The mark is </think>", "I was thinking"), "ok"),
        (answer("After <think> comes a thought."), "ok"),
        (answer(None, None, "nonsense"), "bad_tool_call"),
        (answer('<tool_call>{"name": "add"}</tool_call>'), "bad_tool_call"),
        (answer("So. " + "I will check again. " * 60, finish="length"), "looped"),
        (answer(None, "hm, " * 300, finish="length"), "looped"),
        (answer("!" * 3000, finish="length"), "looped"),
    ],
)
def test_judge(given: Answer, expected: str) -> None:
    """One row an outcome or a border between two."""
    assert judge(given, ADD) == expected


def test_calls_without_tools_are_bad() -> None:
    """A call where none was offered."""
    assert judge(answer("x", None, [call("add", "{}")]), None) == "bad_tool_call"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Paris"}', "ok"),
        ('{"city": "Paris", "unit": "C", "days": [1, 2]}', "ok"),
        ("{}", "bad_tool_call"),
        ('{"city": 75}', "bad_tool_call"),
        ('{"city": "Paris", "unit": "K"}', "bad_tool_call"),
        ('{"city": "Paris", "days": ["1"]}', "bad_tool_call"),
        ('{"city": "Paris", "colour": "red"}', "bad_tool_call"),
        ('{"city": "Paris"}{}', "bad_tool_call"),
    ],
)
def test_arguments_are_held_against_the_schema(arguments: str, expected: str) -> None:
    """What must be there, of which type, out of which values."""
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"enum": ["C", "F"]},
            "days": {"type": "array", "items": {"$ref": "#/$defs/day"}},
        },
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"day": {"type": "integer"}},
    }
    offered = tools({"name": "weather", "parameters": schema})
    for _ in range(2):
        assert judge(answer(None, None, [call("weather", arguments)]), offered) == expected


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        True,
        "any",
        {"type": "dict"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/hostname"},
        {"properties": {"a": {"pattern": "("}}},
    ],
)
def test_a_schema_that_is_none_forbids_nothing(parameters: Any) -> None:
    """Nothing is fetched for it, and nothing breaks; an object it has to be all the same."""
    offered = tools({"name": "any", "parameters": parameters})
    assert judge(answer(None, None, [call("any", '{"a": 1}')]), offered) == "ok"
    assert judge(answer(None, None, [call("any", "[1]")]), offered) == "bad_tool_call"


@pytest.mark.parametrize(
    "offered",
    [b'[{"function":{"name":null}}]', b'[{"function":7},null]', b'{"a":1}', b"7", b"nonsense"],
)
def test_tools_that_are_none_break_nothing(offered: bytes) -> None:
    """They take no call, and other answers are as good as ever."""
    assert judge(answer("x", None, [call("add", "{}")]), msgspec.Raw(offered)) == "bad_tool_call"
    assert judge(answer("x"), msgspec.Raw(offered)) == "ok"


def test_thoughts_are_found_wherever_the_server_left_them() -> None:
    """Apart, or in the text with their marks."""
    assert thoughts(answer("Paris.", "hm")) == "hm"
    assert thoughts(answer("<think>\nhm\n</think>\n\nParis.")) == "hm"
    assert thoughts(answer("hm</think>Paris.")) == "hm"
    assert thoughts(answer("<think>\n\n</think>\n\nParis.")) == ""
    assert thoughts(answer("Paris.")) == ""
    assert not thinks_aloud(answer("Paris.", "hm"))
    assert thinks_aloud(answer("hm</think>Paris."))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        "| a | b |\n" + "|---|---|\n" + "| 1 | 2 |\n" * 20,
        "Result:\n" + "-" * 80,
        "0." + "3" * 60,
        "".join(f"{i}. step {i * 37 % 101} of the plan\n" for i in range(200)),
    ],
)
def test_no_loop(text: str) -> None:
    """Tables, rules and lists are no loops."""
    assert not loops(text)


@given(st.text(min_size=1, max_size=120), st.text(max_size=300))
def test_a_repeated_end_is_a_loop(phrase: str, before: str) -> None:
    """Whatever the phrase, and whatever came before it."""
    if phrase.strip():
        assert loops(before + phrase * (400 // len(phrase) + 12))


def test_prose_is_no_loop() -> None:
    """Random words from a small vocabulary, at any length."""
    dice = random.Random(3)
    words = ["the", "slot", "server", "runs", "a", "batch", "and", "then", "waits", "again"]
    for _ in range(200):
        assert not loops(" ".join(dice.choices(words, k=dice.randrange(600))))
