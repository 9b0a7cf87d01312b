"""Whether new flags stay: a canary's time of trial, and the wait for a confirmation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from remote.fleet.judge import judge
from remote.fleet.server import Server
from remote.fleet.timing import Timing
from remote.protocol import StepState, Swap


@dataclass(frozen=True)
class Judging:
    """Watches throughput until numbers, a person or the time decide."""

    swap: Callable[[], Swap]
    """As it stands: somebody may have decided."""
    rates: Callable[[], dict[int, float]]
    """Tokens a second of the servers that are as busy as they are meant to be, by GPU."""
    base: float | None
    """What the old flags gave."""
    timing: Timing
    say: Callable[[str], None]
    """What it waits for."""

    async def canary(self, server: Server, began: float) -> tuple[StepState, str]:
        """Against its neighbours; ``done`` keeps it."""
        mine: list[float] = []
        others: dict[int, list[float]] = {}
        settled = time.time() + self.timing.settle
        while True:
            swap = self.swap()
            if swap.decision == "keep":
                return "done", f"promoted by {swap.decided_by}"
            if swap.decision:
                return "failed", f"taken back by {swap.decided_by}"
            if server.status in ("failed", "stopped", "stalled"):
                return "failed", server.cause.text if server.cause is not None else "it ended"
            now = time.time()
            if now > settled:
                rates = self.rates()
                rate = rates.pop(server.gpu, None)
                if rate is not None:
                    mine.append(rate)
                    for gpu, value in rates.items():
                        others.setdefault(gpu, []).append(value)
            found = judge(mine, others, base=self.base)
            self.say(f"canary GPU {server.gpu}: {found.text}")
            if found.verdict in ("better", "same"):
                return "done", found.text
            if found.verdict == "worse":
                return "failed", found.text
            if now - began > self.timing.judge_most:
                no_worse = found.ratio is not None and found.ratio >= 1
                return ("done" if no_worse else "failed"), f"after {now - began:.0f} s {found.text}"
            await asyncio.sleep(self.timing.judge_sample)

    async def confirmation(self, began: float) -> tuple[StepState, str]:
        """Of all servers of the swap; ``done`` keeps them."""
        seconds = self.swap().confirm_s or 0.0
        samples: dict[int, list[float]] = {gpu: [] for gpu in self.swap().gpus}
        settled = time.time() + self.timing.settle
        while True:
            if time.time() > settled:
                for gpu, rate in self.rates().items():
                    if gpu in samples:
                        samples[gpu].append(rate)
            found = judge(max(samples.values(), key=len), {}, base=self.base)
            swap = self.swap()
            if swap.decision == "take back":
                return "failed", f"taken back by {swap.decided_by}"
            if swap.decision:
                if found.verdict == "worse":
                    return "failed", f"confirmed by {swap.decided_by}, but {found.text}"
                return "done", f"confirmed by {swap.decided_by}"
            left = began + seconds - time.time()
            if left <= 0:
                return "failed", f"not confirmed within {_span(seconds)}"
            self.say(f"waits to be confirmed, {left:.0f} s left; {found.text}")
            await asyncio.sleep(min(self.timing.judge_sample, max(left, 0.01)))


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
