"""``stoker lab --headless``: the whole job to its end, without a screen."""

from __future__ import annotations

import time
from collections.abc import Callable

from console.lab import job
from console.lab.lab import Lab
from console.lab.options import Options
from console.session import Session, session
from console.text import duration
from remote.protocol import Progress, RunState

EVERY_S = 2.0
"""Between two lines of progress."""

FINAL = ("done", "stopped", "failed")


async def run(options: Options) -> int:
    """0 when every prompt is done; 1 when some were given up, set aside or not uploaded."""

    def say(text: str) -> None:
        print(text, flush=True)

    began = time.monotonic()
    async with Lab(options, say) as lab:
        say(f"the lab is up in {lab.folder} (simulated hardware)")
        await job.begin(lab, say)
        if await job.start(lab, say):
            say(f"no server came up: see {lab.container.workspace / lab.target.spec.fleet.log_dir}")
            return 1
        async with session(lab.target) as here:
            await here.follow()
            end = await watch(here, lab, say)
        for text in summary(end, lab, time.monotonic() - began):
            say(text)
        return verdict(end.progress)


async def watch(here: Session, lab: Lab, say: Callable[[str], None]) -> RunState:
    """Lines of progress until the run has ended; its last state. Raises LabError."""
    seen: set[str] = set()

    def ended() -> RunState | None:
        state = here.state.run
        if state is None or state.progress is None or state.alive:
            return None
        return state if state.progress.status in FINAL or state.exit is not None else None

    while True:
        try:
            return await here.until(ended, timeout=EVERY_S)
        except TimeoutError:
            lab.check()
            state = here.state.run
            if state is None or state.progress is None:
                continue
            say(line(state.progress))
            if state.progress.problem and state.progress.problem not in seen:
                seen.add(state.progress.problem)
                say(state.progress.problem)


def line(progress: Progress) -> str:
    """How far it is, in one line."""
    share = progress.completed / progress.total if progress.total else 0.0
    parts = [
        f"{progress.completed:,}/{progress.total:,} done ({share:.0%})",
        f"{progress.rate_per_sec:.1f}/s",
        f"{progress.tok_s:,.0f} tok/s" if progress.tok_s is not None else "",
        f"{progress.in_flight} in flight",
        f"{progress.waiting_retry} to retry" if progress.waiting_retry else "",
        f"{progress.failed} failed" if progress.failed else "",
        f"{progress.set_aside} set aside" if progress.set_aside else "",
        f"eta {duration(progress.eta_hours * 3600)}" if progress.eta_hours is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def verdict(progress: Progress | None) -> int:
    """The exit status that a run's last account deserves."""
    if progress is None or progress.status != "done" or progress.completed < progress.total:
        return 1
    return 1 if progress.failed or progress.set_aside or progress.not_in_s3 else 0


def summary(end: RunState, lab: Lab, seconds: float) -> list[str]:
    """What a reader of a log wants to find at its end."""
    progress = end.progress
    if progress is None:
        return ["the run ended before it said anything"]
    done = f"{progress.completed:,} of {progress.total:,} done"
    tokens = f"{progress.total_output_tokens:,} tokens ({progress.avg_output_tokens:,.0f} each)"
    megabytes = progress.batch_bytes / 1e6
    lines = [
        f"{progress.status}: {done}, {progress.failed} failed, {progress.set_aside} set aside",
        f"{tokens}, {progress.batch_files} batch files, {megabytes:.1f} MB",
    ]
    if lab.s3_port is not None:
        lines.append(f"{progress.s3_uploaded} files in S3, {progress.not_in_s3} records not yet")
    if progress.problem:
        lines.append(progress.problem)
    lines.append(f"took {duration(seconds)}; kept: {lab.run}")
    return lines
