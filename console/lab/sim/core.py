"""The server behind its HTTP face: requests from prompt to answer, the scheduler's clock, status.

What SGLang does in ``srt/managers/tokenizer_manager.py`` and ``scheduler.py``: the table of open
requests (with its leaks), validation, abort by prefix, drain, health.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from console.lab.sim import checks, failures, log
from console.lab.sim.answers import VARIANTS, Style, answer, fingerprint
from console.lab.sim.capacity import Pools
from console.lab.sim.config import Config
from console.lab.sim.engine import Engine
from console.lab.sim.entry import Entry, Sampling
from console.lab.sim.metrics import Metrics
from console.lab.sim.prefix import blocks
from console.lab.sim.refusals import DroppedError, RefusedError
from console.lab.sim.settings import Fault, SimSettings
from console.lab.sim.tokens import tokenizer
from console.lab.sim.work import Decode, Limits, Line, Prefill, Work

HEALTH_TIMEOUT_S = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT") or 20)
HEALTH_POLL_S = 1.0
DRAIN_TICK_S = 5.0
DISCONNECT_POLL_S = 4.0
STOPPED_S = 2.0
"""Without a look at the clock for so long, the process was stopped."""


class Core:
    """State of one server. All methods run on its event loop."""

    def __init__(
        self,
        config: Config,
        pools: Pools,
        settings: SimSettings,
        startup: dict[str, float],
        fault: Callable[[], Fault],
    ) -> None:
        self.config, self.pools, self.settings = config, pools, settings
        self.fault = fault
        self.crash: Callable[[str], None] = lambda text: None
        """Ends the server as an exception in its scheduler does."""
        args = config.args
        chunk = args.chunked_prefill_size
        self.limits = Limits(
            max_running=pools.max_running,
            tokens=pools.tokens,
            slots=pools.slots,
            slots_per_request=pools.slots_per_request,
            extra_buffer=config.sizing.strategy != "no_buffer",
            radix=config.sizing.radix_cache,
            chunk=chunk if chunk is not None else 8192,
            max_prefill=args.max_prefill_tokens or 16_384,
            speed=settings.speed,
            weight=pools.weights_gib / 51.5,
            graph_max=config.graph_max if config.cuda_graph else 0,
            prefill_graph=config.prefill_graph,
            log_interval=args.decode_log_interval or 40,
            conservativeness=args.schedule_conservativeness or 1.0,
            max_queued=args.max_queued_requests,
        )
        self.engine = Engine(self.limits, self._emit)
        self._seen, self._stood = time.monotonic(), 0.0
        self.engine.begin(self.now())
        self.startup = startup
        self.metrics = Metrics(config, self.engine, startup)
        self.open: dict[str, Entry | None] = {}
        """Requests by id; None for those that leaked."""
        self.status: Literal["Starting", "Up", "UnHealthy"] = "Starting"
        self.draining = False
        self.going = asyncio.Event()
        """Cleared while generation is paused: new requests wait."""
        self.going.set()
        self.frozen = False
        """The scheduler process is stopped or stuck: it answers nothing."""
        self._stalled = False
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._timer: asyncio.TimerHandle | None = None
        self._lines: list[str] = []
        self._rng = random.Random(f"{settings.seed} {config.gpu} {config.seed}")
        self._failed: set[int] = set()
        self._heard = 0.0
        """When the scheduler last sent anything to the main process."""
        self.info_lock = asyncio.Lock()
        self.snapshot: dict[str, Any] = {}

    # --- the clock ---

    def now(self) -> float:
        """Seconds of the engine's clock: it stands while the process is stopped, since a card does
        not make up for that. Asked for at least every half second."""
        seen = time.monotonic()
        if seen - self._seen > STOPPED_S:
            self._stood += seen - self._seen
        self._seen = seen
        return seen - self._stood

    def _emit(self, event: Line) -> None:
        self._lines.append(log.line(event, self.limits))
        if isinstance(event, Prefill | Decode):
            self.metrics.tick(event)

    def _flush(self) -> None:
        if self._lines:
            stamp = log.stamp()
            text = "".join(f"{stamp} {line}\n" for line in self._lines)
            self._lines.clear()
            log.write(log.ERR, text)

    def advance(self) -> None:
        """Bring the scheduler to the present."""
        self.engine.advance(self.now())
        self._rearm()

    def _rearm(self) -> None:
        self._flush()
        if self._timer is not None:
            self._timer.cancel()
        event = self.engine.next_event()
        loop = asyncio.get_running_loop()
        # The event loop keeps the same clock; a little late beats a little early and once more.
        self._timer = None
        if event is not None:
            self._timer = loop.call_at(event + self._stood + 0.0005, self.advance)

    def set_frozen(self, frozen: bool, stalled: bool) -> None:
        """The scheduler stopped answering (``frozen``) or only computing (``stalled``)."""
        self.engine.slow = max(self.fault().slow, 0.01)
        if frozen != self.frozen:
            self.frozen = frozen
            if frozen:
                self._thawed.clear()
            else:
                self._thawed.set()
        self._stalled = stalled
        self._hold()

    def pause(self, paused: bool) -> None:
        """``/pause_generation`` and ``/continue_generation``: new requests wait."""
        if paused:
            self.going.clear()
        else:
            self.going.set()
        self._hold()

    def _hold(self) -> None:
        hold = self.frozen or self._stalled or not self.going.is_set()
        if hold != self.engine.stalled:
            self.engine.advance(self.now())
            self.engine.stalled = hold
            self._rearm()

    async def scheduler(self) -> None:
        """Wait for an answer of the scheduler: for ever while it is frozen."""
        if (delay := self.fault().slow_probe_s) > 0:
            await asyncio.sleep(delay)
        await self._thawed.wait()
        self._heard = self.now()

    # --- requests ---

    def check(
        self, rid: str | None, prompt: Sequence[int], sampling: Sampling, values: dict[str, Any]
    ) -> str:
        """Validate a request and note its id; raises :class:`RefusedError`.

        A request refused here stays in the table of open ones, as in the real server.
        """
        rid = rid or uuid.uuid4().hex
        if rid in self.open:
            raise RefusedError(f"Duplicate request ID detected: {rid}")
        self.open[rid] = None
        checks.refuse(len(prompt), sampling.max_new, values, self.config.context, self.pools.tokens)
        return rid

    def submit(
        self,
        rid: str,
        prompt: Sequence[int],
        partial: Sequence[int],
        style: Style,
        sampling: Sampling,
        *,
        stream: bool = False,
        number: int = 0,
    ) -> Entry:
        """Give a checked request to the scheduler; raises :class:`RefusedError` on a full queue."""
        settings = self.settings
        style = msgspec.structs.replace(
            style,
            length_mean=settings.length_mean,
            length_sigma=settings.length_sigma,
            endless=sampling.ignore_eos,
        )
        if sampling.greedy and not number:
            variant = 0
        elif self.config.args.enable_deterministic_inference:
            variant = ((sampling.seed if sampling.seed is not None else 42) + number) % VARIANTS
        else:
            variant = self._rng.randrange(VARIANTS)
        plan = answer(prompt, partial, variant, style)
        whole = [*prompt, *partial] if partial else prompt
        size = len(whole)
        # What fits: the context, and a pool that holds this request alone.
        most = max(min(self.config.context - size - 1, self.pools.tokens - size - 1), 0)
        limit = most if sampling.max_new is None else min(sampling.max_new, most)
        entry = Entry(
            rid=rid,
            prompt=whole,
            plan=plan,
            work=Work(rid, size, min(plan.total, limit), limit, prefix=blocks(whole)),
            stream=stream,
            created=self.now(),
            future=asyncio.get_running_loop().create_future(),
            thinking=style.thinking
            and tokenizer().end_think not in partial
            and bool(self.config.args.reasoning_parser),
        )
        for mark in sampling.stop:
            entry.stop_at(mark)
        mark_ = fingerprint(whole) ^ settings.seed
        if settings.transient_errors and mark_ not in self._failed:
            chance = random.Random(f"{mark_} {self.config.gpu}").random()
            if chance < settings.transient_errors:
                self._failed.add(mark_)
                entry.work.fail_at = 1 + entry.work.target // 3
        entry.work.done = lambda work, how: self._done(entry, how)
        self.open[rid] = entry
        if not self.engine.submit(entry.work, self.now()):
            del self.open[rid]
            self._rearm()
            raise RefusedError("The request queue is full.", 503, "503")
        self._rearm()
        return entry

    def _done(self, entry: Entry, how: str) -> None:
        self._heard = self.now()
        if not entry.future.done():
            entry.future.set_result(how)
        work = entry.work
        if work.unqueued:
            self.open[entry.rid] = None  # the table forgets only what it took from the batch
        else:
            self.open.pop(entry.rid, None)
        if how == "abort":
            return
        if how == "stop":
            self.engine.remember(blocks([*entry.prompt, *entry.ids()]))
        self.metrics.finished(
            stream=entry.stream,
            prompt=work.prompt,
            cached=work.cached,
            generated=work.made,
            ttft=work.first_token - work.arrived if work.first_token is not None else None,
            e2e=self.engine.time - work.arrived,
            queued=work.began - work.arrived if work.began is not None else None,
        )

    async def finish(self, entry: Entry, gone: Callable[[], bool]) -> None:
        """Wait for the end of a request; raises what it ended with.

        ``gone`` tells whether its client has left; that is looked at every 4 s.
        """
        while not entry.future.done():
            await asyncio.wait([entry.future], timeout=DISCONNECT_POLL_S)
            if not entry.future.done() and gone():
                self.abort(entry.rid)
                raise DroppedError
        how = entry.future.result()
        if how == "oom":
            log.say(f"retract_decode: aborted last request {entry.rid} due to OOM")
            raise RefusedError(
                "Out of memory even after retracting all other requests in the decode batch. "
                "Aborting the last request.",
                500,
                "500",
            )
        if how == "error":
            if fingerprint(entry.prompt) % 2:
                raise DroppedError
            problem = "Connection to the detokenizer was reset"
            trace = failures.traceback(f"ConnectionResetError: {problem}", "http")
            log.say(f"Error in request: {problem}\n{trace}")
            raise RefusedError(f"Internal server error: {problem}", 500, "InternalServerError")

    def abort(self, rid: str = "", *, everything: bool = False) -> None:
        """Abort by id: exact in the table, but by prefix in the scheduler."""
        if not everything and rid not in self.open:
            return
        self.metrics.aborted += 1
        if self.frozen:
            return
        named = [
            entry.work
            for other, entry in self.open.items()
            if entry is not None and (everything or other.startswith(rid))
        ]
        self.engine.abort(named, self.now())
        self._rearm()

    # --- health ---

    async def health(self) -> bool:
        """The generating health check: at least one second, at most twenty."""
        if self.status == "Starting":
            return False
        tic = self.now()
        if (delay := self.fault().slow_probe_s) > 0:
            await asyncio.sleep(delay)
        probe = Work(f"HEALTH_CHECK_{time.time()}", 1, 1, 1, silent=True)
        probe.done = lambda work, how: setattr(self, "_heard", self.now())
        if not self.frozen and self.going.is_set() and not self.engine.stalled:
            self.engine.advance(self.now())
            if not self.engine.running and not self.engine.waiting:
                self.engine.submit(probe, self.now())
            self._rearm()
        while self.now() < tic + HEALTH_TIMEOUT_S:
            await asyncio.sleep(HEALTH_POLL_S)
            if not self.going.is_set():
                continue
            if not self.frozen:
                self.advance()
            # A stalled batch still leaves the scheduler's loop turning: it answers something.
            alive = self.engine.stalled and not self.frozen
            if max(self._heard, self.engine.last_progress) > tic or alive:
                self.status = "Up"
                return True
        log.say(
            "Health check failed. Server couldn't get a response from detokenizer for last "
            f"{HEALTH_TIMEOUT_S:.0f} seconds. tic start time: {_clock(self.now() - tic)}. "
            f"last_heartbeat time: {_clock(self.now() - self._heard)}"
        )
        self.status = "UnHealthy"
        return False

    @property
    def busy(self) -> float:
        """How hard the card works, 0..1."""
        engine = self.engine
        if engine.stalled:
            return 1.0 if engine.running else 0.0
        if not engine.running and engine.next_event() is None:
            return 0.0
        return min(1.0, 0.72 + 0.28 * len(engine.running) / 64)


def _clock(ago: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time.time() - ago))
