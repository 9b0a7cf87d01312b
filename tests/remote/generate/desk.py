"""A dispatcher over a real directory whose requests never end by themselves: no server needed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from remote.generate.accounts import Accounts
from remote.generate.client import Client
from remote.generate.dispatch import Dispatcher
from remote.generate.job import Job
from remote.generate.opening import open_run
from remote.generate.outbox import Outbox
from remote.generate.prompts import decode
from remote.generate.recovery import TAKEN
from remote.generate.server import Server
from remote.generate.settings import Settings
from remote.generate.writer import Writer
from remote.protocol import Reading

ONE, TWO = "http://127.0.0.1:1", "http://127.0.0.1:2"


class Desk:
    """A dispatcher whose requests never end by themselves."""

    def __init__(self, folder: Path, prompts: Path, **changes: Any) -> None:
        settings = Settings(prompts, folder / "out", (ONE, TWO), **changes)
        self.opened = open_run(settings)
        self.writer = Writer(
            self.opened.ledger,
            on_durable=lambda *_: None,
            on_problem=lambda _: None,
            on_broken=lambda _: None,
        )
        self.folder = settings.output
        self.tasks: list[asyncio.Task[None]] = []
        self.dispatcher = Dispatcher(
            settings,
            {},
            Client(),
            self.opened.prompts,
            self.opened.recovered.status,
            Outbox(self.writer),
            Accounts(self.opened),
            spawn=self.spawn,
            changed=lambda: None,
            learned=lambda: None,
            say=lambda _: None,
            broken=lambda _: None,
        )
        for server in self.servers:
            server.breaker.close(0.0)

    def spawn(self, coroutine: Any) -> asyncio.Task[None]:
        """Instead of the request."""
        coroutine.close()
        self.tasks.append(asyncio.get_running_loop().create_task(asyncio.sleep(3600)))
        return self.tasks[-1]

    @property
    def servers(self) -> list[Server]:
        """Both of them."""
        return list(self.dispatcher.servers.values())

    def job(self, index: int, **more: Any) -> Job:
        """A prompt that was taken from the file."""
        self.opened.recovered.status[index] = TAKEN
        line = self.opened.prompts.line(index)
        if more:
            row = {"messages": [{"role": "user", "content": str(n)} for n in range(3)], **more}
            line = json.dumps(row).encode() + b"\n"
        return Job(index, line, decode(line))

    def send(self, server: Server, *jobs: Job) -> None:
        """Have these in flight."""
        for job in jobs:
            self.dispatcher.seats.send(server, job, 1.0)

    def dies(self, server: Server) -> None:
        """The agent says that its process has ended."""
        self.dispatcher.heard(Reading(0.0, server.url, alive=False))
        server.breaker.close(0.0)

    def failed(self) -> list[int]:
        """Prompts in ``failed.jsonl``."""
        assert self.writer.flush(10.0)
        path = self.folder / "failed.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [json.loads(line)["index"] for line in lines]

    def close(self) -> None:
        """Let go of the directory."""
        self.writer.close(10.0)
        self.opened.prompts.close()
        self.opened.lock.release()
