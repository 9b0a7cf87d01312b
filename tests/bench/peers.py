"""The same work by other batch clients, each in a Python of its own.

    python -m tests.bench.peers --venvs DIR [--make-them] [--prompts 2000] [--rounds 3]

The peers are no dependencies of this project: with ``--make-them`` a virtual environment for each
is made in DIR by pip; one that does not install is left out. The rounds are interleaved, so that
what else the machine does meets all alike; ratios within one table mean something, numbers across
tables do not. Process start included. Each asks all that it can at once as the others do: 512
requests, over eight servers or, where it knows only one, to that one.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.tools import SLOTS, Mock, bare, make_prompts, measure, report, stoker


@dataclass(frozen=True)
class Peer:
    """Another client: what to install, a script that takes PROMPTS OUT URL …, and its outputs."""

    packages: tuple[str, ...]
    script: str
    outputs: str
    """Glob below its folder; a line is an answer."""


FLEXLLM = Peer(
    ("flexllm",),
    """
import asyncio, json, sys
from flexllm import EndpointConfig, LLMClientPool
prompts, out, *urls = sys.argv[1:]
rows = [json.loads(line)["messages"] for line in open(prompts)]
common = dict(api_key="x", model="m", concurrency_limit=64)
pool = LLMClientPool(endpoints=[EndpointConfig(base_url=u + "/v1", **common) for u in urls],
                     timeout=600)
work = pool.chat_batch(rows, output_jsonl=out + ".jsonl", show_progress=False, max_tokens=4096)
asyncio.run(work)
""",
    "out.jsonl",
)

DATATROVE = Peer(
    ("datatrove", "orjson", "aiosqlite", "aiofiles", "xxhash", "httpx"),
    """
import json, sys
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
from datatrove.pipeline.writers import JsonlWriter
prompts, out, url, *_ = sys.argv[1:]
rows = [json.loads(line)["messages"] for line in open(prompts)]
documents = [Document(text=row[0]["content"], id=str(at)) for at, row in enumerate(rows)]
async def rollout(document, generate):
    message = {"role": "user", "content": document.text}
    return await generate({"messages": [message], "max_tokens": 4096})
config = InferenceConfig(server_type="endpoint", endpoint_url=url, model_name_or_path="m",
                         max_concurrent_generations=512, metric_interval=3600)
name = "${rank}_${chunk_index}.jsonl"
runner = InferenceRunner(rollout_fn=rollout, config=config, records_per_chunk=500,
                         output_writer=JsonlWriter(out, output_filename=name, compression=None),
                         checkpoints_local_dir=out + "-checkpoints")
LocalPipelineExecutor(pipeline=[documents, runner], logging_dir=out + "-logs", tasks=1).run()
""",
    "out/*.jsonl",
)

CURATOR = Peer(
    ("bespokelabs-curator",),
    """
import json, os, sys
prompts, out, url, *_ = sys.argv[1:]
os.environ.update(CURATOR_CACHE_DIR=out, CURATOR_VIEWER="0", TELEMETRY_ENABLED="0",
                  OPENAI_API_KEY="x", HF_HUB_OFFLINE="1")
import tiktoken
class Words:
    def encode(self, text, **_):
        return text.split()
# It asks the network for a vocabulary, to guess tokens for rate limits that are off here.
tiktoken.get_encoding = tiktoken.encoding_for_model = lambda *_: Words()
from bespokelabs import curator
rows = [{"prompt": json.loads(line)["messages"][0]["content"]} for line in open(prompts)]
class Ask(curator.LLM):
    def prompt(self, row):
        return row["prompt"]
    def parse(self, row, response):
        return {"answer": response}
ask = Ask(model_name="m", backend="openai", generation_params={"max_tokens": 4096},
          backend_params={"base_url": url + "/v1", "max_requests_per_minute": 10**9,
                          "max_tokens_per_minute": 10**12, "max_concurrent_requests": 512})
ask(rows)
""",
    "out/**/responses_*.jsonl",
)

PEERS = {"flexllm": FLEXLLM, "datatrove, checkpoint on": DATATROVE, "curator": CURATOR}


def place(folder: Path, name: str) -> Path:
    """Where a peer's Python is."""
    return folder / name.split(",", maxsplit=1)[0] / "bin/python"


def make(folder: Path) -> None:
    """An environment for each peer that has none."""
    for name, peer in PEERS.items():
        python = place(folder, name)
        if not python.exists():
            venv.create(python.parents[1], with_pip=True)
            command = [str(python), "-m", "pip", "install", "-q", "--prefer-binary"]
            if subprocess.run([*command, *peer.packages], check=False).returncode:
                print(f"{name} does not install here: left out", file=sys.stderr)
                shutil.rmtree(python.parents[1])


def _count(folder: Path, pattern: str) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob(pattern))


def bench(
    venvs: str = "", make_them: bool = False, prompts: int = 2000, rounds: int = 3
) -> dict[str, Any]:
    """Medians for each, and ours against each."""
    base = Path(venvs).absolute()
    if make_them:
        make(base)
    peers = {name: peer for name, peer in PEERS.items() if venvs and place(base, name).exists()}
    rows: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as temporary, Mock("--delay", "0.05") as mock:
        path = Path(temporary) / "prompts.jsonl"
        make_prompts(path, prompts)
        for _ in range(rounds):
            for name in ("stoker", "bare aiohttp", *peers):
                home = Path(temporary) / "home"
                home.mkdir()
                if name == "stoker":
                    row = stoker(home / "out", path, mock.urls, "--concurrency", str(SLOTS))
                    row["found"] = _count(home, "out/completions_*")
                elif name == "bare aiohttp":
                    row = {**bare(path, mock.urls), "found": 0}
                else:
                    command = [str(place(base, name)), "-c", peers[name].script, str(path)]
                    row = measure([*command, str(home / "out"), *mock.urls])
                    row["found"] = _count(home, peers[name].outputs)
                if row["exit"]:
                    print(json.dumps({name: row["errors"]}), file=sys.stderr)
                rows.setdefault(name, []).append(row)
                shutil.rmtree(home)

    for name, found in list(rows.items()):
        if any(row["exit"] for row in found):  # what failed is not fast
            del rows[name]

    def middle(name: str, what: str) -> float:
        return statistics.median(float(row[what]) for row in rows[name])

    return {
        "prompts": prompts,
        "clients": {
            name: {
                "prompts_s": round(prompts / middle(name, "wall"), 1),
                "cpu_s_per_1000": round(middle(name, "cpu") / prompts * 1000, 2),
                "peak_mb": round(max(row["rss_mb"] for row in found)),
                "outputs": min(row["found"] for row in found),
                "times_slower": round(middle(name, "wall") / middle("stoker", "wall"), 2),
            }
            for name, found in rows.items()
        },
    }


if __name__ == "__main__":
    report(bench, venvs="", make_them=False, prompts=2000, rounds=3)
