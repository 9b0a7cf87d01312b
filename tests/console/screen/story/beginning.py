"""What stood before the story's first second: the target's settings, and the journal's past."""

from __future__ import annotations

from console.lab.options import STORY
from remote.protocol import Epoch, FleetSpec, RunSpec, S3Spec, TargetSpec, Verdict

BEGAN = 1_796_140_000.0
"""The story's first second, for pictures that never change."""

JOURNAL = "5a0e61d2c3b47f98"
"""Which journal the story's agent writes."""

BAD = {**STORY}
"""The flags that hold every server at 37 slots."""


def target(gpus: int) -> TargetSpec:
    """Its settings, with so many GPUs."""
    return TargetSpec(
        name="ct200",
        workspace="/workspace",
        python="/root/venv/bin/python",
        fleet=FleetSpec(model="Qwen/Qwen3.6-27B", gpus=gpus, flags=BAD),
        run=RunSpec(
            prompts="expansion_prompts.jsonl",
            output="expansion_completions",
            s3=S3Spec(bucket="expansion"),
        ),
    )


def epochs(began: float) -> list[Epoch]:
    """The first start, and the flags that the run began with."""
    return [
        Epoch(
            1,
            began - 900,
            {**BAD, "mem-fraction-static": 0.80},
            "ops",
            "first start",
            602.4,
            34,
            0.79,
            0.22,
            5_900.0,
        ),
        Epoch(2, began, BAD, "ops", "a little more memory", 661.8, 37, 0.74, 0.20, 38_000.0),
    ]


def verdict(began: float) -> Verdict:
    """What was said of the run after its first minute."""
    return Verdict(
        began + 62,
        "37 slots a server, 660 tok/s a GPU: 1.94 prompts/s, done in 26 h. "
        "The Mamba state pool is the limit; the KV cache is 80% empty",
        None,
        1.94,
        26.0,
        660.0,
        37,
        "the Mamba state pool",
    )
