"""From an open port to the end: uvicorn's life, the warm-up, signals, the drain, the watchdogs."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import socket
import time
from pathlib import Path
from typing import NoReturn

from aiohttp import web

from console.lab.sim import capacity, failures, log
from console.lab.sim.children import Children
from console.lab.sim.core import DRAIN_TICK_S, Core
from console.lab.sim.process import Process
from console.lab.sim.web import KEEP_ALIVE_S, Face
from console.lab.sim.work import Work

WARMUP_S = 4.0
JIT_S = 45.0
"""Kernels compiled once a container: the first start that finds none pays for it."""
PORT_TRIES = 120
BEAT_S = 0.5


class Serving:
    """One server while its port is (or should be) open."""

    def __init__(self, process: Process, family: Children, pools: capacity.Pools) -> None:
        self.process, self.family, self.conf = process, family, process.conf
        self.core = Core(process.conf, pools, process.sim, process.startup, lambda: process.fault)
        self.core.crash = lambda text: process.fail(failures.Cause(text), "run")
        self._interrupts = 0
        self._stop = asyncio.Event()
        process.running = True

    async def serve(self) -> int:
        """Serve until the end; returns the exit status."""
        conf, loop = self.conf, asyncio.get_running_loop()
        log.uvicorn(f"Started server process [{os.getpid()}]")
        log.uvicorn("Waiting for application startup.")
        log.uvicorn("Application startup complete.")
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        loop.add_signal_handler(signal.SIGTERM, self._terminated)
        loop.add_signal_handler(signal.SIGQUIT, self.process.quit_signal)
        runner = web.AppRunner(
            Face(self.core).app(), access_log=None, keepalive_timeout=KEEP_ALIVE_S
        )
        await runner.setup()
        site = web.TCPSite(runner, conf.host, conf.port, backlog=2048)
        try:
            await site.start()
        except OSError as exc:
            return await self._port_taken(exc)
        log.uvicorn(f"Uvicorn running on http://{conf.host}:{conf.port} (Press CTRL+C to quit)")
        stopped = loop.create_task(self._stop.wait())
        pending: set[asyncio.Task[object]] = {stopped}
        for work in (self._watch, self._warm_up, self._drain_watch):
            pending.add(loop.create_task(work()))
        while not stopped.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        log.uvicorn("Shutting down")
        await site.stop()
        await self._close_connections()
        self._goodbye()
        self.family.kill()
        if conf.new:  # ended by the signal itself in this release
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 0

    def _interrupted(self) -> None:
        self._interrupts += 1
        self._stop.set()

    async def _close_connections(self) -> None:
        """After SIGINT: no limit, but a second one forces."""

        def waiting() -> list[asyncio.Future[str]]:
            return [entry.future for entry in self.core.open.values() if entry is not None]

        if waiting():
            log.uvicorn("Waiting for connections to close. (CTRL+C to force quit)")
        while self._interrupts < 2 and (futures := waiting()):
            await asyncio.wait(futures, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.05)  # the last answers are being written

    @staticmethod
    def _goodbye() -> None:
        log.uvicorn("Waiting for application shutdown.")
        log.uvicorn("Application shutdown complete.")
        log.uvicorn(f"Finished server process [{os.getpid()}]")

    async def _warm_up(self) -> None:
        """The first generation, which the server asks of itself."""
        core, conf = self.core, self.conf
        marker = Path(self.process.sim.state_dir) / f"kernels-{conf.version}"
        seconds = WARMUP_S + (0 if marker.exists() else JIT_S)
        if not conf.args.skip_server_warmup:
            await asyncio.sleep(0.05)
            log.access(_peer(), "GET", "/model_info", 200)
            began = time.monotonic()
            took = seconds * max(self.process.fault.slow, 0.01) / self.process.sim.speed
            while (elapsed := time.monotonic() - began) < took:
                if cause := self.process.due("warmup", elapsed):
                    self.process.fail(cause, "warmup", port=conf.port)
                await asyncio.sleep(min(0.1, took - elapsed))
            if cause := self.process.due("warmup", float("inf")):
                self.process.fail(cause, "warmup", port=conf.port)
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
        self.process.began = time.monotonic()

    async def _watch(self) -> None:
        """Twice a second: children, faults, the scheduler's gauges, the card."""
        core, process = self.core, self.process
        stuck = beat = 0.0
        while True:
            await asyncio.sleep(BEAT_S)
            beat += BEAT_S
            process.reread_fault()
            fault = process.fault
            if dead := self.family.dead():
                process.crashed(*dead)
            up = core.status != "Starting"
            since = time.monotonic() - process.began
            if up and (cause := process.due("run", since)):
                core.advance()
                process.fail(cause, "run")
            due = up and since >= fault.after_s
            hung = fault.hang and due
            core.set_frozen(hung or self.family.frozen(), fault.stall and due)
            now = core.now()
            if not core.frozen:
                core.advance()
                core.metrics.idle(now)
            # A stuck forward pass is counted; a stopped process counts nothing.
            working = core.engine.running or core.engine.waiting
            stuck = stuck + BEAT_S if hung and working else 0.0
            limit = self.conf.args.watchdog_timeout or 300
            if stuck >= limit:
                await self._watchdog(limit)
            if process.card is not None and beat % 1 == 0:
                process.card.load = core.busy
                process.card.write()

    async def _watchdog(self, limit: float) -> NoReturn:
        """The scheduler's own watchdog gives up on a stuck forward pass."""
        shown = int(limit) if float(limit).is_integer() else limit
        log.say(f"Scheduler watchdog timeout (self.watchdog_timeout={shown}, self.soft=False)")
        log.write(log.ERR, "\n")
        log.write(log.OUT, "\n")
        await asyncio.sleep(5)
        self.process.quit_signal()

    # --- draining ---

    def _terminated(self) -> None:
        """SIGTERM once the server is up."""
        log.say("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self.core.draining = True

    async def _drain_watch(self) -> None:
        """Every five seconds: has a drain begun, and is it over."""
        core = self.core
        while not core.draining:  # noqa: ASYNC110 - the real one, too, looks every five seconds
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
            if self.process.fault.endless_drain:
                rids = rids or ["0" * 32]
            log.say(
                f"Gracefully exiting... Remaining number of requests {len(rids)}. "
                f"Remaining requests remaining_rids={rids}."
            )
            if not rids:
                break
            await asyncio.sleep(DRAIN_TICK_S)
        if not self.conf.new:
            self.process.kill_all()
        log.say(
            f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=False, "
            f"pid={os.getpid()}"
        )
        self.family.kill()
        log.uvicorn("Shutting down")
        self._goodbye()
        os._exit(0)

    # --- a taken port ---

    async def _port_taken(self, exc: OSError) -> int:
        """uvicorn could not bind: the warm-up thread meets whoever holds the port."""
        conf = self.conf
        log.uvicorn(
            f"[Errno {exc.errno}] error while attempting to bind on address "
            f"({conf.host!r}, {conf.port}): {os.strerror(exc.errno or 0).lower()}",
            "ERROR",
        )
        log.uvicorn("Waiting for application shutdown.")
        for _ in range(PORT_TRIES):
            if await asyncio.to_thread(_other_sglang, conf.host, conf.port):
                break
            await asyncio.sleep(1)
        else:
            last = f"AssertionError: res=<Response [404]>, res.text='port {conf.port}'"
            trace = failures.traceback(last, "warmup")
            log.say(f"Initialization failed. warmup error: {trace}")
            self.process.kill_all()
        log.say("The server is fired up and ready to roll!")
        log.uvicorn("Application shutdown complete.")
        self.family.kill()
        return 3 if conf.new else 1


def _other_sglang(host: str, port: int) -> bool:
    """Whether the holder of the port passes for a healthy server of ours."""
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


def _peer() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
