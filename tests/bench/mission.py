"""What the run costs while eight GPUs work: 512 in flight, 3.5 prompts a second, polled servers.

python -m tests.bench.mission [--seconds 60]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.bench.tools import ROOT, SERVERS, SLOTS, Mock, command, make_prompts, pin, report

RATE = 3.5
WARM_S = 15.0


def bench(seconds: float = 60.0) -> dict[str, Any]:
    """The share of one core, over some time in the middle of a run."""
    options = ("--delay", str(SERVERS * SLOTS / RATE), "--memoryless", "--engine", "sglang")
    with tempfile.TemporaryDirectory() as name, Mock(*options) as mock:
        prompts = Path(name) / "prompts.jsonl"
        make_prompts(prompts, 20_000)
        words = command(Path(name) / "out", prompts, mock.urls, "--concurrency", str(SLOTS))
        run = subprocess.Popen(
            [sys.executable, "-m", "remote.generate", *words], cwd=ROOT, stdout=subprocess.DEVNULL
        )
        try:
            pin(run.pid, 1)
            while not mock.ask("/_seen")["first"]:
                assert run.poll() is None, "it left"
                time.sleep(0.1)
            time.sleep(WARM_S)
            before, answers = _spent(run.pid), _answers(mock)
            began = time.perf_counter()
            time.sleep(seconds)
            took = time.perf_counter() - began
            spent = _spent(run.pid) - before
            done = _answers(mock) - answers
        finally:
            run.kill()
            run.wait()
    return {
        "in_flight": SERVERS * SLOTS,
        "prompts_s": round(done / took, 2),
        "share_of_a_core": round(spent / took, 4),
        "cpu_ms_per_prompt": round(spent / max(done, 1) * 1000, 1),
    }


def _spent(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _answers(mock: Mock) -> int:
    return sum(mock.ask("/_seen")["answers"].values())


if __name__ == "__main__":
    report(bench, seconds=60.0)
