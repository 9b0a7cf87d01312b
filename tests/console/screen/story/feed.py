"""The story as a feed of the console: a snapshot a second, log lines, answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from console.feed import FeedError
from console.model import Link
from remote.protocol import (
    READ_ONLY,
    Down,
    Event,
    Get,
    Happened,
    LogPart,
    Message,
    Plan,
    Request,
    Restart,
    Result,
    Snapshot,
    Subscribe,
    Up,
)
from tests.console.screen.story import swapping
from tests.console.screen.story.answers import answer
from tests.console.screen.story.beginning import BEGAN
from tests.console.screen.story.snapshot import snapshot
from tests.console.screen.story.world import World


class Story(World):
    """The feed; ``rate`` seconds of the story pass in each real one."""

    def __init__(
        self,
        on_message: Callable[[Message], None],
        on_link: Callable[[Link], None],
        *,
        gpus: int = 8,
        rate: float = 1.0,
        now: float = BEGAN,
        seed: int = 7,
        elapsed: float = 0.0,
    ) -> None:
        self.on_message = on_message
        self.on_link = on_link
        self.rate = rate
        self.calls: list[Request] = []
        self.wanted = Subscribe()
        self.seq = 0
        self.connected = True
        self._closed = asyncio.Event()
        super().__init__(gpus, now, seed)
        self.advance(elapsed)

    def advance(self, seconds: float) -> None:
        """Let time pass, without a snapshot to the console."""
        while seconds > 0:
            passed = min(1.0, seconds)
            seconds -= passed
            self.now += passed
            swapping.go_on(self)
            self.work(passed)

    def say(self, *args: Any, **options: Any) -> Event:
        """An event, pushed once the console has been told anything."""
        event = super().say(*args, **options)
        if self.seq:
            self.on_message(Happened(event))
        return event

    def snapshot(self, full: bool = True) -> Snapshot:
        """The state now."""
        self.seq += 1
        return snapshot(self, self.seq, full)

    async def run(self) -> None:
        """Connect, then a snapshot a second."""
        self.on_link(Link("connecting", "connecting to 10.1.2.6", self.now))
        await asyncio.sleep(0)
        self.on_link(Link("connected", "root@10.1.2.6 → pct 200", self.now))
        self.tell()
        for event in self.events:
            self.on_message(Happened(event))
        while not self._closed.is_set():
            try:
                await asyncio.wait_for(self._closed.wait(), 1.0)
            except TimeoutError:
                self.advance(self.rate)
                if self.connected:
                    self.tell()

    def tell(self) -> None:
        """One snapshot, and log lines where they are wanted."""
        self.on_message(self.snapshot())
        for source in self.wanted.logs:
            if source.startswith("gpu"):
                lines = self.servers[int(source[3:])].lines[-2:]
            else:
                lines = [f"{source}: {int(self.done):,} done"]
            self.on_message(LogPart(source, 1, 0, 0, lines))

    def lose(self, text: str = "no answer from 10.1.2.6, again in 4 s") -> None:
        """The link goes down."""
        self.connected = False
        self.on_link(Link("reconnecting", text, self.now))

    def find(self) -> None:
        """The link comes back."""
        self.connected = True
        self.on_link(Link("connected", "root@10.1.2.6 → pct 200", self.now))
        self.tell()

    async def subscribe(self, wanted: Subscribe) -> None:
        """Remember what is wanted; a new log starts with its last lines."""
        fresh = set(wanted.logs) - set(self.wanted.logs)
        self.wanted = wanted
        for source in fresh:
            if source.startswith("gpu"):
                server = self.servers[int(source[3:])]
                lines = server.lines[-200:] or [self.line(server) for _ in range(60)]
            else:
                lines = [f"Port {30000 + i}: OK" for i in range(8)]
            self.on_message(LogPart(source, 1, 0, 0, lines))

    async def deploy(self) -> str:
        """As if it were current."""
        self.find()
        return "the agent is current"

    def hurry(self) -> None:
        """As if somebody mended it just then."""
        self.find()

    async def close(self) -> None:
        """End."""
        self._closed.set()

    async def call(self, request: Request, timeout: float = 30) -> Result:
        """Answers as an agent's."""
        self.calls.append(request)
        if not self.connected:
            raise FeedError("not connected: no answer from 10.1.2.6")
        dry = getattr(request, "dry_run", False)
        if not isinstance(request, READ_ONLY) and not dry:
            self.say("action", type(request).__name__.lower(), who="ops")
        if isinstance(request, Get):
            return self.snapshot()
        swap, result = self.swap, answer(self, request)
        if isinstance(request, Up | Down) or self.swap is not swap:
            self.tell()
        return result

    def restart(self, request: Restart) -> Plan:
        """Plan a swap, and begin it unless it is a dry run."""
        planned = swapping.restart(self, request)
        if not request.dry_run:
            self.tell()
        return planned


def connect(**options: Any) -> Callable[..., Story]:
    """A maker of feeds that remembers the last story it made as ``.story``."""

    def make(on_message: Callable[[Message], None], on_link: Callable[[Link], None]) -> Story:
        story = Story(on_message, on_link, **options)
        make.story = story  # type: ignore[attr-defined]
        return story

    return make
