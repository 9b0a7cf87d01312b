"""Interrupted answers go on: every place where one can be cut, on a simulated server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from console.lab.sim import model
from remote.generate import partial as partials
from remote.generate import requests, sampling
from remote.generate.client import Client
from remote.generate.native import Native
from remote.generate.outcomes import Answer
from remote.generate.partial import Partial
from remote.generate.replies import read_answer
from remote.generate.server import Server
from remote.generate.trouble import TroubleError
from tests.console.lab_sim import servers

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {
                "where": {
                    "type": "string",
                    "enum": ["日本語の辞書", "Wörterbuch – größer", "🙂🙃 emoji"],
                },
                "what": {"type": "string"},
            },
            "required": ["where", "what"],
        },
    },
}
ASK: dict[str, dict[str, Any]] = {
    "thinking": {},
    "no thinking": {"chat_template_kwargs": {"enable_thinking": False}},
    "tools": {"tools": [TOOL]},
    "tools, no thinking": {"tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False}},
    "stop string": {"stop": [" so "], "chat_template_kwargs": {"enable_thinking": False}},
}


@pytest.fixture(scope="module", params=["0.5.12", "0.5.23"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("continue")
    model.write(folder / "model")
    with servers.lab(folder, request.param, speed=2000, length_mean=90) as lab:
        yield lab.start(model_path=str(folder / "model"), enable_metrics=True).ready()


@pytest.fixture
async def native(engine: servers.Server) -> AsyncIterator[tuple[Native, Server, Client]]:
    client = Client()
    native = Native(client)
    server = Server(f"http://127.0.0.1:{engine.port}", engine="sglang", context=8192)
    server.facts = await native.facts(server.url, {"temperature": 0})
    assert server.facts is not None and not server.facts.why_not
    await native.check(server.url)
    yield native, server, client
    await client.close()


def body(kind: str, **more: Any) -> dict[str, Any]:
    """A greedy request."""
    message = {"role": "user", "content": "Which dictionary has the word lantern in it?"}
    base = {"model": "m", "messages": [message], "temperature": 0, "max_tokens": 400}
    return {**base, **ASK[kind], **more}


def said(answer: Answer) -> tuple[Any, ...]:
    """What an answer says; the ids of its calls are random."""
    calls = None if answer.tool_calls is None else json.loads(bytes(answer.tool_calls))
    for call in calls or ():
        call.pop("id")
    return answer.reasoning, answer.content, calls, answer.finish_reason


@pytest.mark.parametrize("kind", ASK)
async def test_exact_from_every_token(native: Any, kind: str) -> None:
    """/generate equals chat, and cut after any token it goes on to the same answer."""
    by, server, client = native
    whole = await client.chat(server.url, body(kind))
    assert said(await by.answer(server, body(kind), None)) == said(whole)
    total = whole.usage.completion_tokens
    assert total > 20
    for cut in range(1, total):
        base = await first(by, server, client, body(kind), cut)
        assert len(base.ids) == cut
        answer = await by.answer(server, body(kind), base)
        assert said(answer) == said(whole), cut
        assert answer.usage == whole.usage, cut


async def first(
    by: Native, server: Server, client: Client, asked: dict[str, Any], cut: int
) -> Partial:
    """The first tokens of an answer, as an abort would leave them."""
    taken = sampling.translate(asked, server.facts.defaults or {})  # type: ignore[union-attr]
    tokens = json.loads(await client.post(f"{server.url}/tokenize", taken.template))["tokens"]
    params = {**taken.params, "max_new_tokens": cut}
    made = json.loads(
        await client.post(
            f"{server.url}/generate", {"input_ids": tokens, "sampling_params": params}
        )
    )
    segment = requests.segment(server, cut, "generate", 1.0)
    whole = partials.grown(
        None, segment, made["output_ids"], identity=server.identity, prompt_ids=tokens
    )
    again = partials.decode(partials.encode(whole, []))
    assert again == whole
    return whole


@pytest.mark.parametrize("kind", ASK)
async def test_a_prompt_is_counted_as_its_server_does(native: Any, kind: str) -> None:
    """Template, tools and all."""
    _, server, client = native
    whole = await client.chat(server.url, body(kind))
    counted = await client.count_tokens(server.url, "sglang", body(kind))
    assert counted == whole.usage.prompt_tokens


@pytest.mark.parametrize("kind", [kind for kind in ASK if kind != "stop string"])
async def test_chat_from_every_token(native: Any, kind: str) -> None:
    """A chat answer goes on from its text; where a call was begun, from before it."""
    by, server, client = native
    whole = await client.chat(server.url, body(kind))
    total = whole.usage.completion_tokens
    for cut in range(1, total):
        part = await client.chat(server.url, body(kind, max_tokens=cut))
        segment = requests.segment(server, cut, "chat", 1.0)
        base = partials.from_chat(part, segment, server.identity)
        if base is None:  # nothing but a call so far, or half a character
            assert not (part.reasoning or "").strip("\ufffd ")
            assert not (part.content or "").strip("\ufffd ")
            continue
        answer = await by.answer(server, body(kind), base)
        assert said(answer) == said(whole), (cut, part)
        assert answer.usage.prompt_tokens == whole.usage.prompt_tokens


async def test_a_stop_string_across_a_seam_still_stops(native: Any) -> None:
    """No server sees more of it than its own part."""
    by, server, client = native
    plain = await client.chat(server.url, body("no thinking"))
    mark = plain.content[30:60]
    asked = body("no thinking", stop=[mark])
    whole = await client.chat(server.url, asked)
    assert whole.content == plain.content[:30] and whole.finish_reason == "stop"
    cut = whole.usage.completion_tokens
    for short in range(1, 6):
        base = await first(by, server, client, asked, cut - short)
        answer = await by.answer(server, asked, base)
        assert (answer.content, answer.finish_reason) == (whole.content, "stop"), short


async def test_an_answer_whose_parsing_fails_is_not_made_twice(native: Any) -> None:
    """It is kept whole, and read by the next server."""
    by, server, _ = native
    asked = body("tools")
    whole = await by.answer(server, asked, None)
    sound = server.facts
    server.facts = replace(sound, reasoning_parser="no-such-parser")
    with pytest.raises(TroubleError) as caught:
        await by.answer(server, asked, None)
    kept = caught.value.partial
    assert kept is not None and kept.finish == {"type": "stop", "matched": kept.ids[-1]}
    assert kept.tokens == whole.usage.completion_tokens
    server.facts = sound
    again = partials.decode(partials.encode(kept, []))
    assert again == kept
    before = server_requests(server)
    assert said(await by.answer(server, asked, again)) == said(whole)
    assert server_requests(server) == before


def server_requests(server: Server) -> int:
    """Requests to /generate so far."""
    text = httpx.get(f"{server.url}/metrics").text
    return sum(
        int(float(line.rsplit(" ", 1)[1]))
        for line in text.splitlines()
        if line.startswith("sglang:http_requests_total") and 'endpoint="/generate"' in line
    )


async def test_what_is_broken_off_comes_back_with_what_it_had(native: Any) -> None:
    """A limit of no tokens is no room; nothing is sent to a server that is to be emptied."""
    by, server, _ = native
    server.context = 20
    with pytest.raises(TroubleError, match="leave no room in a context of 20"):
        await by.answer(server, body("thinking"), None)
    server.context, server.dispatch = None, "abort"
    with pytest.raises(TroubleError) as caught:
        await by.answer(server, body("thinking"), None)
    assert caught.value.cause == "abort" and caught.value.partial is None


def test_an_aborted_chat_answer_is_told_with_what_it_has() -> None:
    """As SGLang 0.5.12 answers it."""
    message = {"role": "assistant", "content": None, "reasoning_content": "so far"}
    document = {
        "model": "m",
        "choices": [{"message": message, "finish_reason": "abort"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 5},
    }
    with pytest.raises(TroubleError) as caught:
        read_answer(json.dumps(document).encode())
    assert caught.value.cause == "abort" and caught.value.made == 5
    assert caught.value.answer is not None and caught.value.answer.reasoning == "so far"
