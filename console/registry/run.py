"""The run: start, pause, stop, another life for what was given up on."""

from __future__ import annotations

from typing import Final

from console.action import Action
from remote.protocol import RetryFailed, RunControl

RUN: Final[tuple[Action, ...]] = (
    Action(
        "run.go",
        "Start",
        "Start the generation, resume it where it stopped, or lift a pause.",
        ("s",),
        "Run",
        changes=True,
        verb="run start",
        footer=2,
    ),
    Action(
        "run.pause",
        "Pause",
        "Send nothing new; what is in flight ends and is kept, then GPUs idle until it is lifted.",
        ("p",),
        "Run",
        changes=True,
        verb="run pause",
        footer=3,
        request=lambda spec, gpus: RunControl(do="pause"),
    ),
    Action(
        "run.stop",
        "Stop run",
        "Let what is in flight end, then leave; starting again resumes.",
        ("x",),
        "Run",
        danger="key",
        changes=True,
        verb="run stop",
        word="stop",
        footer=8,
        short="stop",
        loses="time: GPUs idle until a start resumes where it stopped.",
        request=lambda spec, gpus: RunControl(do="drain"),
    ),
    Action(
        "run.retry",
        "Retry failed",
        "Give prompts that were given up on another life.",
        ("R",),
        "Run",
        danger="key",
        changes=True,
        verb="run retry-failed",
        footer=10,
        short="retry",
        loses="failed.jsonl is renamed, not deleted; those prompts count as not done again.",
        request=lambda spec, gpus: RetryFailed(),
    ),
    Action(
        "run.retry_aside",
        "Retry set aside",
        "Give prompts that were given up on, and those whose answer was set aside, another life.",
        ("U",),
        "Run",
        danger="key",
        changes=True,
        verb="run retry-failed --set-aside",
        loses="failed.jsonl and set_aside.jsonl are renamed, not deleted; those prompts count as "
        "not done again.",
        request=lambda spec, gpus: RetryFailed(set_aside=True),
        screens=frozenset({"run"}),
        footer=11,
        short="retry aside",
    ),
    Action(
        "run.concurrency",
        "Requests at once",
        "How many requests may be in flight on each server, or auto; the running run obeys.",
        ("C",),
        "Run",
        changes=True,
        verb="run resume --concurrency auto",
        screens=frozenset({"run", "fleet"}),
        footer=9,
        short="at once",
    ),
)
