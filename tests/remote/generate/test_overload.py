"""Told to come back later, again and again: by a server that is full, or for the prompt's sake."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from remote.generate.overload import TIMES
from remote.generate.trouble import TroubleError
from tests.remote.generate.conftest import Generation, Served, wait_for
from tests.remote.generate.desk import Desk
from tests.remote.generate.test_blame import fail, nothing_fresh
from tests.remote.generate.test_run import check, indices


@pytest.mark.parametrize("mode", ["409", "429"])
def test_what_is_always_put_off_ends_as_failed(
    mode: str, serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """By every server, while others are answered: also when nothing else is left to be sent."""
    run = generation(60)
    servers = [serve(delay=0.05, mode=mode, faulty=[3, 59]) for _ in range(2)]
    run.start(*servers)
    assert run.wait(90) == 1, run.text()
    failed = run.lines("failed.jsonl")
    assert [(f["index"], f["outcome"], f["status"]) for f in sorted(failed, key=_index)] == [
        (3, "failed", int(mode)),
        (59, "failed", int(mode)),
    ]
    assert all("while other prompts were answered" in f["reason"] for f in failed)
    assert indices(run) == [i for i in range(60) if i not in (3, 59)]
    asked = [server.told()["seen"].count(3) for server in servers]
    assert min(asked) >= 1 and TIMES < sum(asked) < 10 * TIMES, asked
    check(run)


def test_a_server_that_is_full_for_all_burns_nothing(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Not even the last few prompts, though it takes our own short completion meanwhile."""
    run = generation(90)
    server = serve(delay=0.2)
    run.start(server, options=("--concurrency", "8"))
    wait_for(lambda: run.done() >= 80)
    server.set(mode="429")
    time.sleep(1.5 * TIMES)
    server.set(mode="ok")
    assert run.wait(90) == 0, run.text()
    assert indices(run) == list(range(90))
    check(run)


def test_a_server_that_puts_off_half_of_all_burns_nothing(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Whoever comes, and without end: each prompt has its turn."""
    run = generation(50)
    server = serve(delay=0.05, mode="429", share=0.5)
    run.start(server, options=("--concurrency", "16"))
    assert run.wait(120) == 0, run.text()
    assert indices(run) == list(range(50))


async def test_a_witness_that_is_put_off_too_voids_what_was_counted(
    desk: Callable[..., Desk],
) -> None:
    """And a prompt that every server but one puts off goes to that one."""
    here = desk()
    nothing_fresh(here)
    one, two = here.servers
    job = here.job(1)
    busy = TroubleError("busy", "slow down", 429)
    for _ in range(3 * TIMES):
        here.send(one, job)
        fail(here, one, job, busy)
        job.refuse_for_now(one.key)
    assert here.failed() == [], "the other one was never asked"
    assert not here.dispatcher.seats._fits(one, 1e9, job)
    assert here.dispatcher.seats._fits(two, 1e9, job)
    two.dispatch = "pause"
    here.send(one, job)
    job.crowded_out = None
    fail(here, one, job, busy)
    assert here.failed() == []
    for _ in range(TIMES):
        job.refuse_for_now(one.key)
    here.send(one, job)
    fail(here, one, job, busy)
    assert here.failed() == [1]


async def test_only_a_servers_own_word_is_looked_into(desk: Callable[..., Desk]) -> None:
    """Not what the run itself cannot do yet."""
    here = desk()
    nothing_fresh(here)
    one = here.servers[0]
    for status in (None, 429):
        job = here.job(1)
        for _ in range(2):
            here.send(one, job)
            fail(here, one, job, TroubleError("busy", "not now", status))
        assert list(one.unsure) == ([job] if status else [])


def _index(line: dict[str, object]) -> int:
    assert isinstance(line["index"], int)
    return line["index"]
