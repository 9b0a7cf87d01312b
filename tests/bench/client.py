"""What the run costs: prompts a second and CPU seconds a thousand, outputs durable.

    python -m tests.bench.client [--prompts 3000] [--delay 0.05] [--rounds 3]

512 requests in flight over eight servers, answers of 10 KB. ``bare`` is an aiohttp loop that
sends the same and writes nothing; ``unsynced`` is the run on a disk that costs nothing. The
rounds are interleaved, so that what else the machine does meets all alike: the ratios mean
something where the numbers do not. ``rate`` is seen from the servers: from the first request to
the last answer; prompts a second count the start of the process as well.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.tools import SLOTS, Mock, bare, make_prompts, report, stoker


def bench(prompts: int = 3000, delay: float = 0.05, rounds: int = 3) -> dict[str, Any]:
    """Medians, and the ratios that have bars."""
    rows: dict[str, list[dict[str, Any]]] = {"stoker": [], "unsynced": [], "bare": []}
    with tempfile.TemporaryDirectory() as temporary, Mock("--delay", str(delay)) as mock:
        path = Path(temporary) / "prompts.jsonl"
        make_prompts(path, prompts)
        for number in range(rounds):
            for name in rows:
                mock.ask("/_reset")
                if name == "bare":
                    row = bare(path, mock.urls)
                else:
                    out = Path(temporary) / f"{name}{number}"
                    slots = ("--concurrency", str(SLOTS))
                    row = stoker(out, path, mock.urls, *slots, synced=name == "stoker")
                    shutil.rmtree(out)
                assert row["exit"] == 0, row["errors"]
                rows[name].append({**row, "rate": mock.rate()})

    def middle(name: str, what: str) -> float:
        return statistics.median(float(row[what]) for row in rows[name])

    table = {
        name: {
            "prompts_s": round(prompts / middle(name, "wall"), 1),
            "rate": round(middle(name, "rate"), 1),
            "cpu_s_per_1000": round(middle(name, "cpu") / prompts * 1000, 3),
            "peak_mb": round(max(row["rss_mb"] for row in found)),
        }
        for name, found in rows.items()
    }
    return {
        "prompts": prompts,
        "delay_s": delay,
        **table,
        "cpu_to_bare": round(middle("stoker", "cpu") / middle("bare", "cpu"), 2),
        "rate_to_bare": round(middle("stoker", "rate") / middle("bare", "rate"), 3),
        "rate_to_unsynced": round(middle("stoker", "rate") / middle("unsynced", "rate"), 3),
    }


if __name__ == "__main__":
    report(bench, prompts=3000, delay=0.05, rounds=3)
