"""The driver's reports in the kernel log, through the whole agent."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from console.lab import gpus
from console.lab.sim import kernel
from console.lab.sim.settings import Fault, set_fault
from remote.kernel_log import ENVIRON
from remote.paths import Workspace
from remote.protocol import Up
from tests.remote.agent.test_swap import Inside
from tests.remote.agent.test_whole import ready, spec_of
from tests.waiting import until

pytestmark = pytest.mark.timeout(180)


def aside(site: Inside) -> list[int | None]:
    """Cards whose server is not started again."""
    rows = sqlite3.connect(site.workspace.journal).execute("SELECT kind, gpu FROM events")
    return [gpu for kind, gpu in rows if kind == "server.set_aside"]


async def test_a_card_that_fell_off_the_bus_is_named_and_set_aside(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(workspace, tmp_path, gpus=2, count=10, speed=80)
    cards = tmp_path / "cards"
    gpus.install(tmp_path / "bin", cards, 2)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv(ENVIRON, str(cards / kernel.NAME))
    site = await Inside.open(workspace, spec)
    try:
        await site.done(Up(spec=spec))
        await site.until(ready, 90)
        kernel.report(cards, 7, 79)  # another container's card
        kernel.report(cards, 0, 31)  # a fault of a program on ours, that its server survives
        set_fault(cards, 1, Fault(fail="run", cause="fell_off_bus"))
        words = "Xid 79 (GPU has fallen off the bus): the host must be rebooted"
        shown = await site.until(lambda s: words in s.servers[1].cause, 20)
        assert shown.servers[1].state == "failed"
        told = {e.gpu: e for e in await site.events() if e.kind == "gpu.xid"}
        assert set(told) == {0, 1}
        assert told[0].level == "warning"
        assert told[1].level == "error"
        assert told[1].text.startswith("GPU 1 (PCI 0000:02:00): Xid 79")
        await site.until(lambda s: any(a.code == "server.failed.1" for a in s.alerts))
        await until(lambda: aside(site))
        assert aside(site) == [1]
        assert shown.servers[0].state == "ready"
    finally:
        await site.close()
