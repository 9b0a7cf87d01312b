"""What an answer is worth."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.generate.outcomes import Answer, judge, loops, tool_names
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
        (answer(None, None, "nonsense"), "bad_tool_call"),
        (answer('<tool_call>{"name": "add"}</tool_call>'), "bad_tool_call"),
        (answer("So. " + "I will check again. " * 60, finish="length"), "looped"),
        (answer(None, "hm, " * 300, finish="length"), "looped"),
        (answer("!" * 3000, finish="length"), "looped"),
    ],
)
def test_judge(given: Answer, expected: str) -> None:
    """One row an outcome or a border between two."""
    assert judge(given, {"add"}) == expected


def test_calls_without_tools_are_bad() -> None:
    """A call where none was offered."""
    assert judge(answer("x", None, [call("add", "{}")]), ()) == "bad_tool_call"


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


def test_tool_names() -> None:
    """Names of the offered tools."""
    tools = [{"type": "function", "function": {"name": n, "parameters": {}}} for n in "ab"]
    assert tool_names(msgspec.Raw(json.dumps(tools).encode())) == {"a", "b"}
    assert tool_names(None) == frozenset()
