"""One running server in each dialect: shapes, errors, generation, continuation."""

from __future__ import annotations

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from console.lab.sim import template
from tests.console.lab_sim.servers import Lab, Server, wait_for

REAL = Path(__file__).parents[4] / "shared" / "fixtures" / "real-engines" / "sglang"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "w",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
OFF = {"enable_thinking": False}
BAD = {"name": "f", "parameters": {"type": "dict"}}


def is_new(both: Lab) -> bool:
    return both.version == "0.5.23"


def real(name: str) -> Any:
    """The body of a recorded answer of the real 0.5.12."""
    path = REAL / name
    if not path.exists():
        pytest.skip("no recorded answers of the real server here")
    lines = path.read_text().split("\n")
    first = next(
        n for n, line in enumerate(lines) if line and line[0] in "{[" and "Date" not in line
    )
    if lines[0].startswith(("GET", "POST")):  # request line, request, status, headers, body
        first = lines.index("", lines.index("HTTP 200")) + 1
    return json.loads("\n".join(lines[first:]))


def shape(value: Any, depth: int = 0) -> Any:
    """Keys and types of a JSON value."""
    if isinstance(value, dict):
        return {name: shape(part, depth + 1) for name, part in value.items()}
    if isinstance(value, list):
        return [shape(value[0], depth + 1)] if value else []
    if isinstance(value, bool) or value is None:
        return value
    return float if isinstance(value, int | float) else str


# --- looking ---


def test_health_takes_a_second(server: Server) -> None:
    began = time.monotonic()
    answer = server.client.get("/health")
    took = time.monotonic() - began
    assert (answer.status_code, answer.content) == (200, b"")
    assert 1.0 <= took < 2.5
    assert "content-type" not in answer.headers
    assert answer.headers["server"] == "uvicorn"


def test_an_idle_health_check_logs_a_prefill_of_one_token(server: Server) -> None:
    before = len(server.lines(r"#new-token: 1,"))
    server.client.get("/health")
    assert len(server.lines(r"#new-token: 1,")) == before + 1


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("/ready", 404, 200),
        ("/ping", 200, 200),
        ("/get_load", 200, 404),
        ("/get_model_info", 200, 200),
        ("/nope", 404, 404),
        ("/metrics", 200, 200),
    ],
)
def test_which_paths_there_are(both: Lab, server: Server, path: str, old: int, new: int) -> None:
    answer = server.client.get(path)
    assert answer.status_code == (new if is_new(both) else old)
    if answer.status_code == 404:
        assert answer.text == '{"detail":"Not Found"}'


def test_loads_have_the_shape_of_the_real_answer(both: Lab, server: Server) -> None:
    got = server.client.get("/v1/loads").json()
    if is_new(both):
        assert {"aggregate", "dp_rank_count"}.isdisjoint(got)
        assert {"accelerator", "num_accelerators"} <= set(got)
        load = got["loads"][0]
        assert load["dp_rank"] == 0
        assert "num_total_reqs" not in load
        assert {"decode_moments", "num_active_tokens", "timestamp"} <= set(load)
        return
    expected = shape(real("get_v1_loads.txt"))
    assert shape(got) == expected


def test_loads_in_parts_and_as_prometheus_text(both: Lab, server: Server) -> None:
    core = server.client.get("/v1/loads?include=core").json()["loads"][0]
    assert {"memory", "queues", "disaggregation"}.isdisjoint(core)
    some = server.client.get("/v1/loads?include=core,queues").json()["loads"][0]
    assert "queues" in some
    text = server.client.get("/v1/loads?format=prometheus")
    assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    rank = "0" if is_new(both) else "None"
    assert f'sglang_num_running_reqs{{dp_rank="{rank}"}} 0' in text.text
    assert "sglang_memory_weight_gb{" in text.text
    assert server.client.get("/v1/loads?include=x").status_code == (400 if is_new(both) else 200)


def test_server_info_has_the_effective_numbers(both: Lab, server: Server) -> None:
    info = server.client.get("/server_info").json()
    state = info["internal_states"][0]
    expected = 36 if is_new(both) else 37
    assert state["effective_max_running_requests_per_dp"] == expected
    assert server.load()["max_running_requests"] == expected
    assert info["max_running_requests"] is None
    assert info["max_mamba_cache_size"] is None
    assert state["max_mamba_cache_size"] == (184 if is_new(both) else 186)
    assert info["version"] == both.version
    graph = state["memory_usage"]["graph"]
    assert graph == ({"decode": 1.02, "prefill": 0.34} if is_new(both) else 1.02)
    assert info["context_length"] == 65536
    strategy = "mamba_radix_cache_strategy" if is_new(both) else "mamba_scheduler_strategy"
    assert info[strategy] == "extra_buffer"
    assert ("launch_command" in info) == is_new(both)


def test_server_info_has_the_keys_of_the_real_one(both: Lab, server: Server) -> None:
    if is_new(both):
        pytest.skip("recorded for the older release")
    expected = real("server_info_full.json")
    got = server.client.get("/server_info").json()
    assert set(expected) - set(got) <= {
        "custom_sigquit_handler",
        "debug_tensor_dump_inject",
    }


def test_the_deprecated_path_is_logged(server: Server) -> None:
    server.client.get("/get_server_info")
    server.logged(r"Endpoint '/get_server_info' is deprecated")


def test_models(server: Server) -> None:
    assert shape(server.client.get("/v1/models").json()) == {
        "object": str,
        "data": [
            {
                "id": str,
                "object": str,
                "created": float,
                "owned_by": str,
                "root": str,
                "parent": None,
                "max_model_len": float,
            }
        ],
    }


def test_metrics_have_the_names_and_labels_of_the_real_ones(both: Lab, server: Server) -> None:
    server.chat(max_tokens=5)
    text = server.client.get("/metrics").text
    names = set(re.findall(r"^(sglang:\w+)", text, re.MULTILINE))
    assert {
        "sglang:num_running_reqs",
        "sglang:mamba_usage",
        "sglang:realtime_tokens_total",
        "sglang:generation_tokens_total",
        "sglang:e2e_request_latency_seconds_bucket",
    } <= names
    assert ('is_streaming="false"' in text) == is_new(both)
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"sglang:\w+\{[^}]*\} (\S+)", line), line
    if not is_new(both) and REAL.exists():
        recorded = (REAL / "metrics_under_load_full.txt").read_text()
        known = set(re.findall(r"^(sglang:\w+)", recorded, re.MULTILINE))
        assert names - known <= {
            "sglang:cached_tokens_total",
            "sglang:get_loads_duration_seconds_bucket",
            "sglang:get_loads_duration_seconds_count",
            "sglang:get_loads_duration_seconds_sum",
            "sglang:num_aborted_requests_total",
            "sglang:evicted_tokens_total",
        }


# --- chat ---


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


# --- refusals ---


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


# --- tokens, generate, abort, continue ---


def rendered(text: str, tools: list[dict[str, Any]] | None = None, thinking: bool = True) -> str:
    return template.render([{"role": "user", "content": text}], tools, thinking=thinking)


def served(server: Server, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools as this release's template gets them."""
    if tools is None:
        return None
    functions = [tool["function"] for tool in tools]
    if server.client.get("/server_info").json()["version"] != "0.5.23":
        order = ("description", "name", "parameters")
        functions = [{**{key: one[key] for key in order}, "strict": False} for one in functions]
    return [{"type": "function", "function": one, "defer_loading": None} for one in functions]


def generate(server: Server, ids: list[int], **more: Any) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": 4096, **more.pop("params", {})}
    answer = server.client.post(
        "/generate", json={"input_ids": ids, "sampling_params": params, **more}
    )
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def tokenized(server: Server, text: str) -> list[int]:
    return list(server.client.post("/tokenize", json={"prompt": text}).json()["tokens"])


def test_tokenize_and_back(server: Server) -> None:
    text = "Grüße, 世界! 12345\n\n<|im_start|>user\n"
    ids = tokenized(server, text)
    back = server.client.post("/detokenize", json={"tokens": ids, "skip_special_tokens": False})
    assert back.json()["text"] == text
    messages = [{"role": "user", "content": "hi"}]
    by_template = server.client.post("/tokenize", json={"messages": messages}).json()
    assert by_template["tokens"] == tokenized(server, rendered("hi"))
    assert by_template["count"] == len(by_template["tokens"])
    with_tools = {"messages": messages, "tools": TOOLS, "chat_template_kwargs": OFF}
    assert server.client.post("/tokenize", json=with_tools).json()["tokens"] == tokenized(
        server, rendered("hi", served(server, TOOLS), thinking=False)
    )
    assert server.client.post("/tokenize", json={}).status_code == 400


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("thinking", [True, False])
def test_generate_from_tokens_gives_what_chat_gives(
    server: Server, tools: list[dict[str, Any]] | None, thinking: bool
) -> None:
    more: dict[str, Any] = {"tools": tools} if tools else {}
    chat = server.chat(
        "What now, then?", temperature=0, chat_template_kwargs={"enable_thinking": thinking}, **more
    )
    ids = tokenized(server, rendered("What now, then?", served(server, tools), thinking))
    raw = generate(server, ids)
    assert len(raw["output_ids"]) == chat["usage"]["completion_tokens"]
    assert raw["meta_info"]["prompt_tokens"] == chat["usage"]["prompt_tokens"]
    assert raw["meta_info"]["finish_reason"]["type"] == "stop"
    text = ("<think>" if thinking else "") + raw["text"]
    parts = server.client.post(
        "/separate_reasoning", json={"text": text, "reasoning_parser": "qwen3"}
    ).json()
    found = server.client.post(
        "/parse_function_call",
        json={"text": parts["text"], "tools": tools or [], "tool_call_parser": "qwen3_coder"},
    ).json()
    message = chat["choices"][0]["message"]
    assert (parts["reasoning_text"] or None) == message["reasoning_content"]
    assert (found["normal_text"] or None) == message["content"]
    calls = [call["function"] for call in message.get("tool_calls") or []]
    assert [(c["name"], c["parameters"]) for c in found["calls"]] == [
        (c["name"], c["arguments"]) for c in calls
    ]


def test_separate_reasoning_sees_only_what_its_parser_sees(server: Server) -> None:
    def split(text: str, parser: str) -> tuple[str, str]:
        body = {"text": text, "reasoning_parser": parser}
        got = server.client.post("/separate_reasoning", json=body).json()
        return got["reasoning_text"], got["text"]

    assert split("a</think>b", "qwen3") == ("", "a</think>b")
    assert split("<think>a</think>b", "qwen3") == ("a", "b")
    assert split("a</think>b", "qwen3-thinking") == ("a", "b")


def test_an_abort_returns_what_was_made_and_it_is_continued_to_the_token(server: Server) -> None:
    ids = tokenized(server, rendered("Tell me a long story"))
    full = generate(server, ids)["output_ids"]
    with ThreadPoolExecutor() as pool:
        running = pool.submit(generate, server, ids, rid="story-000001")
        wait_for(lambda: server.load()["num_used_tokens"] > 300, why="some tokens")
        done = server.client.post("/abort_request", json={"rid": "story-000001"})
        assert (done.status_code, done.content) == (200, b"")
        part = running.result()
    assert part["meta_info"]["finish_reason"]["type"] == "abort"
    made = part["output_ids"]
    assert 0 < len(made) < len(full)
    assert made == full[: len(made)]
    assert part["meta_info"]["completion_tokens"] == len(made)
    rest = generate(server, ids + made)
    assert made + rest["output_ids"] == full
    assert rest["meta_info"]["cached_tokens"] > 0


def test_an_aborted_chat_is_continued_by_its_text(server: Server) -> None:
    whole = server.chat("Another long story", temperature=0, separate_reasoning=False)
    text = whole["choices"][0]["message"]["content"]
    part = server.chat(
        "Another long story", temperature=0, separate_reasoning=False, max_tokens=500
    )
    first = part["choices"][0]["message"]["content"]
    assert text.startswith(first)
    messages = [
        {"role": "user", "content": "Another long story"},
        {"role": "assistant", "content": first},
    ]
    body = {
        "messages": messages,
        "temperature": 0,
        "continue_final_message": True,
        "separate_reasoning": False,
    }
    rest = server.client.post("/v1/chat/completions", json=body).json()
    assert first + rest["choices"][0]["message"]["content"] == text


def test_an_abort_takes_all_that_begin_with_the_id(server: Server) -> None:
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(server.chat, rid=rid, max_tokens=30_000, ignore_eos=True)
            for rid in ("job-1", "job-10", "job-2")
        ]
        wait_for(lambda: server.load()["num_running_reqs"] == 3, why="three running")
        server.client.post("/abort_request", json={"rid": "job-"})  # nobody's id: nothing happens
        server.client.post("/abort_request", json={"rid": "job-1"})
        ends = [run.result()["choices"][0]["finish_reason"] for run in runs[:2]]
        assert ends == ["abort", "abort"]
        assert not runs[2].done()
        server.client.post("/abort_request", json={"abort_all": True})
        assert runs[2].result()["choices"][0]["finish_reason"] == "abort"


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


def test_meta_info_has_the_members_of_the_real_one(server: Server) -> None:
    meta = generate(server, tokenized(server, rendered("x")), params={"max_new_tokens": 5})
    assert list(meta["meta_info"]) == [
        "id",
        "finish_reason",
        "prompt_tokens",
        "weight_version",
        "num_retractions",
        "queue_time",
        "reasoning_tokens",
        "completion_tokens",
        "cached_tokens",
        "cached_tokens_details",
        "dp_rank",
        "e2e_latency",
        "request_received_ts",
        "api_server_dispatch_finish_ts",
        "request_finished_ts",
        "decode_throughput",
        "response_sent_to_client_ts",
    ]


def test_text_prompts_and_batches(server: Server) -> None:
    one = server.client.post("/generate", json={"text": "Once upon a time there was"}).json()
    assert one["meta_info"]["completion_tokens"] == 128
    batch = {"text": ["a b c d", "e f g h"], "sampling_params": {"max_new_tokens": 5}}
    two = server.client.post("/generate", json=batch).json()
    assert [len(out["output_ids"]) for out in two] == [5, 5]
    done = server.client.post("/v1/completions", json={"prompt": "the quick", "max_tokens": 8})
    assert done.json()["usage"]["completion_tokens"] == 8
    several: dict[str, Any] = {"prompt": ["the", "quick"], "max_tokens": 3, "echo": True}
    choices = server.client.post("/v1/completions", json=several).json()["choices"]
    assert [choice["text"][:3] for choice in choices] == ["the", "qui"]
    body: dict[str, Any] = {"prompt": "the", "max_tokens": 40, "temperature": 0, "stream": True}
    streamed = server.client.post("/v1/completions", json=body).text.split("\n\n")
    assert streamed[-2:] == ["data: [DONE]", ""]
    pieces = [json.loads(e.removeprefix("data: "))["choices"][0]["text"] for e in streamed[:-2]]
    whole = server.client.post("/v1/completions", json={**body, "stream": False}).json()
    assert "".join(pieces) == whole["choices"][0]["text"]


# --- connections ---


def test_an_idle_connection_is_closed_after_five_seconds(both: Lab, server: Server) -> None:
    if is_new(both):
        pytest.skip("the same in both releases")
    with socket.create_connection(("127.0.0.1", server.port)) as link:
        link.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert link.recv(65536).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        link.settimeout(20)
        while link.recv(65536):
            pass
        assert 4 <= time.monotonic() - began <= 9


def test_a_client_that_leaves_is_noticed(both: Lab, server: Server) -> None:
    if is_new(both):
        pytest.skip("the same in both releases")
    body = json.dumps(
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": 60_000, "ignore_eos": True}
    ).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    with socket.create_connection(("127.0.0.1", server.port)) as link:
        link.sendall(head + body)
        wait_for(lambda: server.load()["num_running_reqs"] == 1, why="running")
    wait_for(lambda: server.load()["num_running_reqs"] == 0, 6, "aborted within four seconds")


def test_access_lines_are_on_standard_output(server: Server) -> None:
    server.client.get("/v1/models")
    wait_for(lambda: '"GET /v1/models HTTP/1.1" 200 OK' in server.access)
    assert re.search(
        r'^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] INFO:     127\.0\.0\.1:\d+ - "GET /v1/models',
        server.access,
        re.MULTILINE,
    )
    assert "HTTP/1.1" not in server.log
