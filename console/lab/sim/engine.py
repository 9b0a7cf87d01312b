"""The scheduler: admission, prefill, decode, retraction, abort; simulated from event to event.

Nothing here knows of sockets, files or the clock: the owner says what time it is
(:meth:`Engine.advance`) and asks when to come back (:meth:`Engine.next_event`). Between two events
every running request gains one token a step, so a hundred thousand tokens cost as much as one.

Behaviour after SGLang's ``srt/managers/scheduler.py`` and ``schedule_policy.py``: prefill goes
before decode, one chunk at a time; a request is admitted while a slot is free and the KV cache has
room for what it is expected to need; when the cache runs full, the requests with the shortest
output go back to the queue.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from console.lab.sim.prefix import PrefixCache
from console.lab.sim.work import Decode, Limits, Line, Prefill, Retract, Totals, Work

STEP_BASE_S = 0.04312
STEP_PER_REQUEST_S = 0.0001406
"""A decode step of n requests takes base + n * per-request seconds on the real card with bfloat16
weights: 672 tokens/s at 32 running, 1,228 at 64."""
NO_GRAPH_S = 0.014
"""What a step takes longer without a CUDA graph."""
PREFILL_TOKENS_S = 9_000.0
PREFILL_BASE_S = 0.018
RETRACT_STEPS = 20
RATIO_INIT, RATIO_MIN_FACTOR, RATIO_STEPS = 0.7, 0.14, 600


@dataclass
class _Batch:
    """A prefill batch in the making."""

    budget: int
    """Tokens that it may still take."""
    whole: list[Work] = field(default_factory=list)
    """Requests whose prefill it completes."""
    seqs: int = 0
    new: int = 0
    cached: int = 0

    def take(self, work: Work) -> bool:
        """Take what fits of a request; whether that is all of it."""
        rest = work.prompt + work.made - work.prefilled
        part = min(rest, self.budget)
        work.prefilled += part
        self.seqs += 1
        self.new += part
        self.budget -= part
        if part == rest:
            self.whole.append(work)
        return part == rest


@dataclass
class Engine:
    """The scheduler of one GPU. Times are seconds of the owner's clock."""

    limits: Limits
    emit: Callable[[Line], None] = lambda line: None
    step: int = 0
    totals: Totals = field(default_factory=Totals)
    slow: float = 1.0
    """Factor on every duration (a fault)."""
    stalled: bool = False
    """Nothing is computed while this is set."""
    last_rate: float = 0.0
    last_progress: float = 0.0
    """When a token or a prefill chunk last came out."""

    def __post_init__(self) -> None:
        self.time = 0.0
        self.waiting: deque[Work] = deque()
        self.running: dict[str, Work] = {}
        self._ends: list[tuple[int, int, Work]] = []
        self._order = count()
        self._batch: list[Work] = []
        self._prefill_end: float | None = None
        self._chunked: Work | None = None
        self._kv = 0  # used tokens = _kv + running * step
        self._open = 0  # still to come at most = _open - running * step
        self._next_log = self.limits.log_interval
        self._ratio = self._ratio_init
        self._ratio_step = 0
        self._cache = PrefixCache(on=self.limits.radix)
        self._decode_mark = (0.0, 0)
        self._prefill_mark: tuple[float, int] | None = None

    # --- what can be asked ---

    @property
    def used(self) -> int:
        """KV tokens of running and half-prefilled requests."""
        chunked = self._chunked.prefilled if self._chunked else 0
        return self._kv + len(self.running) * self.step + chunked

    @property
    def pending(self) -> int:
        """Tokens of the queue that are still to be prefilled."""
        rest = self._chunked.prompt - self._chunked.prefilled if self._chunked else 0
        return sum(work.prompt + work.made for work in self.waiting) + rest

    @property
    def prefilling(self) -> int:
        """Requests whose prefill is under way."""
        return len(self._batch) + (self._chunked is not None)

    @property
    def ratio(self) -> float:
        """``new_token_ratio``: the share of their limit that requests are expected to use."""
        init = self._ratio_init
        low = init * RATIO_MIN_FACTOR
        steps = self.step - self._ratio_step
        return max(low, self._ratio - (init - low) * steps / RATIO_STEPS)

    @property
    def _ratio_init(self) -> float:
        return min(RATIO_INIT * self.limits.conservativeness, 1.0)

    @property
    def mamba(self) -> int:
        """State slots in use by running requests, prefix snapshots they lock included."""
        running = len(self.running) + len(self._batch)
        if not self.limits.radix:
            return running
        if not self.limits.extra_buffer:
            return min(round(running * 1.45), self.limits.slots)
        # One live state, two that take turns, and a locked prefix: operators see about 3.5 a
        # request below the cap and 4 at it.
        near = (running / self.limits.max_running - 0.87) / 0.13
        return min(round(running * (3.55 + 0.45 * min(max(near, 0.0), 1.0))), self.limits.slots)

    @property
    def cached(self) -> int:
        """Tokens held for the prefix cache alone: evictable at any time."""
        return min(self._cache.tokens, max(self.limits.tokens - self.used, 0))

    def generated(self, work: Work) -> int:
        """Tokens this request has by now (as of the last :meth:`advance`)."""
        return work.made + (self.step - work.start if work.state == "running" else 0)

    def step_s(self, running: int) -> float:
        """Seconds of one decode step."""
        base = STEP_BASE_S * self.limits.weight + STEP_PER_REQUEST_S * running
        if running > self.limits.graph_max:
            base += NO_GRAPH_S
        return base * self.slow / self.limits.speed

    # --- what can be done ---

    def submit(self, work: Work, now: float) -> bool:
        """Queue a request; False where the queue is full."""
        self.advance(now)
        full = self.limits.max_queued
        if full is not None and len(self.waiting) >= full and not work.silent:
            return False
        work.arrived = now
        self.waiting.append(work)
        self.advance(now)
        return True

    def abort(self, works: Iterable[Work], now: float) -> None:
        """End requests where they stand, at one stroke: none of them takes another's place."""
        self.advance(now)
        gone = [work for work in works if work.state != "over"]
        for work in gone:
            if work.state == "queued":
                self.waiting.remove(work)
                work.unqueued = True
            elif work.state == "running":
                self._leave(work)
            elif self._chunked is work:
                self._chunked = None
            else:
                self._batch = [other for other in self._batch if other is not work]
            self._end(work, "abort")
        self.advance(now)

    def begin(self, now: float) -> None:
        """Start the clock: the first log lines measure from here."""
        self.time = now
        self._decode_mark = (now, 0)

    def skip(self, now: float) -> None:
        """Time passed in which nothing happened (the process was stopped)."""
        if self._prefill_end is not None:
            self._prefill_end += now - self.time
        self.time = now

    def advance(self, now: float) -> None:
        """Let everything happen that happens until ``now``."""
        if self.stalled:
            self.skip(now)
            return
        while True:
            if self._prefill_end is not None:
                if self._prefill_end > now:
                    return
                self.time = self._prefill_end
                self._finish_prefill()
            if self._start_prefill():
                continue
            if not self.running:
                self.time = max(self.time, now)
                return
            tau = self.step_s(len(self.running))
            room = self._room()
            if room < 1:
                self._retract()
                continue
            steps = min(self._to_event(), room, int((now - self.time) / tau + 1e-9))
            if steps < 1:
                return
            self._decode(steps, tau)

    def next_event(self) -> float | None:
        """When :meth:`advance` has something to do next; None while nothing is under way."""
        if self.stalled:
            return None
        if self._prefill_end is not None:
            return self._prefill_end
        if not self.running:
            return None
        steps = max(1, min(self._to_event(), self._room()))
        return self.time + steps * self.step_s(len(self.running))

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False while requests are under way."""
        if self.running or self.waiting or self._batch:
            return False
        self._cache.clear()
        self._next_log = self.step + self.limits.log_interval
        return True

    # --- decode ---

    def _to_event(self) -> int:
        steps = self._next_log - self.step
        if self._ends:
            steps = min(steps, self._ends[0][0] - self.step)
        return max(1, steps)

    def _room(self) -> int:
        return (self.limits.tokens - self.used) // len(self.running)

    def _decode(self, steps: int, tau: float) -> None:
        running = len(self.running)
        self.step += steps
        self.time += steps * tau
        self.last_progress = self.time
        self.totals.decode_tokens += steps * running
        self.totals.decode_steps += steps
        graph = running <= self.limits.graph_max
        tick = self.step >= self._next_log
        used, mamba = self.used, self.mamba
        while self._ends and self._ends[0][0] <= self.step:
            work = heapq.heappop(self._ends)[2]
            if work.state == "running" and work.start + self._stay(work) == self.step:
                self._leave(work)
                self._end(work, "error" if work.made == work.fail_at else "stop")
        if tick:
            since, tokens = self._decode_mark
            elapsed = max(self.time - since, 1e-9)
            rate = (self.totals.decode_tokens - tokens) / elapsed
            self.last_rate = rate
            self._decode_mark = (self.time, self.totals.decode_tokens)
            self._next_log = self.step + self.limits.log_interval
            self.emit(Decode(self.time, running, used, mamba, graph, rate, len(self.waiting)))

    def _stay(self, work: Work) -> int:
        goal = work.target if work.fail_at is None else min(work.fail_at, work.target)
        return max(goal - work.made, 0)

    def _leave(self, work: Work) -> None:
        del self.running[work.rid]
        self._kv -= work.prompt + work.made - work.start
        self._open -= work.limit - work.made + work.start
        work.made += self.step - work.start

    def _end(self, work: Work, how: str) -> None:
        work.state = "over"
        if work.done is not None:
            work.done(work, how)

    def _retract(self) -> None:
        before = self.ratio
        works = sorted(self.running.values(), key=lambda work: (-self.generated(work), work.prompt))
        gone, tokens = 0, 0
        mamba = self.mamba
        while len(works) > 1 and (
            self.limits.tokens - self.used < RETRACT_STEPS * len(self.running) or not gone
        ):
            work = works.pop()
            self._leave(work)
            tokens += work.prompt + work.made
            work.state = "queued"
            work.retractions += 1
            work.prefilled = 0
            self.waiting.append(work)
            gone += 1
            self.totals.retracted += 1
            self.totals.retracted_input += work.prompt
            self.totals.retracted_output += work.made
        if not gone:  # alone and too large: it ends as far as it came
            work = works.pop()
            self._leave(work)
            self._end(work, "oom")
            return
        made = sum(self.generated(work) for work in self.running.values())
        most = sum(work.limit for work in self.running.values())
        self._ratio = min(1.0, (made + RETRACT_STEPS * len(self.running)) / max(most, 1))
        self._ratio_step = self.step
        self.emit(Retract(gone, tokens, mamba - self.mamba, before, self._ratio))

    # --- prefill ---

    def _free_slots(self) -> int:
        return self.limits.max_running - len(self.running) - (self._chunked is not None)

    def _start_prefill(self) -> bool:
        """Begin the next prefill batch; False where nothing waits or nothing fits."""
        if not self._chunked and not (self.waiting and self._free_slots() > 0):
            return False
        expected = (self._open - len(self.running) * self.step) * self.ratio
        room = self.limits.tokens - self.used - expected
        batch = _Batch(self.limits.chunk if self.limits.chunk > 0 else 1 << 40)
        if self._chunked and batch.take(self._chunked):
            self._chunked = None
        self._admit(batch, room)
        if not batch.seqs:
            return False
        self._batch = batch.whole
        took = (PREFILL_BASE_S + batch.new / PREFILL_TOKENS_S) * self.slow / self.limits.speed
        self._prefill_end = self.time + took
        self.totals.prefill_tokens += batch.new
        self.totals.cached_tokens += batch.cached
        self.totals.prefill_steps += 1
        self._tell_prefill(batch)
        return True

    def _admit(self, batch: _Batch, room: float) -> None:
        """Take requests from the queue, as many as slots, ``room`` tokens and the batch allow."""
        limits = self.limits
        slots = self._free_slots() - len(batch.whole)
        while self.waiting and slots > 0 and batch.budget > 0 and not self._chunked:
            work = self.waiting[0]
            whole = work.prompt + work.made
            need = whole + min(work.limit - work.made, 4096) * self.ratio
            if (self.running or batch.whole) and need > room:
                break
            self.waiting.popleft()
            work.began = self.time if work.began is None else work.began
            hit = min(self._cache.hit(work.prefix), whole - 1) if not work.made else 0
            work.cached = work.prefilled = hit
            work.state = "prefill"
            batch.cached += hit
            room -= need
            slots -= 1
            if not batch.take(work):
                self._chunked = work
            if batch.new >= limits.max_prefill:
                break

    def _tell_prefill(self, batch: _Batch) -> None:
        mark = self._prefill_mark
        elapsed = self.time - mark[0] if mark else 0.0
        rate = mark[1] / elapsed if mark and elapsed > 0 else 0.0
        self._prefill_mark = (self.time, batch.new)
        self.emit(
            Prefill(
                time=self.time,
                seqs=batch.seqs,
                new_tokens=batch.new,
                cached_tokens=batch.cached,
                used=self.used + sum(work.prompt for work in batch.whole),
                mamba=self.mamba,
                running=len(self.running),
                queued=len(self.waiting),
                pending=self.pending,
                graph=self.limits.prefill_graph,
                input_rate=rate,
            )
        )

    def _finish_prefill(self) -> None:
        self._prefill_end = None
        self.last_progress = self.time
        batch, self._batch = self._batch, []
        for work in batch:
            if not work.made:
                self.totals.prompt_tokens += work.prompt
                work.made = min(1, work.target)
            if work.first_token is None:
                work.first_token = self.time
            self.remember(work.prefix)
            if self._stay(work) == 0:
                self._end(work, "error" if work.made == work.fail_at else "stop")
                continue
            work.state = "running"
            work.start = self.step
            self.running[work.rid] = work
            self._kv += work.prompt + work.made - work.start
            self._open += work.limit - work.made + work.start
            heapq.heappush(self._ends, (self.step + self._stay(work), next(self._order), work))

    # --- prefix cache ---

    def remember(self, blocks: Sequence[int]) -> None:
        """Keep the prefix of a request (its prompt; at its end the answer, too)."""
        room = max(self.limits.tokens - self.used, 0)
        self.totals.evicted += self._cache.keep(blocks, room)
