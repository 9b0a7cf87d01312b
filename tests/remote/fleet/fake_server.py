"""A process that behaves like ``sglang.launch_server`` as far as the fleet looks.

Copied into a workspace as ``sglang/launch_server.py``. How it misbehaves is said by flags named
``--fake-*`` and, while it runs, by files in its working directory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from aiohttp import web

CHILD = """
import os, sys, time
parent = os.getppid()
while {orphan} or os.getppid() == parent:
    time.sleep(0.05)
"""


def told(what: str) -> bool:
    return Path(what).exists()


def hidden_key() -> str:
    return Path("key").read_text() if told("key") else ""


def log(text: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    print(f"[{stamp}] {text}", file=sys.stderr, flush=True)


class Server:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.running = 0
        self.decoded = 0.0
        self.asked = time.monotonic()
        self.terminated = False
        self.aborted = asyncio.Event()
        self.children: list[subprocess.Popen[bytes]] = []

    def slots(self) -> int:
        if self.args.mamba_scheduler_strategy == "no_buffer":
            return int(self.args.fake_slots)
        return int(self.args.fake_old_slots)

    def die(self, where: str) -> None:
        wanted = self.args.fake_die
        if wanted != where:
            return
        if where == "weights":
            log("Scheduler hit an exception: Traceback (most recent call last):")
            print(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
                file=sys.stderr,
                flush=True,
            )
            log("Received sigquit from a child process. It usually means the child failed.")
        os.kill(os.getpid(), signal.SIGKILL)

    def start(self) -> None:
        if self.args.fake_die == "argparse":
            print(
                "usage: ...\nsglang serve: error: unrecognized arguments: --nope", file=sys.stderr
            )
            sys.exit(2)
        pause = self.args.fake_load / 4
        log(f"server_args=ServerArgs(port={self.args.port}, api_key={self.args.api_key!r})")
        orphan = self.args.fake_orphan
        for title in ("sglang::scheduler", "sglang::detokenizer"):
            self.children.append(
                subprocess.Popen(
                    [title, "-c", CHILD.format(orphan=orphan)], executable=sys.executable
                )
            )
        time.sleep(pause)
        log("Load weight begin. avail mem=94.40 GB")
        self.die("weights")
        time.sleep(pause)
        log("Load weight end. elapsed=1.0 s, type=Qwen3_5, avail mem=42.90 GB, mem usage=51.50 GB.")
        log("KV Cache is allocated. #tokens: 200000, K size: 6.10 GB, V size: 6.10 GB")
        log("Memory pool end. avail mem=9.21 GB")
        time.sleep(pause)
        log(
            "max_total_num_tokens=200000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
            f"max_running_requests={self.slots()}, context_len=8192, available_gpu_mem=7.95 GB"
        )
        time.sleep(pause)

    @web.middleware
    async def guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        key = self.args.api_key or hidden_key()
        free = request.path in ("/health", "/metrics")
        if key and not free and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def health(self, _: web.Request) -> web.Response:
        await asyncio.sleep(0.05)
        ok = not self.terminated and not told("unhealthy")
        return web.Response(status=200 if ok else 503)

    async def loads(self, _: web.Request) -> web.Response:
        if told("hang"):
            await asyncio.sleep(3600)
        row = {
            "num_running_reqs": min(self.running, self.slots()),
            "num_waiting_reqs": max(self.running - self.slots(), 0),
            "max_running_requests": self.slots(),
            "max_total_num_tokens": 200000,
            "token_usage": 0.1,
        }
        return web.json_response({"version": "0.5.12", "loads": [row]})

    async def info(self, _: web.Request) -> web.Response:
        inner = {
            "max_mamba_cache_size": 186,
            "effective_max_running_requests_per_dp": self.slots(),
        }
        body = {"version": "0.5.12", "status": "ready", "internal_states": [inner]}
        return web.json_response({**body, "max_total_num_tokens": 200000})

    async def metrics(self, _: web.Request) -> web.Response:
        if not self.args.enable_metrics:
            return web.Response(status=404)
        now = time.monotonic()
        if self.running and not told("hang"):
            self.decoded += self.args.fake_rate * (now - self.asked)
        self.asked = now
        text = f'sglang:realtime_tokens_total{{mode="decode"}} {self.decoded}\n'
        return web.Response(text=text)

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.running += 1
        reason, made = "stop", 0
        try:
            while made < int(body.get("max_tokens", 8)):
                if self.aborted.is_set():
                    reason = "abort"
                    break
                if not told("hang"):
                    made += 1
                    self.decoded += 0 if self.args.fake_rate else 1
                await asyncio.sleep(0.01)
        finally:
            self.running -= 1
        return web.json_response(
            {
                "choices": [{"message": {"content": "yes"}, "finish_reason": reason}],
                "usage": {"completion_tokens": made, "prompt_tokens": 3},
            }
        )

    async def abort(self, _: web.Request) -> web.Response:
        self.aborted.set()
        await asyncio.sleep(0.1)
        self.aborted.clear()
        return web.Response()

    def terminate(self) -> None:
        log("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self.terminated = True

    async def drain(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            if not self.terminated:
                continue
            left = self.running + (4 if self.args.fake_leak else 0)
            log(f"Gracefully exiting... Remaining number of requests {left}.")
            if left == 0:
                for child in self.children:
                    child.kill()
                os.kill(os.getpid(), signal.SIGKILL)

    async def watch_children(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            for child in self.children:
                if child.poll() is not None and not self.args.fake_deaf:
                    log(f"Subprocess scheduler_0 (pid={child.pid}) crashed with exit code -9.")
                    os.kill(os.getpid(), signal.SIGKILL)

    async def serve(self) -> None:
        app = web.Application(middlewares=[self.guard])
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/loads", self.loads)
        app.router.add_get("/server_info", self.info)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/abort_request", self.abort)
        runner = web.AppRunner(app)
        await runner.setup()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.terminate)
        if self.args.fake_false_up:
            log("The server is fired up and ready to roll!")
            await asyncio.sleep(self.args.fake_false_up)
            sys.exit(1)
        site = web.TCPSite(runner, "127.0.0.1", self.args.port)
        await site.start()
        log("INFO:     Application startup complete.")
        log(f"INFO:     Uvicorn running on http://127.0.0.1:{self.args.port}")
        log("The server is fired up and ready to roll!")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(self.drain(), self.watch_children())


def main() -> None:
    parser = argparse.ArgumentParser(prog="sglang serve")
    parser.add_argument("--model-path")
    parser.add_argument("--port", type=int)
    parser.add_argument("--mamba-scheduler-strategy", default="auto")
    parser.add_argument("--mem-fraction-static", type=float)
    parser.add_argument("--enable-metrics", action="store_true")
    parser.add_argument("--api-key")
    parser.add_argument("--config")
    parser.add_argument("--fake-load", type=float, default=0.0)
    parser.add_argument("--fake-slots", type=int, default=72)
    parser.add_argument("--fake-old-slots", type=int, default=37)
    parser.add_argument("--fake-rate", type=float, default=0.0)
    parser.add_argument("--fake-die", default="")
    parser.add_argument("--fake-leak", action="store_true")
    parser.add_argument("--fake-deaf", action="store_true")
    parser.add_argument("--fake-orphan", action="store_true")
    parser.add_argument("--fake-false-up", type=float, default=0.0)
    args = parser.parse_args()
    if args.config:  # all that is put there is the key
        args.api_key = Path(args.config).read_text().split("'")[1]
    Path(f"env-{args.port}.json").write_text(json.dumps(dict(os.environ)))
    server = Server(args)
    server.start()
    asyncio.run(server.serve())


if __name__ == "__main__":
    main()
