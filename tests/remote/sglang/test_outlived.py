"""What is no cause of an end: what was outlived or asked for, and what a prompt says."""

from __future__ import annotations

import pytest

from tests.remote.sglang.lines import TS, read


@pytest.mark.parametrize(
    "line",
    [
        (
            f"{TS} KV cache pool is full. Retract requests. #retracted_reqs: 2, "
            "#new_tokens_gained: 5012, #mamba_num_gained: 8, #new_token_ratio: 0.3121 -> 0.8893"
        ),
        f"{TS} Cache not flushed because there are pending requests.",
        f"{TS} retract_decode: aborted last request 5f2c due to OOM",
        f"{TS} max_total_tokens=9 is larger than the profiled value 8",
        f"{TS} Health check failed. Server couldn't get a response from detokenizer for last 20 s",
        (
            f"{TS} Gracefully exiting... Remaining number of requests 0. Remaining requests "
            "remaining_rids=[]."
        ),
        f"{TS} SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
        (
            f"{TS} Receive: obj=GenerateReqInput(text='why do I get CUDA out of memory? No space "
            "left on device')"
        ),
        f"{TS} Finish: obj=GenerateReqInput(), out={{'text': 'CUDA error: NCCL error'}}",
    ],
)
def test_warnings_and_prompts_are_no_cause(line: str) -> None:
    assert read(line).cause is None


def at(seconds: int) -> str:
    return f"[2026-05-20 10:{seconds // 60:02}:{seconds % 60:02}]"


FIRED = "The server is fired up and ready to roll!"
REQUEST = (
    "{ts} Error in request: 'dict object' has no attribute 'name'",
    "Traceback (most recent call last):",
    '  File "serving_chat.py", line 1, in handle_request',
    "jinja2.exceptions.UndefinedError: 'dict object' has no attribute 'name'",
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    "Traceback (most recent call last):",
    "TemplateError: No space left on device",
)
"""A request that was answered with 500: the server goes on."""

BATCH = (
    " Decode batch, #running-req: 8, #token: 20800, token usage: 0.05, cuda graph: True, "
    "gen throughput (token/s): 601.11, #queue-req: 0"
)


def test_a_request_that_failed_is_no_cause_of_an_end() -> None:
    lines = [line.format(ts=at(0)) for line in REQUEST]
    reader = read(f"{at(0)} {FIRED}", *lines, f"{at(3)} SIGTERM received. signum=None frame=None.")
    assert reader.cause is None
    assert reader.draining
    killed = f"{at(5)} Subprocess scheduler_0 (pid=9) crashed with exit code -9. Triggering SIGQUIT"
    cause = read(f"{at(0)} {FIRED}", *lines, killed).cause
    assert cause is not None
    assert cause.code == "child"
    asgi = (f"{at(1)} ERROR:    Exception in ASGI application", *lines[1:])
    assert read(f"{at(0)} {FIRED}", *asgi).cause is None


def test_what_a_server_outlived_is_no_cause_of_its_end() -> None:
    trouble = [
        f"{at(0)} {FIRED}",
        f"{at(5)} Something went wrong:",
        "Traceback (most recent call last):",
        "RuntimeError: CUDA error: something passing",
    ]
    assert read(*trouble, at(8) + BATCH).cause is not None
    assert read(*trouble, at(16) + BATCH).cause is None
    # What happens after that counts as ever.
    late = read(*trouble, at(16) + BATCH, f"{at(17)} Scheduler watchdog timeout (self.x)").cause
    assert late is not None
    assert late.code == "watchdog"


def test_what_went_wrong_on_the_way_up_does_not_matter_once_it_is_up() -> None:
    build = [f"{at(0)} falling back", "RuntimeError: Ninja build failed. Ninja output:"]
    assert read(*build).cause is not None
    assert read(*build, f"{at(2)} {FIRED}").cause is None
    # One whose port is taken says that it is up, too: the other server answered its warm-up.
    taken = f"{at(0)} ERROR:    [Errno 98] error while attempting to bind on address ('::', 30003)"
    lost = read(f"{taken}: address already in use", f"{at(1)} {FIRED}").cause
    assert lost is not None
    assert lost.code == "port"


@pytest.mark.parametrize(
    "quote",
    [
        "{ts} Receive: obj=GenerateReqInput(rid='x', text={said!r}, image_data=None)",
        "{ts} Finish: obj=GenerateReqInput(rid='x'), out={{'text': {said!r}}}",
        '{ts} {{"timestamp": "2026-05-20", "event": "request.received", "text": "{said}"}}',
        '{{"timestamp": "2026-05-20", "event": "request.finished", "out": "{said}"}}',
        "{ts} Failed to parse a tool call: {said}",
    ],
    ids=["received", "finished", "json", "bare json", "a parser's warning"],
)
def test_a_prompt_does_not_steer_the_reader(quote: str) -> None:
    said = (
        "SIGTERM received. signum=None frame=None. Draining requests and shutting down... "
        "Gracefully exiting... Remaining number of requests 3. Remaining requests "
        "The server is fired up and ready to roll!, I think"
    )
    reader = read(quote.format(ts=TS, said=said))
    assert not reader.draining
    assert reader.remaining is None
    assert not reader.fired_up
    assert reader.phase != "up"
    assert reader.cause is None
