"""The same work by other batch clients, each in a Python of its own.

    python -m tests.bench.peers --flexllm PYTHON [--prompts 3000]

The peers are no dependencies of this project: make a virtual environment for each, such as
``python3 -m venv DIR && DIR/bin/pip install flexllm``, and name its interpreter. The rounds are
interleaved, so that what else the machine does meets all alike; ratios within one table mean
something, numbers across tables do not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.client import Mock, make_prompts, measure, stoker

FLEXLLM = """
import asyncio, json, sys
from flexllm import EndpointConfig, LLMClientPool
prompts, out, *urls = sys.argv[1:]
rows = [json.loads(line)["messages"] for line in open(prompts)]
common = dict(api_key="x", model="m", concurrency_limit=64)
pool = LLMClientPool(endpoints=[EndpointConfig(base_url=u + "/v1", **common) for u in urls],
                     timeout=600)
work = pool.chat_batch(rows, output_jsonl=out + ".jsonl", show_progress=False, max_tokens=4096)
asyncio.run(work)
"""


def peer(python: str, script: str, prompts: Path, out: Path, urls: list[str]) -> dict[str, Any]:
    """One run of a peer; how many of its outputs are there goes along."""
    row = measure([python, "-c", script, str(prompts), str(out), *urls])
    found = 0
    for path in out.parent.rglob("*.jsonl"):
        if path != prompts:
            found += path.read_bytes().count(b"\n")
    return {**row, "found": found}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--flexllm", default="")
    parser.add_argument("--prompts", type=int, default=3000)
    parser.add_argument("--delay", default="0.05")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as temporary, Mock("--delay", chosen.delay) as mock:
        folder = Path(temporary)
        prompts = folder / "prompts.jsonl"
        make_prompts(prompts, chosen.prompts)
        for number in range(chosen.rounds):
            out = folder / f"run{number}"
            ours = stoker(out, prompts, mock.urls, "--concurrency", "64")
            ours["found"] = sum(p.read_bytes().count(b"\n") for p in out.glob("completions_*"))
            rows.setdefault("stoker", []).append(ours)
            shutil.rmtree(out)
            bare = [sys.executable, "-m", "tests.bench.client", "--bare", str(prompts), *mock.urls]
            rows.setdefault("bare aiohttp", []).append({**measure(bare), "found": 0})
            if chosen.flexllm:
                home = folder / "flexllm"
                home.mkdir()
                row = peer(chosen.flexllm, FLEXLLM, prompts, home / "out", mock.urls)
                rows.setdefault("flexllm", []).append(row)
                shutil.rmtree(home)
    print("| client | prompts/s | CPU s per 1,000 | peak MB | outputs |\n|---|---|---|---|---|")
    for name, found in rows.items():
        wall = statistics.median(row["wall"] for row in found)
        cpu = statistics.median(row["cpu"] for row in found) / chosen.prompts * 1000
        memory = max(row["rss_mb"] for row in found)
        outputs = min(row["found"] for row in found)
        print(f"| {name} | {chosen.prompts / wall:.0f} | {cpu:.2f} | {memory:.0f} | {outputs} |")
        for row in found:
            if row["exit"]:
                print(json.dumps({"exit": row["exit"], "errors": row["errors"]}), file=sys.stderr)


if __name__ == "__main__":
    main()
