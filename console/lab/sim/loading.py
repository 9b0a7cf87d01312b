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
PREFILL_GRAPHS_S = 4.0
PREFILL_GRAPH_GB = 0.34
PREFILL_SIZES = [512, 1024, 2048, 4096, 8192]
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
        self.total = self.sim.gpu_memory_mib / MIB_PER_GIB
        self.context = capacity.CONTEXT_MIB / MIB_PER_GIB

    def load(self) -> capacity.Pools:
        """From the arguments to pools and graphs; ends the process where the real one would."""
        process = self.process
        self.arguments()
        folder = Path(self.sim.state_dir)
        card = gpu.claim(folder, self.conf.gpu)
        taken = gpu.held_mib(folder, self.conf.gpu) / MIB_PER_GIB if card is None else 0.0
        process.family = children.spawn(card, orphan=process.fault.orphan)
        if card is not None:
            process.card = gpu.Card(folder, self.conf.gpu, process.family.scheduler.pid)
        process.spend("init", INIT_S)
        if process.fault.lost:
            process.fail(failures.CAUSES["fell_off_bus"], "weights")
        if not self.conf.new:
            log.say("Init torch distributed begin.")
            log.say("Init torch distributed ends. elapsed=0.31 s, mem usage=0.09 GB")
        self.weights(self.total - self.context - taken)
        self.backend()
        pools = self.pools()
        self.caches(pools)
        left = self.graphs(pools.after_pools_gib)
        process.memory(self.total - left)
        process.startup["available"] = left
        self.summary(pools, left)
        return pools

    def arguments(self) -> None:
        """What is said of the arguments."""
        conf = self.conf
        for warning in conf.warnings:
            log.say(warning)
        for name in getattr(conf.args, "_deprecated", None) or []:
            log.say(f"\x1b[1;33m'{name}' is deprecated and will be removed.\x1b[0m")
        shown = config.fields(conf)
        if conf.new:
            log.say(f"server_args={shown!r}")
        else:
            inner = ", ".join(f"{name}={value!r}" for name, value in shown.items())
            log.say(f"server_args=ServerArgs({inner})")
        self.process.spend("args", 0)
        log.say("Using default HuggingFace chat template with detected content format: string")

    def weights(self, free: float) -> None:
        """Load the weights into so many GiB of free memory."""
        process, form = self.process, self.conf.sizing.weights
        needs = capacity.QWEN36_27B.weights(form)
        process.memory(self.context)
        log.say(f"Load weight begin. avail mem={free:.2f} GB")
        label = "Multi-thread loading shards"
        log.write(log.ERR, log.bar(label, 0, SHARDS, 0.0))
        if free < needs + 1:
            process.spend("weights", needs * LOAD_S_PER_GIB * free / needs)
            log.write(log.ERR, "\n")
            process.fail(failures.CAUSES["oom_load"], "weights")
        if self.hopeful():  # part of what loading is: Python reads its libraries meanwhile
            threading.Thread(target=_read_libraries, daemon=True).start()
        began, done = time.monotonic(), 0

        def shards(share: float) -> None:
            nonlocal done
            process.memory(self.context + needs * share, load=0.02, at_once=False)
            while done < int(share * SHARDS):
                done += 1
                log.write(log.ERR, log.bar(label, done, SHARDS, time.monotonic() - began))

        took = process.spend("weights", needs * LOAD_S_PER_GIB, shards)
        process.startup["load_weight"] = took
        log.write(log.ERR, "\n")
        if getattr(self.conf.args, "startup_weight_load_mode", None) != "overlap":
            quant = {"fp8": ", quant=fp8, fmt=e4m3", "fp4": ", quant=modelopt_fp4", "bf16": ""}
            log.say(
                f"Load weight end. elapsed={took:.2f} s, "
                f"type=Qwen3_5ForConditionalGeneration{quant[form]}, "
                f"avail mem={free - needs:.2f} GB, mem usage={needs:.2f} GB."
            )

    def caches(self, pools: capacity.Pools) -> None:
        """Allocate the pools."""
        new, process = self.conf.new, self.process
        if new and pools.uncapped > pools.max_running:
            log.say(
                f"max_running_requests is capped to {pools.max_running} by the mamba state cache "
                f"(max_mamba_cache_size={pools.slots}, {pools.slots_per_request} state slots per "
                "request). To raise it: increase --mamba-full-memory-ratio or "
                "--max-mamba-cache-size, or halve the state size with --mamba-ssm-dtype bfloat16."
            )
        kv_type = "torch.float8_e4m3fn" if self.conf.sizing.kv_bytes == 1 else "torch.bfloat16"
        if not new:
            log.say(f"Using KV cache dtype: {kv_type}")
        process.startup["kv_cache_allocation"] = process.spend("memory", POOLS_S)
        log.say(
            f"Mamba Cache is allocated. max_mamba_cache_size: {pools.slots}, "
            f"conv_state size: {pools.conv_gib:.2f}GB, ssm_state size: {pools.ssm_gib:.2f}GB "
        )
        dtype = f"dtype: {kv_type}, " if new else ""
        log.say(
            f"KV Cache is allocated. {dtype}#tokens: {pools.tokens}, "
            f"K size: {pools.kv_gib / 2:.2f} GB, V size: {pools.kv_gib / 2:.2f} GB"
        )
        process.memory(self.total - pools.after_pools_gib)
        log.say(f"Memory pool end. avail mem={pools.after_pools_gib:.2f} GB")
        log.say("Using hybrid linear attention backend for hybrid GDN models.")

    def summary(self, pools: capacity.Pools, left: float) -> None:
        """The line with the effective numbers, and what the start took."""
        conf, timings = self.conf, self.process.startup
        chunk = conf.args.chunked_prefill_size
        log.say(
            f"max_total_num_tokens={pools.tokens}, "
            f"chunked_prefill_size={8192 if chunk is None else chunk}, "
            f"max_prefill_tokens={conf.args.max_prefill_tokens}, "
            f"max_running_requests={pools.max_running}, context_len={conf.context}, "
            f"available_gpu_mem={left:.2f} GB"
        )
        timings["scheduler_e2e"] = timings["tokenizer_e2e"] = time.monotonic() - self.process.began
        if conf.new:
            log.say(
                f"Engine startup timings (s): load_weight={timings['load_weight']:.2f}, "
                f"kv_cache_allocation={timings['kv_cache_allocation']:.2f}, "
                f"scheduler_e2e={timings['scheduler_e2e']:.2f}, "
                f"cuda_graph={{decode={timings.get('cuda_graph_decode', 0.0):.2f}, "
                f"prefill={timings.get('cuda_graph_prefill', 0.0):.2f}}}, "
                f"tokenizer_e2e={timings['tokenizer_e2e']:.2f}"
            )

    def hopeful(self) -> bool:
        """Whether anything speaks for this start ever reaching its port."""
        fault = self.process.fault
        if fault.lost or fault.fail in ("weights", "memory", "graphs"):
            return False
        if self.conf.attention not in config.SM120_BACKENDS[self.conf.version]:
            return False
        try:
            return bool(capacity.size(self.conf.sizing, self.sim.gpu_memory_mib))
        except capacity.NotEnoughMemoryError:
            return False

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
            fraction=conf.sizing.mem_fraction,
            minimum=capacity.QWEN36_27B.weights(conf.sizing.weights) / before,
            slots=conf.sizing.max_mamba or 0,
            ratio=capacity.slots_per_request(conf.sizing),
        )

    def graphs(self, after_pools: float) -> float:
        """Capture CUDA graphs; returns the GiB that are left."""
        conf, process = self.conf, self.process
        free = after_pools - BACKEND_MIB / MIB_PER_GIB
        if after_pools < LEAST_AFTER_POOLS_GIB:
            if conf.cuda_graph:
                self.say_capture(free)
                process.spend("graphs", GRAPHS_S / 4)
                process.fail(failures.CAUSES["oom_graph"], "graphs")
            process.fail(failures.CAUSES["oom_run"], "graphs")
        if not conf.cuda_graph:
            process.spend("graphs", 0)
            if conf.new:
                log.say("Disable prefill CUDA graph because the decode CUDA graph is disabled")
            else:
                log.say("Disable piecewise CUDA graph because --disable-cuda-graph is set")
            return free
        self.say_capture(free)
        sizes, began, done = capture_sizes(conf.graph_max), time.monotonic(), 0

        def bars(share: float) -> None:
            nonlocal done
            while done < int(share * len(sizes)):
                done += 1
                left = free - GRAPH_GB * done / len(sizes)
                label = f"Capturing batches (bs={sizes[-done]} avail_mem={left:.2f} GB)"
                bar = log.bar(label, done, len(sizes), time.monotonic() - began)
                log.write(log.ERR, bar)

        took = process.spend("graphs", GRAPHS_S, bars)
        log.write(log.ERR, "\n")
        left = free - GRAPH_GB
        process.startup["graph_gb"] = GRAPH_GB
        process.startup["cuda_graph_decode"] = took
        if conf.new:
            log.say(
                f"Capture target decode CUDA graph end. bs={sizes}, elapsed={took:.2f} s, "
                f"mem usage={GRAPH_GB:.2f} GB, avail mem={left:.2f} GB."
            )
            left = self.prefill_graphs(left)
        else:
            log.say(
                f"Capture cuda graph end. Time elapsed: {took:.2f} s. "
                f"mem usage={GRAPH_GB:.2f} GB. avail mem={left:.2f} GB."
            )
            log.say("Disable piecewise CUDA graph because the model is a multimodal model")
        return left

    def prefill_graphs(self, free: float) -> float:
        """Capture graphs for prefill as well (0.5.23); returns the GiB that are left."""
        if not self.conf.prefill_graph:
            log.say("Disable prefill CUDA graph because --cuda-graph-backend-prefill=disabled")
            return free
        log.say(
            "Capture target prefill CUDA graph begin. backend=breakable, "
            f"num_tokens={PREFILL_SIZES}, avail mem={free:.2f} GB"
        )
        took = self.process.spend("graphs", PREFILL_GRAPHS_S)
        self.process.startup["cuda_graph_prefill"] = took
        self.process.startup["prefill_gb"] = PREFILL_GRAPH_GB
        log.say(
            f"Capture target prefill CUDA graph end. elapsed={took:.2f} s, "
            f"mem usage={PREFILL_GRAPH_GB:.2f} GB, avail mem={free - PREFILL_GRAPH_GB:.2f} GB."
        )
        return free - PREFILL_GRAPH_GB

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


def _read_libraries() -> None:
    import console.lab.sim.serving  # noqa: F401
