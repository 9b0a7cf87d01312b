"""From arguments to pools and graphs: what the log shows before a server can answer.

Order and wording of the lines after SGLang 0.5.12 and 0.5.23 (``srt/model_executor``); durations
are those of a 27B model on one card, divided by the speed.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import NoReturn

from console.lab.sim import capacity, children, config, failures, gpu, log
from console.lab.sim.process import Process

INIT_S = 6.0
LOAD_S_PER_GIB = 1.4
POOLS_S = 1.5
GRAPHS_S = 12.3
GRAPH_GB = 1.02
SHARDS = 14
BACKEND_MIB = 900
"""Workspaces of the attention backend and of cuBLAS."""
LEAST_AFTER_POOLS_GIB = 1.6
"""Below this the capture of CUDA graphs runs out of memory."""

MIB_PER_GIB = 1024


class Loading:
    """The phases of one start."""

    def __init__(self, process: Process) -> None:
        self.process, self.conf, self.sim = process, process.conf, process.sim

    def load(self) -> capacity.Pools:
        """From the arguments to pools and graphs; ends the process where the real one would."""
        conf, new = self.conf, self.conf.new
        for warning in conf.warnings:
            log.say(warning)
        for name in getattr(conf.args, "_deprecated", None) or []:
            log.say(f"\x1b[1;33m'{name}' is deprecated and will be removed.\x1b[0m")
        shown = config.fields(conf)
        if new:
            log.say(f"server_args={shown!r}")
        else:
            inner = ", ".join(f"{name}={value!r}" for name, value in shown.items())
            log.say(f"server_args=ServerArgs({inner})")
        self.process.spend("args", 0)
        log.say("Using default HuggingFace chat template with detected content format: string")
        folder = Path(self.sim.state_dir)
        card = gpu.claim(folder, conf.gpu)
        self.process.family = children.spawn(card, orphan=self.process.fault.orphan)
        total = self.sim.gpu_memory_mib / MIB_PER_GIB
        context = capacity.CONTEXT_MIB / MIB_PER_GIB
        taken = gpu.held_mib(folder, conf.gpu) / MIB_PER_GIB if card is None else 0.0
        self.process.spend("init", INIT_S)
        if not new:
            log.say("Init torch distributed begin.")
            log.say("Init torch distributed ends. elapsed=0.31 s, mem usage=0.09 GB")
        if card is not None:
            self.process.card = gpu.Card(folder, conf.gpu, self.process.family.scheduler.pid)
        self.process.memory(context)
        free = total - context - taken
        log.say(f"Load weight begin. avail mem={free:.2f} GB")
        needs = capacity.QWEN36_27B.weights(conf.weights)
        import_web = threading.Thread(target=_import_web, daemon=True)
        import_web.start()  # part of what loading is: Python reads its libraries meanwhile
        step = [0]
        began = time.monotonic()

        def shards(share: float) -> None:
            self.process.memory(context + needs * share, load=0.02)
            while step[0] < int(share * SHARDS):
                step[0] += 1
                passed = time.monotonic() - began
                text = log.bar("Multi-thread loading shards", step[0], SHARDS, passed)
                log.write(log.ERR, text)

        log.write(log.ERR, log.bar("Multi-thread loading shards", 0, SHARDS, 0.0))
        if free < needs + 1:
            self.process.spend("weights", needs * LOAD_S_PER_GIB * free / needs, None)
            log.write(log.ERR, "\n")
            self.process.fail(failures.CAUSES["oom_load"], "weights")
        took = self.process.spend("weights", needs * LOAD_S_PER_GIB, shards)
        import_web.join()
        self.process.startup["load_weight"] = took
        quant = {"fp8": ", quant=fp8, fmt=e4m3", "fp4": ", quant=modelopt_fp4", "bf16": ""}
        log.write(log.ERR, "\n")
        if getattr(conf.args, "startup_weight_load_mode", None) != "overlap":
            log.say(
                f"Load weight end. elapsed={took:.2f} s, "
                f"type=Qwen3_5ForConditionalGeneration{quant[conf.weights]}, "
                f"avail mem={free - needs:.2f} GB, mem usage={needs:.2f} GB."
            )
        self.backend()
        pools = self.pools()
        allowed = config.SM120_BACKENDS[conf.version]
        assert conf.attention in allowed
        if new and pools.uncapped > pools.max_running:
            log.say(
                f"max_running_requests is capped to {pools.max_running} by the mamba state cache "
                f"(max_mamba_cache_size={pools.slots}, {pools.slots_per_request} state slots per "
                "request). To raise it: increase --mamba-full-memory-ratio or "
                "--max-mamba-cache-size, or halve the state size with --mamba-ssm-dtype bfloat16."
            )
        kv_type = "torch.float8_e4m3fn" if conf.sizing.kv_bytes == 1 else "torch.bfloat16"
        if not new:
            log.say(f"Using KV cache dtype: {kv_type}")
        took = self.process.spend("memory", POOLS_S)
        self.process.startup["kv_cache_allocation"] = took
        log.say(
            f"Mamba Cache is allocated. max_mamba_cache_size: {pools.slots}, "
            f"conv_state size: {pools.conv_gib:.2f}GB, ssm_state size: {pools.ssm_gib:.2f}GB "
        )
        dtype = f"dtype: {kv_type}, " if new else ""
        log.say(
            f"KV Cache is allocated. {dtype}#tokens: {pools.tokens}, "
            f"K size: {pools.kv_gib / 2:.2f} GB, V size: {pools.kv_gib / 2:.2f} GB"
        )
        left = pools.after_pools_gib - BACKEND_MIB / MIB_PER_GIB
        self.process.memory(total - pools.after_pools_gib)
        log.say(f"Memory pool end. avail mem={pools.after_pools_gib:.2f} GB")
        log.say("Using hybrid linear attention backend for hybrid GDN models.")
        left = self.graphs(left)
        self.process.memory(total - left)
        self.process.startup["available"] = left
        chunk = conf.args.chunked_prefill_size
        log.say(
            f"max_total_num_tokens={pools.tokens}, "
            f"chunked_prefill_size={8192 if chunk is None else chunk}, "
            f"max_prefill_tokens={conf.args.max_prefill_tokens}, "
            f"max_running_requests={pools.max_running}, context_len={conf.context}, "
            f"available_gpu_mem={left:.2f} GB"
        )
        self.process.startup["scheduler_e2e"] = time.monotonic() - self.process.began
        self.process.startup["tokenizer_e2e"] = time.monotonic() - self.process.began
        if new:
            timings = self.process.startup
            log.say(
                f"Engine startup timings (s): load_weight={timings['load_weight']:.2f}, "
                f"kv_cache_allocation={timings['kv_cache_allocation']:.2f}, "
                f"scheduler_e2e={timings['scheduler_e2e']:.2f}, "
                f"cuda_graph={{decode={timings.get('cuda_graph_decode', 0.0):.2f}}}, "
                f"tokenizer_e2e={timings['tokenizer_e2e']:.2f}"
            )
        return pools

    def backend(self) -> None:
        """The attention backend is made after the weights are in."""
        name, version = self.conf.attention, self.conf.version
        if name in config.SM120_BACKENDS[version]:
            return
        if name == "fa3":
            self.process.fail(failures.CAUSES["fa3"], "memory")
        self.process.fail(failures.CAUSES[f"backend_{version[-2:]}"], "memory", backend=name)

    def pools(self) -> capacity.Pools:
        """Size the pools, or end with what the real server says."""
        try:
            return capacity.size(self.conf.sizing, self.sim.gpu_memory_mib)
        except capacity.NotEnoughMemoryError as exc:
            self.too_small(exc.kind)

    def too_small(self, kind: str) -> NoReturn:
        """End with the words that this release has for it."""
        conf = self.conf
        if not conf.new:
            name = "mamba_zero_12" if kind in ("zero", "mamba") else "not_enough"
            self.process.fail(failures.CAUSES[name], "memory")
        before = (self.sim.gpu_memory_mib - capacity.CONTEXT_MIB) / MIB_PER_GIB
        names = {"mamba": "mamba_none_23", "zero": "mamba_small_23"}
        self.process.fail(
            failures.CAUSES[names.get(kind, "kv_zero_23")],
            "memory",
            fraction=conf.fraction,
            minimum=capacity.QWEN36_27B.weights(conf.weights) / before,
            slots=conf.sizing.max_mamba or 0,
            ratio=capacity.slots_per_request(conf.sizing),
        )

    def graphs(self, free: float) -> float:
        """Capture CUDA graphs; returns the GiB that are left."""
        conf = self.conf
        if free < LEAST_AFTER_POOLS_GIB - BACKEND_MIB / MIB_PER_GIB:
            if conf.cuda_graph:
                self.say_capture(free)
                self.process.spend("graphs", GRAPHS_S / 4)
                self.process.fail(failures.CAUSES["oom_graph"], "graphs")
            self.process.fail(failures.CAUSES["oom_run"], "graphs")
        if not conf.cuda_graph:
            self.process.spend("graphs", 0)
            if conf.new:
                log.say("Disable prefill CUDA graph because the decode CUDA graph is disabled")
            else:
                log.say("Disable piecewise CUDA graph because --disable-cuda-graph is set")
            return free
        self.say_capture(free)
        sizes = capture_sizes(conf.graph_max)
        step = [0]
        began = time.monotonic()

        def bars(share: float) -> None:
            while step[0] < int(share * len(sizes)):
                step[0] += 1
                left = free - GRAPH_GB * step[0] / len(sizes)
                label = f"Capturing batches (bs={sizes[-step[0]]} avail_mem={left:.2f} GB)"
                passed = time.monotonic() - began
                log.write(log.ERR, log.bar(label, step[0], len(sizes), passed))

        took = self.process.spend("graphs", GRAPHS_S, bars)
        log.write(log.ERR, "\n")
        left = free - GRAPH_GB
        self.process.startup["graph_gb"] = GRAPH_GB
        self.process.startup["cuda_graph_decode"] = took
        if conf.new:
            log.say(
                f"Capture target decode CUDA graph end. bs={sizes}, elapsed={took:.2f} s, "
                f"mem usage={GRAPH_GB:.2f} GB, avail mem={left:.2f} GB."
            )
            log.say("Disable prefill CUDA graph because the model has linear attention layers")
        else:
            log.say(
                f"Capture cuda graph end. Time elapsed: {took:.2f} s. "
                f"mem usage={GRAPH_GB:.2f} GB. avail mem={left:.2f} GB."
            )
            log.say("Disable piecewise CUDA graph because the model is a multimodal model")
        return left

    def say_capture(self, free: float) -> None:
        """The line that capture begins with."""
        if self.conf.new:
            log.say(
                "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, "
                f"avail mem={free:.2f} GB"
            )
            return
        log.say(
            "Capture cuda graph begin. This can take up to several minutes. "
            f"avail mem={free:.2f} GB"
        )
        log.say(f"Capture cuda graph bs {capture_sizes(self.conf.graph_max)}")


def capture_sizes(most: int) -> list[int]:
    """Batch sizes that graphs are captured for."""
    sizes = [1, 2, 4, 8, 12, 16, 24, 32, *range(40, 257, 8), *range(272, 513, 16)]
    return [size for size in sizes if size <= most] or [most]


def _import_web() -> None:
    import console.lab.sim.serving  # noqa: F401
