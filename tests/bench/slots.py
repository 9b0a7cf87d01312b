"""How full the slots are while one of eight servers is four times slower.

    python -m tests.bench.slots [--prompts 640] [--slots 8] [--mean 1.0]

Answer times are spread log-normally. The ideal is simulated: the same answer times, handed out
to whichever slot is free, without any client in between.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import tempfile
import threading
import time
import urllib.request
from itertools import pairwise
from pathlib import Path

from tests.bench.client import Mock, make_prompts, stoker

SPREAD = 0.5
SLOW = 4.0


def ideal(prompts: int, slots: int, mean: float) -> float:
    """Seconds that a perfect dispatcher needs (mean of some draws)."""
    walls = []
    for seed in range(5):
        dice = random.Random(seed)
        free = [(0.0, server) for server in range(8) for _ in range(slots)]
        heapq.heapify(free)
        wall = 0.0
        for _ in range(prompts):
            at, server = heapq.heappop(free)
            factor = SLOW if server == 0 else 1.0
            end = at + mean * factor * dice.lognormvariate(0, SPREAD)
            heapq.heappush(free, (end, server))
            wall = max(wall, end)
        walls.append(wall)
    return sum(walls) / len(walls)


def main() -> None:
    """Print fill and wall time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=640)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--mean", type=float, default=1.0)
    chosen = parser.parse_args()
    mock = Mock("--delay", str(chosen.mean), "--spread", str(SPREAD), "--slow", f"0={SLOW:g}")
    samples: list[dict[str, int]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.25):
            with urllib.request.urlopen(f"{mock.urls[0]}/_peak", timeout=5) as answer:
                samples.append({**json.load(answer), "ms": int(time.monotonic() * 1000)})

    with tempfile.TemporaryDirectory() as name, mock:
        prompts = Path(name) / "prompts.jsonl"
        make_prompts(prompts, chosen.prompts)
        watcher = threading.Thread(target=watch)
        watcher.start()
        began = time.perf_counter()
        row = stoker(Path(name) / "out", prompts, mock.urls, "--concurrency", str(chosen.slots))
        stop.set()
        watcher.join()
    working = [(a, b) for a, b in pairwise(samples) if _busy(a, b) > 0]
    first = working[0][0]
    # Until the tail: as long as all slots together were more than 85% in use.
    full = [b for a, b in working if _busy(a, b) > 0.85 * 8 * chosen.slots]
    last = full[-1]
    ticks = last["-1"] - first["-1"]
    print(f"exit {row['exit']}, {time.perf_counter() - began:.1f} s in all")
    for server in range(8):
        fill = (last.get(str(server), 0) - first.get(str(server), 0)) / ticks / chosen.slots
        print(f"server {server}: {fill:.1%} of its slots in use{' (slow)' if not server else ''}")
    wall = (working[-1][1]["ms"] - first["ms"]) / 1000
    best = ideal(chosen.prompts, chosen.slots, chosen.mean)
    tail = (working[-1][1]["ms"] - last["ms"]) / 1000
    print(f"of which the tail, with idle slots, {tail:.1f} s")
    print(f"work took about {wall:.1f} s, a perfect dispatcher {best:.1f} s")


def _busy(before: dict[str, int], after: dict[str, int]) -> float:
    """Requests in flight at all servers between two samples."""
    ticks = after["-1"] - before["-1"]
    if not ticks:
        return 0.0
    return sum(after.get(str(s), 0) - before.get(str(s), 0) for s in range(8)) / ticks


if __name__ == "__main__":
    main()
