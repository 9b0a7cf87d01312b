"""One simulated server, from its command line to its end: phases, children, signals, exit codes.

Follows ``srt/entrypoints/engine.py`` and ``http_server.py``: arguments, children, weights, pools,
graphs, then uvicorn, then the warm-up, and only then "fired up". Until uvicorn is up SIGTERM has
its default effect; afterwards it drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from console.lab.sim import capacity, children, config, failures, flags, gpu, log, settings

if TYPE_CHECKING:
    from console.lab.sim.core import Core

INIT_S = 6.0
LOAD_S_PER_GIB = 1.4
POOLS_S = 1.5
GRAPHS_S = 12.3
GRAPH_GB = 1.02
WARMUP_S = 4.0
JIT_S = 45.0
"""Kernels compiled once a container: the first start that finds none pays for it."""
SHARDS = 14
BACKEND_MIB = 900
"""Workspaces of the attention backend and of cuBLAS."""
LEAST_AFTER_POOLS_GIB = 1.6
"""Below this the capture of CUDA graphs runs out of memory."""

MIB_PER_GIB = 1024


class Server:
    """Everything of one process tree."""

    def __init__(
        self, conf: config.Config, sim: settings.SimSettings, fault: settings.Fault
    ) -> None:
        self.conf, self.sim, self.fault = conf, sim, fault
        self.fault_file = Path(sim.state_dir) / f"fault{conf.gpu}.json"
        self._fault_seen = self._fault_mark()
        self.began = time.monotonic()
        self.startup: dict[str, float] = {"available": 0.0, "graph_gb": 0.0}
        self.family: children.Children | None = None
        self.card: gpu.Card | None = None
        self.core: Core | None = None
        self._ended = False

    # --- faults ---

    def _fault_mark(self) -> float:
        with contextlib.suppress(OSError):
            return self.fault_file.stat().st_mtime_ns
        return 0

    def reread_fault(self) -> None:
        """Take over what was set since."""
        mark = self._fault_mark()
        if mark != self._fault_seen:
            self._fault_seen = mark
            self.fault = settings.fault(self.sim, self.conf.gpu)

    def due(self, phase: str, elapsed: float) -> failures.Cause | None:
        """The failure planned for this moment."""
        fault = self.fault
        if fault.fail != phase or elapsed < fault.after_s:
            return None
        if fault.times:
            counter = self.fault_file.with_suffix(".count")
            done = 0
            with contextlib.suppress(OSError, ValueError):
                done = int(counter.read_text())
            if done >= fault.times:
                return None
            counter.write_text(str(done + 1))
        return failures.cause(fault.cause, phase)

    # --- ends ---

    def kill_all(self) -> NoReturn:
        """SIGKILL to the children and to ourselves: exit status -9."""
        if self.family is not None:
            self.family.kill()
        os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(137)  # not reached

    def fail(self, cause: failures.Cause, phase: str, **values: object) -> NoReturn:
        """End as the real server does after this failure."""
        text = cause.text
        for name, value in values.items():
            text = text.replace("{" + name + "}", str(value))
            if isinstance(value, float):
                text = text.replace("{" + name + ":.3f}", f"{value:.3f}")
                text = text.replace("{" + name + ":.4f}", f"{value:.4f}")
        running = self.core is not None
        if cause.before:
            log.say(cause.before)
        if cause.how == "killed" and self.family is not None:
            self.family.scheduler.kill()
            self.family.scheduler.wait()
            if running:
                self.crashed("scheduler_0", self.family.scheduler.pid, -signal.SIGKILL)
            self.died_loading(-signal.SIGKILL)
        if cause.how == "main":
            log.write(log.ERR, failures.traceback(text, phase) + "\n")
            if self.family is not None:
                self.family.kill()
            raise SystemExit(1)
        if cause.how == "warmup":
            trace = failures.traceback(text, "warmup")
            log.say(f"Initialization failed. warmup error: {trace}")
            self.kill_all()
        log.say(f"Scheduler hit an exception: {failures.traceback(text, phase)}\n")
        if self.family is not None:  # the child ends once it has told its parent
            self.family.scheduler.kill()
        self.quit_signal(running)

    def quit_signal(self, running: bool) -> NoReturn:
        """What SIGQUIT does to the main process."""
        if running:
            log.say("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        else:
            log.say("Received sigquit from a child process. It usually means the child failed.")
        self.kill_all()

    def crashed(self, name: str, pid: int, code: int) -> NoReturn:
        """A child died without a word while the server ran."""
        log.say(
            f"Subprocess {name} (pid={pid}) crashed with exit code {code}. "
            "Triggering SIGQUIT for cleanup..."
        )
        self.quit_signal(True)

    def died_loading(self, code: int) -> NoReturn:
        """The scheduler died before it was ready."""
        text = (
            f"RuntimeError: Rank 0 scheduler died during initialization (exit code: {code}). "
            "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. "
            "Run `dmesg -T | grep -i oom` to check."
        )
        log.write(log.ERR, failures.traceback(text, "weights") + "\n")
        if self.family is not None:
            self.family.kill()
        raise SystemExit(1)

    # --- loading ---

    def spend(
        self, phase: str, seconds: float, busy: Callable[[float], None] | None = None
    ) -> float:
        """Let a phase of so many real seconds pass; returns the wall time it took."""
        began = time.monotonic()
        took = seconds * max(self.fault.slow, 0.01) / self.sim.speed
        while True:
            elapsed = time.monotonic() - began
            if self.family is not None and (dead := self.family.dead()):
                self.died_loading(dead[2])
            cause = self.due(phase, elapsed)
            if cause is None and elapsed >= took and self.fault.fail == phase:
                cause = self.due(phase, float("inf"))
            if cause is not None:
                self.fail(cause, phase, model=self.conf.model, port=self.conf.port)
            if busy is not None:
                busy(min(elapsed / took, 1.0) if took > 0 else 1.0)
            if self.card is not None:
                self.card.write()
            if elapsed >= took:
                return elapsed
            time.sleep(min(0.1, took - elapsed))

    def memory(self, used_gib: float, load: float = 0.0) -> None:
        """What the card now shows."""
        if self.card is not None:
            self.card.memory_mib = round(used_gib * MIB_PER_GIB)
            self.card.load = load
            self.card.write()

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
        self.spend("args", 0)
        log.say("Using default HuggingFace chat template with detected content format: string")
        folder = Path(self.sim.state_dir)
        card = gpu.claim(folder, conf.gpu)
        self.family = children.spawn(card, orphan=self.fault.orphan)
        total = self.sim.gpu_memory_mib / MIB_PER_GIB
        context = capacity.CONTEXT_MIB / MIB_PER_GIB
        taken = gpu.held_mib(folder, conf.gpu) / MIB_PER_GIB if card is None else 0.0
        self.spend("init", INIT_S)
        if not new:
            log.say("Init torch distributed begin.")
            log.say("Init torch distributed ends. elapsed=0.31 s, mem usage=0.09 GB")
        if card is not None:
            self.card = gpu.Card(folder, conf.gpu, self.family.scheduler.pid)
        self.memory(context)
        free = total - context - taken
        log.say(f"Load weight begin. avail mem={free:.2f} GB")
        needs = capacity.QWEN36_27B.weights(conf.weights)
        import_web = threading.Thread(target=_import_web, daemon=True)
        import_web.start()  # part of what loading is: Python reads its libraries meanwhile
        step = [0]
        began = time.monotonic()

        def shards(share: float) -> None:
            self.memory(context + needs * share, load=0.02)
            while step[0] < int(share * SHARDS):
                step[0] += 1
                passed = time.monotonic() - began
                text = log.bar("Multi-thread loading shards", step[0], SHARDS, passed)
                log.write(log.ERR, text)

        log.write(log.ERR, log.bar("Multi-thread loading shards", 0, SHARDS, 0.0))
        if free < needs + 1:
            self.spend("weights", needs * LOAD_S_PER_GIB * free / needs, None)
            log.write(log.ERR, "\n")
            self.fail(failures.CAUSES["oom_load"], "weights")
        took = self.spend("weights", needs * LOAD_S_PER_GIB, shards)
        import_web.join()
        self.startup["load_weight"] = took
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
        took = self.spend("memory", POOLS_S)
        self.startup["kv_cache_allocation"] = took
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
        self.memory(total - pools.after_pools_gib)
        log.say(f"Memory pool end. avail mem={pools.after_pools_gib:.2f} GB")
        log.say("Using hybrid linear attention backend for hybrid GDN models.")
        left = self.graphs(left)
        self.memory(total - left)
        self.startup["available"] = left
        chunk = conf.args.chunked_prefill_size
        log.say(
            f"max_total_num_tokens={pools.tokens}, "
            f"chunked_prefill_size={8192 if chunk is None else chunk}, "
            f"max_prefill_tokens={conf.args.max_prefill_tokens}, "
            f"max_running_requests={pools.max_running}, context_len={conf.context}, "
            f"available_gpu_mem={left:.2f} GB"
        )
        self.startup["scheduler_e2e"] = time.monotonic() - self.began
        self.startup["tokenizer_e2e"] = time.monotonic() - self.began
        if new:
            timings = self.startup
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
            self.fail(failures.CAUSES["fa3"], "memory")
        self.fail(failures.CAUSES[f"backend_{version[-2:]}"], "memory", backend=name)

    def pools(self) -> capacity.Pools:
        """Size the pools, or end with what the real server says."""
        conf = self.conf
        try:
            return capacity.size(conf.sizing, self.sim.gpu_memory_mib)
        except capacity.NotEnoughMemoryError as exc:
            kind = exc.kind
        if not conf.new:
            name = "mamba_zero_12" if kind in ("zero", "mamba") else "not_enough"
            self.fail(failures.CAUSES[name], "memory")
        before = self.sim.gpu_memory_mib / MIB_PER_GIB - capacity.CONTEXT_MIB / MIB_PER_GIB
        least = capacity.QWEN36_27B.weights(conf.weights) / before
        names = {"kv": "kv_zero_23", "mamba": "mamba_none_23", "zero": "mamba_small_23"}
        self.fail(
            failures.CAUSES[names.get(kind, "kv_zero_23")],
            "memory",
            fraction=conf.fraction,
            minimum=least,
            slots=conf.sizing.max_mamba or 0,
            ratio=capacity.slots_per_request(conf.sizing),
        )

    def graphs(self, free: float) -> float:
        """Capture CUDA graphs; returns the GiB that are left."""
        conf = self.conf
        if free < LEAST_AFTER_POOLS_GIB - BACKEND_MIB / MIB_PER_GIB:
            if conf.cuda_graph:
                self.say_capture(free)
                self.spend("graphs", GRAPHS_S / 4)
                self.fail(failures.CAUSES["oom_graph"], "graphs")
            self.fail(failures.CAUSES["oom_run"], "graphs")
        if not conf.cuda_graph:
            self.spend("graphs", 0)
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

        took = self.spend("graphs", GRAPHS_S, bars)
        log.write(log.ERR, "\n")
        left = free - GRAPH_GB
        self.startup["graph_gb"] = GRAPH_GB
        self.startup["cuda_graph_decode"] = took
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

    # --- serving ---

    async def serve(self, pools: capacity.Pools) -> int:
        """Serve until the end; returns the exit status."""
        from aiohttp import web

        from console.lab.sim.core import Core
        from console.lab.sim.web import KEEP_ALIVE_S, Face

        conf = self.conf
        core = self.core = Core(conf, pools, self.sim, self.startup, lambda: self.fault)
        loop = asyncio.get_running_loop()
        log.uvicorn(f"Started server process [{os.getpid()}]")
        log.uvicorn("Waiting for application startup.")
        log.uvicorn("Application startup complete.")
        stop = asyncio.Event()
        interrupts = [0]

        def interrupted() -> None:
            interrupts[0] += 1
            stop.set()

        loop.add_signal_handler(signal.SIGINT, interrupted)
        loop.add_signal_handler(signal.SIGTERM, self.term)
        loop.add_signal_handler(signal.SIGQUIT, self.quit_signal, True)
        face = Face(core)
        runner = web.AppRunner(
            face.app(), access_log=None, keepalive_timeout=KEEP_ALIVE_S, handle_signals=False
        )
        await runner.setup()
        site = web.TCPSite(runner, conf.host, conf.port, backlog=2048)
        try:
            await site.start()
        except OSError as exc:
            return await self.port_taken(exc)
        log.uvicorn(f"Uvicorn running on http://{conf.host}:{conf.port} (Press CTRL+C to quit)")
        tasks = [loop.create_task(self.watch()), loop.create_task(self.warm_up())]
        tasks.append(loop.create_task(self.drain_watch()))
        await stop.wait()
        log.uvicorn("Shutting down")
        await site.stop()
        if core.open:
            log.uvicorn("Waiting for connections to close. (CTRL+C to force quit)")
        while any(entry is not None for entry in core.open.values()) and interrupts[0] < 2:
            await asyncio.sleep(0.1)
        log.uvicorn("Waiting for application shutdown.")
        log.uvicorn("Application shutdown complete.")
        log.uvicorn(f"Finished server process [{os.getpid()}]")
        assert self.family is not None
        self.family.kill()
        if conf.new:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 0

    async def warm_up(self) -> None:
        """The first generation, which the server asks of itself."""
        from console.lab.sim.engine import Work

        core, conf = self.core, self.conf
        assert core is not None
        marker = Path(self.sim.state_dir) / f"kernels-{conf.version}"
        seconds = WARMUP_S + (0 if marker.exists() else JIT_S)
        if not conf.args.skip_server_warmup:
            await asyncio.sleep(0.05)
            log.access(_peer(), "GET", "/model_info", 200)
            began = time.monotonic()
            took = seconds * max(self.fault.slow, 0.01) / self.sim.speed
            while (elapsed := time.monotonic() - began) < took:
                if cause := self.due("warmup", elapsed):
                    self.fail(cause, "warmup", port=conf.port)
                await asyncio.sleep(min(0.1, took - elapsed))
            if cause := self.due("warmup", float("inf")):
                self.fail(cause, "warmup", port=conf.port)
            done = asyncio.Event()
            work = Work("warmup", 8, 8, 8, silent=True)
            work.done = lambda work, how: done.set()
            core.engine.submit(work, core.now())
            core.advance()
            await done.wait()
            with contextlib.suppress(OSError):
                marker.touch()
            log.access(_peer(), "POST", "/generate", 200)
        core.status = "Up"
        if conf.new:
            log.access(_peer(), "POST", "/freeze_gc", 200)
        log.say("The server is fired up and ready to roll!")
        self.began = time.monotonic()

    async def watch(self) -> None:
        """Once or twice a second: children, faults, the scheduler's gauges, the card."""
        core, family = self.core, self.family
        assert core is not None
        assert family is not None
        stuck = 0.0
        beat = 0
        while True:
            await asyncio.sleep(0.5)
            beat += 1
            self.reread_fault()
            if dead := family.dead():
                self.crashed(*dead)
            up = core.status != "Starting"
            since = time.monotonic() - self.began
            if up and (cause := self.due("run", since)):
                core.advance()
                self.fail(cause, "run")
            due = up and since >= self.fault.after_s
            hung = self.fault.hang and due
            core.set_frozen(hung or family.frozen(), (self.fault.stall and due) or core.paused)
            if not core.frozen:
                core.advance()
                core.metrics.idle(core.now())
            # A stuck forward pass is counted; a stopped process counts nothing.
            working = core.engine.running or core.engine.waiting
            stuck = stuck + 0.5 if hung and working else 0.0
            limit = self.conf.args.watchdog_timeout or 300
            if stuck >= limit:
                await self.watchdog(limit)
            if self.card is not None and beat % 2 == 0:
                self.card.load = core.busy
                self.card.write()

    async def watchdog(self, limit: float) -> NoReturn:
        """The scheduler's own watchdog gives up on a stuck forward pass."""
        shown = int(limit) if float(limit).is_integer() else limit
        log.say(f"Scheduler watchdog timeout (self.watchdog_timeout={shown}, self.soft=False)")
        log.write(log.ERR, "\n")
        log.write(log.OUT, "\n")
        await asyncio.sleep(5)
        self.quit_signal(True)

    # --- draining ---

    def term(self) -> None:
        """SIGTERM once the server is up."""
        log.say("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        if self.core is not None:
            self.core.draining = True

    async def drain_watch(self) -> None:
        """Every five seconds: has a drain begun, and is it over."""
        from console.lab.sim.core import DRAIN_TICK_S

        core = self.core
        assert core is not None
        while not core.draining:
            await asyncio.sleep(DRAIN_TICK_S)
        while True:
            if not core.frozen:
                core.advance()
            rids = list(core.open)
            if core.status == "UnHealthy":
                log.say("Signal SIGTERM received while health check failed. Force exiting.")
                break
            if os.environ.get("SGL_FORCE_SHUTDOWN", "").lower() in ("1", "true"):
                log.say("Signal SIGTERM received while force shutdown flag set. Force exiting.")
                break
            if self.fault.endless_drain:
                rids = rids or ["0" * 32]
            log.say(
                f"Gracefully exiting... Remaining number of requests {len(rids)}. "
                f"Remaining requests remaining_rids={rids}."
            )
            if not rids:
                break
            await asyncio.sleep(DRAIN_TICK_S)
        if not self.conf.new:
            self.kill_all()
        assert self.family is not None
        log.say(
            f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=False, "
            f"pid={os.getpid()}"
        )
        self.family.kill()
        log.uvicorn("Shutting down")
        log.uvicorn("Waiting for application shutdown.")
        log.uvicorn("Application shutdown complete.")
        log.uvicorn(f"Finished server process [{os.getpid()}]")
        os._exit(0)

    # --- a taken port ---

    async def port_taken(self, exc: OSError) -> int:
        """uvicorn could not bind: the warm-up thread meets whoever holds the port."""
        conf = self.conf
        log.uvicorn(
            f"[Errno {exc.errno}] error while attempting to bind on address "
            f"({conf.host!r}, {conf.port}): {os.strerror(exc.errno or 0).lower()}",
            "ERROR",
        )
        log.uvicorn("Waiting for application shutdown.")
        for _ in range(120):
            if await asyncio.to_thread(_other_sglang, conf.host, conf.port):
                log.say("The server is fired up and ready to roll!")
                log.uvicorn("Application shutdown complete.")
                assert self.family is not None
                self.family.kill()
                return 3 if conf.new else 1
            await asyncio.sleep(1)
            self.reread_fault()
        trace = failures.traceback(
            f"AssertionError: res=<Response [404]>, res.text='port {conf.port}'", "warmup"
        )
        log.say(f"Initialization failed. warmup error: {trace}")
        self.kill_all()


def _other_sglang(host: str, port: int) -> bool:
    """Whether the holder of the port passes for a healthy server of ours."""
    import http.client

    where = "127.0.0.1" if host in ("0.0.0.0", "") else host
    try:
        link = http.client.HTTPConnection(where, port, timeout=5)
        link.request("GET", "/model_info")
        if link.getresponse().status != 200:
            return False
        link = http.client.HTTPConnection(where, port, timeout=600)
        body = (
            '{"text": "The capital city of France is", '
            '"sampling_params": {"temperature": 0, "max_new_tokens": 8}}'
        )
        link.request("POST", "/generate", body, {"Content-Type": "application/json"})
        return link.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def capture_sizes(most: int) -> list[int]:
    """Batch sizes that graphs are captured for."""
    sizes = [1, 2, 4, 8, 12, 16, 24, 32, *range(40, 257, 8), *range(272, 513, 16)]
    return [size for size in sizes if size <= most] or [most]


def _peer() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _import_web() -> None:
    import console.lab.sim.web  # noqa: F401


def main(argv: Sequence[str], version: settings.Version, sim: settings.SimSettings) -> int:
    """Run one server; returns its exit status (or is killed, as the real one is)."""
    args = flags.parse(argv, version)
    args._argv = list(argv)
    fault = settings.fault(sim, config.gpu_index(args))
    try:
        conf = config.resolve(args, version, sim.gpu_memory_mib)
    except config.ArgumentsError as exc:
        log.write(log.ERR, failures.traceback(str(exc), "args") + "\n")
        return 1
    if fault.silent:
        while True:
            time.sleep(3600)
    server = Server(conf, sim, fault)
    pools = server.load()
    return asyncio.run(server.serve(pools))
