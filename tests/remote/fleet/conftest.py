"""A workspace with servers that behave like SGLang, and everything ended afterwards."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from remote.fleet import processes
from remote.fleet.fleet import Fleet
from remote.fleet.records import Folder
from remote.fleet.timing import Timing
from remote.kernel_log import Xid
from remote.paths import Workspace
from remote.protocol import Epoch, Flags, FleetSpec, TargetSpec
from tests import ports
from tests.waiting import until

FAST = Timing(
    tick=0.1,
    table=0.5,
    loads=0.2,
    metrics=0.2,
    info=2.0,
    ports=1.0,
    stall=2.0,
    stalled_restart=3.0,
    lost_child=0.5,
    abort=3.0,
    term=3.0,
    restart_first=0.2,
    settle=0.2,
    judge_sample=0.02,
    judge_most=20.0,
)


@dataclass
class FakeRun:
    """The run's side: what it was told, and what it has open."""

    told: list[tuple[int, str]] = field(default_factory=list)
    servers: list[tuple[int, int | None, int | None, str]] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    may: dict[int, str] = field(default_factory=dict)
    alive: bool = True
    cannot: str = ""
    counted: tuple[int, int] = (0, 0)
    tried: dict[int, bool] = field(default_factory=dict)

    def dispatch(self, gpu: int, do: str) -> None:
        self.told.append((gpu, do))
        self.may[gpu] = do
        if do in ("abort", "redo"):
            self.open[gpu] = 0

    def in_flight(self, gpu: int) -> int | None:
        return self.open.get(gpu, 0) if self.alive else None

    async def refresh(self) -> None:
        pass

    def unable(self) -> str:
        return self.cannot if self.alive else "no run of Stoker's is at work"

    def tokens(self) -> tuple[int, int]:
        return self.counted

    def server(
        self, gpu: int, *, max_running: int | None, epoch: int | None, process: str, tried: bool
    ) -> None:
        self.servers.append((gpu, max_running, epoch, process))
        self.tried[gpu] = tried


@dataclass
class Events:
    """What was emitted."""

    all: list[tuple[str, str, int | None]] = field(default_factory=list)

    def __call__(
        self,
        kind: str,
        text: str,
        *,
        gpu: int | None = None,
        level: str = "info",
        who: str = "",
    ) -> None:
        self.all.append((kind, text, gpu))

    def texts(self, kind: str) -> list[str]:
        return [text for k, text, _ in self.all if k == kind]


@dataclass
class Site:
    """One workspace and the fleets that were opened over it."""

    root: Path
    base: int
    gpus: int
    run: FakeRun = field(default_factory=FakeRun)
    events: Events = field(default_factory=Events)
    fleets: list[tuple[Fleet, asyncio.Task[None]]] = field(default_factory=list)
    reports: dict[int, Xid] = field(default_factory=dict)
    """What the driver told of a card just now."""

    def spec(self, drain: float = 5.0, start: float = 60.0, **flags: object) -> TargetSpec:
        typed: Flags = {k.replace("_", "-"): v for k, v in flags.items()}  # type: ignore[misc]
        return TargetSpec(
            name="test",
            workspace=str(self.root),
            python=sys.executable,
            fleet=FleetSpec(
                model="/models/tiny",
                gpus=self.gpus,
                base_port=self.base,
                flags=typed,
                drain_seconds=drain,
                start_seconds=start,
            ),
        )

    def epoch(self, spec: TargetSpec, number: int = 1) -> Epoch:
        return Epoch(id=number, since=time.time(), flags=spec.fleet.flags)

    def fleet(self, spec: TargetSpec, timing: Timing = FAST) -> Fleet:
        """A fleet that is being watched."""
        fleet = Fleet(
            Workspace(self.root),
            spec,
            run=self.run,
            emit=self.events,
            reported=self.reports.get,
            timing=timing,
        )
        self.fleets.append((fleet, asyncio.create_task(fleet.watch())))
        return fleet

    async def ready(
        self, spec: TargetSpec, gpus: list[int] | None = None, *, timing: Timing = FAST
    ) -> Fleet:
        """A fleet whose servers (all, or some) have been started and are ready."""
        fleet = self.fleet(spec, timing)
        await fleet.up(gpus, epoch=self.epoch(spec), who="ann")
        chosen = range(self.gpus) if gpus is None else gpus
        await until(lambda: all(fleet.states()[gpu].state == "ready" for gpu in chosen))
        return fleet

    async def close(self, fleet: Fleet) -> None:
        """What a killed agent leaves: nothing looks any more, the servers go on."""
        for one, task in self.fleets:
            if one is fleet:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await fleet.close()
        self.fleets = [(f, t) for f, t in self.fleets if f is not fleet]

    async def end_all(self) -> None:
        """Nothing is left running, and nothing went wrong that nobody looked at."""
        for fleet, _ in list(self.fleets):
            await self.close(fleet)
        for gpu in range(8):
            folder = Folder(Workspace(self.root).server(gpu))
            launch = folder.launch()
            running = folder.running(launch.launch) if launch is not None else None
            if launch is not None and running is not None and running.identity is not None:
                assert processes.end_tree(running.identity, launch.launch) == []
        assert not self.events.texts("fleet.fault")

    async def all_are(self, fleet: Fleet, state: str, seconds: float = 20.0) -> None:
        await until(
            lambda: all(s.state == state for s in fleet.states()),
            seconds,
            f"not all {state}: {fleet.states()}",
        )


@pytest.fixture(autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled already, so that all servers of a test start together."""
    cache = tmp_path_factory.getbasetemp() / "kernels"
    cache.mkdir(exist_ok=True)
    (cache / "kernel.so").touch()
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(cache))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(Path(__file__).with_name("fake_server.py"), package / "launch_server.py")
    made = Site(root=tmp_path, base=ports.free(3), gpus=2)
    yield made
    await made.end_all()
