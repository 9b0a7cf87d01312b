"""One server in the dispatcher's eyes: slots, breaker, pace."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from remote.generate.breaker import FAILURES, LONGEST_PAUSE_S
from remote.generate.facts import Facts
from remote.generate.pace import LEAST, Pace, Reach
from remote.generate.server import LONGEST_REST_S, Server, degenerate


def hear(server: Server, running: int, queued: int, said: int | None = None) -> None:
    """One sample."""
    server.heard(0.0, running=running, queued=queued, max_running=said, tokens=None)


def test_auto_follows_what_it_runs() -> None:
    """Not a flag that it echoes: what it says it admits at once, and a few more."""
    server = Server("u")
    assert server.slots == 36
    hear(server, 0, 0, 37)
    assert server.slots == 41
    hear(server, 0, 0, 72)
    assert server.slots == 76
    server.wanted = 5
    assert server.slots == 5


def test_a_crowded_server_gets_less_until_it_keeps_up() -> None:
    """More requests queue there than auto adds: fewer slots; they come back."""
    server = Server("u")
    hear(server, 20, 30, 72)
    hear(server, 20, 30)
    assert server.slots == 76
    hear(server, 20, 30)
    assert server.slots == 24
    for _ in range(20):
        hear(server, 24, 0)
    assert server.slots == 76


def test_an_unknown_server_grows() -> None:
    """One that does not say its limit gets more while all it gets runs at once."""
    server = Server("u")
    server.flying = {object(): None for _ in range(36)}  # type: ignore[misc]
    hear(server, 36, 0)
    assert server.slots == 44
    hear(server, 36, 3)
    assert server.slots == 44


def test_refused_work_is_a_rest_not_a_failure() -> None:
    """429 and 503: what it has now is enough for a while."""
    server = Server("u")
    server.breaker.close(0.0)
    server.flying = {object(): None for _ in range(10)}  # type: ignore[misc]
    server.refused_work(100.0, 7.0)
    assert server.room(106.9) == 0
    assert server.slots == 10
    server.flying = {}
    assert server.room(107.1) == 10
    for _ in range(400):
        server.grow()
    assert server.slots > 20


def test_breaker() -> None:
    """Some failures in a row open it, a success in between does not let them add up."""
    server = Server("u")
    breaker = server.breaker
    breaker.close(0.0)
    for _ in range(3):
        for _ in range(FAILURES - 1):
            breaker.failed(1.0)
        breaker.succeeded()
    assert server.usable
    for _ in range(FAILURES):
        breaker.failed(2.0)
    assert breaker.is_open
    assert breaker.retry_at == 2.0, "the first trial comes at once"
    waits = []
    at = 2.0
    for _ in range(12):
        breaker.trial_failed(at)
        waits.append(breaker.retry_at - at)
        at = breaker.retry_at
    assert waits[0] < 1.0
    assert max(waits) <= LONGEST_PAUSE_S * 1.3
    breaker.close(at)
    breaker.failed(at + 1, gone=True)
    assert breaker.is_open, "a refused connection opens it at once"


@pytest.mark.parametrize(
    ("answers", "sound"),
    [
        ([("ok", i) for i in range(16)], True),
        ([("ok", 1)] * 16, False),
        ([("ok", 1)] * 15 + [("ok", 2)], True),
        ([("looped", i) for i in range(9)] + [("ok", i) for i in range(9, 16)], False),
        ([("looped", i) for i in range(8)] + [("ok", i) for i in range(8, 16)], True),
        ([("length", i) for i in range(16)], True),
    ],
)
def test_degenerate(answers: list[tuple[str, int]], sound: bool) -> None:
    """All alike, or more than half no good."""
    assert (degenerate(list(answers)) == "") is sound


def live(pace: Pace, throughput: Callable[[float], float], minutes: int, start: float) -> float:
    """Let a server work at full slots; the time afterwards."""
    at = start
    tokens = getattr(live, "tokens", 0.0)
    for _ in range(minutes * 60):
        at += 1
        tokens += throughput(pace.share)
        pace.tick(at, int(tokens), full=True)
    live.tokens = tokens  # type: ignore[attr-defined]
    return at


def test_a_thrashing_server_gets_fewer_and_recovers() -> None:
    """Where less is more it settles on less, and comes back when it heals."""
    pace = Pace()
    at = live(pace, lambda _: 1000.0, 3, 0.0)
    assert pace.share == 1.0
    at = live(pace, lambda share: 400.0 if share > 0.6 else 800.0, 4, at)
    assert LEAST <= pace.share <= 0.61
    live(pace, lambda _: 1000.0, 12, at)
    assert pace.share == 1.0


def test_a_slower_server_keeps_its_slots() -> None:
    """Where less does not help, it is simply slower now."""
    pace = Pace()
    at = live(pace, lambda _: 1000.0, 3, 0.0)
    live(pace, lambda share: 400.0 * share, 4, at)
    assert pace.share == 1.0
    assert pace.usual < 500


def reached(limit: int, seconds: int, *, usage: bool = True) -> tuple[int, int]:
    """Slots at the end and the most ever, where ``limit`` requests run at once, 5 s each."""
    server = Server("u")
    answers, most = 0.0, 0
    for at in range(seconds):
        answers += min(server.slots, limit) / 5.0
        tokens = int(answers) * 100 if usage else 0
        server.reach.tick(float(at), tokens, int(answers), slots=server.slots, full=True)
        most = max(most, server.slots)
    return server.slots, most


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("limit", [30, 100, 300])
def test_a_server_that_says_nothing_gets_what_it_can_use(limit: int, usage: bool) -> None:
    """Slots grow while the throughput does; the step that gained nothing is taken back."""
    slots, most = reached(limit, 1500, usage=usage)
    assert limit <= slots * 1.1
    assert slots <= max(36, 1.6 * limit)
    assert most <= max(54, 1.6 * 1.5 * limit)


def test_the_reach_waits_for_full_slots() -> None:
    """Where the work does not suffice nothing can be learnt."""
    reach = Reach()
    for at in range(600):
        reach.tick(float(at), at * 100, at * 10, slots=36, full=False)
    assert reach.factor == 1.0


def test_whether_interrupted_answers_are_continued() -> None:
    """A server that is being restarted is no reason to think that it cannot."""
    server = Server("http://x")
    assert server.whole == ""
    server.engine = "vllm"
    assert server.whole == ""
    server.breaker.close(1.0)
    assert "vllm has no way" in server.whole
    server.engine = "sglang"
    assert "/server_info" in server.whole
    server.facts = Facts("i", "", "", None, "why not")
    assert server.whole == "why not"
    server.new_process("2.1")
    server.breaker.open(2.0)
    assert server.whole == ""


def test_a_number_that_was_asked_for_comes_back() -> None:
    """After a refusal, whatever queues there; a pause has an end, and not for another process."""
    server = Server("u", wanted=100)
    server.breaker.close(0.0)
    server.flying = {object(): None for _ in range(50)}  # type: ignore[misc]
    server.refused_work(10.0, float("inf"))
    assert server.slots == 50
    assert server.rest_until == 10.0 + LONGEST_REST_S
    for at in (20.0, 200.0, 203.0):
        server.heard(at, running=50, queued=40, max_running=50, tokens=None)
    assert server.slots == 58, "none while it rests"
    for at in range(20):
        server.heard(206.0 + at, running=50, queued=40, max_running=50, tokens=None)
    assert server.slots == 100 and server.ceiling is None
    server.refused_work(300.0, 60.0)
    server.new_process("2")
    assert server.room(301.0) == 50


def test_the_silence_that_is_allowed() -> None:
    """Without a counter as long as a whole answer may take, and longer where it was in vain."""
    server = Server("u")
    assert server.silence_window(180.0, 4096) == 7.5 * 180.0
    assert server.silence_window(180.0, 32768) == 3276.8
    server.silences = 1
    assert server.silence_window(180.0, 32768) == 2 * 3276.8
    server.answered(10.0, 2000.0)
    assert server.silence_window(180.0, 4096) == 6000.0
    server.has_counter = True
    assert server.silence_window(180.0, 4096) == 180.0
