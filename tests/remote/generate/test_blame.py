"""What is the prompt's fault and what the server's: rooms, refusals, interruptions, suspects."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from remote.generate import requests, sampling
from remote.generate.job import Job
from remote.generate.outcomes import Answer
from remote.generate.records import Usage
from remote.generate.recovery import TAKEN
from remote.generate.seats import WITNESSES
from remote.generate.server import DOUBTS, LONGEST_REST_S, PROBATION, Server
from remote.generate.trouble import TroubleError, too_long
from tests.remote.generate.desk import Desk


def answer(text: str) -> Answer:
    """A plain answer."""
    return Answer(text, None, None, "stop", Usage(1, 1, 0), "m")


def refused(text: str = "bad tools", cause: Any = "rejected") -> TroubleError:
    """A 4xx."""
    return TroubleError(cause, text, 400)


def fail(here: Desk, server: Server, job: Job, trouble: TroubleError) -> None:
    """A request that was in flight ends so."""
    del server.flying[job]
    guest = server.guest is job
    if guest:
        server.guest = None
    here.dispatcher.failures.trouble(server, job, trouble, alone=guest)


def succeed(here: Desk, server: Server, job: Job, text: str = "yes") -> None:
    """A request that was in flight is answered."""
    del server.flying[job]
    here.dispatcher.verdicts.answered(server, job, answer(text), 0.0, server.process)
    here.dispatcher.refusals.answered(server, job)


def nothing_fresh(here: Desk) -> None:
    """Only what a test queues itself is sent."""
    here.opened.recovered.status[:] = b"\1" * len(here.opened.recovered.status)
    here.dispatcher.work.wanted(64)
    here.dispatcher.sending = True


async def test_a_single_suspect_is_sent_once_its_server_is_empty(
    desk: Callable[..., Desk],
) -> None:
    """Until then there is something to do, and where that server fails it is another's guest."""
    here = desk()
    nothing_fresh(here)
    one, two = here.servers
    suspect, on_one, on_two = here.job(1), here.job(2), here.job(3)
    here.send(one, on_one)
    here.send(two, on_two, here.job(4))
    suspect.alone = True
    here.dispatcher.work.again(suspect, 0.0, wait=False)
    here.dispatcher.pump()
    assert one.guest is suspect and suspect not in one.flying
    one.breaker.open(0.0)
    here.dispatcher.pump()
    assert [server.guest for server in (one, two)] == [None, suspect]
    two.flying.clear()
    one.flying.clear()
    assert not here.dispatcher.idle
    here.dispatcher.pump()
    assert list(two.flying) == [suspect]


async def test_a_server_that_names_the_room_is_asked_for_less(desk: Callable[..., Desk]) -> None:
    """Each time it names less than was asked; another server is asked for all of it."""
    here = desk()
    one = here.servers[0]
    job = here.job(1)
    for prompt, room in ((600, 384), (700, 284)):
        here.send(one, job)
        said = (
            "Requested token count exceeds the model's maximum context length of 1000 tokens. You "
            f"requested a total of 5000 tokens: {prompt} tokens from the input messages and 4000 "
            "tokens for the completion."
        )
        fail(here, one, job, refused(said))
        assert job.rooms == {one.key: room}
        assert here.dispatcher.work.take(1e9, lambda _: True) is job
    here.send(one, job)
    fail(here, one, job, refused(said))
    assert job.refused == {one.key: False}, "it named the same again"
    assert here.failed() == []


async def test_the_room_is_the_turns_own(desk: Callable[..., Desk]) -> None:
    """A conversation's next turn is asked for everything again, and may be narrowed again."""
    here = desk()
    one = here.servers[0]
    talk = here.job(1, mode="each")
    assert talk.narrow(one.key, 100) and not talk.narrow(one.key, 100)
    here.send(one, talk)
    succeed(here, one, talk)
    assert talk.rooms is None


def test_no_field_asks_for_more_than_there_is_room() -> None:
    """Whether the run, the prompt or its params named the number, and by which name."""
    body = {"max_tokens": 4096, "max_completion_tokens": 5000}
    assert requests.wanted(body) == 5000
    requests.narrow(body, 300)
    assert body == {"max_tokens": 300, "max_completion_tokens": 300}
    assert requests.wanted({"max_tokens": None}) is None


async def test_an_answer_broken_off_unmade_is_a_failure(desk: Callable[..., Desk]) -> None:
    """Nobody asked for it: it waits, goes elsewhere first, and counts; the server gave no sign
    of life."""
    here = desk()
    one = here.servers[0]
    job = here.job(1)
    one.sign_at = 5.0
    here.send(one, job)
    one.sign_at = 5.0
    del one.flying[job]
    trouble = TroubleError("abort", "broken off", 200)
    here.dispatcher.interruptions.interrupted(one, job, None, trouble, 0.1, one.process)
    assert (job.attempts, job.avoid, one.breaker.failures) == (1, one, 1)
    assert one.sign_at == 5.0
    assert here.dispatcher.work.take(time.monotonic(), lambda _: True) is None, "it waits"
    one.emptying = 1
    other = here.job(2)
    here.dispatcher.interruptions.interrupted(one, other, None, trouble, 0.1, one.process)
    assert other.attempts == 0


async def test_a_second_server_is_asked_before_a_prompt_is_rejected(
    desk: Callable[..., Desk],
) -> None:
    here = desk()
    one, two = here.servers
    job = here.job(1)
    here.send(one, job)
    fail(here, one, job, refused())
    assert here.failed() == []
    fits = here.dispatcher.seats._fits
    assert not fits(one, 1.0, job) and fits(two, 1.0, job)
    here.send(two, job)
    fail(here, two, job, refused())
    assert here.failed() == [], "both may be broken"
    other = here.job(2)
    here.send(two, other)
    two.answered(time.monotonic(), 0.0)
    here.dispatcher.refusals.answered(two, other)
    assert here.failed() == [1]


async def test_who_refuses_what_others_answer_is_stopped(desk: Callable[..., Desk]) -> None:
    """A wrong flag of one server: nothing is lost by it."""
    here = desk()
    bad, good = here.servers
    bad.proved = good.proved = True
    for index in range(PROBATION):
        job = here.job(index)
        here.send(bad, job)
        fail(here, bad, job, refused())
        here.send(good, job)
        succeed(here, good, job, f"answer {index}")
    assert "rejected" in bad.stopped
    assert not good.stopped
    assert here.failed() == []


async def test_what_is_too_long_here_may_fit_there(desk: Callable[..., Desk]) -> None:
    """Without any mark for the shorter one; given up where no context is longer."""
    here = desk()
    short, long = here.servers
    short.context, long.context = 1000, 4000
    job = here.job(1)
    here.send(short, job)
    fail(here, short, job, too_long(1200, 1000))
    assert here.dispatcher.seats._fits(long, 1.0, job)
    assert short.refusals == 0
    here.send(long, job)
    fail(here, long, job, too_long(4200, 4000))
    assert here.failed() == [1]


@pytest.mark.parametrize("cause", ["rejected", "denied"])
async def test_a_lone_servers_refusal_waits_for_proof(
    cause: str, desk: Callable[..., Desk]
) -> None:
    """An answer to something sent later, or a trial; where the trial fails nothing is lost."""
    here = desk()
    one, two = here.servers
    two.dispatch = "pause"
    first, second, third = here.job(1), here.job(2), here.job(3)
    here.send(one, first)
    fail(here, one, first, refused(cause=cause))
    assert here.failed() == [] and not here.dispatcher.idle
    one.answered(time.monotonic(), 0.0)
    here.dispatcher.refusals.answered(one, second)
    assert here.failed() == [1]
    here.send(one, second)
    second.sent_at = time.monotonic()
    fail(here, one, second, refused(cause=cause))
    here.dispatcher.refusals.check()
    assert one.breaker.is_open, "nothing else is in flight: it is tried"
    here.dispatcher.refusals.fails(one)
    assert [job.index for job in here.dispatcher.work.jobs()] == [2]
    here.send(one, third)
    fail(here, one, third, refused(cause=cause))
    here.dispatcher._works(one)
    assert here.failed() == [1, 3]


async def test_a_trial_clears_no_server_of_what_others_answer(desk: Callable[..., Desk]) -> None:
    """The one that was away when a prompt was refused is asked before it is given up."""
    here = desk()
    one, two = here.servers
    two.dispatch = "pause"
    job = here.job(1)
    here.send(one, job)
    fail(here, one, job, refused())
    two.dispatch = "run"
    here.dispatcher._works(one)
    assert here.failed() == []
    here.send(two, job)
    succeed(here, two, job)
    assert [outcome for outcome, _ in one.last] == ["rejected"]


async def test_a_server_that_refuses_many_is_tried(desk: Callable[..., Desk]) -> None:
    here = desk()
    one, two = here.servers
    two.dispatch = "pause"
    for index in range(DOUBTS):
        assert not one.breaker.is_open
        job = here.job(index)
        here.send(one, job)
        fail(here, one, job, refused(cause="denied"))
    assert one.breaker.is_open
    assert here.failed() == []


async def test_nothing_is_charged_for_what_servers_lack(desk: Callable[..., Desk]) -> None:
    """Refused connections, pauses that are asked for, deaths: as often as they like."""
    here = desk()
    one = here.servers[0]
    job = here.job(1)
    for cause in ("refused", "busy", "reset") * 20:
        here.send(one, job)
        fail(here, one, job, TroubleError(cause, "no", 503, 1e9))
        one.crashed.clear()
        one.breaker.close(0.0)
    assert (job.attempts, job.free) == (0, 0)
    assert job.waits == 20
    assert one.rest_until - time.monotonic() <= LONGEST_REST_S
    here.send(one, job)
    fail(here, one, job, TroubleError("reset", "no"))
    here.dispatcher.crashes.survived(one)
    assert job.free == 1, "the server lives: it may be the prompt that breaks the connection"


async def test_a_new_server_cannot_hide_behind_other_seeds(desk: Callable[..., Desk]) -> None:
    """Looped answers are tried again with another seed, but not sixteen times in a row."""
    here = desk(retry_outcomes={"looped": 2})
    one = here.servers[0]
    for index in range(PROBATION):
        assert not one.stopped
        job = here.job(index)
        here.send(one, job)
        succeed(here, one, job, f"{index} and so on " + "and so on " * 300)
    assert "looped" in one.stopped


async def test_a_failed_prompt_goes_back_where_there_is_room(desk: Callable[..., Desk]) -> None:
    """Another server is tried first, but not waited for."""
    here = desk()
    nothing_fresh(here)
    one, two = here.servers
    job = here.job(1)
    job.avoid = one
    assert not here.dispatcher.seats._fits(one, 1.0, job)
    two.rest_until = 1e18
    here.dispatcher.work.again(job, 1.0, wait=False)
    here.dispatcher.pump()
    assert list(one.flying) == [job]


async def test_the_next_turn_waits_like_any_other_request(desk: Callable[..., Desk]) -> None:
    """A server that asked for a rest gets none."""
    here = desk()
    here.dispatcher.sending = True
    one = here.servers[0]
    talk = here.job(1, mode="each")
    here.send(one, talk)
    one.rest_until = 1e18
    succeed(here, one, talk)
    assert not one.flying
    assert [job.index for job in here.dispatcher.work.jobs()] == [1]


async def test_a_lone_death_among_others_is_tried_once_more(desk: Callable[..., Desk]) -> None:
    """The machine may be failing; a second one is the prompt's."""
    here = desk()
    one, two = here.servers
    suspect = here.job(1)
    suspect.alone = True
    here.send(two, here.job(2))
    here.dies(two)
    for deaths in (1, 2):
        one.guest = suspect
        here.send(one, suspect)
        here.dies(one)
        assert suspect.lone_deaths == deaths
        assert here.failed() == ([] if deaths == 1 else [1])
        if deaths == 1:
            assert not here.dispatcher.work.lonely, "not at once"
            here.dispatcher.work.wake(time.monotonic() + 61)
            assert here.dispatcher.work.lonely.pop() is suspect


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": ["text"]}]},
        {"tools": [{"type": "function", "function": {"name": "f", "strict": "true"}}]},
        {"max_tokens": "many"},
        {"chat_template_kwargs": "no"},
        {"response_format": {"type": "json_schema", "json_schema": "x"}, "stop": 5},
    ],
)
def test_what_nobody_can_read_is_said_and_not_stumbled_over(fields: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], **fields}
    with pytest.raises(sampling.SamplingError):
        sampling.translate(body, {})


async def test_few_of_those_that_saw_a_death_meet_again(desk: Callable[..., Desk]) -> None:
    """Whichever of them it was that killed: the others would have to be sent alone, too."""
    here = desk()
    here.dispatcher.sending = True
    one, two = here.servers
    two.dispatch = "pause"
    here.send(one, *(here.job(index) for index in range(30)))
    here.dies(one)
    assert len(here.dispatcher.work) == 30
    lines = here.opened.prompts.lines(range(30, 40))
    here.dispatcher.work.feed(lines)
    here.dispatcher.pump()
    assert sum(job.witness for job in one.flying) == WITNESSES
    assert sum(not job.witness for job in one.flying) == 10
    here.opened.recovered.status[:] = bytes([TAKEN] * 40)
    here.dispatcher.pump()
    assert here.dispatcher.work.exhausted
    here.dispatcher.pump()
    assert len(one.flying) == min(40, one.slots)
