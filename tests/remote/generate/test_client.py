"""Answers and refusals in every engine's words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.generate.client import Client
from remote.generate.replies import read_answer, refusal, retry_after
from remote.generate.trouble import TroubleError
from tests.remote.generate.conftest import Served

REAL = Path(__file__).parents[4] / "shared" / "fixtures" / "real-engines"


def recorded(name: str) -> tuple[int, bytes]:
    """Status and body of a recorded exchange with a real engine."""
    path = REAL / name
    if not path.exists():
        pytest.skip("no recorded answers here")
    text = path.read_text()
    head, _, rest = text.partition("\nHTTP ")
    assert head
    status, _, rest = rest.partition("\n")
    return int(status.split()[0]), (rest.partition("\n\n")[2] or rest).encode()


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_real_reasoning(engine: str) -> None:
    """SGLang says reasoning_content, vLLM reasoning; tokens stand in two places."""
    status, body = recorded(f"{engine}/chat_thinking_on.txt")
    assert status == 200
    answer = read_answer(body)
    assert answer.content is None
    assert answer.reasoning
    assert answer.finish_reason == "length"
    assert answer.usage.completion_tokens == 16
    assert answer.usage.reasoning_tokens == 16
    assert answer.tool_calls is None


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(
    ("name", "says"),
    [("err_context_too_long", "context length"), ("err_bad_temperature", "temperature")],
)
def test_real_refusals(engine: str, name: str, says: str) -> None:
    """A 400 is final, and its message is found in both forms of error body."""
    status, body = recorded(f"{engine}/{name}.txt")
    trouble = refusal(status, body, {})
    assert trouble.cause == "rejected"
    assert says in trouble.text


def test_real_tool_calls() -> None:
    """Calls are kept as they stand."""
    for path in sorted((REAL / "sglang").glob("x_tools_*.txt")):
        answer = read_answer(recorded(f"sglang/{path.name}")[1])
        assert answer.tool_calls is not None
        assert json.loads(bytes(answer.tool_calls))[0]["function"]["name"]
        return
    pytest.skip("no recorded answers here")


@pytest.mark.parametrize(
    ("status", "body", "cause"),
    [
        (503, b'{"object":"error","message":"The request queue is full.","code":503}', "busy"),
        (429, b"", "busy"),
        (400, b'{"message":"Duplicate request ID detected: 1"}', "busy"),
        (400, b'{"message":"bad"}', "rejected"),
        (413, b"too large", "rejected"),
        (401, b'{"error":"Unauthorized"}', "denied"),
        (404, b'{"detail":"Not Found"}', "denied"),
        (500, b'{"message":"boom"}', "server"),
        (502, b"<html>", "server"),
    ],
)
def test_refusals(status: int, body: bytes, cause: str) -> None:
    """What each status means for the run."""
    assert refusal(status, body, {}).cause == cause


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"choices":[]}',
        b"null",
        b'{"choices":[{}]}',
        b'{"choices":[{"message":{"content":"\xff"}}]}',
    ],
)
def test_garbage(body: bytes) -> None:
    """A 200 without a completion is a failure of the server, not an answer."""
    with pytest.raises(TroubleError) as caught:
        read_answer(body)
    assert caught.value.cause == "garbage"


def test_abort_is_no_answer() -> None:
    """HTTP 200 with finish_reason abort."""
    message = {"content": "half"}
    body = {"choices": [{"message": message, "finish_reason": "abort"}]}
    with pytest.raises(TroubleError) as caught:
        read_answer(json.dumps(body).encode())
    assert caught.value.cause == "abort"


def test_retry_after() -> None:
    """Seconds, a date, or nonsense."""
    assert retry_after("3") == 3
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert retry_after("soon") is None
    assert retry_after(None) is None


async def test_a_kept_connection_that_died_is_not_noticed(tmp_path: Path) -> None:
    """The server closes after its first answer while the client thinks the connection is kept:
    the next request is sent once more on a new one. A reset later on is told."""
    served = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        for turn in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            served += 1
            if turn:
                break  # read the request, then hang up without a byte
            body = b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}'
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                % len(body)
                + body
            )
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = Client()
    try:
        for _ in range(3):
            assert (await client.chat(url, {"messages": []})).content == "x"
        assert served == 5, "1 + (1 lost + 1) + (1 lost + 1)"
    finally:
        await client.close()
        server.close()


async def test_causes_below_http(serve: Callable[..., Served]) -> None:
    """Nobody listens; a reset; a wrong key."""
    server = serve(mode="reset", key="k")
    client = Client({"authorization": "Bearer k"})
    stranger = Client()
    try:
        with pytest.raises(TroubleError) as caught:
            await client.chat(server.url, {"messages": [{"content": "prompt 1"}]})
        assert caught.value.cause == "reset"
        with pytest.raises(TroubleError) as caught:
            await stranger.chat(server.url, {"messages": [{"content": "prompt 1"}]})
        assert caught.value.cause == "denied"
        server.kill()
        with pytest.raises(TroubleError) as caught:
            await client.chat(server.url, {"messages": []})
        assert caught.value.cause == "refused"
    finally:
        await client.close()
        await stranger.close()


async def test_identity_and_sample(serve: Callable[..., Served]) -> None:
    """What a server serves, and how it is."""
    server = serve(max_running=37)
    client = Client()
    try:
        identity = await client.identify(server.url)
        assert (identity.engine, identity.model, identity.context) == ("sglang", "tiny", 8192)
        sample = await client.sample(server.url, "sglang")
        assert (sample.running, sample.queued, sample.max_running) == (0, 0, 37)
        assert (await client.sample(server.url, "unknown")).max_running is None
    finally:
        await client.close()
