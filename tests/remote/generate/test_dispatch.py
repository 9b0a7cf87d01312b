"""Who gets blamed, and what is taken back: the dispatcher over a real directory, no server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from remote.generate import partial as partials
from remote.generate.facts import Facts
from remote.generate.job import Job
from remote.generate.outcomes import Answer
from remote.generate.partial import Partial, Segment
from remote.generate.records import Pending, Usage
from remote.generate.recovery import TAKEN, TODO
from remote.generate.server import PROBATION, Server
from remote.generate.trouble import TroubleError
from tests.remote.generate.desk import Desk


async def test_a_suspect_whose_server_dies_is_given_up_and_not_sent_again(
    desk: Callable[..., Desk],
) -> None:
    """It had the server to itself, and the agent saw the process end before any connection."""
    here = desk()
    server = here.servers[0]
    suspect = here.job(7)
    suspect.alone = True
    server.guest = suspect
    here.send(server, suspect)
    here.dies(server)
    assert here.failed() == [7]
    assert not list(here.dispatcher.work.jobs())
    assert [one.guest for one in here.servers] == [None, None]
    assert [one.flying for one in here.servers] == [{}, {}]
    assert here.tasks[0].cancelling()


async def test_a_prompt_under_suspicion_is_not_blamed_in_company(
    desk: Callable[..., Desk],
) -> None:
    """Found out while it was in flight elsewhere among others: that server's death is not yet
    its proof, and a real suspect beside it does not make it one."""
    here = desk()
    one, two = here.servers
    early, guest, company = here.job(1), here.job(2), here.job(3)
    early.alone = guest.alone = True
    one.guest = guest
    here.send(one, guest)
    here.send(two, early, company)
    trouble = TroubleError("reset", "connection lost")
    del one.flying[guest]
    here.dispatcher.failures.trouble(one, guest, trouble, alone=True)
    here.dies(two)
    assert here.failed() == []
    assert {job.index for job in here.dispatcher.work.jobs()} == {1, 3}
    assert not here.dispatcher.idle
    here.dispatcher.crashes.survived(one)
    assert {job.index for job in here.dispatcher.work.jobs()} == {1, 2, 3}


async def test_a_suspect_is_not_hedged(desk: Callable[..., Desk]) -> None:
    """It would take a second server with it."""
    here = desk(hedge=True)
    one, two = here.servers
    suspect, straggler = here.job(1), here.job(2)
    suspect.alone = True
    here.dispatcher.floor.mean_latency = 0.01
    here.send(one, suspect, straggler)
    here.dispatcher.seats.hedge(1000.0)
    assert list(two.flying) == [straggler]


async def test_given_up_means_everywhere(desk: Callable[..., Desk]) -> None:
    """The other request of a hedged prompt is broken off: a late success would be a second end."""
    here = desk(hedge=True)
    one, two = here.servers
    job = here.job(1)
    here.send(one, job)
    here.send(two, job)
    del one.flying[job]
    here.dispatcher.floor.give_up(job, one, "rejected", "too long", None)
    assert here.failed() == [1]
    assert not two.flying


async def test_a_degenerate_servers_turns_are_forgotten_where_they_are_in_flight(
    desk: Callable[..., Desk],
) -> None:
    """The next turn, under way elsewhere, follows an answer that does not count: asked again."""
    here = desk()
    bad, good = here.servers
    spoilt, sound = here.job(1, mode="each"), here.job(2, mode="each")
    text = Answer("a", None, None, "stop", Usage(1, 1, 0), "m")
    for job, server in ((spoilt, bad), (sound, good)):
        assert job.talk is not None
        job.talk.add(text, "ok", server.url, 1.0)
        here.dispatcher.verdicts.next_turn(good, job, 1.0)
    for _ in range(2):
        here.dispatcher.work.take(1e9, lambda _: True)
    here.send(good, spoilt, sound)
    here.dispatcher.verdicts.stop(bad, "all alike", 1e9)
    assert list(good.flying) == [sound]
    assert spoilt in list(here.dispatcher.work.jobs())
    assert spoilt.talk is not None and spoilt.talk.turns == []
    assert here.writer.flush(10.0)
    kept = (here.folder / "pending.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["index"] for line in kept] == [2]


async def test_answers_read_back_are_compared_with_new_ones(desk: Callable[..., Desk]) -> None:
    """That a server always says the same shows although the run was killed in between."""
    here = desk()
    server = here.servers[0]
    server.process = "9.1"
    same = Answer("I am a teapot.", "hm", None, "stop", Usage(1, 1, 0), "m")
    for index in range(5):
        here.dispatcher.verdicts.answered(server, here.job(index), same, 0.1, "9.1")
    assert here.writer.flush(10.0)
    lines = (here.folder / "pending.jsonl").read_bytes().splitlines()
    before = {held.likeness for held in server.held}
    server.held.clear()
    server.completed = 0
    here.opened.recovered.status[:5] = bytes([TODO] * 5)
    here.dispatcher.take_back([msgspec.json.decode(line, type=Pending) for line in lines])
    assert len(server.held) == 5
    assert {held.likeness for held in server.held} == before
    for index in range(5, PROBATION):
        here.dispatcher.verdicts.answered(server, here.job(index), same, 0.1, "9.1")
    assert "all alike" in server.stopped
    assert server.completed == 0


async def test_what_the_policy_keeps_is_no_reason_to_stop(desk: Callable[..., Desk]) -> None:
    """Half of the answers looped: degenerate, unless the run wants them."""
    here = desk(keep=frozenset({"ok", "looped"}))
    server = here.servers[0]
    for index in range(PROBATION):
        text = f"{index} and so on " + "and so on " * 300
        answer = Answer(text, None, None, "stop", Usage(1, 1, 0), "m")
        here.dispatcher.verdicts.answered(server, here.job(index), answer, 0.1, "")
    assert server.proved
    assert not server.stopped


async def test_a_restart_in_the_first_answers_begins_them_anew(desk: Callable[..., Desk]) -> None:
    """Alone: what the old process said is judged by itself, and does not stand in for the new."""
    here = desk()
    server = here.servers[0]
    for index in range(5):
        answer = Answer(f"answer {index}", None, None, "stop", Usage(1, 1, 0), "m")
        here.dispatcher.verdicts.answered(server, here.job(index), answer, 0.1, server.process)
    trouble = TroubleError("refused", "cannot connect")
    here.dispatcher.failures.trouble(server, here.job(5), trouble, alone=False)
    assert not server.held
    same = Answer("I am a teapot.", None, None, "stop", Usage(1, 1, 0), "m")
    for index in range(6, 6 + PROBATION):
        here.dispatcher.verdicts.answered(server, here.job(index), same, 0.1, server.process)
    assert "all alike" in server.stopped
    assert here.writer.flush(10.0)
    records = (here.folder / "completions_000001.jsonl.open").read_bytes().splitlines()
    assert [json.loads(line)["index"] for line in records] == list(range(5))


def kept_of(job: Job, *parts: tuple[Server, int]) -> Partial:
    """A partial answer with so many tokens of each server."""
    whole: Partial | None = None
    for server, tokens in parts:
        segment = Segment(server.url, None, tokens, "generate", 1.0, "")
        ids = list(range(tokens))
        whole = partials.grown(whole, segment, ids, identity="same", prompt_ids=[1, 2])
    assert whole is not None
    job.partial = whole
    return whole


def pending_of(here: Desk) -> dict[int, dict[str, Any]]:
    """The newest line of each prompt in ``pending.jsonl``."""
    assert here.writer.flush(10.0)
    lines = (here.folder / "pending.jsonl").read_bytes().splitlines()
    return {entry["index"]: entry for entry in map(json.loads, lines)}


def known(*servers: Server, identity: str = "same") -> None:
    """Their ``/server_info`` has been read."""
    for server in servers:
        server.facts = Facts(identity, "qwen3", "qwen", {}, "")
        server.engine = "sglang"


async def test_a_degenerate_servers_parts_are_forgotten(desk: Callable[..., Desk]) -> None:
    """What a sound server made before it stays, on disk, too; what followed goes."""
    here = desk()
    bad, good = here.servers
    known(bad, good)
    mixed, spoilt, held = here.job(1), here.job(2), here.job(3)
    kept_of(mixed, (good, 5), (bad, 7), (good, 2))
    kept_of(spoilt, (bad, 3))
    here.dispatcher.work.again(mixed, 1.0, wait=False)
    here.send(good, spoilt)
    base = kept_of(held, (good, 4))
    text = Answer("a", None, None, "stop", Usage(2, 9, 0), "m")
    here.send(bad, held)
    del bad.flying[held]
    here.dispatcher.verdicts.answered(bad, held, text, 0.1, bad.process, base)
    assert pending_of(here)[3]["kind"] == "answer"
    here.dispatcher.verdicts.stop(bad, "all alike", 1e9)
    assert not good.flying and not bad.held
    jobs = {job.index: job.partial for job in here.dispatcher.work.jobs()}
    assert {index: part.tokens if part else 0 for index, part in jobs.items()} == {1: 5, 2: 0, 3: 4}
    left = pending_of(here)
    assert {index: entry["kind"] for index, entry in left.items()} == {1: "partial", 3: "partial"}
    assert left[1]["data"]["parts"] == [list(range(5))]
    assert here.dispatcher.floor.accounts.tokens_lost == 9 + 3


async def test_what_is_interrupted_is_owed_until_it_is_durable(desk: Callable[..., Desk]) -> None:
    """The agent stops a server that owes nothing; it goes on before all others."""
    here = desk()
    one, two = here.servers
    known(one, two)
    one.dispatch = "abort"
    job, other = here.job(1), here.job(2)
    here.dispatcher.work.again(other, 1.0, wait=False)
    here.send(one, job)
    del one.flying[job]
    trouble = TroubleError("abort", "broken off")
    trouble.made, trouble.partial = 6, kept_of(here.job(3), (one, 6))
    here.dispatcher.interruptions.interrupted(one, job, None, trouble, 1.0, one.process)
    assert one.in_flight == 1 and here.dispatcher.in_flight == 1
    assert [j.index for j in here.dispatcher.work.jobs()] == [1, 2]
    assert pending_of(here)[1]["data"]["segments"][0]["tokens"] == 6
    entries = [entry for entry, _ in here.dispatcher.floor.keeper._on_the_way.values()]
    assert here.dispatcher.durable(entries)
    assert one.in_flight == 0
    assert here.dispatcher.floor.accounts.tokens_kept == 6


async def test_nothing_is_kept_of_the_second_of_two(desk: Callable[..., Desk]) -> None:
    """A hedged prompt is still in flight elsewhere, from where it was."""
    here = desk(hedge=True)
    one, two = here.servers
    known(one, two)
    job = here.job(1)
    here.send(one, job)
    here.send(two, job)
    del one.flying[job]
    trouble = TroubleError("abort", "broken off")
    trouble.made, trouble.partial = 6, kept_of(here.job(3), (one, 6))
    here.dispatcher.interruptions.interrupted(one, job, None, trouble, 1.0, one.process)
    assert job.partial is None and not list(here.dispatcher.work.jobs())
    assert here.dispatcher.floor.accounts.tokens_lost == 6
    assert list(two.flying) == [job]


async def test_what_a_server_refuses_to_go_on_with_is_answered_anew(
    desk: Callable[..., Desk],
) -> None:
    """And what it breaks on counts as an attempt of the prompt, begun anew."""
    here = desk()
    one, two = here.servers
    known(one, two)
    for index, cause in ((1, "rejected"), (2, "garbage")):
        job = here.job(index)
        base = kept_of(job, (two, 4))
        here.send(one, job)
        del one.flying[job]
        trouble = TroubleError(cause, "no", 400)  # type: ignore[arg-type]
        here.dispatcher.failures.trouble(one, job, trouble, alone=False, base=base)
        assert job.partial is None
        assert job.attempts == (0 if cause == "rejected" else 1)
    assert here.failed() == []
    assert here.dispatcher.floor.accounts.tokens_lost == 8


async def test_who_cannot_go_on_leaves_it_to_who_can(desk: Callable[..., Desk]) -> None:
    """Only where no such server is at work the prompt is answered anew."""
    here = desk()
    odd, same = here.servers
    known(odd, identity="another")
    known(same)
    here.dispatcher.sending = True
    job = here.job(1)
    kept_of(job, (same, 4))
    here.opened.recovered.status[:] = bytes([TAKEN] * 40)
    here.dispatcher.work.again(job, 1.0, wait=False)
    same.rest_until = 1e18  # full, but there
    here.dispatcher.pump()
    assert not odd.flying and job.partial is not None
    same.breaker.open(0.0)
    here.dispatcher.pump()
    assert list(odd.flying) == [job] and job.partial is None


async def test_partial_answers_are_read_back_and_damaged_ones_dropped(
    desk: Callable[..., Desk],
) -> None:
    here = desk()
    server = here.servers[0]
    sound, broken = here.job(1), here.job(2)
    for job in (sound, broken):
        kept_of(job, (server, 4))
        here.dispatcher.floor.keeper.keep_rest(job, server)
    lines = pending_of(here)
    lines[2]["data"]["parts"][0][0] += 1
    here.opened.recovered.status[:] = bytes([TODO] * 40)
    entries = [json.dumps(entry).encode() for entry in lines.values()]
    here.dispatcher.take_back([msgspec.json.decode(entry, type=Pending) for entry in entries])
    found = {job.index: job.partial for job in here.dispatcher.work.jobs()}
    assert found == {1: sound.partial, 2: None}
    assert bytes(here.opened.recovered.status[1:3]) == bytes([TAKEN, TAKEN])


async def test_answers_of_a_server_that_turns_out_degenerate_count_nowhere(
    desk: Callable[..., Desk],
) -> None:
    """Neither in its tokens nor in the summary."""
    here = desk()
    server, _ = here.servers
    same = Answer("the same", None, None, "stop", Usage(11, 7, 0), "m")
    for index in range(PROBATION):
        here.dispatcher.verdicts.answered(server, here.job(index), same, 0.1, server.process)
    assert server.stopped
    assert (server.completed, server.output_tokens) == (0, 0)
    shift = here.dispatcher.floor.accounts.shifts[server.url, None]
    assert (shift.answers, shift.tokens) == (0, 0)
