"""Chat answers of a running server in each dialect."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.console.lab_sim.asking import TOOLS, real, shape
from tests.console.lab_sim.servers import Lab, Server, is_new


def test_a_chat_answer_has_the_shape_of_the_real_one(both: Lab, server: Server) -> None:
    got = server.chat(max_tokens=16, temperature=0)
    assert got["choices"][0]["message"]["content"] is None
    assert got["choices"][0]["finish_reason"] == "length"
    assert got["usage"]["completion_tokens"] == 16
    assert got["usage"]["reasoning_tokens"] == 16
    message = got["choices"][0]["message"]
    if is_new(both):
        assert "tool_calls" not in message
        assert got["usage"]["completion_tokens_details"] == {"reasoning_tokens": 16}
    else:
        assert message["tool_calls"] is None
        assert shape(got) == shape(real("chat_basic.txt"))
    assert re.fullmatch(r"[0-9a-f]{32}", got["id"])


def test_thinking_and_answer_are_separate(server: Server) -> None:
    whole = server.chat(temperature=0)
    message = whole["choices"][0]["message"]
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert message["content"]
    assert message["reasoning_content"]
    assert "think>" not in message["content"] + message["reasoning_content"]
    assert 0 < whole["usage"]["reasoning_tokens"] < whole["usage"]["completion_tokens"]
    off = server.chat(temperature=0, chat_template_kwargs={"enable_thinking": False})
    assert off["choices"][0]["message"]["reasoning_content"] is None
    raw = server.chat(temperature=0, separate_reasoning=False)["choices"][0]["message"]
    assert "</think>" in raw["content"]
    assert raw["reasoning_content"] is None


def test_greedy_answers_repeat_and_sampled_ones_do_not(server: Server) -> None:
    def text(**more: Any) -> str:
        message = server.chat(max_tokens=80, **more)["choices"][0]["message"]
        return str(message["reasoning_content"])

    assert text(temperature=0) == text(temperature=0)
    assert len({text(temperature=1.0, seed=7) for _ in range(5)}) > 1  # seed has no effect


def test_tools_are_called(server: Server) -> None:
    got = server.chat(tools=TOOLS, tool_choice="required", temperature=0)
    choice = got["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call, *_) = choice["message"]["tool_calls"]
    assert re.fullmatch(r"call_[0-9a-f]{24}", call["id"])
    assert call["function"]["name"] == "get_weather"
    assert isinstance(json.loads(call["function"]["arguments"])["city"], str)
    none = server.chat(tools=TOOLS, tool_choice="none", max_tokens=60)
    assert none["choices"][0]["message"].get("tool_calls") is None


def test_a_stop_string_ends_the_answer_in_front_of_it(server: Server) -> None:
    full = server.chat(temperature=0, max_tokens=100)["choices"][0]["message"]
    mark = full["reasoning_content"][30:40]
    got = server.chat(temperature=0, max_tokens=100, stop=[mark])["choices"][0]
    assert (got["finish_reason"], got["matched_stop"]) == ("stop", mark)
    assert full["reasoning_content"].split(mark)[0].startswith(got["message"]["reasoning_content"])


def test_several_answers_to_one_prompt(server: Server) -> None:
    got = server.chat(n=3, max_tokens=20, temperature=1.0)
    assert [choice["index"] for choice in got["choices"]] == [0, 1, 2]
    assert got["usage"]["completion_tokens"] == 60


def test_a_json_schema_is_satisfied(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    got = server.chat(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    )
    assert isinstance(json.loads(got["choices"][0]["message"]["content"])["a"], int)


def test_a_stream_gives_the_same_answer(server: Server) -> None:
    whole = server.chat(temperature=0, max_tokens=900)
    body = {
        "messages": [{"role": "user", "content": "How far is the moon?"}],
        "temperature": 0,
        "max_tokens": 900,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events[-1] == "[DONE]"
    parsed = [json.loads(event) for event in events[:-1]]
    assert parsed[0]["choices"][0]["delta"] == {
        "reasoning_content": None,
        "role": "assistant",
        "content": "",
    }
    assert parsed[-1]["choices"] == []
    assert parsed[-1]["usage"]["completion_tokens"] == 900
    pieces = [event["choices"][0]["delta"] for event in parsed[:-1]]
    message = whole["choices"][0]["message"]
    for part in ("reasoning_content", "content"):
        joined = "".join(piece.get(part) or "" for piece in pieces)
        assert joined == (message[part] or "")
    assert parsed[-2]["choices"][0]["finish_reason"] == "length"
