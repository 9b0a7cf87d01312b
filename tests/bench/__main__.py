"""All benchmarks of the run, one after the other, their numbers into one JSON file.

    python -m tests.bench --json FILE [--only NAME …] [--venvs DIR] [--quick]

The kills take longest; ``--quick`` is a tenth of the work, to see that they run. The peers need
their environments: see :mod:`tests.bench.peers`. What FILE holds of others than those that are run
stays there. Each number that has a bar is listed with it at the end, one that was not measured,
too; exit status 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench import client, kills, mission, peers, scale, slots
from tests.bench.judge import Bar, judged
from tests.bench.tools import machine

BARS: tuple[Bar, ...] = (
    ("client.stoker.cpu_s_per_1000", "<", 1.3),
    ("client.cpu_to_bare", "<", 4.5),
    ("client.rate_to_unsynced", ">", 0.9),
    ("delay.rate_to_bare", ">", 0.98),
    ("mission.share_of_a_core", "<", 0.03),
    ("slots.slow.least_fill_of_the_others", ">", 0.95),
    ("slots.slow.wall_to_ideal", "<", 1.05),
    ("slots.dead.lost", "<", 1),
    ("slots.dead.least_fill_of_the_others", ">", 0.95),
    ("slots.dead.first_answer_after_its_return_s", "<", 30),
    ("scale.start_s", "<", 10),
    ("scale.start_with_set_aside_s", "<", 10),
    ("scale.peak_mb_above_10000", "<", 300),
    ("peers.clients.flexllm.times_slower", ">", 1.5),
    ("peers.clients.datatrove, checkpoint on.times_slower", ">", 3),
    ("peers.clients.curator.times_slower", ">", 3),
)
"""What must hold: a number by its place, and on which side of the bar it has to be."""


def plan(*, quick: bool, venvs: str) -> dict[str, Callable[[], dict[str, Any]]]:
    """By name, in the order in which they are run."""
    part = 10 if quick else 1
    return {
        "client": lambda: client.bench(prompts=10_000 // part, rounds=5),
        "delay": lambda: client.bench(prompts=10_240 // part, delay=2.0, rounds=1),
        "mission": lambda: mission.bench(seconds=60 / part),
        "slots": lambda: slots.bench(prompts=960 if quick else 1920),
        "peers": lambda: peers.bench(venvs=venvs, prompts=3000 // part, rounds=1 if quick else 3),
        "scale": lambda: scale.bench(
            prompts=10_000_000 // part, done=5_000_000 // part, aside=500_000 // part
        ),
        "kills": lambda: kills.bench(kills=500 // part),
    }


def main() -> int:
    """Run, write after each, judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--venvs", default="", metavar="DIR", help="environments of the peers")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    benches = plan(quick=chosen.quick, venvs=chosen.venvs)
    if unknown := set(chosen.only) - set(benches):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(benches)}")
    found: dict[str, Any] = json.loads(chosen.json.read_text()) if chosen.json.exists() else {}
    found["machine"] = machine()
    for name in chosen.only or benches:
        print(f"{name} …", file=sys.stderr, flush=True)
        began = time.monotonic()
        found[name] = {**benches[name](), "load": machine()["load"]}
        found[name]["took_s"] = round(time.monotonic() - began)
        chosen.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    lines = judged(found, BARS)
    print("\n".join(lines))
    return 1 if any(line.startswith("MISSED") for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
