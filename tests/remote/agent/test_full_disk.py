"""A full disk under the agent: it says so, goes on, and catches up when there is room."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.protocol import (
    Done,
    Events,
    Get,
    Hello,
    ReadEvents,
    Shutdown,
    Snapshot,
    TargetSpec,
    encode,
)
from tests import disks
from tests.remote.agent.conftest import Agent, Link
from tests.waiting import until


@pytest.fixture
def small(agent: Agent) -> Iterator[Path]:
    """The agent's workspace on a disk of four megabytes."""
    with disks.small(agent.workspace.root, "size=4m") as root:
        yield root
        for process in agent.processes:
            process.kill()
            process.wait()


def fill(root: Path) -> Path:
    """Use up what is free."""
    path = root / "ballast"
    with path.open("ab", buffering=0) as out:
        try:
            while True:
                out.write(b"x" * 4096)
        except OSError:
            return path


async def test_it_goes_on_in_memory_and_catches_up(agent: Agent, small: Path) -> None:
    agent.start()
    link = await Link.open(await agent.ready())
    before = await link.ask(ReadEvents())
    assert isinstance(before, Events)
    ballast = await asyncio.to_thread(fill, small)
    # Something to be kept, which can't be written now.
    spec = TargetSpec(name="small", workspace=str(small))
    link.writer.write(encode(Hello(version=1, code="", role="console", spec=spec)))

    async def journal_alert() -> bool:
        shown = await link.ask(Get())
        assert isinstance(shown, Snapshot)
        assert isinstance(shown.alerts, list)
        return any(a.code == "journal" and "in memory" in a.text for a in shown.alerts)

    for _ in range(300):
        if await journal_alert():
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("a full disk was not told")
    told = await link.ask(ReadEvents())
    assert isinstance(told, Events)
    assert told.events[-1].id > before.events[-1].id

    await asyncio.to_thread(ballast.unlink)
    for _ in range(600):
        if not await journal_alert():
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("room was not noticed")
    all_told = await link.ask(ReadEvents())
    assert isinstance(all_told, Events)
    assert isinstance(await link.ask(Shutdown()), Done)
    await until(lambda: agent.processes[-1].poll() is not None)
    with sqlite3.connect(agent.workspace.journal) as db:
        kept = [row[0] for row in db.execute("SELECT id FROM events ORDER BY id")]
    assert {e.id for e in all_told.events} <= set(kept)
    assert "Traceback" not in agent.log
