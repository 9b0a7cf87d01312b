"""The run against the real SGLang: what is broken off goes on (see :mod:`tests.real_engine`)."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from remote import verify
from remote.generate import control
from remote.generate.control import Control, Dispatch, ServerControl
from tests import real_engine
from tests.remote.generate.conftest import Generation, wait_for

pytestmark = real_engine.needed

TOKENS = 600
LONG = {"params": {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}}
"""A greedy answer that does not end by itself: seconds on a CPU."""
SOME = 100
"""It is broken off with more tokens than that, the prompt's included."""
TIMES = 2
"""So often is it broken off."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_engine.server(tmp_path_factory.mktemp("real")) as url:
        yield url


def load(url: str) -> dict[str, Any]:
    """What runs and waits there, and the tokens it holds."""
    with urllib.request.urlopen(f"{url}/v1/loads", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)["loads"][0]
    return found


def made(url: str, tokens: int) -> int:
    """Wait until what runs there holds more tokens than that, prompts included; how many."""

    def held() -> int:
        now = load(url)
        used = int(now["num_used_tokens"]) if now["num_running_reqs"] else 0
        return used if used > tokens else 0

    return int(wait_for(held, 120, f"{tokens} tokens"))


def tell(run: Generation, url: str, do: Dispatch, version: int) -> None:
    """What the agent would write, and what it waits for."""
    wanted = Control(servers=[ServerControl(url, gpu=0, dispatch=do)], version=version)
    control.write(run.folder, wanted)

    def obeyed() -> bool:
        now = run.progress()
        if now.get("control_version") != version:
            return False
        return do == "run" or not any(s["in_flight"] for s in now["servers"].values())

    wait_for(obeyed, 60, f"{do} obeyed")


def options_of(endpoint: str) -> tuple[str, ...]:
    """A model of noise repeats itself: that is kept here, and not held against the server."""
    return ("--endpoint", endpoint, "--policy", "looped=keep")


def interrupted(
    run: Generation, url: str, endpoint: str, *, killed: bool = False
) -> dict[str, Any]:
    """The record of the one answer after aborts in its middle."""
    options = options_of(endpoint)
    run.start(url, options=options)
    held = 0
    for number in range(TIMES):
        held = made(url, held + SOME)
        tell(run, url, "abort", 2 * number + 1)
        assert load(url)["num_running_reqs"] == 0
        assert run.done() == 0, "it was too fast to be interrupted"
        (kept,) = run.lines("pending.jsonl")[-1:]
        assert (kept["kind"], len(kept["data"]["segments"])) == ("partial", number + 1)
        if killed:
            run.kill(signal.SIGKILL)
            run.wait()
            run.start(url, options=options)  # without an agent the old control.json is no order
        else:
            tell(run, url, "run", 2 * number + 2)
    assert run.wait(300) == 0, run.text()
    report = verify.audit(run.folder, prompts=run.prompts)
    assert report.violations == []
    (record,) = run.records()
    assert len(record["segments"]) == TIMES + 1
    assert sum(s["tokens"] for s in record["segments"]) == record["usage"]["completion_tokens"]
    progress = run.progress()
    assert (progress["continued"], progress["tokens_lost"]) == (1, 0)
    assert sum(s["tokens"] for s in record["segments"][:-1]) > SOME
    return record


@pytest.mark.parametrize("killed", [False, True], ids=["aborted", "aborted and killed"])
def test_a_greedy_answer_goes_on_to_the_very_tokens(
    url: str, generation: Callable[..., Generation], killed: bool
) -> None:
    """Alone on the server, so that nothing but its own tokens decides what comes next."""
    whole = generation(1, "whole", **LONG)
    whole.start(url, options=options_of("generate"))
    assert whole.wait(300) == 0, whole.text()
    (expected,) = whole.records()
    assert "segments" not in expected
    record = interrupted(generation(name="cut"), url, "generate", killed=killed)
    for name in ("content", "reasoning_content", "finish_reason", "outcome", "usage"):
        assert record[name] == expected[name]
    assert record["usage"]["completion_tokens"] == TOKENS


def test_a_chat_answer_goes_on_from_its_text(
    url: str, generation: Callable[..., Generation]
) -> None:
    """Inside its thought; what was there stays, and the whole is as long as was asked for."""
    record = interrupted(generation(1, **LONG), url, "chat")
    assert record["finish_reason"] == "length"
    assert record["usage"]["completion_tokens"] == TOKENS
    assert [segment["endpoint"] for segment in record["segments"]] == [
        "chat",
        "generate",
        "generate",
    ]
    assert record["usage"]["reasoning_tokens"] == TOKENS
    assert record["reasoning_content"] and not record["content"]


def test_what_only_waited_is_asked_again(url: str, generation: Callable[..., Generation]) -> None:
    """More requests than the server runs at once: what waits there may begin, then all ends."""
    run = generation(40, **LONG)
    run.start(url, options=(*options_of("generate"), "--concurrency", "20"))
    wait_for(lambda: load(url)["num_waiting_reqs"] > 0, 60, "some wait")
    made(url, 16 * SOME)
    tell(run, url, "abort", 1)
    assert (load(url)["num_running_reqs"], load(url)["num_waiting_reqs"]) == (0, 0)
    tell(run, url, "run", 2)
    assert run.wait(500) == 0, run.text()
    report = verify.audit(run.folder, prompts=run.prompts)
    assert report.violations == []
    assert len(run.records()) == 40
    assert run.progress()["tokens_lost"] == 0
    assert run.progress()["continued"] > 0
