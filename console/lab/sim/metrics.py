"""Prometheus text of one server, as ``srt/observability/metrics_collector.py`` exposes it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeAlias

from console.lab.sim.config import Config
from console.lab.sim.engine import Engine
from console.lab.sim.work import Decode, Prefill

TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
E2E = (*TTFT, 600, 1200, 1800, 2400)
QUEUE = (
    0.0, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300, 400,
    500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000,
)  # fmt: skip
TOKENS = (
    100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 12000,
    15000, 20000, 22000, 25000, 30000, 35000, 40000, 66000, 99000, 132000, 300000, 600000, 900000,
    1100000,
)  # fmt: skip
STALE_S = 30.0
"""How long the gauges of an idle scheduler may stand still."""
NOT_SECONDS = ("available", "graph_gb", "prefill_gb")
"""Members of the start's record that are sizes in GiB."""

Samples: TypeAlias = Sequence[tuple[dict[str, str], float]]
"""Labels and value of each sample of a metric."""


class Histogram:
    """Counts by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self.count = 0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.count += 1

    def lines(self, name: str, labels: dict[str, str]) -> Iterator[str]:
        """Its lines in the text format."""
        if not self.count:
            return
        yield f"{name}_sum{_labels(labels)} {self.sum}"
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            total += count
            le = "+Inf" if bound == float("inf") else str(bound)
            yield f"{name}_bucket{_labels({**labels, 'le': le})} {total}.0"
        yield f"{name}_count{_labels(labels)} {self.count}.0"


def _family(name: str, kind: str, samples: Samples) -> Iterator[str]:
    """One metric's lines; none where nothing was counted."""
    if not samples:
        return
    yield f"# HELP sglang:{name} {name.replace('_', ' ')}"
    yield f"# TYPE sglang:{name} {kind}"
    for labels, value in samples:
        shown = "NaN" if value != value else repr(float(value))
        yield f"sglang:{name}{_labels(labels)} {shown}"


def _labels(labels: dict[str, str]) -> str:
    escaped = (
        (name, value.replace("\\", "\\\\").replace('"', '\\"'))
        for name, value in sorted(labels.items())
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"


class Metrics:
    """All that the two processes of a server count."""

    def __init__(self, config: Config, engine: Engine, startup: dict[str, float]) -> None:
        self._config = config
        self._engine = engine
        self._startup = startup
        self.model = {"engine_type": "unified", "model_name": config.served_name}
        self.scheduler = {**self.model, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        if config.new:
            self.scheduler["dp_rank"] = "0"
        self.requests: Counter[str] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.generated: Counter[str] = Counter()
        self.cached = 0
        self.aborted = 0
        self.http_requests: Counter[tuple[str, str]] = Counter()
        self.http_responses: Counter[tuple[str, str, str]] = Counter()
        self.http_active: Counter[tuple[str, str]] = Counter()
        self.ttft: dict[str, Histogram] = {}
        self.e2e: dict[str, Histogram] = {}
        self.queue = Histogram(QUEUE)
        self.prompts = Histogram(TOKENS)
        self.uncached = Histogram(TOKENS)
        self.answers = Histogram(TOKENS)
        self.loads = Histogram((0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5))
        self._gauges: dict[str, float] = {}
        self._idle_since = 0.0
        self.hit_rate = 0.0
        self.refresh(0.0)

    def finished(
        self,
        *,
        stream: bool,
        prompt: int,
        cached: int,
        generated: int,
        ttft: float | None,
        e2e: float,
        queued: float | None,
    ) -> None:
        """Count one finished request; durations in seconds."""
        # Only the newer release tells streamed requests apart.
        kind = str(stream).lower() if self._config.new else ""
        self.requests[kind] += 1
        self.prompt_tokens[kind] += prompt
        self.generated[kind] += generated
        self.cached += cached
        if ttft is not None:
            self.ttft.setdefault(kind, Histogram(TTFT)).observe(ttft)
        self.e2e.setdefault(kind, Histogram(E2E)).observe(e2e)
        if queued is not None:
            self.queue.observe(queued)
        self.prompts.observe(prompt)
        self.uncached.observe(max(prompt - cached, 0))
        self.answers.observe(generated)

    def tick(self, event: Prefill | Decode) -> None:
        """A log line of the scheduler: the moment at which it renews its gauges."""
        if isinstance(event, Prefill):
            total = event.new_tokens + event.cached_tokens
            self.hit_rate = event.cached_tokens / total if total else 0.0
        elif not self._config.new:
            self.hit_rate = 0.0  # overwritten by every decode tick in this release
        self.refresh(event.time, event)

    def idle(self, now: float) -> None:
        """Called now and then: renews what an idle scheduler renews."""
        engine = self._engine
        busy = engine.running or engine.waiting
        wrong = self._gauges["num_running_reqs"] != 0
        if busy:
            self._idle_since = now
        elif now - self._idle_since >= STALE_S or (self._config.new and wrong):
            self._idle_since = now
            self.refresh(now)

    def refresh(self, now: float, event: Prefill | Decode | None = None) -> None:
        """Take the scheduler's present state into the gauges."""
        engine, limits = self._engine, self._engine.limits
        running = event.running if event else len(engine.running)
        used = event.used if event else engine.used
        mamba = event.mamba if event else engine.mamba
        kv, states = used / limits.tokens, mamba / limits.slots
        evictable = min(engine.cached, max(limits.tokens - used, 0))
        totals = engine.totals
        self._idle_since = now
        self._gauges = {
            "num_running_reqs": running,
            "num_queue_reqs": len(engine.waiting),
            "num_grammar_queue_reqs": 0,
            "gen_throughput": engine.last_rate if event else 0.0,
            "cache_hit_rate": self.hit_rate,
            "decode_sum_seq_lens": used,
            "token_usage": round(max(kv, states), 2),
            "full_token_usage": kv,
            "swa_token_usage": 0.0,
            "mamba_usage": states,
            "num_used_tokens": used,
            "kv_available_tokens": limits.tokens - used - evictable,
            "kv_evictable_tokens": evictable,
            "kv_used_tokens": used,
            "mamba_available_tokens": limits.slots - mamba,
            "mamba_evictable_tokens": 0,
            "mamba_used_tokens": mamba,
            "spec_accept_length": 0.0,
            "spec_accept_rate": 0.0,
            "num_retracted_reqs": totals.retracted,
            "num_paused_reqs": 0,
            "utilization": 0.0,
            "fwd_occupancy": float("nan"),
            "new_token_ratio": engine.ratio,
            "is_cuda_graph": 1.0 if isinstance(event, Decode) and event.graph else 0.0,
            "max_total_num_tokens": limits.tokens,
            "page_size": self._config.args.page_size or 1,
            "num_pages": limits.tokens // (self._config.args.page_size or 1),
            "context_len": self._config.context,
            "startup_available_gpu_memory_gb": self._startup.get("available", 0.0),
        }

    @property
    def gen_throughput(self) -> float:
        """The gauge that ``/v1/loads`` repeats."""
        return float(self._gauges["gen_throughput"])

    def text(self) -> str:
        """The whole exposition."""
        parts = (self._http(), self._tokens(), self._times(), self._active(), self._scheduler())
        return "\n".join(chain(*parts, self._startup_times())) + "\n"

    def _http(self) -> Iterator[str]:
        yield from _family(
            "http_requests_total",
            "counter",
            [({"endpoint": e, "method": m}, n) for (e, m), n in self.http_requests.items()],
        )
        yield from _family(
            "http_responses_total",
            "counter",
            [
                ({"endpoint": e, "method": m, "status_code": s}, n)
                for (e, m, s), n in self.http_responses.items()
            ],
        )

    def _active(self) -> Iterator[str]:
        active = [({"endpoint": e, "method": m}, n) for (e, m), n in self.http_active.items()]
        yield from _family("http_requests_active", "gauge", active)

    def _tokens(self) -> Iterator[str]:
        def by_stream(counts: Counter[str]) -> Samples:
            if self._config.new:
                return [({**self.model, "is_streaming": k}, n) for k, n in sorted(counts.items())]
            return [(self.model, n) for n in counts.values()]

        yield from _family("prompt_tokens_total", "counter", by_stream(self.prompt_tokens))
        yield from _family("generation_tokens_total", "counter", by_stream(self.generated))
        if self.cached:
            labels = {**self.model, "cache_source": "device"}
            yield from _family("cached_tokens_total", "counter", [(labels, self.cached)])
        yield from _family("num_requests_total", "counter", by_stream(self.requests))
        if self.aborted:
            aborted = [(self.model, float(self.aborted))]
            yield from _family("num_aborted_requests_total", "counter", aborted)

    def _times(self) -> Iterator[str]:
        for name, by_kind in (
            ("time_to_first_token_seconds", self.ttft),
            ("e2e_request_latency_seconds", self.e2e),
        ):
            for kind, histogram in sorted(by_kind.items()):
                labels = {**self.model, "is_streaming": kind} if self._config.new else self.model
                yield from self._histogram(name, histogram, labels)
        for name, histogram, labels in (
            ("queue_time_seconds", self.queue, self.scheduler),
            ("prompt_tokens_histogram", self.prompts, self.model),
            ("uncached_prompt_tokens_histogram", self.uncached, self.model),
            ("generation_tokens_histogram", self.answers, self.model),
            ("get_loads_duration_seconds", self.loads, self.model),
        ):
            yield from self._histogram(name, histogram, labels)

    def _scheduler(self) -> Iterator[str]:
        totals = self._engine.totals
        modes = {
            "prefill_compute": totals.prefill_tokens,
            "decode": totals.decode_tokens,
            "prefill_cache": totals.cached_tokens,
        }
        by_mode: Samples = [({**self.scheduler, "mode": mode}, n) for mode, n in modes.items()]
        yield from _family("realtime_tokens_total", "counter", by_mode)
        graph = "decode_cuda_graph" if self._config.cuda_graph else "decode_none"
        passes: Samples = [
            ({**self.scheduler, "mode": "prefill_none"}, totals.prefill_steps),
            ({**self.scheduler, "mode": graph}, totals.decode_steps),
        ]
        yield from _family("cuda_graph_passes_total", "counter", passes)
        for name, total in (
            ("evicted_tokens_total", totals.evicted),
            ("num_retracted_requests_total", totals.retracted),
            ("num_retracted_input_tokens_total", totals.retracted_input),
            ("num_retracted_output_tokens_total", totals.retracted_output),
        ):
            if total:
                yield from _family(name, "counter", [(self.scheduler, total)])
        for name, value in self._gauges.items():
            yield from _family(name, "gauge", [(self.scheduler, value)])

    def _startup_times(self) -> Iterator[str]:
        if self._config.new:
            took: Samples = [
                ({**self.model, "phase": phase}, seconds)
                for phase, seconds in self._startup.items()
                if phase not in NOT_SECONDS
            ]
            yield from _family("startup_time_seconds", "gauge", took)
            return
        for name in ("engine_startup_time", "engine_load_weights_time"):
            yield from _family(name, "gauge", [(self.scheduler, 0.0)])

    @staticmethod
    def _histogram(name: str, histogram: Histogram, labels: dict[str, str]) -> Iterator[str]:
        if histogram.count:
            yield f"# HELP sglang:{name} {name.replace('_', ' ')}"
            yield f"# TYPE sglang:{name} histogram"
            yield from histogram.lines(f"sglang:{name}", labels)
