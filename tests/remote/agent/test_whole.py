"""Agent, a simulated server and the real run: what dies comes back, and nothing else is touched."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from console.lab import ports, prompts, venv
from console.lab.sim import model
from console.lab.sim.settings import SimSettings, Version
from remote.agent.diff import Picture
from remote.paths import Workspace
from remote.protocol import (
    Done,
    Down,
    Event,
    Events,
    Failure,
    FlagCatalogue,
    Flags,
    FlagValue,
    FleetSpec,
    Get,
    Plan,
    Progress,
    ReadEvents,
    ReadFlags,
    Request,
    Restart,
    Result,
    RunControl,
    RunSpec,
    RunStart,
    Snapshot,
    TargetSpec,
    Up,
)
from tests.remote.agent.conftest import Agent, Link

COUNT = 260
SECTIONS = [name for name in Picture.__struct_fields__ if name != "target"]
FLAGS: Flags = {
    "mamba-scheduler-strategy": "extra_buffer",
    "mamba-ssm-dtype": "bfloat16",
    "mem-fraction-static": 0.85,
    "context-length": 8192,
    "reasoning-parser": "qwen3",
    "tool-call-parser": "qwen3_coder",
    "enable-metrics": True,
}


MISTAKES: list[tuple[Flags, list[str], str]] = [
    ({"max-running-requests": 0}, [], "max-running-requests is a whole number of at least 1"),
    ({"max-running-requests": -3}, [], "max-running-requests is a whole number of at least 1"),
    ({"context-length": 8192.5}, [], "context-length takes a whole number"),
    ({"tp-size": 2}, [], "tp-size must be 1, not 2"),
    ({"mem-fraction-static": 0.5}, [], "leaves no room for the pools: of 94.4 GiB it takes 47.2"),
    ({}, ["foo"], "foo is not set"),
    ({}, ["max-running-requests"], "max-running-requests is not set"),
    ({"foo": 1}, [], "has no flag foo"),
]


@dataclass
class Site:
    """One workspace with one GPU, and the link to whatever agent is there now."""

    agent: Agent
    spec: TargetSpec
    link: Link

    @property
    def workspace(self) -> Workspace:
        return self.agent.workspace

    async def ask(self, request: Request) -> Result | Failure:
        return await self.link.ask(request)

    async def done(self, request: Request) -> str:
        answer = await self.ask(request)
        assert isinstance(answer, Done), answer
        return answer.text

    async def until(self, what: Callable[[Picture], object], seconds: float = 60.0) -> Picture:
        deadline = time.monotonic() + seconds
        while True:
            answer = await self.ask(Get())
            assert isinstance(answer, Snapshot)
            shown = Picture(**{name: getattr(answer, name) for name in SECTIONS})
            if what(shown):
                return shown
            if time.monotonic() > deadline:
                told = [*map(str, shown.servers), str(shown.run), *await self.texts()]
                pytest.fail("\n".join(told))
            await asyncio.sleep(0.1)

    async def events(self) -> list[Event]:
        answer = await self.ask(ReadEvents())
        assert isinstance(answer, Events)
        return answer.events

    async def texts(self) -> list[str]:
        return [f"{e.kind}: {e.text}" for e in await self.events()]

    async def replace_agent(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.agent.processes[-1].send_signal(number)
        await asyncio.to_thread(self.agent.processes[-1].wait, 20)
        self.agent.start()
        self.link = await Link.open(await self.agent.ready())


@pytest.fixture
async def site(agent: Agent, tmp_path: Path) -> AsyncIterator[Site]:
    async for made in site_of(agent, tmp_path, gpus=1, count=COUNT):
        yield made


async def site_of(
    agent: Agent,
    tmp_path: Path,
    *,
    gpus: int,
    count: int,
    speed: float = 40,
    sglang: Version = "0.5.12",
    **flags: FlagValue,
) -> AsyncIterator[Site]:
    """A workspace with simulated servers' Python and ``count`` prompts, and its agent."""
    spec = spec_of(
        agent.workspace, tmp_path, gpus=gpus, count=count, speed=speed, sglang=sglang, **flags
    )
    agent.start()
    made = Site(agent, spec, await Link.open(await agent.ready()))
    yield made
    made.link.close()


def spec_of(
    workspace: Workspace,
    tmp_path: Path,
    *,
    gpus: int,
    count: int,
    speed: float = 40,
    sglang: Version = "0.5.12",
    **flags: FlagValue,
) -> TargetSpec:
    """A target in this workspace, with its model, its prompts and its simulated SGLang."""
    model.write(tmp_path / "model")
    (tmp_path / "cards").mkdir()
    settings = SimSettings(state_dir=str(tmp_path / "cards"), speed=speed, transient_errors=0.0)
    python = venv.make(tmp_path / "sglang", sglang, settings)
    root = workspace.root
    prompts.write(root / "prompts.jsonl", prompts.expand(prompts.shipped(), count))
    return TargetSpec(
        name="site",
        workspace=str(root),
        python=str(python),
        fleet=FleetSpec(
            model=str(tmp_path / "model"),
            gpus=gpus,
            base_port=ports.free_range(gpus),
            drain_seconds=20,
            flags={**FLAGS, **{k.replace("_", "-"): v for k, v in flags.items()}},
        ),
        run=RunSpec(output="out"),
    )


def ready(shown: Picture) -> bool:
    return bool(shown.servers) and all(s.state == "ready" for s in shown.servers)


def completed(shown: Picture) -> int:
    return shown.run.progress.completed if shown.run.progress else 0


def progress_of(path: Path) -> Progress:
    """The run's account of itself. Raises OSError and ValueError."""
    return msgspec.json.decode(path.read_bytes(), type=Progress)


def indices(site: Site) -> list[int]:
    """The index of every record in every batch file."""
    out = site.workspace.root / "out"
    return [
        json.loads(line)["index"]
        for path in out.glob("completions_*.jsonl*")
        for line in path.read_text().splitlines()
    ]


async def test_every_flag_of_the_installed_sglang_can_be_read(site: Site) -> None:
    unknown = await site.ask(ReadFlags())
    assert isinstance(unknown, Failure)
    assert unknown.text == "this agent has not been told of a target yet: `stoker up`"

    await site.done(Up(spec=site.spec))
    told = await site.ask(ReadFlags())
    assert isinstance(told, FlagCatalogue)
    assert (told.version, told.source) == ("0.5.12", "parser")
    flags = {flag.name: flag for flag in told.flags}
    assert len(flags) > 300
    assert flags["mem-fraction-static"].kind == "float"
    assert flags["tensor-parallel-size"].aliases == ["tp-size"]
    assert flags["schedule-policy"].default == "fcfs"
    assert "extra_buffer" in (flags["mamba-scheduler-strategy"].choices or [])
    assert "memory" in flags["mem-fraction-static"].help.lower()

    # Another Python, which has none: what the first one had says nothing about it.
    other = replace(site.spec, python="/nowhere/python")
    await site.ask(Restart(spec=other, dry_run=True))
    lost = await site.ask(ReadFlags())
    assert isinstance(lost, Failure), lost
    assert lost.text == (
        "SGLang's flags are not known here: /nowhere/python cannot be asked: is it a Python?"
    )


@pytest.mark.timeout(240)
async def test_first_steps_then_kills_of_run_and_agent(site: Site) -> None:
    refused = await site.ask(RunStart(spec=site.spec))
    assert isinstance(refused, Failure)
    assert refused.text == "no server is up: start them first (u, or `stoker up`)"

    assert "epoch 1" in await site.done(Up(spec=site.spec))
    shown = await site.until(ready)
    server = shown.infos[0].pid
    assert shown.infos[0].max_running == 37
    assert "nothing to start" in await site.done(Up(spec=site.spec))

    assert await site.done(RunStart(spec=site.spec)) == "0 done, 0 repaired, 1/1 healthy"
    again = await site.ask(RunStart(spec=site.spec))
    assert isinstance(again, Failure)
    assert "at work already" in again.text

    # The run dies: it is started again by itself and resumes.
    shown = await site.until(lambda s: completed(s) >= 10)
    first = shown.run.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    shown = await site.until(lambda s: s.run.alive and s.run.pid != first)
    assert any("killed by SIGKILL" in text for text in await site.texts())

    # The agent dies: its successor finds both, and neither was started anew.
    second = shown.run.pid
    await asyncio.sleep(1.5)  # a look at the run that came back
    await site.replace_agent()
    shown = await site.until(ready)
    (lost,) = [e for e in await site.events() if e.kind == "agent.lost"]
    assert lost.level == "warning"
    assert lost.text.endswith("; its server went on; the run went on")
    assert shown.infos[0].pid == server
    assert (shown.run.alive, shown.run.pid) == (True, second)
    assert [e.id for e in shown.epochs] == [1]

    # Both at once: the run comes back with the next agent.
    assert second is not None
    os.kill(second, signal.SIGKILL)
    await site.replace_agent()
    shown = await site.until(lambda s: s.run.alive and s.run.pid != second)
    assert shown.infos[0].pid == server

    shown = await site.until(lambda s: not s.run.alive and completed(s) == COUNT, 120)
    assert shown.run.exit == 0
    assert sorted(indices(site)) == list(range(COUNT))
    assert any(text.startswith("run.done") for text in await site.texts())
    epochs = (site.workspace.root / "out/epochs.jsonl").read_text().splitlines()
    assert json.loads(epochs[0])["flags"] == FLAGS

    # One that leaves in order is missed by nobody.
    told = [e.id for e in await site.events() if e.kind == "agent.lost"]
    assert len(told) == 2
    await site.replace_agent(signal.SIGTERM)
    await site.until(ready)
    assert [e.id for e in await site.events() if e.kind == "agent.lost"] == told

    assert isinstance(await site.ask(Down()), Done)
    await site.until(lambda s: all(x.state == "stopped" for x in s.servers))


async def test_what_holds_full_servers_back_is_named_within_seconds(
    agent: Agent, tmp_path: Path
) -> None:
    """The model is a folder of no telling name; the throughput has still to be measured."""
    async for site in site_of(agent, tmp_path, gpus=2, count=4000, speed=20):
        await site.done(Up(spec=site.spec))
        await site.until(ready)
        await site.done(RunStart(spec=site.spec))
        began = time.monotonic()
        shown = await site.until(lambda s: s.verdict and s.verdict.waits)
        assert shown.verdict is not None
        assert shown.verdict.text == ""
        shown = await site.until(lambda s: s.verdict and s.verdict.bound_by)
        assert time.monotonic() - began < 20
        found = shown.verdict
        assert found is not None
        assert found.bound_by.startswith("Mamba state pool: 37 slots a server")
        assert found.remedy == (
            "mamba-scheduler-strategy=no_buffer mem-fraction-static=0.90: "
            "72 slots, about ×1.77 expected"
        )
        assert found.waits == "measuring"
        assert found.due is not None
        assert 15 < found.due - found.time < 45
        told = [text for text in await site.texts() if text.startswith("verdict: after start")]
        assert len(told) == 1
        assert told[0].endswith(found.remedy)


@pytest.mark.timeout(240)
async def test_a_swap_that_an_agent_left_is_finished_by_the_next(site: Site) -> None:
    await site.done(Up(spec=site.spec))
    await site.until(ready)
    await site.done(RunStart(spec=site.spec))
    await site.until(lambda s: completed(s) >= 5)
    change: Flags = {"mamba-scheduler-strategy": "no_buffer", "mem-fraction-static": 0.9}
    looked = await site.ask(Restart(spec=site.spec, set_flags=change, dry_run=True))
    assert isinstance(looked, Plan)
    assert looked.predicted_max_running == 72
    for wrong, unset, words in MISTAKES:
        for dry in (True, False):
            request = Restart(spec=site.spec, set_flags=wrong, unset_flags=unset, dry_run=dry)
            refused = await site.ask(request)
            assert isinstance(refused, Failure), (wrong, unset, refused)
            assert words in refused.text
            assert "\n" not in refused.text
    begun = await site.ask(Restart(spec=site.spec, set_flags=change))
    assert isinstance(begun, Plan)
    busy = await site.ask(Down())
    assert isinstance(busy, Failure)
    assert busy.text.startswith("busy: restart")

    await site.until(lambda s: s.swap and any(x.state == "doing" for x in s.swap.steps))
    await site.replace_agent()
    shown = await site.until(lambda s: s.swap and s.swap.state != "doing", 90)
    assert shown.swap is not None
    assert (shown.swap.state, shown.swap.to_epoch) == ("done", 2), shown.swap
    shown = await site.until(ready)
    assert shown.infos[0].max_running == 72
    assert shown.infos[0].epoch == 2

    # Stopped on purpose it stays stopped, and resumes when told to.
    await site.until(lambda s: s.run.alive and completed(s) >= 20)
    told = await site.done(RunControl(do="resume", concurrency=3))
    assert told == "requests at once on each server: 3 (before: auto)"
    shown = await site.until(lambda s: s.run.concurrency == 3)
    refused = await site.ask(RunControl(do="resume", concurrency=100_000))
    assert isinstance(refused, Failure)
    assert "auto, or 1 to 4,096" in refused.text
    assert "before: 3" in await site.done(RunControl(do="resume", concurrency="auto"))
    said = [e for e in await site.events() if e.text.startswith("run concurrency: ")]
    assert [e.kind for e in said] == ["action", "action"]
    assert all(e.who for e in said)
    assert "stopping" in await site.done(RunControl(do="stop"))
    shown = await site.until(lambda s: not s.run.alive)
    assert shown.run.began is not None
    assert 0 <= time.time() - shown.run.began < 600
    assert shown.run.exit == 130
    assert "done, 0 repaired" in await site.done(RunControl(do="resume"))
    shown = await site.until(lambda s: not s.run.alive and completed(s) == COUNT, 120)
    assert sorted(indices(site)) == list(range(COUNT))
    assert epochs_of(site) <= {1, 2}


def epochs_of(site: Site) -> set[int | None]:
    """The epochs that stand in the records."""
    out = site.workspace.root / "out"
    return {
        json.loads(line)["epoch"]
        for path in out.glob("completions_*.jsonl*")
        for line in path.read_text().splitlines()
    }
