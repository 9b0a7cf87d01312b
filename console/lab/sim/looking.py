"""The endpoints that only look: health, models, flags, load, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from console.lab.sim import config as configs
from console.lab.sim import log
from console.lab.sim.core import Core
from console.lab.sim.exchange import deprecated, reply
from console.lab.sim.metrics import NOT_SECONDS
from console.lab.sim.refusals import RefusedError

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

OPTIONAL = {"memory": "memory", "queues": "queues", "disagg": "disaggregation"}
"""Sections that a query may leave out, and what they are in a load."""

SECTIONS = {"core", "memory", "spec", "lora", "disagg", "queues", "all"}


def _flat(load: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Numbers of a load with the names that the Prometheus form gives them."""
    for name, value in load.items():
        if isinstance(value, dict):
            prefix = {"disaggregation": "disagg"}.get(name, name)
            yield from ((f"{prefix}_{below}", number) for below, number in _flat(value))
        elif isinstance(value, int | float) and name != "dp_rank":
            yield name, value


def _gauges(load: dict[str, Any], *, new: bool) -> str:
    """A load in Prometheus' form."""
    rank = "0" if new else "None"
    lines = []
    for name, value in _flat(load):
        if not new:
            lines.append(f"# HELP sglang_{name} {name.replace('_', ' ')}")
        lines.append(f"# TYPE sglang_{name} gauge")
        lines.append(f'sglang_{name}{{dp_rank="{rank}"}} {value}')
    return "\n".join(lines) + "\n"


def _exposed(text: str) -> web.Response:
    return web.Response(body=text.encode(), headers={"Content-Type": PROMETHEUS})


def _aggregate(load: dict[str, Any]) -> dict[str, Any]:
    """The load of all ranks, of which there is one."""
    return {
        "total_running_reqs": load["num_running_reqs"],
        "total_waiting_reqs": load["num_waiting_reqs"],
        "total_reqs": load["num_total_reqs"],
        "total_used_tokens": load["num_used_tokens"],
        "total_tokens": load["num_total_tokens"],
        "avg_token_usage": load["token_usage"],
        "avg_throughput": load["gen_throughput"],
        "avg_utilization": 0.0,
    }


class Looking:
    """Handlers of one server."""

    def __init__(self, core: Core) -> None:
        self.core, self.config, self.args = core, core.config, core.config.args

    async def health(self, request: web.Request) -> web.Response:
        """503 while starting and draining; else after one real token, or 20 s without one."""
        if self.core.draining:
            log.say("Health check request received during shutdown. Returning 503.")
            return web.Response(status=503)
        return web.Response(status=200 if await self.core.health() else 503)

    async def ready(self, request: web.Request) -> web.Response:
        """A flag only (0.5.23)."""
        core = self.core
        fine = core.status == "Up" and core.going.is_set() and not core.draining
        return web.Response(status=200 if fine else 503)

    async def ping(self, request: web.Request) -> web.Response:
        """Always well in 0.5.12; a flag in 0.5.23."""
        fine = self.core.status == "Up" and not self.core.draining
        return web.Response(status=200 if fine or not self.config.new else 503)

    async def root(self, request: web.Request) -> web.Response:
        """A sign of life."""
        return reply("SGLang is running")

    def _card(self) -> dict[str, Any]:
        name = self.config.served_name
        return {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self.config.context,
        }

    async def models(self, request: web.Request) -> web.Response:
        """The one model."""
        return reply({"object": "list", "data": [self._card()]})

    async def model(self, request: web.Request) -> web.Response:
        """One model by its name."""
        name = request.match_info["name"]
        if name == self.config.served_name:
            return reply(self._card())
        problem = {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return reply({"error": problem}, 404)

    async def model_info(self, request: web.Request) -> web.Response:
        """What the model is."""
        if request.path.startswith("/get_"):
            deprecated("/get_model_info", "/model_info")
        info: dict[str, Any] = {
            "model_path": self.config.model,
            "tokenizer_path": self.args.tokenizer_path or self.config.model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": self.args.weight_version,
            "has_image_understanding": True,
            "has_audio_understanding": False,
            "model_type": "qwen3_5",
            "architectures": ["Qwen3_5ForConditionalGeneration"],
        }
        if self.config.new:
            info.update(
                served_model_name=self.config.served_name,
                load_format=self.args.load_format,
                reasoning_parser=self.args.reasoning_parser,
                tool_call_parser=self.args.tool_call_parser,
                disaggregation_mode=self.args.disaggregation_mode,
            )
        return reply(info)

    def _memory(self) -> dict[str, Any]:
        """GiB and tokens as ``internal_states`` has them."""
        pools, startup = self.core.pools, self.core.startup
        graph = startup["graph_gb"]
        memory: dict[str, Any] = {
            "weight": round(pools.weights_gib, 2),
            "kvcache": round(pools.kv_gib, 2),
            "token_capacity": pools.tokens,
            "graph": graph,
        }
        if self.config.new:
            graphs = {"decode": graph, "prefill": startup["prefill_gb"]}
            memory.update(
                startup_available=round(startup["available"], 2),
                token_capacity_swa=None,
                graph={phase: value for phase, value in graphs.items() if value},
            )
        return memory

    async def server_info(self, request: web.Request) -> web.Response:
        """Flags and effective numbers; asks the scheduler, one call at a time."""
        core, pools = self.core, self.core.pools
        if request.path.startswith("/get_"):
            deprecated("/get_server_info", "/server_info")
        async with core.info_lock:
            await core.scheduler()
        core.advance()
        flags = configs.fields(self.config)
        throughput = core.engine.last_rate
        if self.config.new and self.config.metrics:
            throughput = core.metrics.gen_throughput
        state: dict[str, Any] = {
            **flags,
            "max_mamba_cache_size": pools.slots,
            "last_gen_throughput": throughput,
            "memory_usage": self._memory(),
            "effective_max_running_requests_per_dp": pools.max_running,
        }
        info: dict[str, Any] = {
            **flags,
            "status": "ready",
            "max_total_num_tokens": pools.tokens,
            "max_req_input_len": min(self.config.context - 1, pools.tokens - 1) - 5,
        }
        if self.config.new:
            state["world_size"] = 1
            info.update(
                launch_command=" ".join(self.config.argv),
                kv_events=None,
                startup_time={
                    name: round(value, 3)
                    for name, value in core.startup.items()
                    if name not in NOT_SECONDS
                },
                hicache_object_layout={},
                frontend="python",
            )
        info["internal_states"] = [state]
        info["version"] = self.config.version
        return reply(info)

    def _load(self) -> dict[str, Any]:
        core, pools, engine = self.core, self.core.pools, self.core.engine
        metrics = core.metrics if self.config.metrics else None
        running = len(engine.running) + engine.prefilling
        waiting = len(engine.waiting)
        used = engine.used
        load: dict[str, Any] = {
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
            "num_used_tokens": used,
            "num_total_tokens": used + engine.pending,
            "max_total_num_tokens": pools.tokens,
            "token_usage": round(used / pools.tokens, 4),
            "gen_throughput": round(metrics.gen_throughput, 2) if metrics else 0.0,
            "cache_hit_rate": round(metrics.hit_rate, 4) if metrics else 0.0,
            "utilization": 0.0,
            "max_running_requests": pools.max_running,
            "memory": {
                "weight_gb": round(pools.weights_gib, 3),
                "kv_cache_gb": round(pools.kv_gib, 3),
                "graph_gb": core.startup["graph_gb"],
                "token_capacity": pools.tokens,
            },
            "disaggregation": {
                "mode": "null",
                "prefill_bootstrap_queue_reqs": 0,
                "prefill_inflight_queue_reqs": 0,
                "decode_prealloc_queue_reqs": 0,
                "decode_transfer_queue_reqs": 0,
                "decode_retracted_queue_reqs": 0,
                "kv_transfer_speed_gb_s": 0.0,
                "kv_transfer_latency_ms": 0.0,
            },
            "queues": {
                "waiting": waiting,
                "grammar": 0,
                "paused": 0,
                "retracted": engine.totals.retracted if metrics else 0,
            },
        }
        if not self.config.new:
            load["num_total_reqs"] = running + waiting
            return load
        totals = engine.totals
        load["queues"]["prealloc_ready"] = 0
        return {
            "timestamp": time.time(),
            "dp_rank": 0,
            **load,
            "num_waiting_uncached_tokens": engine.pending,
            "num_active_tokens": used,
            "num_prealloc_ready_tokens": 0,
            "total_prefill_uncached_tokens": totals.prefill_tokens,
            "total_prefill_busy_us": totals.prefill_steps * 20_000,
            "decode_moments": [totals.decode_steps, totals.decode_tokens],
        }

    async def loads(self, request: web.Request) -> web.Response:
        """Load now. 0.5.12 asks the scheduler; 0.5.23 reads a snapshot that may be old."""
        core, began = self.core, time.monotonic()
        core.advance()
        if not self.config.new:
            await core.scheduler()
            core.advance()
            load = self._load()
        else:
            if (delay := core.fault().slow_probe_s) > 0:
                await asyncio.sleep(delay)
            if not core.frozen or not core.snapshot:
                core.snapshot = self._load()
            load = core.snapshot
        core.metrics.loads.observe(time.monotonic() - began)
        include = [part.strip() for part in request.query.get("include", "all").split(",")]
        if self.config.new and (unknown := set(include) - SECTIONS):
            said = f"Invalid include sections: {unknown}. Valid options: {sorted(SECTIONS)}"
            raise RefusedError(said, 400, "400")
        if "all" not in include:
            out = {OPTIONAL[part] for part in OPTIONAL.keys() - set(include)}
            load = {name: value for name, value in load.items() if name not in out}
        if request.query.get("format") == "prometheus":
            return _exposed(_gauges(load, new=self.config.new))
        answer: dict[str, Any] = {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": self.config.version,
        }
        if self.config.new:
            answer.update(
                accelerator="NVIDIA RTX PRO 6000 Blackwell Server Edition (simulated)",
                num_accelerators=1,
                loads=[load],
            )
            return reply(answer)
        answer.update(dp_rank_count=1, loads=[load], aggregate=_aggregate(load))
        return reply(answer)

    async def get_load(self, request: web.Request) -> web.Response:
        """The older form (0.5.12 only)."""
        deprecated("/get_load", "/v1/loads")
        await self.core.scheduler()
        self.core.advance()
        load = self._load()
        return reply(
            [
                {
                    "dp_rank": None,
                    "num_reqs": load["num_total_reqs"],
                    "num_waiting_reqs": load["num_waiting_reqs"],
                    "num_tokens": load["num_total_tokens"],
                    "num_pending_tokens": self.core.engine.pending,
                    "ts_tic": time.perf_counter(),
                }
            ]
        )

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        if (delay := self.core.fault().slow_probe_s) > 0:
            await asyncio.sleep(delay)
        if not self.core.frozen:
            self.core.advance()
        return _exposed(self.core.metrics.text())
