"""What a swap of all servers costs while they generate, by strategy.

    python -m tests.bench.swap [--gpus 8] [--speed 20] [--sglang 0.5.12] [--rows …] [--json FILE]

An agent, a run and simulated SGLang servers, as in the lab. Each row brings all servers from 37
slots to 72 under full load. ``GPU-s`` is the time without tokens, added up over the servers: from
the last line of its log that tells of tokens to the first one that tells of the run's work again
(a single request is the server's own warm-up or Stoker's proof, and does not count).

The yardstick is the reload time: last token to first token of a server that has nothing to do,
reloaded by itself with the same new flags, one after the other, in the same process; the mean of
all servers. ``thrown away`` are output tokens of interrupted answers that have to be generated
again, as the run counts them. ``new rate`` is when the servers together first make 95 % of what
they make in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import secrets
import statistics
import sys
import tempfile
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aiohttp
from msgspec.structs import replace

from remote.agent.diff import Picture
from remote.paths import Workspace
from remote.protocol import (
    Done,
    Down,
    Failure,
    Flags,
    InFlight,
    Plan,
    Progress,
    Restart,
    RunControl,
    RunStart,
    Swap,
    Up,
)
from tests.ending import end_all_in
from tests.remote.agent import test_whole
from tests.remote.agent.conftest import Agent
from tests.remote.agent.test_whole import Site, ready

ROWS: dict[str, tuple[str, InFlight]] = {
    "rolling, continue": ("rolling", "continue"),
    "rolling, drain": ("rolling", "drain"),
    "rolling, redo": ("rolling", "redo"),
    "all at once, continue": ("all", "continue"),
    "stop everything": ("", "redo"),
}
BEFORE: Flags = {"mamba-scheduler-strategy": "extra_buffer", "mem-fraction-static": 0.85}
AFTER: Flags = {"mamba-scheduler-strategy": "no_buffer", "mem-fraction-static": 0.9}
LOST_AT_MOST, OVER_AT_MOST = 0.001, 1.05
"""The bars for a rolling swap that continues: share of the generated tokens that is thrown away,
and time without tokens over the sum of the reload times."""
STEADY_S = 8.0
"""For so long after the last server is full again the new rate is measured."""

_BATCH = re.compile(
    r"(Prefill|Decode) batch(?:, #new-seq: (\d+), #new-token: (\d+))?.*?#running-req: (\d+)"
    r"(?:.*gen throughput \(token/s\): ([\d.]+))?"
)


@dataclass
class Watched:
    """One server's log, read as it grows."""

    path: Path
    real: bool = True
    """Only the run's work ends a gap; else any answer does."""
    offset: int = 0
    rest: bytes = b""
    last: float = 0.0
    """When it last told of tokens."""
    began: float | None = None
    """The last token before the restart that is under way."""
    up: bool = False
    gaps: list[float] = field(default_factory=list)
    ends: tuple[float, float] = (0.0, 0.0)
    """Of the last gap, as Unix seconds."""
    running: int = 0
    tok_s: float = 0.0

    def look(self, now: float) -> None:
        """Take in what was written since."""
        try:
            with self.path.open("rb") as log:
                log.seek(self.offset)
                data = log.read()
        except OSError:
            return
        self.offset += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self._line(line.decode("utf-8", "replace"), now)

    def _line(self, line: str, now: float) -> None:
        if "server_args=" in line:
            self.began, self.up, self.running, self.tok_s = self.last or now, False, 0, 0.0
        elif "fired up" in line:
            self.up = True
        elif found := _BATCH.search(line):
            kind, sequences, tokens, running, rate = found.groups()
            if kind == "Prefill" and tokens == "1":
                return  # a health check
            if self.began is not None:
                together = int(running) + int(sequences or 0)
                work = together >= 2  # one alone is the warm-up, the proof, or the run's trial
                if not (work if self.real else self.up):
                    return
                self.gaps.append(now - self.began)
                self.ends = (time.time() - (now - self.began), time.time())
                self.began = None
            self.last = now
            self.running = int(running) + int(sequences or 0)
            if rate is not None:
                self.tok_s = float(rate)


@dataclass
class Row:
    """What one way of swapping has cost."""

    name: str
    gpu_seconds: float = 0.0
    thrown_away: int = 0
    kept: int = 0
    generated: int = 0
    """Output tokens recorded from the beginning of the swap until the new rate was measured."""
    seconds: float = 0.0
    until_new_rate: float | None = None
    rate_before: float = 0.0
    rate_after: float = 0.0
    said: str = ""
    """What Stoker itself says that it cost."""
    steps: dict[str, float] = field(default_factory=dict)
    """Mean seconds of a server's step, by name."""

    @property
    def lost_share(self) -> float:
        """Of the generated tokens."""
        return self.thrown_away / max(self.generated + self.thrown_away, 1)


class Bench:
    """One fleet under load, and its logs."""

    def __init__(self, site: Site, gpus: int) -> None:
        self.site, self.gpus = site, gpus
        folder = site.workspace.root / site.spec.fleet.log_dir
        self.servers = [Watched(folder / f"sglang_gpu{gpu}.log") for gpu in range(gpus)]
        self.rates: deque[tuple[float, float]] = deque()
        self._lost = self._kept = self._made = 0
        """Of processes of the run that have ended."""
        self._progress: Progress | None = None

    async def watch(self) -> None:
        """Follow the logs and the run's account, for ever."""
        path = self.site.workspace.root / "out" / "progress.json"
        while True:
            now = time.monotonic()
            for server in self.servers:
                server.look(now)
            self.rates.append((now, sum(server.tok_s for server in self.servers)))
            while self.rates[0][0] < now - 1200:
                self.rates.popleft()
            with contextlib.suppress(OSError, ValueError):
                said = test_whole.progress_of(path)
                if self._progress is not None and said.pid != self._progress.pid:
                    self._lost += self._progress.tokens_lost
                    self._kept += self._progress.tokens_kept
                self._progress = said
            await asyncio.sleep(0.02)

    def counts(self) -> tuple[int, int, int]:
        """Tokens thrown away, kept, and recorded so far."""
        said = self._progress or Progress()
        return (
            self._lost + said.tokens_lost,
            self._kept + said.tokens_kept,
            said.total_output_tokens,
        )

    async def filled(self, slots: int, seconds: float = 120.0) -> None:
        """Until every server runs nearly as much as it can."""
        deadline = time.monotonic() + seconds
        while not all(server.running >= 0.9 * slots for server in self.servers):
            if time.monotonic() > deadline:
                raise SystemExit(f"not full: {[server.running for server in self.servers]}")
            await asyncio.sleep(0.05)

    def rate(self, since: float, until: float) -> float:
        """Mean of all servers' tokens a second together."""
        return statistics.fmean([r for at, r in self.rates if since <= at <= until] or [0.0])

    def _until(self, rate: float, began: float) -> float | None:
        """Seconds from ``began`` until the mean of a second first reached ``rate``."""
        second: deque[tuple[float, float]] = deque()
        for at, total in self.rates:
            if at < began:
                continue
            second.append((at, total))
            while second[0][0] < at - 1:
                second.popleft()
            if at - began > 1 and statistics.fmean(total for _, total in second) >= rate:
                return at - began
        return None

    async def reload_idle(self, flags: Flags) -> list[float]:
        """Seconds from last to first token of each server, reloaded while it has nothing to do."""
        steps: list[dict[str, float]] = []
        for gpu, server in enumerate(self.servers):
            server.real, server.gaps = False, []
            await self._one_answer(gpu)
            request = Restart(spec=self.site.spec, set_flags=flags, gpus=[gpu], in_flight="redo")
            steps.append(steps_of(await self._swapped(request)))
        print(f"steps: {shown({n: statistics.fmean(s[n] for s in steps) for n in steps[0]})}")
        found = [server.gaps[-1] for server in self.servers]
        for server in self.servers:
            server.real, server.gaps = True, []
        return found

    async def _one_answer(self, gpu: int) -> None:
        """Have it make tokens, and see its log tell of them."""
        port = self.site.spec.fleet.base_port + gpu
        asked = f"Say yes, for the {secrets.token_hex(8)}th time."  # not cached: it is prefilled
        body = {"messages": [{"role": "user", "content": asked}], "max_tokens": 8}
        before = self.servers[gpu].last
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as answer,
        ):
            said = await answer.text()
        deadline = time.monotonic() + 2
        while self.servers[gpu].last == before:
            if time.monotonic() > deadline:
                raise SystemExit(f"server {gpu}: its log is silent: {answer.status} {said}")
            await asyncio.sleep(0.01)

    async def _swapped(self, request: Restart) -> Swap:
        """A swap, to its end."""
        answer = await self.site.ask(request)
        while isinstance(answer, Failure) and answer.code == "busy":  # the one before winds up
            await asyncio.sleep(0.05)
            answer = await self.site.ask(request)
        if not isinstance(answer, Plan) or answer.swap is None:
            raise SystemExit(f"no swap: {answer}")
        number = answer.swap.id

        def ended(shown: Picture) -> bool:
            swap = shown.swap
            return swap is not None and swap.id == number and swap.state != "doing"

        shown = await self.site.until(ended, 600)
        assert shown.swap is not None
        if shown.swap.state != "done":
            raise SystemExit(f"swap {shown.swap.state}: {shown.swap.text}")
        return shown.swap

    async def swap(self, flags: Flags, strategy: str, in_flight: InFlight) -> Swap:
        """A swap of all servers, to its end."""
        request = Restart(
            spec=self.site.spec,
            set_flags=flags,
            strategy=strategy,  # type: ignore[arg-type]
            in_flight=in_flight,
        )
        return await self._swapped(request)

    async def stop_everything(self, flags: Flags) -> None:
        """Run and servers down, other flags, servers and run up."""
        site = self.site
        await site.done(RunControl(do="stop"))
        await site.until(lambda shown: not shown.run.alive)
        assert isinstance(await site.ask(Down()), Done)
        await site.until(lambda shown: all(s.state == "stopped" for s in shown.servers))
        fleet = replace(site.spec.fleet, flags={**site.spec.fleet.flags, **flags})
        site.spec = replace(site.spec, fleet=fleet)
        await site.done(Up(spec=site.spec))
        await site.until(ready, 300)
        await site.done(RunStart(spec=site.spec))

    async def row(self, name: str) -> Row:
        """Swap all servers to the new flags in this way."""
        strategy, in_flight = ROWS[name]
        began = time.monotonic()
        row = Row(name, rate_before=self.rate(began - STEADY_S, began))
        for server in self.servers:
            server.gaps = []
        lost, kept, made = self.counts()
        if strategy:
            done = await self.swap(AFTER, strategy, in_flight)
            row.said, row.steps = done.text, steps_of(done)
        else:
            await self.stop_everything(AFTER)
        await self.filled(72)
        row.seconds = time.monotonic() - began
        await asyncio.sleep(STEADY_S)
        end = time.monotonic()
        row.rate_after = self.rate(end - STEADY_S, end)
        row.until_new_rate = self._until(0.95 * row.rate_after, began)
        now = self.counts()
        row.thrown_away, row.kept, row.generated = now[0] - lost, now[1] - kept, now[2] - made
        if strategy:
            row.steps |= {
                "last token to stop": statistics.fmean(
                    (step.began or 0.0) - self.servers[step.gpu].ends[0]
                    for step in done.steps
                    if step.name == "stop"
                ),
                "resume to first token": statistics.fmean(
                    self.servers[step.gpu].ends[1] - (step.ended or 0.0)
                    for step in done.steps
                    if step.name == "resume"
                ),
            }
        row.gpu_seconds = sum(sum(server.gaps) for server in self.servers)
        if any(len(server.gaps) != 1 for server in self.servers):
            raise SystemExit(f"not one gap a server: {[s.gaps for s in self.servers]}")
        return row


def steps_of(swap: Swap) -> dict[str, float]:
    """Mean seconds of each step of a server."""
    took: dict[str, list[float]] = {}
    for step in swap.steps:
        if step.began is not None and step.ended is not None:
            took.setdefault(step.name, []).append(step.ended - step.began)
    return {name: statistics.fmean(seconds) for name, seconds in took.items()}


async def measure(options: argparse.Namespace, folder: Path) -> tuple[list[float], list[Row]]:
    """Reload times, then a row for each way."""
    agent = Agent(Workspace(folder / "work"))
    agent.workspace.root.mkdir()
    site_of = test_whole.site_of(
        agent,
        folder,
        gpus=options.gpus,
        count=options.count,
        speed=options.speed,
        sglang=options.sglang,
        decode_log_interval=10,  # the last token is told of within some 25 ms
    )
    site = await anext(site_of)
    bench = Bench(site, options.gpus)
    watching = asyncio.create_task(bench.watch())
    rows: list[Row] = []
    try:
        await site.done(Up(spec=site.spec))
        await site.until(ready, 300)
        idle = await bench.reload_idle(AFTER)
        print(f"reloaded idle: {' '.join(f'{s:.2f}' for s in idle)} s", flush=True)
        await bench.swap(BEFORE, "all", "redo")
        await site.done(RunStart(spec=site.spec))
        for n, name in enumerate(options.rows):
            if n:
                await bench.swap(BEFORE, "all", "redo")
            await bench.filled(37)
            await asyncio.sleep(STEADY_S)
            rows.append(await bench.row(name))
            print(line(rows[-1], sum(idle)), flush=True)
        await site.done(RunControl(do="stop"))
        await site.until(lambda shown: not shown.run.alive)
    finally:
        watching.cancel()
        site.link.close()
        for process in agent.processes:
            process.kill()
            process.wait()
        end_all_in(folder)
    return idle, rows


def shown(steps: dict[str, float]) -> str:
    """Steps and their seconds."""
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in steps.items())


def line(row: Row, reloads: float) -> str:
    """One row for people."""
    until = f"{row.until_new_rate:6.1f} s" if row.until_new_rate is not None else "       ?"
    return (
        f"{row.name:22} {row.gpu_seconds:7.1f} GPU-s ({row.gpu_seconds / reloads:4.2f} × reload)"
        f"  {row.thrown_away:>9,} thrown away ({row.lost_share:.3%}), {row.kept:>9,} kept"
        f"  new rate after {until}  {row.rate_before:7,.0f} → {row.rate_after:7,.0f} tok/s"
    )


def main() -> None:
    """Print a table; exit 1 where a rolling swap that continues misses its bars."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--speed", type=float, default=20.0)
    parser.add_argument("--sglang", choices=["0.5.12", "0.5.23"], default="0.5.12")
    parser.add_argument("--count", type=int, default=60_000, help="prompts")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        idle, rows = asyncio.run(measure(options, Path(name)))
    total = sum(idle)
    print(f"\nsum of {len(idle)} reload times: {total:.1f} s")
    for row in rows:
        print(line(row, total))
        if row.said:
            print(f"    {row.said}\n    {shown(row.steps)}")
    if options.json:
        figures = {
            "gpus": options.gpus,
            "speed": options.speed,
            "sglang": options.sglang,
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "reload_seconds": idle,
            "rows": [{**asdict(r), "over_reloads": r.gpu_seconds / total} for r in rows],
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    missed = [
        row
        for row in rows
        if row.name == "rolling, continue"
        and (row.gpu_seconds > OVER_AT_MOST * total or row.lost_share > LOST_AT_MOST)
    ]
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
