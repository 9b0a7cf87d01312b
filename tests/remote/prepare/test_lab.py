"""Prepared prompts through the lab: real rows, real links, simulated engines, verified."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from console.lab.sim import model
from tests.remote.prepare.conftest import read_lines

ROOT = Path(__file__).resolve().parents[3]

RECIPE = """
seed = 5
[budget]
tokenizer = "model"
[[sources]]
name = "gsm8k"
path = "{data}/gsm8k-*.jsonl"
domain = "math"
quota = 60
[[sources]]
name = "humaneval"
path = "{data}/humaneval.jsonl"
quota = 30
[[sources]]
name = "bfcl"
path = "{data}/bfcl-*.jsonl"
"""


@pytest.mark.timeout(400)
def test_prepared_run_and_verified(real_data: Path, tmp_path: Path) -> None:
    pytest.importorskip("moto")

    def stoker(*words: str, exits: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "console.cli", *words],
            cwd=tmp_path, capture_output=True, text=True, timeout=300,
            env={"PATH": "/usr/bin:/bin:/usr/sbin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode in exits, done.stdout + done.stderr
        return done.stdout

    model.write(tmp_path / "model")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(data=real_data))
    stoker("prepare", "recipe.toml", "-o", "prompts.jsonl", "--workers", "1")
    prompts = read_lines(tmp_path / "prompts.jsonl")
    assert len(prompts) == 514
    assert sum("tools" in prompt for prompt in prompts) == 424
    out = stoker(
        "lab", "--headless", "--prompts", "prompts.jsonl", "--gpus", "2", "--speed", "1000",
        "--dir", "lab", exits=(0, 1),
    )  # fmt: skip
    ended = re.search(r"done: (\d+) of 514 done, 0 failed, (\d+) set aside", out)
    assert ended is not None, out
    finished, aside = map(int, ended.groups())
    assert finished + aside == 514
    assert aside < 10  # now and then an answer is cut inside its call
    (run,) = (tmp_path / "lab").rglob("run.json")
    assert "clean" in stoker("verify", str(run.parent), "--prompts", "prompts.jsonl")
    checked = stoker("prepare", "-o", "prompts.jsonl", "--check", str(run.parent))
    assert checked.endswith("replies compared: the server counts as we did\n")
    by_source = {"gsm8k": 0, "humaneval": 0, "bfcl": 0}
    called = 0
    for path in [*run.parent.glob("completions_*.jsonl"), *run.parent.glob("set_aside.jsonl")]:
        for record in read_lines(path):
            by_source[record["source"]] += 1
            called += bool(record["tool_calls"])
    assert by_source == {"gsm8k": 60, "humaneval": 30, "bfcl": 424}
    assert called > 100
