"""Answers that are no work of a sound server or model: they cost a prompt at most, never a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.generate.prompts import PromptsError, open_prompts
from remote.generate.recovery import TAKEN
from tests.remote.generate.conftest import Generation, Served, write_prompts
from tests.remote.generate.desk import Desk
from tests.remote.generate.test_run import check, indices

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def test_a_model_that_goes_on_opening_brackets_ends_no_run(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """In the arguments of a call, until max_tokens: a bad call like any other."""
    run = generation(40, tools=TOOLS)
    run.start(serve(mode="brackets", faulty=[7]))
    assert run.wait() == 1, run.text()
    assert [(r["index"], r["outcome"]) for r in run.lines("set_aside.jsonl")] == [
        (7, "bad_tool_call")
    ]
    assert indices(run) == [i for i in range(40) if i != 7]
    check(run)


def test_an_answer_nested_without_end_fails_its_prompt_alone(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    run = generation(40)
    run.start(serve(mode="nested", faulty=[7]), options=("--retries", "1"))
    assert run.wait() == 1, run.text()
    failed = run.lines("failed.jsonl")
    assert [(f["index"], f["outcome"]) for f in failed] == [(7, "failed")]
    assert "with no completion" in failed[0]["reason"]
    assert indices(run) == [i for i in range(40) if i != 7]
    check(run)


def test_loads_that_are_no_numbers_are_not_known(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """A server that claims to run a thousand million requests gets no more than can be open."""
    run = generation(40)
    run.start(serve(odd=True))
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(40))


async def test_no_more_is_read_ahead_than_can_be_open(tmp_path: Path) -> None:
    """Whatever the servers claim: the file may have ten million lines."""
    here = Desk(tmp_path, write_prompts(tmp_path / "p.jsonl", 3000))
    for server in here.servers:
        server.said, server.rest_until = 10**9, 1e18
    here.dispatcher.most = 100
    here.dispatcher.sending = True
    here.dispatcher.pump()
    assert here.opened.recovered.status.count(TAKEN) == 100
    for task in here.tasks:
        task.cancel()
    await here.dispatcher.floor.client.close()
    here.close()


@pytest.mark.parametrize("depth", [900, 5000])
def test_a_prompt_nested_without_end_is_named(
    depth: int, tmp_path: Path, serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Or is sent, where it is not too deep to be read."""
    run = generation(3)
    lines = run.prompts.read_text().splitlines()
    deep = "[" * depth + "]" * depth
    lines[1] = json.dumps({"messages": [{"role": "user", "content": "prompt 1 x"}]})[:-1]
    lines[1] += f', "params": {{"stop": {deep}}}}}'
    run.prompts.write_text("".join(line + "\n" for line in lines))
    if depth == 5000:
        with pytest.raises(PromptsError, match="line 2: nested too deeply"):
            open_prompts(run.prompts, tmp_path / "idx", [])
        return
    run.start(serve())
    assert run.wait() in (0, 1, 2), run.text()
    assert "Traceback" not in run.text()
    assert "stopped by a failure" not in run.text()
