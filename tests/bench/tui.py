"""What the console costs, in a real terminal on a real agent.

    python -m tests.bench.tui [--seconds 20] [--rates 0,1000,10000,100000]

Starts an agent on this machine in a temporary workspace (no hop), opens the console under a
pseudo-terminal of 200x50 and measures: start to the first paint, against an empty Textual app in
the same run; start to the first live data; CPU at rest and on the fleet screen; with eight log
panes fed from files at so many lines a second in all: CPU and the time from a key to its effect on
the screen; bytes a second over the link at rest; and memory over the messages of 24 hours.
One JSON line a measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import gc
import json
import os
import pty
import re
import select
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

import psutil

from console.config import load

ROOT = Path(__file__).parents[2]
COLUMNS, ROWS = 200, 50

EMPTY = """
from textual.app import App
class Empty(App[None]):
    BINDINGS = [("q", "quit", "quit")]
    def compose(self):
        from textual.widgets import Static
        yield Static("an empty app")
Empty().run()
"""

WRITER = """
import sys, time
folder, rate = sys.argv[1], float(sys.argv[2])
logs = [open(f"{folder}/sglang_gpu{i}.log", "a", buffering=1 << 16) for i in range(8)]
began, sent = time.perf_counter(), 0
while True:
    due = int((time.perf_counter() - began) * rate / 8)
    if due > sent:
        at = time.strftime("%Y-%m-%d %H:%M:%S")
        for log in logs:
            log.write("".join(
                f"[{at}] Decode batch, #running-req: 72, #full token: {n}, full token usage: 0.39, "
                f"mamba num: 220, mamba usage: 0.61, cuda graph: True, "
                f"gen throughput (token/s): 1043.{n % 100:02d}, #queue-req: 0\\n"
                for n in range(sent, due)))
            log.flush()
        sent = due
    time.sleep(0.02)
"""


class Terminal:
    """A child under a pseudo-terminal, everything it paints, and its keys."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        main, side = pty.openpty()
        fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=side, stdout=side, stderr=side, env=env, cwd=ROOT, start_new_session=True
        )
        os.close(side)
        self.main = main
        self.tail = b""
        self.bytes = 0

    def read(self, seconds: float) -> bytes:
        """What comes within a time; returns as soon as something came."""
        ready, _, _ = select.select([self.main], [], [], max(0.0, seconds))
        if not ready:
            return b""
        try:
            data = os.read(self.main, 1 << 20)
        except OSError:
            return b""
        self.bytes += len(data)
        self.tail = (self.tail + data)[-(1 << 20) :]
        return data

    def until(self, wanted: str, seconds: float = 60) -> float:
        """Wait until a text was painted; seconds since the call."""
        began = time.perf_counter()
        pattern = re.compile(wanted.encode())
        seen = b""
        while (left := seconds - (time.perf_counter() - began)) > 0:
            seen = seen[-4096:] + self.read(min(left, 0.5))
            if pattern.search(seen):
                return time.perf_counter() - began
        last = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", self.tail)[-1500:]
        raise SystemExit(f"{wanted!r} was not painted within {seconds} s; last: {last!r}")

    def drain(self, seconds: float) -> None:
        """Take what is painted for a time."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            self.read(left)

    def keys(self, text: str) -> None:
        """Type."""
        os.write(self.main, text.encode())

    def cpu(self) -> float:
        """CPU seconds of the console and what it started."""
        process = psutil.Process(self.process.pid)
        total = 0.0
        for one in [process, *process.children(recursive=True)]:
            times = one.cpu_times()
            total += times.user + times.system
        return total

    def rss_mb(self) -> float:
        """Resident memory of the console's own process."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / (1 << 20)

    def share(self, seconds: float) -> dict[str, float]:
        """CPU in percent of a core and bytes painted a second, over a time."""
        cpu, painted, began = self.cpu(), self.bytes, time.perf_counter()
        self.drain(seconds)
        wall = time.perf_counter() - began
        return {
            "cpu_percent": round(100 * (self.cpu() - cpu) / wall, 1),
            "painted_kb_s": round((self.bytes - painted) / wall / 1000, 1),
        }

    def close(self) -> None:
        """Leave as a person would."""
        self.keys("q")
        end = time.perf_counter() + 5
        while self.process.poll() is None and time.perf_counter() < end:
            self.read(0.1)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.main)


def end_all(folder: Path) -> None:
    """End what was started on this folder: agent, consoles, writers."""
    ours = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in word for word in process.cmdline()):
                ours += [*process.children(recursive=True), process]
        except psutil.Error:
            continue
    for process in ours:
        try:
            process.terminate()
        except psutil.Error:
            continue
    _, left = psutil.wait_procs(ours, timeout=3)
    for process in left:
        process.kill()


def tell(name: str, **values: Any) -> None:
    """One result."""
    print(json.dumps({"what": name, **values}), flush=True)


def quantiles(times: list[float]) -> dict[str, float]:
    """Milliseconds."""
    times = sorted(times)
    return {
        "median_ms": round(statistics.median(times) * 1000, 1),
        "p99_ms": round(times[min(len(times) - 1, int(0.99 * len(times)))] * 1000, 1),
        "max_ms": round(times[-1] * 1000, 1),
    }


def key_to_screen(terminal: Terminal, presses: int = 60) -> dict[str, float]:
    """From a key to its effect: holding shows `held` in the titles of eight panes."""
    times = []
    for _ in range(presses):
        terminal.drain(0.15)
        began = time.perf_counter()
        terminal.keys(" ")
        terminal.until("held", 10)
        times.append(time.perf_counter() - began)
        terminal.keys(" ")
    return quantiles(times)


def first_paint(env: dict[str, str], command: list[str], wanted: str, rounds: int) -> list[float]:
    """Seconds from start to a text, several times."""
    times = []
    for _ in range(rounds):
        terminal = Terminal(command, env)
        times.append(terminal.until(wanted))
        terminal.close()
    return times


async def link_at_rest(config: Path, seconds: float) -> float:
    """Bytes a second that the agent sends a console that only watches."""
    from console.link.client import Client
    from remote.protocol import Subscribe, encode

    total = 0
    target = load(config).target(None)

    def count(message: Any) -> None:
        nonlocal total
        total += len(encode(message))

    client = Client(target, on_message=count, on_status=lambda _: None)
    running = asyncio.create_task(client.run())
    await client.subscribe(Subscribe(snapshots=True, events_after=0))
    await asyncio.sleep(5)  # the first full snapshot is not rest
    total = 0
    await asyncio.sleep(seconds)
    found = total / seconds
    await client.close()
    await running
    return found


def memory_of_a_day() -> dict[str, float]:
    """RSS after the messages of one hour and of twenty-four, all eight logs at 2 lines/s."""
    from console import model
    from console.trend import Trend
    from remote.protocol import Event, Happened, LogPart
    from tests.console.screen.story import Story

    story = Story(lambda _: None, lambda _: None)
    state = model.State()
    recent, window = Trend(300, 150), Trend(72 * 3600, 400)
    process = psutil.Process()
    marks: dict[int, float] = {}
    for second in range(24 * 3600):
        story.now += 1
        if second % 4 == 0:  # the sums are what grows; one snapshot in four says the same
            snapshot = story.snapshot(full=False)
            state = model.reduce(state, snapshot, story.now)
            recent.add(state)
            window.add(state)
        for gpu in range(8):
            part = LogPart(f"gpu{gpu}", 1, second, second + 1, [f"{second} a line " * 8] * 2)
            state = model.reduce(state, part, story.now)
        if second % 20 == 0:
            event = Event(second + 1, story.now, "s3.uploaded", text="a batch of records")
            state = model.reduce(state, Happened(event), story.now)
        if second in (3599, 24 * 3600 - 1):
            gc.collect()
            marks[second] = process.memory_info().rss / (1 << 20)
    first, last = marks.values()
    return {
        "hour_1_mb": round(first, 1),
        "hour_24_mb": round(last, 1),
        "growth_percent": round(100 * (last - first) / first, 1),
    }


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tui", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rates", default="0,1000,10000,100000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-memory", action="store_true")
    given = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="stoker-bench-"))
    workspace = folder / "workspace"
    logs = workspace / "sglang_logs"
    logs.mkdir(parents=True)
    for gpu in range(8):
        (logs / f"sglang_gpu{gpu}.log").write_text("the first line\n")
    config = folder / "stoker.toml"
    config.write_text(
        f'default = "bench"\n[targets.bench]\nssh = ""\nworkspace = "{workspace}"\n'
        f'agent_python = "{sys.executable}"\n[fleet]\ngpus = 8\nmodel = "none"\n'
    )
    env = {
        **os.environ,
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
    }
    stoker = [str(Path(sys.executable).with_name("stoker")), "--config", str(config)]
    deployed = subprocess.run(
        [*stoker, "deploy"], env=env, capture_output=True, text=True, check=False
    )
    if deployed.returncode:
        raise SystemExit(deployed.stderr.strip() or "the agent was not deployed")
    try:
        load_1m = round(os.getloadavg()[0], 1)
        tell("machine", cores=psutil.cpu_count(), load_1m=load_1m)
        empty = first_paint(env, [sys.executable, "-c", EMPTY], "empty", given.rounds)
        paint = first_paint(env, stoker, "stoker", given.rounds)
        live = first_paint(env, stoker, "connected|read-only", given.rounds)
        base = statistics.median(empty)
        tell(
            "start",
            empty_app_s=round(base, 3),
            first_paint_s=round(statistics.median(paint), 3),
            ratio=round(statistics.median(paint) / base, 2),
            first_live_data_s=round(statistics.median(live), 3),
        )
        terminal = Terminal(stoker, env)
        terminal.until("connected|read-only")
        terminal.drain(5)
        tell("fleet, nothing changes", **terminal.share(given.seconds))
        terminal.keys("l")
        terminal.until("the first line")
        for rate in [int(r) for r in given.rates.split(",")]:
            writer = None
            if rate:
                writer = subprocess.Popen([sys.executable, "-c", WRITER, str(logs), str(rate)])
                terminal.drain(3)
            found = terminal.share(given.seconds)
            keys = key_to_screen(terminal)
            tell("eight panes", lines_s=rate, **found, **keys, rss_mb=round(terminal.rss_mb(), 1))
            if writer is not None:
                writer.kill()
                writer.wait()
        terminal.close()
        at_rest = asyncio.run(link_at_rest(config, given.seconds))
        tell("link at rest", kb_s=round(at_rest / 1000, 2))
        if not given.skip_memory:
            tell("memory", **memory_of_a_day())
    finally:
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
