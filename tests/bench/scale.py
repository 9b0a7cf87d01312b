"""A run of ten million prompts: time to its first request, and memory.

    python -m tests.bench.scale [--prompts 10000000] [--done 5000000] [--aside 500000]

Prompts and records are of 200 bytes, so that the disk suffices (about 4 GB). The done half lies
in sealed batches, as a run leaves them. The very first start reads the file whole: it hashes it,
checks every line and keeps where each begins. Half a million more are set aside, in records of
4,000 bytes: a start knows them by their index; with the index lost it reads them all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from remote.generate import layout, sides
from remote.generate.ledger import Entry, Ledger
from remote.generate.opening import encode_run
from remote.generate.prompts import open_prompts
from remote.generate.records import RunFile, Seen, Usage
from remote.generate.recovery import recover
from tests.bench.tools import ROOT, report
from tests.remote.generate.crash import Quick


class _FirstRequest(BaseHTTPRequestHandler):
    """Says what it serves, answers the trial, notes the first real request and keeps it."""

    seen = threading.Event()

    def do_GET(self) -> None:
        self._say({"data": [{"id": "m", "owned_by": "mock"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body["max_tokens"] != 8:
            self.seen.set()
            time.sleep(3600)
        message = {"content": "ready"}
        self._say({"choices": [{"message": message, "finish_reason": "stop"}]})

    def _say(self, document: object) -> None:
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def make_prompts(path: Path, count: int) -> None:
    """Lines of 200 bytes."""
    with path.open("w") as out:
        for start in range(0, count, 100_000):
            out.write(
                "".join(
                    f'{{"messages":[{{"role":"user","content":"{i:<140}"}}],"source":"b"}}\n'
                    for i in range(start, min(count, start + 100_000))
                )
            )


def make_done(folder: Path, prompts: Path, done: int) -> None:
    """The first ``done`` prompts, shuffled a little, in sealed batches."""
    folder.mkdir()
    opened, entries = open_prompts(prompts, folder / layout.INDEX, [])
    total = len(opened)
    params = {
        "model": "m",
        "endpoint": "chat",
        "max_tokens": 4096,
        "thinking": True,
        "temperature": None,
        "request": {},
    }
    run = RunFile("bench", entries, params, "2026-01-01T00:00:00Z")
    (folder / layout.RUN).write_bytes(encode_run(run))
    recovered = recover(folder, total, adopted=False, disk=Quick())
    ledger = Ledger(folder, recovered.books, Quick())
    text = b"x" * 140
    usage = Usage(20, 30, 0)
    for start in range(0, done, 10_000):
        order = [start + (i * 7919) % 10_000 for i in range(min(10_000, done - start))]
        ledger.add(
            Entry(
                "batch",
                i,
                b'{"index":%d,"outcome":"ok","content":"%b"}\n' % (i, text),
                Seen(i, "bench", "ok", usage),
            )
            for i in order
        )
        ledger.flush()
        ledger.acked.clear()
        ledger.sealed.clear()
    ledger.close()
    opened.close()


def set_aside(folder: Path, total: int, begin: int, count: int) -> None:
    """Set ``count`` prompts aside, with records of 4,000 bytes."""
    recovered = recover(folder, total, adopted=False, disk=Quick())
    ledger = Ledger(folder, recovered.books, Quick())
    text = b"x" * 3930
    for start in range(begin, begin + count, 5000):
        ledger.add(
            Entry(
                "set_aside",
                i,
                b'{"index":%d,"outcome":"looped","content":"%b"}\n' % (i, text),
                Seen(i, "bench", "looped"),
            )
            for i in range(start, min(start + 5000, begin + count))
        )
        ledger.flush()
        ledger.acked.clear()
    ledger.close()


class Start(NamedTuple):
    """Of a run until its first request."""

    wall: float
    peak_mb: float
    cpu: float


def start(folder: Path, prompts: Path, url: str) -> Start:
    """Start the run, wait for its first request, kill it."""
    _FirstRequest.seen.clear()
    command = [sys.executable, "-m", "remote.generate", "--prompts", str(prompts)]
    command += ["--output", str(folder), "--server", url, "--concurrency", "8"]
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    peak = 0.0
    while not _FirstRequest.seen.wait(0.02):
        if process.poll() is not None:
            raise SystemExit(f"the run left with {process.returncode}")
        peak = max(peak, psutil.Process(process.pid).memory_info().rss / 1e6)
    took = time.perf_counter() - began
    seen = psutil.Process(process.pid)
    peak, times = max(peak, seen.memory_info().rss / 1e6), seen.cpu_times()
    process.kill()
    process.wait()
    return Start(took, peak, times.user + times.system)


def bench(prompts: int = 10_000_000, done: int = 5_000_000, aside: int = 500_000) -> dict[str, Any]:
    """Starts at ten thousand prompts, at many of which none is done, at half of them done, and with
    some set aside as well."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _FirstRequest)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_prompts(folder / "small.jsonl", 10_000)
        start(folder / "small", folder / "small.jsonl", url)
        few = start(folder / "small", folder / "small.jsonl", url)
        make_prompts(folder / "big.jsonl", prompts)
        fresh = start(folder / "fresh", folder / "big.jsonl", url)
        make_done(folder / "big", folder / "big.jsonl", done)
        big = start(folder / "big", folder / "big.jsonl", url)
        set_aside(folder / "big", prompts, done, aside)
        with_aside = start(folder / "big", folder / "big.jsonl", url)
        sides.path_of(folder / "big" / layout.SET_ASIDE).unlink()
        reading = start(folder / "big", folder / "big.jsonl", url)
    server.shutdown()
    return {
        "prompts": prompts,
        "done": done,
        "start_at_10000_s": round(few.wall, 2),
        "start_s": round(big.wall, 2),
        "start_cpu_s": round(big.cpu, 2),
        "peak_mb_above_10000": round(big.peak_mb - few.peak_mb),
        "set_aside": aside,
        "start_with_set_aside_s": round(with_aside.wall, 2),
        "start_without_their_index_s": round(reading.wall, 2),
        "very_first_start_s": round(fresh.wall, 1),
        "very_first_cpu_s": round(fresh.cpu, 1),
        "very_first_peak_mb_above_10000": round(fresh.peak_mb - few.peak_mb),
    }


if __name__ == "__main__":
    report(bench, prompts=10_000_000, done=5_000_000, aside=500_000)
