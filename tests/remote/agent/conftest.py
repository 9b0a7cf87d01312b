"""A real agent process in a workspace of its own, and raw connections to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.paths import Workspace
from remote.protocol import (
    MAX_LINE,
    VERSION,
    Call,
    Decoder,
    Failure,
    Hello,
    Message,
    Reply,
    Request,
    Result,
    TargetSpec,
    encode,
)
from tests.ending import end_all_in
from tests.waiting import until

DEADLINE_S = 30.0


class Link:
    """One connection to an agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.decoder = Decoder()
        self.seen: list[Message] = []
        self._id = 0

    @classmethod
    async def open(
        cls, socket: Path, role: str = "console", spec: TargetSpec | None = None
    ) -> Link:
        reader, writer = await asyncio.open_unix_connection(socket, limit=2 * MAX_LINE)
        link = cls(reader, writer)
        hello = Hello(
            version=VERSION,
            code="x",
            role=role,  # type: ignore[arg-type]
            who="tester",
            spec=spec,
        )
        writer.write(encode(hello))
        return link

    async def receive(self) -> Message | None:
        """The next message; None at the end."""
        while True:
            line = await asyncio.wait_for(self.reader.readline(), DEADLINE_S)
            if not line:
                return None
            message = self.decoder.feed(line)
            if message is not None:
                self.seen.append(message)
                return message

    async def ask(self, request: Request) -> Result | Failure:
        """The answer to a request; what is pushed meanwhile is in ``seen``."""
        self._id += 1
        self.writer.write(encode(Call(id=self._id, request=request)))
        while True:
            message = await self.receive()
            assert message is not None, "the agent hung up"
            if isinstance(message, Reply) and message.id == self._id:
                return message.result
            if isinstance(message, Failure) and message.id == self._id:
                return message

    def close(self) -> None:
        self.writer.close()


class Agent:
    """An agent process."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, **environ: str) -> subprocess.Popen[bytes]:
        """Start one."""
        self.workspace.stoker.mkdir(exist_ok=True)
        with self.workspace.agent_log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "remote.agent", "--workspace", str(self.workspace.root)],
                stdout=log,
                stderr=log,
                env={**os.environ, **environ},
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    async def ready(self) -> Path:
        """Its socket, once it listens and says so."""
        pid = self.processes[-1].pid

        def listens() -> bool:
            with contextlib.suppress(OSError, ValueError):
                said = json.loads(self.workspace.agent_lock.read_bytes())
                return said["pid"] == pid and Path(said["socket"]).exists()
            return False

        await until(listens)
        return self.workspace.socket

    @property
    def log(self) -> str:
        return self.workspace.agent_log.read_text()


def mode(path: Path) -> int:
    """Permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """An empty workspace; whatever was started in it is ended, by pid."""
    folder = Workspace(tmp_path / "work")
    folder.root.mkdir()
    yield folder
    end_all_in(tmp_path)
    folder.socket.unlink(missing_ok=True)


@pytest.fixture
def agent(workspace: Workspace) -> Iterator[Agent]:
    """One to be started."""
    made = Agent(workspace)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


@pytest.fixture
async def socket(agent: Agent) -> Path:
    """The socket of a running agent."""
    agent.start()
    return await agent.ready()
