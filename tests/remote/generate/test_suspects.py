"""Suspects: each alone on its server, several at once where there is nothing else to do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from remote.generate.crashes import SEEN_S
from remote.generate.deaths import TOGETHER_S
from remote.generate.job import Job
from remote.generate.trouble import TroubleError
from tests.remote.generate.conftest import Generation, Served, wait_for
from tests.remote.generate.desk import Desk
from tests.remote.generate.test_blame import nothing_fresh, succeed
from tests.remote.generate.test_run import check, indices


def suspects(here: Desk, count: int) -> list[Job]:
    """Prompts that were in flight in two deaths, in the queue."""
    made = [here.job(index) for index in range(count)]
    for job in made:
        job.alone = True
        here.dispatcher.work.again(job, 0.0, wait=False)
    return made


def breaks(here: Desk, number: int) -> None:
    """The connections of one server break, and nobody listens there."""
    server = here.servers[number]
    for job in list(server.flying):
        alone = server.guest is job
        del server.flying[job]
        server.guest = None
        reset = TroubleError("reset", "connection lost")
        here.dispatcher.failures.trouble(server, job, reset, alone=alone)


async def test_each_server_takes_one_when_nothing_else_is_left(desk: Callable[..., Desk]) -> None:
    """While there is other work one server is enough for them."""
    here = desk()
    nothing_fresh(here)
    one, two = here.servers
    first, second, third = suspects(here, 3)
    other = here.job(9)
    here.dispatcher.work.again(other, 0.0, wait=False)
    here.dispatcher.pump()
    assert (list(one.flying), list(two.flying)) == ([first], [other])
    succeed(here, two, other)
    here.dispatcher.pump()
    assert (list(one.flying), list(two.flying)) == ([first], [second])
    assert (one.guest, two.guest) == (first, second)
    one.guest = None
    succeed(here, one, first)
    here.dispatcher.pump()
    assert (list(one.flying), list(two.flying)) == ([third], [second])


async def test_a_lone_death_beside_living_suspects_is_the_prompts(
    desk: Callable[..., Desk],
) -> None:
    """Once it is seen that no other server died of the same thing."""
    here = desk()
    nothing_fresh(here)
    one = here.servers[0]
    first, second = suspects(here, 2)
    here.dispatcher.pump()
    breaks(here, 0)
    here.dispatcher.crashes.lost(one)
    at = time.monotonic()
    here.dispatcher.crashes.check(at)
    assert here.failed() == [] and not here.dispatcher.idle
    here.dispatcher.crashes.check(at + SEEN_S)
    assert here.failed() == [first.index]
    assert second in here.servers[1].flying


async def test_suspects_that_die_together_are_blamed_of_nothing(desk: Callable[..., Desk]) -> None:
    """The machine may have failed: each is sent once more, and then no other one with it."""
    here = desk()
    nothing_fresh(here)
    both = suspects(here, 2)
    here.dispatcher.pump()
    assert all(server.guest for server in here.servers)
    for number in (0, 1):
        breaks(here, number)
    for server in here.servers:
        here.dispatcher.crashes.lost(server)
        server.breaker.close(0.0)
    at = time.monotonic()
    here.dispatcher.crashes.check(at + SEEN_S)
    assert here.failed() == []
    here.dispatcher.work.wake(at + SEEN_S + TOGETHER_S + 1)
    assert set(here.dispatcher.work.lonely) == set(both)
    here.dispatcher.pump()
    assert sum(len(server.flying) for server in here.servers) == 1
    third = here.job(7)
    third.alone = True
    here.dispatcher.work.again(third, 0.0, wait=False)
    here.dispatcher.pump()
    assert sum(len(server.flying) for server in here.servers) == 1, "not even a fresh suspect"


async def test_who_breaks_elsewhere_and_is_seen_to_live_frees_no_suspect(
    desk: Callable[..., Desk],
) -> None:
    """A server that broke the connection before, and answers again only now, says nothing of the
    death that the verdict waits for."""
    here = desk()
    nothing_fresh(here)
    one, two = here.servers
    first, second = suspects(here, 2)
    two.crashed.append(first)  # its connection broke there, long before it was sent alone
    here.dispatcher.pump()
    assert (one.guest, two.guest) == (first, second)
    breaks(here, 0)
    here.dispatcher.crashes.lost(one)
    here.dispatcher.crashes.survived(two)
    assert first not in here.dispatcher.work.lonely, "its verdict is still to come"
    here.dispatcher.crashes.check(time.monotonic() + SEEN_S)
    assert here.failed() == [first.index]


async def test_a_death_elsewhere_is_no_lone_one(desk: Callable[..., Desk]) -> None:
    """A server that it was on with others, seen to be dead only now, is not counted as its own."""
    here = desk()
    nothing_fresh(here)
    one, two = here.servers
    first, _ = suspects(here, 2)
    two.crashed.append(first)
    here.dispatcher.pump()
    breaks(here, 0)
    here.dispatcher.crashes.lost(two)
    assert first.lone_deaths == 0
    here.dispatcher.crashes.lost(one)
    assert first.lone_deaths == 1


async def test_a_suspect_is_not_held_by_a_server_that_is_out_of_service(
    desk: Callable[..., Desk],
) -> None:
    """Nobody tries a server that is told to stop, so that nobody learns what it died of: the
    prompt goes on, alone, and the run comes to its end."""
    here = desk()
    nothing_fresh(here)
    one = here.servers[0]
    (only,) = suspects(here, 1)
    here.dispatcher.pump()
    breaks(here, 0)
    one.dispatch = "abort"
    at = time.monotonic()
    here.dispatcher.crashes.check(at)
    assert only not in here.dispatcher.work.lonely
    here.dispatcher.crashes.check(at + SEEN_S)
    assert list(here.dispatcher.work.lonely) == [only]
    assert here.failed() == [] and only.lone_deaths == 0
    here.dispatcher.pump()
    assert here.servers[1].guest is only


def test_the_last_suspects_share_the_servers(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """The prompt that kills has three deaths; the others are seen at work on several servers at the
    same time, each alone on its own."""
    run = generation(8)
    servers = [serve(delay=3.0, poison="prompt 5 ") for _ in range(5)]
    for server in servers[1:]:
        server.kill()
    run.start(*servers, options=("--concurrency", "8"))
    assert servers[0].process.wait(20) == 9
    servers[0].kill()
    servers[0].start()
    assert servers[0].process.wait(20) == 9
    servers[0].kill()
    for server in servers:
        server.start()

    def living() -> list[Served]:
        return [server for server in servers if server.process.poll() is None]

    def at_work() -> int:
        with contextlib.suppress(OSError):  # died a moment ago
            return sum(server.told()["running"] for server in living())
        return 0

    wait_for(lambda: at_work() >= 3, 40)
    assert run.wait(90) == 1, run.text()
    assert [server.told()["peak"] for server in living()] == [1] * 4
    assert [(f["index"], f["outcome"]) for f in run.lines("failed.jsonl")] == [(5, "quarantined")]
    assert indices(run) == [i for i in range(8) if i != 5]
    check(run)


async def test_how_many_wait_and_where_one_is_tried_can_be_seen(desk: Callable[..., Desk]) -> None:
    here = desk()
    nothing_fresh(here)
    first, *_ = suspects(here, 3)
    assert here.dispatcher.suspected == 3
    here.dispatcher.pump()
    one = here.servers[0]
    assert one.guest is first and here.dispatcher.suspected == 3, "those that are tried count, too"
    one.guest = None
    first.alone = False
    succeed(here, one, first)
    assert here.dispatcher.suspected == 2
    breaks(here, 1)
    assert here.dispatcher.suspected == 2, "nor is one cleared by a death"
