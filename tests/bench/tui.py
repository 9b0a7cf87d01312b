"""What the console costs, in a real terminal.

    python -m tests.bench.tui [--json FILE] [--only NAME …] [--quick]

``start``: to the first paint, against an empty Textual app, taken in turns, and to the first live
data; both from byte code that is there already, as in an installed program. ``fleet``: the console
on the lab over SSH and ``pct``, eight simulated servers and cards behind a real agent, plots and
all: CPU with a run at work, CPU and the link's bytes with the run paused, and the time from a key
to its effect. ``panes``: eight logs fed from files at so many lines a second in all, CPU and keys.
``day``: memory over the messages of 24 hours. Each number that has a bar is listed with it at the
end; exit status 1 where one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from console.config import Target
from console.lab import job
from console.lab.lab import Lab
from console.lab.options import Options
from console.link.client import Client
from console.session import session
from remote.protocol import Message, RunControl, Subscribe, encode
from tests.bench.judge import Bar, judged
from tests.bench.terminal import ROOT, Terminal
from tests.bench.tools import machine
from tests.ending import end_all_in

RATES = (0, 1_000, 10_000, 100_000)
"""Lines a second of all eight logs together."""

BARS: tuple[Bar, ...] = (
    ("start.ratio", "<", 1.3),
    ("fleet.live.cpu_percent", "<", 8),
    ("fleet.live.keys.p99_ms", "<", 100),
    ("fleet.live.link_kb_s", "<", 8),
    ("fleet.paused.cpu_percent", "<", 3),
    ("fleet.paused.link_kb_s", "<", 8),
    *((f"panes.{rate}.keys.p99_ms", "<", 100.0) for rate in RATES),
    ("day.growth_percent", "<", 10),
    ("day.last_mb", "<", 200),
)

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


def environment(folder: Path) -> dict[str, str]:
    """A terminal, folders and byte code of the measurement's own."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {
        **kept,
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
    }


def console(config: Path) -> list[str]:
    """The command that opens it."""
    return [str(Path(sys.executable).with_name("stoker")), "--config", str(config)]


def quantiles(times: list[float]) -> dict[str, float]:
    """Milliseconds."""
    times = sorted(times)
    return {
        "presses": len(times),
        "median_ms": round(statistics.median(times) * 1000, 1),
        "p99_ms": round(times[min(len(times) - 1, int(0.99 * len(times)))] * 1000, 1),
        "max_ms": round(times[-1] * 1000, 1),
    }


def keys(
    terminal: Terminal, strokes: tuple[tuple[str, str], ...], presses: int
) -> dict[str, float]:
    """From a key to a text that only its effect paints: ``strokes`` in turn, an empty text for a
    key that only leads back. At moments that no timer of the console's knows."""
    times: list[float] = []
    while len(times) < presses:
        for key, effect in strokes:
            terminal.drain(random.uniform(0.08, 0.25))
            began = time.perf_counter()
            terminal.keys(key)
            if effect:
                terminal.until(effect, 10)
                times.append(time.perf_counter() - began)
    return quantiles(times)


# --- start ---


def start(folder: Path, config: Path, rounds: int) -> dict[str, Any]:
    """To the first paint and to live data."""
    env = environment(folder)
    ours, empty = console(config), [sys.executable, "-c", EMPTY]
    wanted = {
        "empty_app_s": (empty, "empty"),
        "first_paint_s": (ours, "stoker"),
        "first_live_data_s": (ours, "connected|read-only"),
    }
    times: dict[str, list[float]] = {name: [] for name in wanted}
    for turn in range(rounds + 1):
        for name, (command, text) in wanted.items():
            terminal = Terminal(command, env)
            took = terminal.until(text)
            terminal.close()
            if turn:  # the first one writes the byte code
                times[name].append(took)
    found = {name: round(statistics.median(taken), 3) for name, taken in times.items()}
    pairs = zip(times["first_paint_s"], times["empty_app_s"], strict=True)
    ratio = statistics.median(paint / base for paint, base in pairs)
    return {**found, "ratio": round(ratio, 2), "rounds": rounds}


# --- fleet ---


async def link(target: Target, seconds: float) -> float:
    """Kilobytes a second that the agent sends a console that only watches."""
    total = 0

    def count(message: Message) -> None:
        nonlocal total
        total += len(encode(message))

    client = Client(target, on_message=count, on_status=lambda _: None)
    running = asyncio.create_task(client.run())
    await client.subscribe(Subscribe(snapshots=True, events_after=0))
    await asyncio.sleep(5)  # the first full snapshot and the past events are not the rest
    total = 0
    await asyncio.sleep(seconds)
    found = total / seconds
    await client.close()
    await running
    return round(found / 1000, 2)


async def fleet(folder: Path, seconds: float, presses: int) -> dict[str, Any]:
    """The lab's eight servers, with a run at work and with the run paused."""
    options = Options(gpus=8, count=100_000, speed=8.0, folder=folder / "lab", s3=False)
    async with Lab(options) as lab:
        await job.begin(lab, lambda _: None)
        if await job.start(lab, lambda _: None):
            raise SystemExit("no server of the lab came up")
        terminal = Terminal(console(lab.toml), environment(folder))
        terminal.until("connected")
        terminal.drain(90)  # the verdict, and plots that have something to show
        live: dict[str, Any] = terminal.share(seconds)
        plots = (("m", "running requests"), ("m", "temperature"), ("m", "tok/s per GPU"))
        live["keys"] = keys(terminal, plots, presses)
        live["link_kb_s"] = await link(lab.target, seconds)
        async with session(lab.target) as here:
            await here.call(RunControl(do="pause"))
        terminal.drain(60)  # what is in flight ends
        paused: dict[str, Any] = terminal.share(seconds)
        paused["link_kb_s"] = await link(lab.target, seconds)
        live["rss_mb"] = round(terminal.rss_mb(), 1)
        terminal.close()
    return {"live": live, "paused": paused}


# --- panes ---


def workspace(folder: Path) -> tuple[Path, Path]:
    """A target on this machine with eight logs and no server: its stoker.toml, its logs."""
    place = folder / "workspace"
    logs = place / "sglang_logs"
    logs.mkdir(parents=True)
    for gpu in range(8):
        (logs / f"sglang_gpu{gpu}.log").write_text("the first line\n")
    config = folder / "stoker.toml"
    config.write_text(
        f'default = "bench"\n[targets.bench]\nssh = ""\nworkspace = "{place}"\n'
        f'agent_python = "{sys.executable}"\n[fleet]\ngpus = 8\nmodel = "none"\n'
    )
    env = environment(folder)
    deploy = [*console(config), "deploy"]
    done = subprocess.run(deploy, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.strip() or "the agent was not deployed")
    return config, logs


def panes(folder: Path, config: Path, logs: Path, seconds: float, presses: int) -> dict[str, Any]:
    """Eight panes at each rate: holding shows ``held`` in their titles."""
    terminal = Terminal(console(config), environment(folder))
    terminal.until("connected|read-only")
    terminal.keys("l")
    terminal.until("the first line")
    found: dict[str, Any] = {}
    for rate in RATES:
        writer = None
        if rate:
            writer = subprocess.Popen([sys.executable, "-c", WRITER, str(logs), str(rate)])
            terminal.drain(3)
        try:
            row: dict[str, Any] = terminal.share(seconds)
            row["keys"] = keys(terminal, ((" ", "held"), (" ", "")), presses)
            row["rss_mb"] = round(terminal.rss_mb(), 1)
        finally:
            if writer is not None:
                writer.kill()
                writer.wait()
        found[str(rate)] = row
    terminal.close()
    return found


def day(hours: int) -> dict[str, Any]:
    """In a process of its own, so that nothing else is in it."""
    command = [sys.executable, "-m", "tests.bench.tui_day", "--hours", str(hours)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Measure, write after each, judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tui", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="a tenth, to see that it runs")
    chosen = parser.parse_args()
    quick = chosen.quick
    seconds, presses = (3.0, 30) if quick else (20.0, 300)
    folder = Path(tempfile.mkdtemp(prefix="stoker-bench-"))
    found: dict[str, Any] = {}
    if chosen.json is not None and chosen.json.exists():
        found = json.loads(chosen.json.read_text())  # with --only the others keep their numbers
    found["machine"] = machine()
    try:
        config, logs = workspace(folder)
        benches: dict[str, Callable[[], dict[str, Any]]] = {
            "start": lambda: start(folder, config, 2 if quick else 25),
            "fleet": lambda: asyncio.run(fleet(folder, seconds, presses)),
            "panes": lambda: panes(folder, config, logs, seconds, presses),
            "day": lambda: day(2 if quick else 24),
        }
        if unknown := set(chosen.only) - set(benches):
            parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(benches)}")
        for name in chosen.only or benches:
            print(f"{name} …", file=sys.stderr, flush=True)
            found[name] = {**benches[name](), "load": machine()["load"]}
            text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
            if chosen.json is not None:
                chosen.json.write_text(text)
    finally:
        end_all_in(folder)
        shutil.rmtree(folder, ignore_errors=True)
    print(text)
    lines = judged(found, BARS)
    print("\n".join(lines))
    return 0 if all(line.startswith("holds") for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
