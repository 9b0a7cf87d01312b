"""One action at a time, over servers that behave like SGLang: refusals leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from remote.agent import core
from remote.agent.serve import RequestError
from remote.agent.target import read_spec, write_spec
from remote.journal import Journal
from remote.paths import Workspace
from remote.protocol import (
    AlertSpec,
    Done,
    Down,
    Epoch,
    Flags,
    FleetSpec,
    Plan,
    Restart,
    Rollback,
    RunControl,
    RunStart,
    Swap,
    TakeSettings,
    TargetSpec,
    Up,
)
from tests import ports
from tests.remote.fleet import fake_server
from tests.remote.fleet.conftest import FAST
from tests.waiting import until

OLD: Flags = {"mem-fraction-static": 0.85}
NEW: Flags = {"mem-fraction-static": 0.9}


@dataclass
class Site:
    """An agent in this process, with the target that it is told of."""

    agent: core.Agent
    spec: TargetSpec

    @property
    def journal(self) -> Journal:
        return self.agent.journal

    @property
    def swap(self) -> Swap | None:
        return self.agent._actions.swap

    async def ask(self, request: Any, who: str = "ann") -> Any:
        return await self.agent.answer(request, who)

    async def up(self) -> None:
        """The servers, once they are ready."""
        assert isinstance(await self.ask(Up(spec=self.spec)), Done)
        fleet = await self.agent.fleet()
        await until(lambda: all(s.state == "ready" for s in fleet.states()))

    async def swapped(self, number: int) -> Swap:
        await until(lambda: self.swap is not None and self.swap.id == number)
        await until(lambda: self.swap is not None and self.swap.state != "doing")
        assert self.swap is not None
        return self.swap

    def told(self, kind: str) -> list[str]:
        return [event.text for event in self.journal.recent if event.kind == kind]


def target(workspace: Workspace, gpus: int = 1) -> TargetSpec:
    package = workspace.root / "sglang"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    shutil.copy(Path(fake_server.__file__), package / "launch_server.py")
    fleet = FleetSpec(
        model=str(workspace.root / "tiny"),  # by which the fixture finds and ends the servers
        gpus=gpus,
        base_port=ports.free(gpus),
        flags=OLD,
        drain_seconds=2.0,
    )
    return TargetSpec(
        name="test", workspace=str(workspace.root), python=sys.executable, fleet=fleet
    )


@contextlib.asynccontextmanager
async def living(workspace: Workspace, spec: TargetSpec) -> AsyncIterator[Site]:
    workspace.stoker.mkdir(exist_ok=True)
    agent = core.Agent(workspace, code="source", end=asyncio.Event(), timing=FAST)
    await agent.open()
    work = asyncio.create_task(agent.live())
    try:
        yield Site(agent, spec)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await agent.close()


async def test_a_refused_restart_leaves_nothing_to_be_done_later(workspace: Workspace) -> None:
    """The key was pressed twice, or on two consoles."""
    async with living(workspace, target(workspace)) as site:
        await site.up()
        one = Restart(spec=site.spec, set_flags=NEW)
        two = Restart(spec=site.spec, set_flags={"mem-fraction-static": 0.7})
        answers = await asyncio.gather(site.ask(one), site.ask(two, "bob"), return_exceptions=True)
        begun = [a for a in answers if isinstance(a, Plan)]
        refused = [a for a in answers if isinstance(a, RequestError)]
        assert len(begun) == len(refused) == 1, answers
        assert "busy: restart (rolling)" in str(refused[0])
        assert begun[0].swap is not None
        assert list(site.journal.swaps) == [begun[0].swap.id]
        assert sorted(site.journal.epochs) == [1, begun[0].swap.to_epoch] == [1, 2]
        assert (await site.swapped(begun[0].swap.id)).state == "done"
        assert (await site.agent.fleet()).infos()[0].epoch == 2


async def test_a_request_that_is_refused_changes_no_target(workspace: Workspace) -> None:
    async with living(workspace, target(workspace)) as site:
        await site.up()
        begun = await site.ask(Restart(spec=site.spec, set_flags=NEW))
        assert isinstance(begun, Plan)
        other = replace(site.spec, fleet=replace(site.spec.fleet, model="/models/other"))
        with pytest.raises(RequestError, match="busy"):
            await site.ask(Restart(spec=other))
        assert isinstance(await site.ask(Restart(spec=other, dry_run=True)), Plan)
        assert site.agent.spec == site.spec
        assert begun.swap is not None
        await site.swapped(begun.swap.id)


async def test_whoever_sees_a_swap_done_may_begin_the_next(workspace: Workspace) -> None:
    async with living(workspace, target(workspace)) as site:
        await site.up()
        begun = await site.ask(Restart(spec=site.spec, set_flags=NEW))
        assert isinstance(begun, Plan)
        while site.swap is None or site.swap.state == "doing":  # noqa: ASYNC110 - at once
            await asyncio.sleep(0)
        assert site.swap.state == "done", site.swap
        again = await site.ask(Restart(spec=site.spec, set_flags=OLD))
        assert isinstance(again, Plan)
        assert again.swap is not None
        assert (await site.swapped(again.swap.id)).state == "done"


async def test_a_rollback_is_looked_at_first(workspace: Workspace) -> None:
    async with living(workspace, target(workspace)) as site:
        await site.up()
        begun = await site.ask(Restart(spec=site.spec, set_flags=NEW))
        assert isinstance(begun, Plan)
        assert begun.swap is not None
        await site.swapped(begun.swap.id)
        swaps, known = dict(site.journal.swaps), dict(site.journal.epochs)
        looked = await site.ask(Rollback(spec=site.spec, dry_run=True))
        assert isinstance(looked, Plan)
        assert looked.diff == ["mem-fraction-static 0.90 → 0.85"]
        assert "GPU-seconds without tokens" in looked.costs[0]
        assert (site.journal.swaps, set(site.journal.epochs)) == (swaps, set(known))


async def test_a_swap_that_ends_by_a_fault_is_over(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(workspace, target(workspace)) as site:
        await site.up()

        async def broken(*_: object) -> bool:
            raise ValueError("a fault")

        fleet = await site.agent.fleet()
        monkeypatch.setattr(fleet.operations, "drain", broken)
        begun = await site.ask(Restart(spec=site.spec, set_flags=NEW, in_flight="drain"))
        assert isinstance(begun, Plan)
        assert begun.swap is not None
        swap = await site.swapped(begun.swap.id)
        assert swap.state == "failed"
        assert "broken off by a fault: ValueError: a fault" in swap.text
        assert site.journal.swaps[swap.id] == swap
        await until(lambda: site.told("swap.lost"))
        assert fleet.states()[0].state == "ready"
        assert site.told("swap.failed")


async def test_only_the_newest_swap_is_gone_on_with(workspace: Workspace) -> None:
    workspace.stoker.mkdir()
    spec = target(workspace)
    write_spec(workspace.spec, spec)
    journal = Journal(workspace.journal, lambda _: None)
    await journal.open()
    journal.put_epoch(Epoch(id=1, since=time.time(), flags=OLD))
    old = Swap(
        id=1, strategy="all", gpus=[0], from_epoch=1, to_epoch=1, who="ann", began=time.time()
    )
    await journal.save_swap(old)
    await journal.save_swap(replace(old, id=2, state="done", text="all went well"))
    await journal.close()
    async with living(workspace, spec) as site:
        assert site.swap is not None
        assert (site.swap.id, site.swap.state) == (2, "done")
        assert site.journal.swaps[1].state == "failed"
        assert site.journal.swaps[1].text == "not gone on with: a later one was begun"
        assert not site.told("swap.resumed")
        lost = replace(old, id=3, to_epoch=9)
        await site.journal.save_swap(lost)
    async with living(workspace, spec) as site:
        assert site.swap is not None
        assert (site.swap.id, site.swap.state) == (3, "failed")
        assert site.swap.text == "not gone on with: epoch 9 is lost"


async def test_a_server_that_the_target_has_no_more_can_be_stopped(workspace: Workspace) -> None:
    spec = target(workspace, gpus=2)
    async with living(workspace, spec) as site:
        await site.up()
    write_spec(workspace.spec, replace(spec, fleet=replace(spec.fleet, gpus=1)))
    async with living(workspace, spec) as site:
        fleet = await site.agent.fleet()
        assert [info.gpu for info in fleet.infos() if info.pid is not None] == [0, 1]
        with pytest.raises(RequestError, match="no GPU 7"):
            await site.ask(Down(gpus=[7]))
        await site.ask(Down(gpus=[1]))
        await until(lambda: [info.gpu for info in fleet.infos()] == [0])


async def test_what_is_refused_and_each_epoch_stand_in_the_journal(workspace: Workspace) -> None:
    """With who asked and why it was not done; a plan that is only shown leaves no trace."""
    spec = target(workspace)
    async with living(workspace, spec) as site:
        for request in (RunStart(spec=spec), RunControl(do="pause")):
            with pytest.raises(RequestError):
                await site.ask(request)
        await site.up()
        bad: Flags = {"api-key": "x"}
        for dry in (True, False):
            with pytest.raises(RequestError):
                await site.ask(Restart(spec=spec, set_flags=bad, dry_run=dry), "kim")
        refused = [e for e in site.journal.recent if e.kind == "action.refused"]
        assert [(e.text.split(":")[0], e.who, e.level) for e in refused] == [
            ("run start", "ann", "warning"),
            ("run pause", "ann", "warning"),
            ("restart", "kim", "warning"),
        ]
        assert "no server is up" in refused[0].text
        assert "process list" in refused[2].text
        await site.ask(Restart(spec=spec, set_flags=NEW, strategy="all"), "kim")
        await site.swapped(1)
        epochs = [e for e in site.journal.recent if e.kind == "epoch"]
        assert [e.who for e in epochs] == ["ann", "kim"]
        assert epochs[0].text == "epoch 1: the first one (up)"
        assert epochs[1].text.startswith("epoch 2: mem-fraction-static 0.85 → 0.90")


async def test_settings_that_need_no_restart_are_taken_over_alone(workspace: Workspace) -> None:
    """What else differs is named with the verb that applies it."""
    spec = target(workspace)
    async with living(workspace, spec) as site:
        await site.up()
        alerts = AlertSpec(webhook="https://hooks.example/s3cret")
        other = replace(spec, alerts=alerts, fleet=replace(spec.fleet, flags=NEW))
        done = await site.ask(TakeSettings(spec=other))
        assert done == Done(
            "settings sent: alerts.webhook; "
            "fleet.flags differs: `stoker restart --set …` applies it"
        )
        assert site.agent.spec == replace(spec, alerts=alerts)
        (told,) = [e.text for e in site.journal.recent if "settings" in e.text]
        assert "s3cret" not in told
        assert await site.ask(TakeSettings(spec=site.agent.spec)) == Done("")
        assert read_spec(workspace.spec) == site.agent.spec, "the next agent has them, too"
