"""The fleet over the lab's simulated SGLang, in both dialects: the right verdict in time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec
import pytest

from console.lab import venv
from console.lab.sim import kernel
from console.lab.sim.settings import Fault, SimSettings, Version, set_fault
from remote.fleet import identity, processes
from remote.fleet.fleet import Fleet
from remote.kernel_log import KernelLog, address
from remote.protocol import Flags, TargetSpec
from tests import ports
from tests.remote.fleet.conftest import FAST, Events, FakeRun, Site
from tests.remote.fleet.servers import pid_of
from tests.remote.fleet.swaps import Journal, begin
from tests.waiting import until

pytestmark = pytest.mark.timeout(180)

STRATEGY = {"0.5.12": "mamba-scheduler-strategy", "0.5.23": "mamba-radix-cache-strategy"}
SIM = replace(FAST, stall=2.5, stalled_restart=60.0, term=7.0, lost_child=1.0)


class SimSite(Site):
    """A workspace whose Python has the stand-in SGLang."""

    state: Path
    python: Path
    version: Version = "0.5.12"

    def target(self, start: float = 60.0, drain: float = 2.0) -> TargetSpec:
        flags: Flags = {
            STRATEGY[self.version]: "extra_buffer",
            "mem-fraction-static": 0.85,
            "mamba-ssm-dtype": "bfloat16",
            "enable-metrics": True,
        }
        spec = self.spec(drain, start, **flags)
        fleet = msgspec.structs.replace(spec.fleet, model="Qwen/Qwen3.6-27B")
        return msgspec.structs.replace(spec, python=str(self.python), fleet=fleet)

    def fault(self, gpu: int, fault: Fault | None) -> None:
        set_fault(self.state, gpu, fault)


def settle(tmp_path: Path, version: Version, speed: float = 400.0) -> SimSite:
    state = tmp_path / "state"
    settings = SimSettings(state_dir=str(state), speed=speed, transient_errors=0.0)
    site = SimSite(root=tmp_path / "ws", base=ports.free(6), gpus=1, run=FakeRun(), events=Events())
    site.root.mkdir()
    site.version, site.state = version, state
    site.python = venv.make(tmp_path / "venv", version, settings)
    return site


@pytest.fixture(params=["0.5.12", "0.5.23"])
async def sim(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SimSite]:
    made = settle(tmp_path, request.param)
    yield made
    await made.end_all()


@pytest.fixture(params=["0.5.23"])
async def slow_sim(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SimSite]:
    """Answers take seconds, so that they are in flight when something is done.

    The other dialect's story is told through the whole of Stoker, in tests/e2e.
    """
    made = settle(tmp_path, request.param, speed=20.0)
    yield made
    await made.end_all()


@pytest.fixture
async def sim12(tmp_path: Path) -> AsyncIterator[SimSite]:
    made = settle(tmp_path, "0.5.12")
    yield made
    await made.end_all()


async def up(site: SimSite, spec: TargetSpec) -> Fleet:
    fleet = site.fleet(spec, SIM)
    await fleet.up(None, epoch=site.epoch(spec), who="ann")
    return fleet


@contextlib.asynccontextmanager
async def asking(
    fleet: Fleet, gpu: int, count: int, *, again: bool = False
) -> AsyncIterator[list[asyncio.Task[str]]]:
    """So many chat requests in flight on one server, by option for as long as it takes."""

    async def keep(session: aiohttp.ClientSession, n: int) -> str:
        while True:
            last = await one(session, n)
            if not again:
                return last
            await asyncio.sleep(0.01)

    async def one(session: aiohttp.ClientSession, n: int) -> str:
        body = {
            "model": "x",
            "messages": [{"role": "user", "content": f"Write a long story, number {n}."}],
            "max_tokens": 30_000,
            "ignore_eos": True,
        }
        try:
            async with session.post(f"{fleet.url(gpu)}/v1/chat/completions", json=body) as got:
                answer = await got.json()
                return str(answer["choices"][0]["finish_reason"])
        except (aiohttp.ClientError, OSError):
            return "lost"

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        tasks = [asyncio.create_task(keep(session, n)) for n in range(count)]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def cause(site: SimSite, kind: str) -> str:
    return "; ".join(site.events.texts(kind))


async def test_the_story_of_one_server(slow_sim: SimSite) -> None:
    """37 slots under extra_buffer at 0.85; restarted with no_buffer at 0.90: 72."""
    sim = slow_sim
    spec = sim.target()
    fleet = await up(sim, spec)
    phases: set[str] = set()

    def ready() -> bool:
        phases.add(fleet.states()[0].phase.split(" 1")[0].rstrip("%0123456789 "))
        return fleet.states()[0].state == "ready"

    await until(ready, 60)
    old = sim.version == "0.5.12"
    assert fleet.infos()[0].max_running == (37 if old else 36)
    assert fleet.infos()[0].max_mamba == (186 if old else 184)
    assert fleet.infos()[0].sglang == sim.version
    assert "--uvicorn-access-log-exclude-prefixes" in fleet.infos()[0].argv
    assert phases & {"loading weights", "capturing graphs", "allocating caches", "warming up"}

    changes: Flags = {STRATEGY[sim.version]: "no_buffer", "mem-fraction-static": 0.9}
    if not old:
        changes["disable-overlap-schedule"] = True
    planned = await fleet.plan(
        current=sim.epoch(spec), set_flags=changes, unset_flags=[], strategy="all", gpus=None
    )
    slots = 72 if old else 71
    assert planned.predicted_max_running == slots
    new, _ = fleet.new_flags(spec.fleet.flags, changes, [])
    async with asking(fleet, 0, 40) as asked:
        await until(lambda: (fleet.states()[0].running or 0) >= 36)
        await until(lambda: fleet.states()[0].gen_tok_s)
        assert fleet.states()[0].lights.tokens
        await until(lambda: 0.4 < (fleet.states()[0].mamba_usage or 0) <= 1)
        ended = await fleet.swap(
            begin(planned),
            old=sim.epoch(spec),
            new=msgspec.structs.replace(sim.epoch(spec), id=2, flags=new),
            save=Journal(),
        )
        assert ended.state == "done", ended
        # Nothing that was in flight is without an answer: the abort gives back what there was.
        assert all(one.done() for one in asked)
        assert {await one for one in asked} <= {"abort", "lost"}
    assert fleet.infos()[0].max_running == slots
    assert not sim.events.texts("server.failed")


async def test_a_crash_in_each_phase(sim: SimSite) -> None:
    """Six servers, each dying in another phase: the right phase, the right cause, no restart."""
    expected = {
        0: (Fault(fail="args"), "unsupported configuration"),
        1: (Fault(fail="weights"), "out of GPU memory while loading weights"),
        2: (Fault(fail="memory"), "raise mem-fraction-static"),
        3: (Fault(fail="graphs"), "out of GPU memory while capturing graphs"),
        4: (Fault(fail="warmup"), "warm-up"),
        5: (Fault(fail="graphs", cause="nv_target"), "header nv/target is missing"),
    }
    sim.gpus = len(expected)
    for gpu, (fault, _) in expected.items():
        sim.fault(gpu, fault)
    fleet = await up(sim, sim.target())
    await until(
        lambda: {t for k, _, t in sim.events.all if k == "server.failed"} == {*expected}, 60
    )
    for gpu, (_, words) in expected.items():
        told = [text for k, text, g in sim.events.all if k == "server.failed" and g == gpu]
        assert words in told[0], (gpu, told)
    for gpu in (1, 2, 3, 5):
        assert fleet.states()[gpu].state == "failed"


async def test_a_crash_while_serving_names_its_cause_and_comes_back(sim12: SimSite) -> None:
    fleet = await up(sim12, sim12.target())
    await until(lambda: fleet.states()[0].state == "ready")
    first = pid_of(fleet, 0)
    sim12.fault(0, Fault(fail="run", cause="xid"))
    await until(lambda: sim12.events.texts("server.failed"))
    assert "illegal memory access" in cause(sim12, "server.failed")
    (told,) = KernelLog(str(sim12.state / kernel.NAME)).earlier
    assert (told.bus, told.number) == (address(kernel.bus(0)), 31)
    sim12.fault(0, None)
    await until(lambda: fleet.states()[0].state == "ready" and pid_of(fleet, 0) != first)


async def test_hung_though_healthy(sim: SimSite) -> None:
    """Decoding stops and /health says 200: requests in flight and no token is the verdict."""
    fleet = await up(sim, sim.target())
    await until(lambda: fleet.states()[0].state == "ready")
    async with asking(fleet, 0, 3, again=True):
        await until(lambda: fleet.states()[0].lights.tokens)
        sim.fault(0, Fault(stall=True))
        began = time.monotonic()
        await until(lambda: fleet.states()[0].state == "stalled")
        assert time.monotonic() - began < SIM.stall + 8
        assert sim.run.told[-1] == (0, "pause")
        assert fleet.states()[0].lights.process
        sim.fault(0, None)
        await until(lambda: fleet.states()[0].state == "ready")
        assert sim.run.told[-1] == (0, "run")


async def test_hung_scheduler(sim: SimSite) -> None:
    """HTTP lives, the scheduler answers nothing; the stall is seen and the process ended."""
    spec = sim.target()
    sim.run.alive = False  # nobody but the server itself can tell that it has work
    fleet = sim.fleet(spec, replace(SIM, stalled_restart=1.0))
    await fleet.up(None, epoch=sim.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
    first = pid_of(fleet, 0)
    async with asking(fleet, 0, 3, again=True):
        await until(lambda: fleet.states()[0].lights.tokens)
        sim.fault(0, Fault(hang=True))
        await until(lambda: sim.events.texts("server.stalled"))
        await until(lambda: sim.events.texts("server.failed"))
        sim.fault(0, None)
    await until(lambda: fleet.states()[0].state == "ready" and pid_of(fleet, 0) != first)


async def test_slow_but_busy_is_not_dead(sim: SimSite) -> None:
    fleet = await up(sim, sim.target())
    await until(lambda: fleet.states()[0].state == "ready")
    async with asking(fleet, 0, 3, again=True):
        await until(lambda: fleet.states()[0].lights.tokens)
        sim.fault(0, Fault(slow=20.0, slow_probe_s=4.0))
        deadline = time.monotonic() + SIM.stall + 4
        while time.monotonic() < deadline:
            assert fleet.states()[0].state == "ready", fleet.states()[0]
            await asyncio.sleep(0.1)
        assert fleet.states()[0].lights.tokens
    assert not sim.events.texts("server.stalled")


async def test_a_sigterm_from_elsewhere_while_answers_are_made(sim: SimSite) -> None:
    """It gets nothing new and ends, in both dialects, with all that it had answered."""
    fleet = await up(sim, sim.target())
    await until(lambda: fleet.states()[0].state == "ready")
    async with asking(fleet, 0, 3) as asked:
        await until(lambda: fleet.states()[0].running)
        os.kill(pid_of(fleet, 0), signal.SIGTERM)
        await until(lambda: fleet.states()[0].state == "draining")
        assert sim.run.told[-1] == (0, "pause")
        await until(lambda: fleet.states()[0].state == "stopped", 40)
        assert [await one for one in asked] == ["length"] * 3
    assert "SIGTERM that did not come from here" in fleet.states()[0].cause
    assert not sim.events.texts("server.failed")


def beside(site: SimSite, log: Path) -> subprocess.Popen[bytes]:
    """Another server, on another card, that takes the port of the first one."""
    model = ("--model-path", "Qwen/Qwen3.6-27B", "--port", str(site.base))
    with log.open("wb") as out:
        return subprocess.Popen(
            [str(site.python), "-m", "sglang.launch_server", *model],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "1"},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


async def test_up_is_not_believed_of_one_that_lost_its_port(sim: SimSite, tmp_path: Path) -> None:
    """It says that it is up, for another server has answered its warm-up: then it ends."""
    sim.fault(0, Fault(slow=40.0))
    fleet = await up(sim, sim.target())
    log = Path(fleet.infos()[0].log)
    other = beside(sim, tmp_path / "other.log")
    try:
        await until(lambda: sim.events.texts("server.set_aside"), 60)
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        await asyncio.to_thread(other.wait)
    (failed,) = sim.events.texts("server.failed")
    assert f"port {sim.base} is " in failed
    assert "fired up" in await asyncio.to_thread(log.read_text)
    assert not sim.events.texts("server.ready")
    assert (0, "run") not in sim.run.told


async def test_silent_start(sim12: SimSite) -> None:
    sim12.fault(0, Fault(silent=True))
    fleet = await up(sim12, sim12.target(start=3.0))
    main = fleet.server(0).main
    assert main is not None
    await until(lambda: fleet.states()[0].state == "failed")
    assert "not ready after 3 s" in fleet.states()[0].cause
    # It is not left behind: its process ends before anything else starts on the card.
    await until(lambda: not main.alive)


async def test_an_orphan_that_holds_memory_is_ended(sim12: SimSite) -> None:
    sim12.fault(0, Fault(orphan=True))
    fleet = await up(sim12, sim12.target())
    await until(lambda: fleet.states()[0].state == "ready")
    tree = list(fleet.server(0).tree)
    assert len(tree) >= 3
    os.kill(tree[0].pid, signal.SIGKILL)
    await until(lambda: all(identity.birth(p.pid) != p.birth for p in tree), 15)


async def test_a_drain_without_end_is_cut(sim: SimSite) -> None:
    spec = sim.target(drain=0.5)
    fleet = sim.fleet(spec, replace(SIM, term=2.0))
    await fleet.up(None, epoch=sim.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
    sim.fault(0, Fault(endless_drain=True))
    main = fleet.server(0).main
    assert main is not None
    began = time.monotonic()
    await fleet.down(None, who="ann")
    assert time.monotonic() - began < 15
    assert not main.alive
    assert fleet.states()[0].state == "stopped"


async def test_a_killed_child(sim: SimSite) -> None:
    fleet = await up(sim, sim.target())
    await until(lambda: fleet.states()[0].state == "ready")
    main = pid_of(fleet, 0)
    child = next(p for p in fleet.server(0).tree if p.pid in fleet.server(0).core)
    assert "sglang::" in " ".join(processes.command(child.pid))
    began = time.monotonic()
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: sim.events.texts("server.failed"), 10)
    assert time.monotonic() - began < 8
    assert identity.birth(main) is None or fleet.states()[0].state != "ready"
