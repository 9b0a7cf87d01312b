"""What the run costs: prompts a second and CPU seconds a thousand, outputs durable.

    python -m tests.bench.client [--prompts 3000] [--delay 0.05] [--rounds 3]

One core for the mock engine, one for the client where the machine has two; 512 requests in
flight over eight servers, answers of 10 KB. ``bare`` is an aiohttp loop that sends the same and
writes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]


def pin(pid: int, core: int) -> None:
    """Keep a process on one core, where the system can."""
    cores = psutil.cpu_count() or 1
    process = psutil.Process(pid)
    if cores > 1 and hasattr(process, "cpu_affinity"):
        process.cpu_affinity([core % cores])


class Mock:
    """The mock engine's process."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "tests.bench.mock_engine", *options]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        pin(self.process.pid, 0)
        assert self.process.stdout is not None
        self.ports = [int(word) for word in self.process.stdout.readline().split()]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]

    def __enter__(self) -> Mock:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def make_prompts(path: Path, count: int, size: int = 1000) -> None:
    """A prompts file of about ``size`` bytes a line."""
    padding = ("solve this problem carefully and explain each step. " * 200)[: max(0, size - 90)]
    with path.open("w") as out:
        for index in range(count):
            message = {"role": "user", "content": f"PX{index:08d} {padding}"}
            out.write(json.dumps({"id": index, "messages": [message]}) + "\n")


def measure(command: list[str], limit: float = 180.0) -> dict[str, Any]:
    """Run a command on the second core: wall and CPU seconds, peak memory, exit status.

    One that takes longer than ``limit`` is killed, which its exit status shows.
    """
    began = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log)
        pin(process.pid, 1)
        clock = threading.Timer(limit, process.kill)
        clock.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        clock.cancel()
        log.seek(0)
        errors = log.read().decode(errors="replace")
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "wall": wall,
        "cpu": usage.ru_utime + usage.ru_stime,
        "rss_mb": usage.ru_maxrss / 1024,
        "exit": process.returncode,
        "errors": errors[-500:],
    }


def stoker(folder: Path, prompts: Path, urls: list[str], *options: str) -> dict[str, Any]:
    """One run of ours."""
    command = [sys.executable, "-m", "remote.generate", "--prompts", str(prompts)]
    command += ["--output", str(folder), *options]
    for url in urls:
        command += ["--server", url]
    return measure(command)


async def bare_loop(data: bytes, urls: list[str], slots: int) -> None:
    """The same requests by aiohttp alone; nothing is kept."""
    import aiohttp

    lines = iter(data.splitlines())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def worker(url: str) -> None:
            for line in lines:
                body = {"model": "m", "messages": json.loads(line)["messages"], "max_tokens": 4096}
                async with session.post(url + "/v1/chat/completions", json=body) as response:
                    json.loads(await response.read())

        await asyncio.gather(*(worker(url) for url in urls for _ in range(slots)))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=3000)
    parser.add_argument("--delay", default="0.05")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bare", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.bare:
        asyncio.run(bare_loop(Path(chosen.bare[0]).read_bytes(), chosen.bare[1:], 64))
        return
    rows: dict[str, list[dict[str, Any]]] = {"stoker": [], "bare": []}
    with tempfile.TemporaryDirectory() as temporary, Mock("--delay", chosen.delay) as mock:
        prompts = Path(temporary) / "prompts.jsonl"
        make_prompts(prompts, chosen.prompts)
        for _ in range(chosen.rounds):
            out = Path(temporary) / "out"
            shutil.rmtree(out, ignore_errors=True)
            rows["stoker"].append(stoker(out, prompts, mock.urls, "--concurrency", "64"))
            bare = [sys.executable, "-m", "tests.bench.client", "--bare", str(prompts)]
            rows["bare"].append(measure([*bare, *mock.urls]))
    for name, found in rows.items():
        wall = statistics.median(row["wall"] for row in found)
        cpu = statistics.median(row["cpu"] for row in found) / chosen.prompts * 1000
        memory = max(row["rss_mb"] for row in found)
        exits = {row["exit"] for row in found}
        print(
            f"{name:8} {chosen.prompts / wall:8.0f} prompts/s {cpu:7.3f} CPU s per 1,000 "
            f"{memory:6.0f} MB  exit {exits} {found[-1]['errors']}"
        )


if __name__ == "__main__":
    main()
