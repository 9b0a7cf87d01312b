"""Tokens in and out: generation, abort and continuation in each dialect."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.console.lab_sim.asking import OFF, TOOLS, generate, rendered, served, tokenized
from tests.console.lab_sim.servers import Server, wait_for


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
