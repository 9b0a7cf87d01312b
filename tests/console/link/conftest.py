"""A workspace on this machine with the real agent deployed into it, and a console on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from console.config import Target
from console.link.client import Client, LinkStatus
from remote.paths import Workspace
from remote.protocol import Event, Happened, LogPart, Message, Snapshot, TargetSpec
from tests.ending import end_all_in

DEADLINE_S = 30.0


@dataclass
class Watcher:
    """A client and everything it was told."""

    client: Client
    messages: list[Message] = field(default_factory=list)
    statuses: list[LinkStatus] = field(default_factory=list)

    @property
    def snapshots(self) -> list[Snapshot]:
        return [m for m in self.messages if isinstance(m, Snapshot)]

    @property
    def events(self) -> list[Event]:
        return [m.event for m in self.messages if isinstance(m, Happened)]

    def lines(self, source: str) -> list[str]:
        return [
            line
            for m in self.messages
            if isinstance(m, LogPart) and m.source == source
            for line in m.lines
        ]

    @property
    def state(self) -> str:
        return self.client.status.state


@contextlib.asynccontextmanager
async def watching(target: Target) -> AsyncIterator[Watcher]:
    """A console on a target, running."""
    watcher = Watcher(client=None)  # type: ignore[arg-type]
    watcher.client = Client(
        target, on_message=watcher.messages.append, on_status=watcher.statuses.append
    )
    task = asyncio.create_task(watcher.client.run())
    try:
        yield watcher
    finally:
        await watcher.client.close()
        await asyncio.wait_for(task, DEADLINE_S)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """An empty workspace; whatever was started in it is ended, by pid."""
    folder = Workspace(tmp_path / "work")
    folder.root.mkdir()
    yield folder
    end_all_in(folder.root)
    folder.socket.unlink(missing_ok=True)


@pytest.fixture
def target(workspace: Workspace) -> Target:
    """That workspace as a target without SSH and without a hop."""
    spec = TargetSpec(name="here", workspace=str(workspace.root))
    return Target(name="here", ssh="", spec=spec, agent_python=sys.executable)


def agent_pid(workspace: Workspace) -> int:
    """Pid of the workspace's agent; 0 while one is coming up."""
    try:
        return int(json.loads(workspace.agent_lock.read_bytes())["pid"])
    except ValueError:
        return 0
