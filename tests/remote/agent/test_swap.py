"""Swaps of real flags under a real run: nothing finished is lost, nothing kept is made again.

The agent is the real one, in this process, so that it waits for seconds where operators wait for
minutes; run, servers and socket are processes and files of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from remote import verify
from remote.agent import core, serve
from remote.agent.diff import Picture
from remote.fleet.timing import Timing
from remote.paths import Workspace
from remote.protocol import (
    Decide,
    Epoch,
    Failure,
    Flags,
    InFlight,
    Plan,
    Restart,
    Rollback,
    RunControl,
    RunStart,
    Swap,
    TargetSpec,
    Up,
)
from tests.remote.agent.conftest import Agent, Link
from tests.remote.agent.test_whole import Site, completed, ready, spec_of

pytestmark = pytest.mark.timeout(300)

TIMING = Timing(
    tick=0.2,
    loads=0.5,
    metrics=0.3,
    info=5.0,
    restart_first=0.5,
    rate=2.0,
    settle=4.0,
    judge_sample=0.05,
    judge_most=60.0,
)
SLOTS = 8
COUNT = 4000
"""Prompts, more than are done before a test ends."""


@dataclass
class Inside(Site):
    """A site whose agent is in this process."""

    core: core.Agent
    server: serve.Server
    work: asyncio.Task[None]

    @classmethod
    async def open(cls, workspace: Workspace, spec: TargetSpec) -> Inside:
        agent = core.Agent(workspace, code="source", end=asyncio.Event(), timing=TIMING)
        workspace.stoker.mkdir(exist_ok=True)
        await agent.open()
        server = serve.Server(agent, workspace.socket)
        await server.open()
        work = asyncio.create_task(agent.live())
        link = await Link.open(workspace.socket)
        return cls(Agent(workspace), spec, link, agent, server, work)

    async def close(self) -> None:
        """What a stopped agent leaves: servers and run go on."""
        self.link.close()
        self.work.cancel()
        await asyncio.gather(self.work, return_exceptions=True)
        await self.server.close()
        await self.core.close()

    @property
    def out(self) -> Path:
        return self.workspace.root / "out"

    def records(self) -> list[dict[str, Any]]:
        paths = sorted(self.out.glob("completions_*.jsonl*"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    async def restart(self, **fields: Any) -> Swap:
        answer = await self.ask(Restart(spec=self.spec, **fields))
        assert isinstance(answer, Plan), answer
        assert answer.swap is not None
        return answer.swap

    async def swapped(self, number: int, seconds: float = 120.0) -> Swap:
        def ended(shown: Picture) -> bool:
            return (
                shown.swap is not None and shown.swap.id == number and shown.swap.state != "doing"
            )

        shown = await self.until(ended, seconds)
        assert shown.swap is not None
        return shown.swap

    async def to_the_end(self, count: int) -> None:
        """The run ends by itself with every prompt done once, and the audit finds nothing."""
        shown = await self.until(lambda s: not s.run.alive, 200)
        assert shown.run.exit == 0, shown.run
        assert sorted(r["index"] for r in self.records()) == list(range(count))
        await self.audited()

    async def stopped(self) -> None:
        """The run is stopped in the middle: whatever was finished is there, once."""
        before = completed(await self.until(lambda s: s.run.alive))
        await self.done(RunControl(do="stop"))
        shown = await self.until(lambda s: not s.run.alive)
        indices = [r["index"] for r in self.records()]
        assert len(indices) == len(set(indices)) == completed(shown) >= before > 0
        assert shown.run.progress is not None
        assert shown.run.progress.failed == 0
        await self.audited()

    async def audited(self) -> None:
        report = await asyncio.to_thread(verify.audit, self.out)
        assert not report.violations, report.violations


@contextlib.asynccontextmanager
async def generating(
    workspace: Workspace, tmp_path: Path, *, gpus: int, count: int
) -> AsyncIterator[Inside]:
    """Servers of a few slots each, and a run that fills them."""
    spec = spec_of(
        workspace, tmp_path, gpus=gpus, count=count, speed=80, max_running_requests=SLOTS
    )
    site = await Inside.open(workspace, spec)
    try:
        await site.done(Up(spec=spec))
        await site.until(ready, 90)
        await site.done(RunStart(spec=spec))
        await site.until(lambda s: all((x.running or 0) >= SLOTS for x in s.servers))
        yield site
    finally:
        await site.close()


async def test_a_better_canary_is_promoted(workspace: Workspace, tmp_path: Path) -> None:
    async with generating(workspace, tmp_path, gpus=3, count=COUNT) as site:
        begun = await site.restart(
            set_flags={"max-running-requests": 3 * SLOTS}, strategy="canary", at_once=2
        )
        swap = await site.swapped(begun.id)
        assert swap.state == "done", swap.text
        (judged,) = (s for s in swap.steps if s.name == "judge")
        assert judged.text.startswith("better: ")
        assert swap.tokens_kept > 0
        assert swap.tokens_lost == 0
        shown = await site.until(lambda s: [i.epoch for i in s.infos] == [2, 2, 2])
        (epoch,) = (e for e in shown.epochs if e.id == 2)
        assert epoch.cost in swap.text
        assert "GPU-seconds out of service" in epoch.cost
        assert "nothing thrown away" in epoch.cost
        told = [e.text for e in await site.events() if e.kind == "swap.done"]
        assert told == [f"swap {swap.id}: {swap.text}"]
        await site.stopped()
    continued = [r for r in site.records() if r.get("segments")]
    assert continued
    for record in continued:
        assert record["epoch"] == record["segments"][-1]["epoch"]


async def test_a_worse_canary_is_taken_back(workspace: Workspace, tmp_path: Path) -> None:
    async with generating(workspace, tmp_path, gpus=2, count=COUNT) as site:
        before = (await site.until(ready)).infos
        begun = await site.restart(set_flags={"max-running-requests": 2}, strategy="canary")
        swap = await site.swapped(begun.id)
        assert swap.state == "rolled back", swap.text
        assert "as the canary: worse: " in swap.text
        assert "GPU 1 not touched" in swap.text
        assert swap.tokens_lost == 0
        shown = await site.until(ready)
        assert [i.max_running for i in shown.infos] == [SLOTS, SLOTS]
        assert [i.epoch for i in shown.infos] == [1, 1]
        assert shown.infos[1].pid == before[1].pid
        await site.stopped()


async def test_a_canary_that_crashes_is_taken_back(workspace: Workspace, tmp_path: Path) -> None:
    async with generating(workspace, tmp_path, gpus=2, count=COUNT) as site:
        begun = await site.restart(set_flags={"max-running-requests": 9}, strategy="canary")

        def judging(shown: Picture) -> bool:
            steps = shown.swap.steps if shown.swap is not None else []
            busy = any((x.running or 0) > SLOTS / 2 for x in shown.servers if x.gpu == 0)
            return busy and any(s.name == "judge" and s.state == "doing" for s in steps)

        shown = await site.until(judging)
        pid = shown.infos[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        swap = await site.swapped(begun.id)
        assert swap.state == "rolled back", swap.text
        assert "SIGKILL" in swap.text
        shown = await site.until(ready)
        assert [i.epoch for i in shown.infos] == [1, 1]
        await site.stopped()


@pytest.mark.parametrize("mode", ["continue", "drain", "redo"])
async def test_what_becomes_of_answers_under_way(
    workspace: Workspace, tmp_path: Path, mode: InFlight
) -> None:
    async with generating(workspace, tmp_path, gpus=2, count=200) as site:
        flags: Flags = {"max-running-requests": SLOTS + 1}
        looked = await site.ask(
            Restart(spec=site.spec, set_flags=flags, in_flight=mode, dry_run=True)
        )
        assert isinstance(looked, Plan)
        assert [line.split(":")[0] for line in looked.costs[1:]] == ["continue", "drain", "redo"]
        assert "nothing is thrown away" in looked.costs[1]
        begun = await site.restart(set_flags=flags, in_flight=mode)
        swap = await site.swapped(begun.id)
        assert swap.state == "done", swap.text
        names = {s.name for s in swap.steps}
        assert ("drain" in names) == (mode == "drain")
        broken = [s.text for s in swap.steps if s.name == "abort"]
        if mode == "continue":
            assert all("broken off, to be continued" in text for text in broken), broken
            assert swap.tokens_kept > 0
            assert swap.tokens_lost == 0
        elif mode == "redo":
            assert all("broken off, to be generated again" in text for text in broken), broken
            assert swap.tokens_lost > 0
            assert f"{swap.tokens_lost:,} tokens thrown away" in swap.text
        else:  # the bound is longer than any answer here
            assert (swap.tokens_kept, swap.tokens_lost) == (0, 0)
        await site.to_the_end(200)
        segments = [r for r in site.records() if r.get("segments")]
        assert bool(segments) == (mode == "continue")


async def test_new_flags_that_nobody_confirms_go_again(
    workspace: Workspace, tmp_path: Path
) -> None:
    """Also where the agent is replaced while it waits; a second time they are confirmed."""
    async with generating(workspace, tmp_path, gpus=1, count=COUNT) as site:
        flags: Flags = {"max-running-requests": SLOTS + 1}
        begun = await site.restart(set_flags=flags, strategy="all", confirm_within_min=0.05)
        swap = await site.swapped(begun.id)
        assert swap.state == "rolled back", swap.text
        assert swap.text.startswith("not confirmed within 3 s; the previous flags were put back")
        shown = await site.until(ready)
        assert (shown.infos[0].epoch, shown.infos[0].max_running) == (1, SLOTS)

        def waits(shown: Picture) -> bool:
            steps = shown.swap.steps if shown.swap is not None else []
            return any(s.name == "confirm" and s.state == "doing" for s in steps)

        begun = await site.restart(set_flags=flags, strategy="all", confirm_within_min=5)
        await site.until(waits, 90)
        await site.close()
        again = await Inside.open(workspace, site.spec)
        try:
            await again.until(waits)
            assert "kept" in await again.done(Decide(keep=True))
            swap = await again.swapped(begun.id)
            assert swap.state == "done", swap.text
            assert "confirmed by tester" in swap.text
            late = await again.ask(Decide(keep=True))
            assert isinstance(late, Failure)
            assert late.text == "no swap is under way"
            shown = await again.until(ready)
            assert shown.infos[0].max_running == SLOTS + 1
            # And back, the same way: what is under way is continued.
            answer = await again.ask(Rollback(spec=again.spec, in_flight="continue"))
            assert isinstance(answer, Plan), answer
            assert answer.swap is not None
            swap = await again.swapped(answer.swap.id)
            assert swap.state == "done", swap.text
            assert swap.in_flight == "continue"
            assert swap.tokens_lost == 0
            await again.until(lambda s: ready(s) and s.infos[0].max_running == SLOTS)
            await again.stopped()
        finally:
            await again.close()


async def test_what_finishes_a_swap_takes_what_is_missing(
    workspace: Workspace, tmp_path: Path
) -> None:
    """The servers that have the flags go on, and all are of one epoch then."""
    spec = spec_of(workspace, tmp_path, gpus=2, count=10, speed=80, max_running_requests=SLOTS)
    site = await Inside.open(workspace, spec)
    flags: Flags = {"max-running-requests": SLOTS + 1}
    try:
        await site.done(Up(spec=spec))
        await site.until(ready, 90)
        swap = await site.swapped((await site.restart(set_flags=flags, gpus=[0])).id)
        assert swap.state == "done", swap.text
        kept = (await site.until(ready)).infos[0].pid
        begun = await site.restart(set_flags=flags)
        assert (begun.gpus, begun.to_epoch) == ([1], 2)
        swap = await site.swapped(begun.id)
        assert swap.state == "done", swap.text
        shown = await site.until(ready)
        assert shown.infos[0].pid == kept
        assert [(i.epoch, i.max_running) for i in shown.infos] == [(2, SLOTS + 1)] * 2
        again = await site.ask(Restart(spec=spec, set_flags=flags, dry_run=True))
        assert isinstance(again, Plan)
        assert again.swap is not None
        assert (again.goes_on, again.swap.gpus) == ([], [0, 1])
    finally:
        await site.close()


def by_hand(spec: TargetSpec, log: Path) -> subprocess.Popen[bytes]:
    """A server as an operator starts it in a terminal."""
    argv = [spec.python, "-m", "sglang.launch_server", "--model-path", spec.fleet.model]
    flags = ("--mem-fraction-static", "0.85", "--mamba-ssm-dtype", "bfloat16")
    with log.open("wb") as out:
        return subprocess.Popen(
            [*argv, "--port", str(spec.fleet.base_port), *flags],
            stdout=out,
            stderr=out,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"},
            start_new_session=True,
        )


async def rolled_back(site: Inside, pid: int) -> Swap:
    """A roll back ends another's server no more than a restart does before that was confirmed."""
    journal = site.core.journal
    journal.put_epoch(Epoch(id=1, since=time.time() - 60, flags=site.spec.fleet.flags))
    back = Rollback(spec=site.spec, epoch=1)
    looked = await site.ask(replace(back, dry_run=True))
    assert isinstance(looked, Plan)
    assert looked.take_over == [pid]
    refused = await site.ask(back)
    assert isinstance(refused, Failure)
    assert f"not started by Stoker: pid {pid}" in refused.text
    begun = await site.ask(replace(back, take_over=looked.take_over))
    assert isinstance(begun, Plan), begun
    assert begun.swap is not None
    return begun.swap


@pytest.mark.parametrize("back", [False, True])
async def test_a_server_by_hand_is_ended_only_when_that_was_confirmed(
    workspace: Workspace, tmp_path: Path, back: bool
) -> None:
    spec = spec_of(workspace, tmp_path, gpus=1, count=10, speed=80, max_running_requests=SLOTS)
    hand = by_hand(spec, tmp_path / "hand.log")
    site = await Inside.open(workspace, spec)
    try:
        # Looking is enough to find it: within seconds of an agent's first word of the target.
        site.link.close()
        site.link = await Link.open(workspace.socket, spec=spec)
        shown = await site.until(
            lambda s: s.servers and s.servers[0].state == "foreign" and s.infos[0].max_running, 20
        )
        assert shown.infos[0].pid == hand.pid
        assert shown.infos[0].log == str(tmp_path / "hand.log")
        planned = await site.ask(Restart(spec=spec, dry_run=True))
        assert isinstance(planned, Plan)
        assert planned.take_over == [hand.pid]
        assert any(f"pid {hand.pid} was not started by Stoker" in w for w in planned.warnings)
        # Its start-up log is enough to foresee what our flags will come to.
        assert planned.predicted_max_running == SLOTS
        for confirmed in ([], [1]):
            refused = await site.ask(Restart(spec=spec, take_over=confirmed))
            assert isinstance(refused, Failure)
            assert f"not started by Stoker: pid {hand.pid}: a restart ends it only" in refused.text
        if back:
            begun = await rolled_back(site, hand.pid)
        else:
            begun = await site.restart(take_over=planned.take_over)
        swap = await site.swapped(begun.id)
        assert swap.state == "done", swap.text
        assert await asyncio.to_thread(hand.wait, 10) is not None
        shown = await site.until(ready)
        assert (shown.infos[0].epoch, shown.infos[0].max_running) == (1, SLOTS)
    finally:
        await site.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(hand.pid, signal.SIGKILL)
        await asyncio.to_thread(hand.wait)
