"""How full the slots are: one of eight servers four times slower, or dead for a while.

    python -m tests.bench.slots [--prompts 960] [--slots 8] [--mean 1.0]

Answer times are spread log-normally. The ideal is simulated: the same answer times in the same
order, handed out to whichever slot is free, without any client in between. Which of them meet the
slow server decides the tail, and a hundredth of a second decides which: the ideal is the mean of
many simulations that differ by so little, and the wall time that of a few runs. All is seen from
the servers: from the first request on, until the tail, when less than 85% of all slots are in use.
"""

from __future__ import annotations

import heapq
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.bench.tools import SERVERS, Mock, make_prompts, report, stoker

SPREAD = 0.5
SLOW = 4.0
SIMULATIONS, JITTER_S = 100, 0.01
DEAD_S = (6.0, 8.0)
"""When the dead server dies after the first request, and for how long it stays so."""


def ideal(prompts: int, slots: int, mean: float) -> float:
    """Seconds that a perfect dispatcher needs, in the mean."""
    return statistics.fmean(_ideal(prompts, slots, mean, seed) for seed in range(SIMULATIONS))


def _ideal(prompts: int, slots: int, mean: float, seed: int) -> float:
    dice, jitter = random.Random(1), random.Random(seed)  # lengths as the mock engine has them
    free = [(0.0, server) for server in range(SERVERS) for _ in range(slots)]
    heapq.heapify(free)
    wall = 0.0
    for _ in range(prompts):
        at, server = heapq.heappop(free)
        at += jitter.uniform(0, JITTER_S)
        factor = SLOW if server == 0 else 1.0
        end = at + mean * factor * dice.lognormvariate(0, SPREAD)
        heapq.heappush(free, (end, server))
        wall = max(wall, end)
    return wall


class Watch:
    """Samples of what the servers have in flight, while a run goes on."""

    def __init__(self, mock: Mock) -> None:
        self.samples: list[dict[str, Any]] = []
        self._mock = mock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._stop.wait(0.25):
            self.samples.append(self._mock.ask("/_seen"))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def fill(self, server: int, slots: int, start: float, end: float) -> float:
        """Mean share of a server's slots in use between two moments."""
        inside = [s for s in self.samples if start <= s["now"] <= end]
        return _in_flight(inside[0], inside[-1], [server]) / slots


def _in_flight(before: dict[str, Any], after: dict[str, Any], servers: list[int]) -> float:
    """Mean number of requests at some servers between two samples."""
    a, b = before["busy"], after["busy"]
    ticks = b.get("-1", 0) - a.get("-1", 0)
    busy = sum(b.get(str(s), 0) - a.get(str(s), 0) for s in servers)
    return busy / ticks if ticks else 0.0


def _run(
    prompts: int, slots: int, options: tuple[str, ...], meanwhile: Callable[[Mock], None]
) -> tuple[Watch, dict[str, Any], dict[str, Any]]:
    """A run under watch: its samples, itself, and what the servers saw."""
    with tempfile.TemporaryDirectory() as name, Mock(*options) as mock:
        path = Path(name) / "prompts.jsonl"
        make_prompts(path, prompts)
        with Watch(mock) as watch:
            other = threading.Thread(target=meanwhile, args=(mock,))
            other.start()
            row = stoker(Path(name) / "out", path, mock.urls, "--concurrency", str(slots))
            other.join()
        assert row["exit"] == 0, row["errors"]
        found = sum(
            part.read_bytes().count(b"\n") for part in (Path(name) / "out").glob("completions_*")
        )
        return watch, {**row, "found": found}, mock.ask("/_seen")


def straggler(prompts: int, slots: int, mean: float, rounds: int) -> dict[str, Any]:
    """Server 0 is four times slower."""
    runs = [_straggler(prompts, slots, mean) for _ in range(rounds)]
    walls = [wall for _, wall in runs]
    best = ideal(prompts, slots, mean)
    return {
        "fill_of_the_slow_one": round(min(fills[0] for fills, _ in runs), 3),
        "least_fill_of_the_others": round(min(min(fills[1:]) for fills, _ in runs), 3),
        "wall_s": [round(wall, 2) for wall in walls],
        "ideal_s": round(best, 2),
        "wall_to_ideal": round(statistics.fmean(walls) / best, 3),
    }


def _straggler(prompts: int, slots: int, mean: float) -> tuple[list[float], float]:
    """Each server's fill until the tail, and the wall time."""
    options = ("--delay", str(mean), "--spread", str(SPREAD), "--slow", f"0={SLOW:g}")
    watch, _, seen = _run(prompts, slots, options, lambda mock: None)
    everyone = list(range(SERVERS))
    full = [
        after["now"]
        for before, after in pairwise(watch.samples)
        if _in_flight(before, after, everyone) > 0.85 * SERVERS * slots
    ]
    fills = [watch.fill(server, slots, full[0], full[-1]) for server in everyone]
    return fills, seen["last"] - seen["first"]


def dead(prompts: int, slots: int, mean: float) -> dict[str, Any]:
    """Server 3 dies and comes back."""
    moments: dict[str, float] = {}

    def die(mock: Mock) -> None:
        while not (seen := mock.ask("/_seen"))["first"]:
            time.sleep(0.05)
        time.sleep(max(0.0, seen["first"] + DEAD_S[0] - time.monotonic()))
        mock.ask("/_down/3")
        moments["down"] = time.monotonic()
        time.sleep(DEAD_S[1])
        before = mock.ask("/_seen")["answers"].get("3", 0)
        mock.ask("/_up/3")
        moments["up"] = time.monotonic()
        while mock.ask("/_seen")["answers"].get("3", 0) == before:
            time.sleep(0.05)
            assert time.monotonic() - moments["up"] < 60, "it is not used again"
        moments["used"] = time.monotonic()

    options = ("--delay", str(mean), "--spread", str(SPREAD))
    watch, row, _ = _run(prompts, slots, options, die)
    others = [server for server in range(SERVERS) if server != 3]
    fills = [watch.fill(server, slots, moments["down"], moments["up"]) for server in others]
    return {
        "lost": prompts - row["found"],
        "least_fill_of_the_others": round(min(fills), 3),
        "first_answer_after_its_return_s": round(moments["used"] - moments["up"], 2),
    }


def bench(prompts: int = 960, slots: int = 8, mean: float = 1.0, rounds: int = 3) -> dict[str, Any]:
    """Both."""
    return {
        "slow": straggler(prompts, slots, mean, rounds),
        "dead": dead(prompts * 3 // 2, slots, mean),
    }


if __name__ == "__main__":
    report(bench, prompts=960, slots=8, mean=1.0, rounds=3)
