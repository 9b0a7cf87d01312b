"""Turn-by-turn conversations, policies, stragglers, poison, contexts, retention."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remote.generate.context import Fit, room_said
from remote.generate.deaths import Deaths
from remote.generate.job import Job
from remote.generate.outcomes import Answer
from remote.generate.prompts import decode
from remote.generate.records import Usage
from remote.generate.talk import talk_of
from tests.remote.generate.conftest import Generation, Served, wait_for
from tests.remote.generate.test_run import check, indices


def conversations(path: Path, count: int, turns: int = 3) -> None:
    """Rows of several user turns, with answers of somebody else in between."""
    with path.open("w") as out:
        for index in range(count):
            messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
            for turn in range(turns):
                messages.append({"role": "user", "content": f"prompt {index} turn {turn}"})
                messages.append({"role": "assistant", "content": "not mine"})
            out.write(json.dumps({"messages": messages, "mode": "each"}) + "\n")


def test_turn_by_turn(serve: Callable[..., Served], generation: Callable[..., Generation]) -> None:
    """Every user turn is answered with the model's own answers before it; one record a row.
    A kill costs the open turns alone."""
    run = generation(1)
    conversations(run.prompts, 60)
    server = serve(delay=0.2, keep_bodies=True)
    run.start(server, options=("--concurrency", "10"))
    wait_for(lambda: run.done() >= 16)
    run.kill()
    run.wait()
    assert any(entry["kind"] == "turns" for entry in run.lines("pending.jsonl"))
    run.start(server, options=("--concurrency", "10"))
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(60))
    lost = len(server.told()["seen"]) - 3 * 60
    assert lost <= 2 * 10, "only open turns, and answers that were not yet on disk"
    for record in run.records():
        assert len(record["turns"]) == 3
        roles = [message["role"] for message in record["messages"]]
        assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
        own = [m["content"] for m in record["messages"] if m["role"] == "assistant"]
        assert own == [turn["content"] for turn in record["turns"][:2]]
        assert record["content"] == record["turns"][2]["content"]
        assert f"prompt {record['index']} turn 2" in record["content"]
        used = [turn["usage"]["completion_tokens"] for turn in record["turns"]]
        assert record["usage"]["completion_tokens"] == sum(used)
    assert not any("not mine" in str(body) for body in server.told()["bodies"])
    check(run)


def answer(text: str | None) -> Answer:
    """A plain answer."""
    return Answer(text, None, None, "stop", Usage(1, 1, 0), "m")


def test_a_bad_turn_ends_the_conversation() -> None:
    """Nothing can follow an empty answer; a degenerate server's turns are forgotten."""
    row = {
        "messages": [{"role": "user", "content": str(n)} for n in range(3)],
        "mode": "each",
    }
    talk = talk_of(decode(json.dumps(row).encode()))
    assert talk is not None
    talk.add(answer("a"), "ok", "one", 1.0)
    talk.add(answer("b"), "length", "two", 1.0)
    assert talk.over is False
    assert [m["content"] for m in talk.messages()] == ["0", "a", "1", "b", "2"]
    talk.forget("two")
    assert len(talk.turns) == 1
    talk.add(answer(None), "empty", "one", 1.0)
    assert (talk.over, talk.outcome) == (True, "empty")
    assert [m["content"] for m in talk.messages(last=True)] == ["0", "a", "1"]
    assert talk_of(decode(b'{"messages":[{"role":"system"}],"mode":"each"}')) is None
    assert talk_of(decode(json.dumps({**row, "mode": "last"}).encode())) is None


def test_policy(serve: Callable[..., Served], generation: Callable[..., Generation]) -> None:
    """An outcome can be tried with another seed, and kept all the same in the end."""
    run = generation(120)
    server = serve(delay=0.01, mode="loop", share=0.2, keep_bodies=True)
    run.start(server, options=("--policy", "looped=retry:6"))
    assert run.wait() == 0, run.text()
    assert run.progress()["retries"]["looped"] > 0
    assert any(body.get("seed") for body in server.told()["bodies"])
    check(run)
    other = generation(name="kept")
    other.start(server, options=("--policy", "looped=keep"))
    assert other.wait() == 0
    assert {record["outcome"] for record in other.records()} == {"ok", "looped"}
    check(other)
    other.start(server, options=("--policy", "lopped=keep"))
    assert other.wait() == 2
    assert "the outcomes are ok, length, looped" in other.text()


def test_hedging(serve: Callable[..., Served], generation: Callable[..., Generation]) -> None:
    """At the end a straggler is sent to a second server, and its first answer counts."""
    run = generation(200)
    fast, slow = serve(delay=0.1), serve(delay=0.1, slow=list(range(150, 200)))
    slow.set(delay=2.0)
    run.start(fast, slow, options=("--hedge", "--concurrency", "4"))
    began = time.monotonic()
    assert run.wait() == 0, run.text()
    assert time.monotonic() - began < 18, "a straggler takes up to thirty seconds"
    assert run.progress()["retries"].get("hedged")
    assert indices(run) == list(range(200))
    check(run)


def test_poison_is_quarantined(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """A prompt that kills its server twice gets one to itself, and is given up when that dies."""
    run = generation(40)
    server = serve(delay=0.05, poison="prompt 7 ")
    run.start(server, options=("--concurrency", "4"))
    deaths = 0
    while run.process is not None and run.process.poll() is None:
        if server.process.poll() is not None and deaths < 12:
            assert server.process.stdout is not None
            server.process.stdout.close()
            time.sleep(1.5)  # long enough that a connection is refused in between
            server.start()
            deaths += 1
        time.sleep(0.05)
    assert run.wait() == 1, run.text()
    failed = run.lines("failed.jsonl")
    assert [(f["index"], f["outcome"]) for f in failed] == [(7, "quarantined")]
    assert indices(run) == [i for i in range(40) if i != 7]
    assert deaths <= 4
    check(run)


def jobs(count: int) -> list[Job]:
    """Some prompts."""
    row = b'{"messages":[{"role":"user"}]}\n'
    return [Job(index, row, decode(row)) for index in range(count)]


def test_deaths_together_are_nobodys_fault() -> None:
    """Two servers within a minute: no prompt is blamed; one alone, twice: its prompts are."""
    one, two, three = jobs(3)
    deaths = Deaths()
    assert deaths.died(0.0, "a", [one]) == []
    assert deaths.died(30.0, "b", [two, three]) == []
    assert (one.deaths, two.deaths) == (0, 0)
    assert deaths.died(200.0, "a", [one]) == []
    assert deaths.died(300.0, "b", [one, two]) == [one]
    assert two.deaths == 1


def test_a_prompt_that_walks_from_death_to_death_is_blamed() -> None:
    """It kills at once, so that servers die together: what it met only once on its way is not
    blamed. Where another server dies without any such prompt, nobody is."""
    poison, first, second, both, other = jobs(5)
    deaths = Deaths()
    assert deaths.died(0.0, "a", [poison, first, both]) == []
    assert deaths.died(5.0, "b", [poison, second, both]) == [poison, both]
    assert (first.deaths, second.deaths) == (0, 0)
    assert not deaths.others(poison, 5.0)
    assert deaths.died(10.0, "c", [other]) == []
    assert (poison.deaths, both.deaths, other.deaths) == (0, 0, 0)
    assert deaths.others(poison, 5.0), "and so it is, seen a while later"
    assert not deaths.others(poison, 100.0)


def test_two_poisons_at_once_are_both_blamed() -> None:
    """Every death has one of them in it."""
    one, two = jobs(2)
    deaths = Deaths()
    for at, (server, job) in enumerate([("a", one), ("b", two), ("c", one)]):
        assert deaths.died(float(at), server, [job]) == []
    assert deaths.died(4.0, "d", [two]) == [two]
    assert (one.deaths, two.deaths) == (2, 2)


def test_long_prompts_are_foreseen(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Too long for the context: rejected before it is sent; a tight one gets less room."""
    run = generation(1)
    rows = ["prompt 0 short", "prompt 1 " + "x" * 5000, "prompt 2 " + "y" * 2600]
    with run.prompts.open("w") as out:
        for text in rows:
            out.write(json.dumps({"messages": [{"role": "user", "content": text}]}) + "\n")
    server = serve(context=1000, keep_bodies=True)
    run.start(server, options=("--max-tokens", "500"))
    assert run.wait() == 1
    failed = run.lines("failed.jsonl")
    assert [(f["index"], f["outcome"]) for f in failed] == [(1, "rejected")]
    assert "leave no room in a context of 1000" in failed[0]["reason"]
    sent = {b["messages"][0]["content"][:8]: b["max_tokens"] for b in server.told()["bodies"]}
    assert sent["prompt 0"] == 500
    assert "prompt 1" not in sent
    assert 300 <= sent["prompt 2"] < 350
    check(run)


def test_fit_learns() -> None:
    """Most prompts need no counting once some were counted by the server."""
    fit = Fit()
    assert not fit.surely(6000, 4096, 8192)
    assert fit.surely(4000, 4096, 8192)
    for _ in range(100):
        fit.learn(4000, 1000)
    assert fit.surely(6000, 4096, 8192)
    assert room_said("nothing of the kind") is None
    said = (
        "Requested token count exceeds the model's maximum context length of 4096 tokens. You "
        "requested a total of 5000 tokens: 1000 tokens from the input messages and 4000 tokens "
        "for the completion."
    )
    assert room_said(said) == 4096 - 1000 - 16
    said = "max_completion_tokens is too large: 9000.This model supports at most 8192 completion "
    assert room_said(said + "tokens.") == 8192
