"""What is refused, and in which words."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.console.lab_sim.asking import TOOLS
from tests.console.lab_sim.servers import Server, wait_for

BAD = {"name": "f", "parameters": {"type": "dict"}}


@pytest.mark.parametrize(
    ("body", "status", "kind", "message"),
    [
        ({"messages": []}, 400, "BadRequestError", r"Messages cannot be empty\."),
        ({}, 400, "Bad Request", r"1 validation error:\n  \{'type': 'missing', 'loc': .*"),
        (
            {"max_tokens": 100_000},
            400,
            "BadRequestError",
            r"max_completion_tokens is too large: 100000\.This model supports at most 65536 .*",
        ),
        (
            {"temperature": -3},
            400,
            "BadRequestError",
            r"temperature must be non-negative, got -3\.0\.",
        ),
        ({"top_p": 0}, 400, "BadRequestError", r"top_p must be in \(0, 1\], got 0\.0\."),
        (
            {"text": "word " * 70_000},
            400,
            "BadRequestError",
            r"The input \(\d+ tokens\) is longer than the model's context length \(65536 tok.*",
        ),
        (
            {"text": "word " * 64_000, "max_tokens": 4096},
            400,
            "BadRequestError",
            r"Requested token count exceeds the model's maximum context length of 65536 tokens\..*",
        ),
        (
            {"tools": [{"type": "function", "function": BAD}]},
            400,
            "BadRequestError",
            r"Tool 0 function has invalid 'parameters' schema: .*",
        ),
        (
            {"tool_choice": "required"},
            400,
            "BadRequestError",
            r"Tools cannot be empty if tool choice is set to required\.",
        ),
    ],
)  # fmt: skip
def test_refusals_are_flat_and_worded_as_the_real_ones(
    server: Server, body: dict[str, Any], status: int, kind: str, message: str
) -> None:
    body = dict(body)
    text = body.pop("text", "hi")
    if body != {}:
        body = {"messages": [{"role": "user", "content": text}], **body}
    elif text != "hi":
        body = {"messages": [{"role": "user", "content": text}]}
    answer = server.client.post("/v1/chat/completions", json=body)
    got = answer.json()
    assert answer.status_code == status
    assert set(got) == {"object", "message", "type", "param", "code"}
    assert (got["type"], got["code"]) == (kind, status)
    assert re.fullmatch(message, got["message"], re.DOTALL), got["message"]


def test_a_body_that_is_no_json_or_of_another_type(server: Server) -> None:
    bad = server.client.post(
        "/v1/chat/completions", content=b"{not json", headers={"Content-Type": "application/json"}
    )
    assert bad.status_code == 400
    assert bad.json()["type"] == "Bad Request"
    other = server.client.post(
        "/v1/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"}
    )
    assert other.status_code == 400


def test_an_id_is_echoed_and_may_not_be_used_twice_at_once(server: Server) -> None:
    assert server.chat(rid="mine-000001", max_tokens=3)["id"] == "mine-000001"
    with ThreadPoolExecutor() as pool:
        long = pool.submit(server.chat, rid="twice-00001", max_tokens=4000, ignore_eos=True)
        wait_for(lambda: server.load()["num_running_reqs"], why="running")
        twin = server.client.post(
            "/v1/chat/completions",
            json={"rid": "twice-00001", "messages": [{"role": "user", "content": "x"}]},
        )
        assert twin.json()["message"] == "Duplicate request ID detected: twice-00001"
        assert long.result()["usage"]["completion_tokens"] == 4000


IDS = {"input_ids": [500, 501]}
NESTED = {"message", "type", "param", "code"}
FLAT = "Bad Request"


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "said"),
    [
        # /generate: below "error", and only 400
        ("/generate", {"input_ids": []}, 400, "", "input_ids cannot be empty."),
        ("/generate", {"text": ""}, 400, "", "texts cannot be empty and tokenizer must be .*"),
        ("/generate", {}, 400, "", "Either text, input_ids or input_embeds should be provided."),
        (
            "/generate",
            {**IDS, "sampling_params": {"temperature": -1}},
            400,
            "",
            "temperature must be non-negative, got -1.",
        ),
        ("/generate", {**IDS, "sampling_params": {"nonsense": 1}}, 500, "", ""),
        ("/generate", {"input_ids": "x"}, 400, FLAT, "2 validation errors:.*list_type.*"),
        # the parsers' own endpoints
        ("/separate_reasoning", {"text": "x", "reasoning_parser": "nonsense"}, 500, "", ""),
        ("/separate_reasoning", {"reasoning_parser": "qwen3"}, 400, FLAT, ".*'body', 'text'.*"),
        ("/parse_function_call", {"text": "x", "tools": TOOLS}, 500, "", ""),
        (
            "/parse_function_call",
            {"text": "x", "tools": [{"name": "f"}], "tool_call_parser": "qwen3_coder"},
            400,
            FLAT,
            r"1 validation error:.*\('body', 'tools', 0, 'function'\).*Field required.*",
        ),
        ("/tokenize", {}, 400, FLAT, ".*Exactly one of 'prompt' or 'messages' must be .*"),
        ("/pause_generation", {"mode": "zz"}, 400, FLAT, ".*'abort', 'retract' or 'in_place'.*"),
        # chat: what pydantic says
        ("CHAT", {"max_tokens": "x"}, 400, FLAT, ".*unable to parse string as an integer.*"),
        ("CHAT", {"temperature": "x"}, 400, FLAT, ".*unable to parse string as a number.*"),
        (
            "CHAT",
            {"messages": [{"role": "alien", "content": "x"}]},
            400,
            FLAT,
            ".*must be one of.*",
        ),
        ("CHAT", {"messages": [{"role": "user"}]}, 400, FLAT, ".*'content'.*Field required.*"),
        ("CHAT", {"tools": [{"type": "function"}]}, 400, FLAT, ".*'tools', 0, 'function'.*"),
        ("CHAT", {"tools": TOOLS, "tool_choice": "zz"}, 400, FLAT, "2 validation errors:.*"),
        ("CHAT", {"reasoning_effort": "zzz"}, 400, FLAT, ".*literal_error.*"),
        ("CHAT", {"max_tokens": -1}, 400, "BadRequestError", "max_new_tokens must be at least 0.*"),
        ("CHAT", {"n": 0}, 400, "BadRequest", r"range\(\) arg 3 must not be zero"),
        (
            "CHAT",
            {"response_format": {"type": "json_schema"}},
            400,
            "BadRequestError",
            "schema_ is required for json_schema response format request.",
        ),
    ],
)
def test_refusals_that_were_seen_of_the_real_one(
    server: Server, path: str, body: dict[str, Any], status: int, kind: str, said: str
) -> None:
    if path == "CHAT":
        path = "/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **body}
    answer = server.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    if status == 500:  # nobody caught it
        assert answer.text == "Internal Server Error"
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["connection"] == "close"
        server.logged(r"ERROR:    Exception in ASGI application")
        return
    got = answer.json()
    if kind:
        assert (got["type"], got["code"]) == (kind, 400)
    else:
        assert set(got) == {"error"}
        got = got["error"]
    assert re.fullmatch(said, got["message"], re.DOTALL), got["message"]


def test_a_streamed_generation_is_refused_inside_the_stream(server: Server) -> None:
    body = {"input_ids": [500] * 70_000, "stream": True}
    answer = server.client.post("/generate", json=body)
    assert answer.status_code == 200
    first, last = [line for line in answer.text.split("\n") if line]
    assert json.loads(first.removeprefix("data: "))["error"]["message"].startswith(
        "The input (70000"
    )
    assert last == "data: [DONE]"


def test_a_model_that_is_not_named_is_called_default(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    assert server.client.post("/v1/chat/completions", json=body).json()["model"] == "default"
    other = server.client.get("/v1/models/other")
    assert other.status_code == 404
    assert set(other.json()["error"]) == NESTED
