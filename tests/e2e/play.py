"""A lab that is driven as an operator drives it: through SSH, ``pct`` and the agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from console.lab import job
from console.lab.lab import Lab
from console.lab.options import Options
from console.model import State
from console.session import Session, session
from remote import verify
from remote.protocol import Flags, Plan, Progress, Restart, Swap

DONE_S = 240.0


@asynccontextmanager
async def lab(
    folder: Path, *, count: int, speed: float, gpus: int = 2, **simulation: object
) -> AsyncIterator[Lab]:
    """A lab with its agent deployed, its servers ready and its run begun."""
    options = Options(
        gpus=gpus, count=count, speed=speed, folder=folder / "lab", simulation=simulation
    )
    async with Lab(options) as here:
        await job.begin(here, lambda _: None)
        assert await job.start(here, lambda _: None) == 0
        yield here


@asynccontextmanager
async def watched(here: Lab) -> AsyncIterator[Watch]:
    """A session on the lab whose every snapshot is looked at."""
    async with session(here.target) as link:
        watch = Watch(link)
        await link.follow(events_after=0)
        yield watch


class Watch:
    """What a console sees; the count of finished prompts must never fall on it."""

    def __init__(self, link: Session) -> None:
        self.link = link
        self.most = 0
        self.fell: list[tuple[int, int]] = []

    @property
    def state(self) -> State:
        return self.link.state

    @property
    def progress(self) -> Progress:
        progress = self.state.progress
        assert progress is not None
        return progress

    async def until(self, wanted: Callable[[State], bool], timeout: float, what: str) -> None:
        """Wait for a state. AssertionError with what was waited for, and how things stand."""

        def look() -> bool | None:
            progress = self.state.progress
            if progress is not None:
                if progress.completed < self.most:
                    self.fell.append((self.most, progress.completed))
                self.most = max(self.most, progress.completed)
            return True if wanted(self.state) else None

        try:
            await self.link.until(look, timeout)
        except TimeoutError:
            text = f"{what}: not within {timeout:.0f} s; {self.state.progress}; {self.events()}"
            raise AssertionError(text) from None

    def events(self) -> list[str]:
        """The newest events, as an operator reads them."""
        return [event.text for event in self.state.events[-15:]]

    async def done(self, timeout: float = DONE_S) -> Progress:
        """The run's end: every prompt done."""
        await self.until(
            lambda s: s.progress is not None and s.progress.status == "done" and not s.run.alive,
            timeout,
            "the run's end",
        )
        return self.progress

    async def completed(self, count: int, timeout: float = DONE_S) -> None:
        """So many prompts are done."""
        await self.until(
            lambda s: s.progress is not None and s.progress.completed >= count,
            timeout,
            f"{count} prompts done",
        )

    async def restart(self, flags: Flags, strategy: str = "rolling") -> Swap:
        """A hot swap, to its end."""
        request = Restart(
            spec=self.link.target.spec,
            set_flags=flags,
            strategy=strategy,  # type: ignore[arg-type]
        )
        plan = await self.link.call(request, timeout=120)
        assert isinstance(plan, Plan)
        assert plan.swap is not None
        number = plan.swap.id
        await self.until(
            lambda s: s.swap is not None and s.swap.id == number and s.swap.state != "doing",
            DONE_S,
            "the swap's end",
        )
        assert self.state.swap is not None
        return self.state.swap


def clean(here: Lab, *, s3: bool = True) -> verify.Report:
    """Audit the run directory; every law must hold."""
    report = verify.audit(here.run, prompts=here.prompts)
    assert report.violations == []
    if s3 and here.s3_port is not None:
        assert report.not_done == 0
    return report


def all_ended(here: Lab, found: Progress | verify.Report, count: int) -> None:
    """Every prompt has its record. Tool calls that ``max_tokens`` cut are set aside, a few, and
    nothing else is."""
    aside = here.run / "set_aside.jsonl"
    records = [json.loads(line) for line in aside.open()] if aside.exists() else []
    assert {(r["outcome"], r["finish_reason"]) for r in records} <= {("bad_tool_call", "length")}
    assert found.failed == 0
    assert found.completed + found.set_aside == count
    assert found.set_aside <= max(4, count // 50)


async def soon(wanted: Callable[[], bool], timeout: float, what: str) -> None:
    """Wait for something outside the console's state."""
    deadline = asyncio.get_running_loop().time() + timeout
    while not wanted():
        assert asyncio.get_running_loop().time() < deadline, f"{what}: not within {timeout:.0f} s"
        await asyncio.sleep(0.05)
