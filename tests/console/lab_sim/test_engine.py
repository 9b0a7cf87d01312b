"""The scheduler by itself, on a clock of the test's own."""

from __future__ import annotations

import random
import re
import statistics
from dataclasses import replace

import pytest

from console.lab.sim import log
from console.lab.sim.engine import Engine
from console.lab.sim.prefix import blocks
from console.lab.sim.work import Decode, Limits, Line, Prefill, Retract, Work

# What the sizing gives for Qwen3.6-27B in bfloat16: the bad and the good flags of the story.
EXTRA = Limits(37, 248_239, 186, 5, extra_buffer=True)
PLAIN = Limits(72, 289_662, 216, 3, extra_buffer=False)

DECODE = (
    r"Decode batch, #running-req: \d+, #full token: \d+, full token usage: \d\.\d\d, "
    r"mamba num: \d+, mamba usage: \d\.\d\d, cuda graph: (True|False), "
    r"gen throughput \(token/s\): \d+\.\d\d, #queue-req: \d+"
)
PREFILL = (
    r"Prefill batch, #new-seq: \d+, #new-token: \d+, #cached-token: \d+, "
    r"full token usage: \d\.\d\d, mamba usage: \d\.\d\d, #running-req: \d+, #queue-req: \d+, "
    r"#pending-token: \d+, cuda graph: (True|False), input throughput \(token/s\): \d+\.\d\d"
)
RETRACT = (
    r"KV cache pool is full\. Retract requests\. #retracted_reqs: \d+, #new_tokens_gained: \d+, "
    r"#mamba_num_gained: \d+, #new_token_ratio: \d\.\d{4} -> \d\.\d{4}"
)


class Driver:
    """Keeps a number of requests in flight."""

    def __init__(self, limits: Limits, in_flight: int, *, seed: int = 1) -> None:
        self.lines: list[Line] = []
        self.engine = Engine(limits, self.lines.append)
        self.rng = random.Random(seed)
        self.in_flight, self.now, self.number = in_flight, 0.0, 0
        self.ended: list[tuple[Work, str]] = []
        self.owed = in_flight

    def one(self, *, prompt: int | None = None, target: int | None = None) -> Work:
        self.number += 1
        size = target or min(4096, int(self.rng.lognormvariate(7.85, 0.33)))
        work = Work(f"r{self.number}", prompt or self.rng.randint(100, 300), size, 4096)
        work.done = self.done
        return work

    def done(self, work: Work, how: str) -> None:
        self.ended.append((work, how))
        self.owed += 1

    def run(self, seconds: float) -> Driver:
        end = self.now + seconds
        while True:
            while self.owed:
                self.owed -= 1
                self.engine.submit(self.one(), self.now)
            event = self.engine.next_event()
            assert event is not None
            if event > end:
                self.now = end
                self.engine.advance(end)
                return self
            self.now = max(self.now, event)
            self.engine.advance(self.now)

    @property
    def decodes(self) -> list[Decode]:
        return [line for line in self.lines if isinstance(line, Decode)]


def test_thirty_two_running_give_what_the_operators_measured() -> None:
    driver = Driver(EXTRA, 32).run(600)
    late = driver.decodes[len(driver.decodes) // 3 :]
    assert 650 <= statistics.mean(line.rate for line in late) <= 680
    assert statistics.mean(line.mamba / EXTRA.slots for line in late) == pytest.approx(
        0.61, abs=0.02
    )
    assert statistics.mean(line.used / EXTRA.tokens for line in late) == pytest.approx(
        0.20, abs=0.03
    )
    assert driver.engine.totals.decode_tokens / 600 == pytest.approx(660, rel=0.03)


def test_sixty_four_running_give_what_the_operators_measured() -> None:
    driver = Driver(PLAIN, 64).run(600)
    late = driver.decodes[len(driver.decodes) // 3 :]
    assert 1180 <= statistics.mean(line.rate for line in late) <= 1236
    for line in late:
        assert 1 <= line.mamba / line.running <= 2


def test_the_good_flags_give_more_than_one_and_a_half_times_the_bad_ones() -> None:
    rates = []
    for limits in (EXTRA, PLAIN):
        driver = Driver(limits, limits.max_running + 4).run(400)
        rates.append(statistics.mean(line.rate for line in driver.decodes[20:]))
        peak = max(line.mamba / limits.slots for line in driver.decodes)
        if limits is EXTRA:
            assert peak == pytest.approx(0.80, abs=0.01)
    assert rates[1] / rates[0] >= 1.6


def test_speed_divides_every_duration() -> None:
    slow = Driver(EXTRA, 32).run(200)
    fast = Driver(replace(EXTRA, speed=20.0), 32).run(10)
    assert fast.engine.step == pytest.approx(slow.engine.step, rel=0.01)
    assert fast.decodes[-1].rate == pytest.approx(20 * slow.decodes[-1].rate, rel=0.05)


def test_no_more_run_than_there_are_slots_and_the_rest_waits() -> None:
    driver = Driver(EXTRA, 50).run(60)
    assert len(driver.engine.running) == 37
    assert len(driver.engine.waiting) == 13
    assert all(line.running <= 37 for line in driver.decodes)


def test_a_full_queue_refuses() -> None:
    engine = Engine(replace(EXTRA, max_queued=3, max_running=2))
    took = [engine.submit(Work(f"r{n}", 10, 100, 100), 0.0) for n in range(8)]
    # The first one is in its prefill; three wait; a second slot frees nothing before a step.
    assert took.count(True) == 4
    assert took[-1] is False


def test_a_decode_line_every_forty_steps_and_a_diluted_first_one_after_idling() -> None:
    driver = Driver(EXTRA, 1)
    driver.run(20)
    engine = driver.engine
    per_line = 40 * engine.step_s(1)
    times = [line.time for line in driver.decodes]
    assert times[1] - times[0] == pytest.approx(per_line, rel=0.01)
    driver.owed = -100  # nothing new; let it end and idle
    while engine.running:
        driver.now = engine.next_event() or driver.now
        engine.advance(driver.now)
    driver.now += 600
    engine.submit(driver.one(target=200), driver.now)
    before = len(driver.decodes)
    while len(driver.decodes) == before:
        driver.now = engine.next_event() or driver.now
        engine.advance(driver.now)
    assert driver.decodes[-1].rate < 1


def test_lines_have_the_grammar_of_the_real_log() -> None:
    driver = Driver(EXTRA, 40).run(30)
    tight = Driver(replace(EXTRA, tokens=20_000), 37).run(120)
    shapes = {Decode: DECODE, Prefill: PREFILL, Retract: RETRACT}
    kinds = set()
    for line in [*driver.lines, *tight.lines]:
        kinds.add(type(line))
        assert re.fullmatch(shapes[type(line)], log.line(line, EXTRA)), log.line(line, EXTRA)
    assert kinds == set(shapes)


def test_requests_that_arrive_together_are_prefilled_together() -> None:
    lines: list[Line] = []
    engine = Engine(PLAIN, lines.append)
    for n in range(64):
        engine.submit(Work(f"r{n}", 29, 100, 100), 0.0)
    engine.advance(5.0)
    first, second = (line for line in lines[:2] if isinstance(line, Prefill))
    assert (first.seqs, second.seqs, second.new_tokens) == (1, 63, 63 * 29)


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    lines: list[Line] = []
    engine = Engine(PLAIN, lines.append)
    engine.submit(Work("long", 20_000, 50, 50), 0.0)
    engine.advance(60.0)
    prefills = [line for line in lines if isinstance(line, Prefill)]
    assert [line.new_tokens for line in prefills] == [8192, 8192, 3616]
    assert prefills[0].pending == 20_000 - 8192


def test_a_full_cache_sends_requests_back_and_loses_none() -> None:
    limits = replace(EXTRA, tokens=24_000)
    driver = Driver(limits, 37).run(900)
    retracts = [line for line in driver.lines if isinstance(line, Retract)]
    assert retracts
    assert driver.engine.totals.retracted == sum(line.requests for line in retracts)
    assert all(line.used <= limits.tokens for line in driver.decodes)
    again = [work for work, _ in driver.ended if work.retractions]
    assert again
    assert all(work.made == work.target for work, how in driver.ended if how == "stop")


def test_a_request_too_large_for_the_whole_cache_ends_where_it_is_full() -> None:
    ends: list[tuple[int, str]] = []
    engine = Engine(replace(EXTRA, tokens=1000))
    engine.submit(Work("r", 500, 4000, 4000, done=lambda w, how: ends.append((w.made, how))), 0.0)
    engine.advance(600.0)
    assert ends == [(500, "oom")]


def test_abort_keeps_what_was_made_and_says_what_was_only_queued() -> None:
    engine = Engine(replace(EXTRA, max_running=1))
    running, queued = Work("a", 100, 4000, 4000), Work("b", 100, 4000, 4000)
    engine.submit(running, 0.0)
    engine.submit(queued, 1.0)
    engine.abort([running, queued], 20.0)
    assert (running.state, queued.state) == ("over", "over")
    assert running.made == pytest.approx(20 / engine.step_s(1), rel=0.05)
    assert (queued.made, queued.unqueued, running.unqueued) == (0, True, False)
    assert engine.used == 0
    assert engine.next_event() is None


def test_nothing_happens_while_it_stands_still_and_then_it_goes_on() -> None:
    engine = Engine(EXTRA)
    work = Work("a", 100, 400, 400)
    engine.submit(work, 0.0)
    engine.advance(5.0)
    made = engine.generated(work)
    engine.stalled = True
    engine.advance(500.0)
    assert engine.generated(work) == made
    assert engine.next_event() is None
    engine.stalled = False
    engine.advance(505.0)
    assert made < engine.generated(work) < 3 * made + 10


def test_a_prefix_seen_before_is_not_computed_again() -> None:
    lines: list[Line] = []
    engine = Engine(EXTRA, lines.append)
    ids = list(range(1000))
    for n, at in enumerate((0.0, 30.0)):
        engine.submit(Work(f"r{n}", len(ids), 10, 10, prefix=blocks(ids)), at)
    engine.advance(60.0)
    first, second = (line for line in lines if isinstance(line, Prefill))
    assert (first.new_tokens, first.cached_tokens) == (1000, 0)
    assert (second.new_tokens, second.cached_tokens) == (1000 - 960, 960)
    plain = Engine(replace(EXTRA, radix=False))
    for n, at in enumerate((0.0, 30.0)):
        plain.submit(Work(f"r{n}", len(ids), 10, 10, prefix=blocks(ids)), at)
    plain.advance(60.0)
    assert plain.totals.cached_tokens == 0


def test_a_million_tokens_cost_next_to_nothing() -> None:
    driver = Driver(replace(PLAIN, speed=20.0), 72).run(60)
    assert driver.engine.totals.decode_tokens > 1_400_000
    assert len(driver.lines) < 1500  # events, not tokens
