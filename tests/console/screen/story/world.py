"""The made-up fleet and its run: what they do while time passes."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from remote.protocol import Alert, Event, Swap, Verdict
from tests.console.screen.story import beginning

TOKENS_EACH = 2_711
"""Output tokens of a prompt."""


@dataclass
class Server:
    """One server of the story."""

    gpu: int
    slots: int = 37
    epoch: int = 2
    state: str = "ready"
    phase: str = ""
    phase_since: float | None = None
    cause: str = ""
    dispatch: str = "run"
    speed: float = 1.0
    heat: float = 0.0
    lines: list[str] = field(default_factory=list)


class World:
    """Everything there is of the target at ``now``."""

    def __init__(self, gpus: int, now: float, seed: int) -> None:
        self.now = now
        self.began = now - 5_040
        self.random = random.Random(seed)
        self.servers = [Server(gpu) for gpu in range(gpus)]
        self.journal = beginning.JOURNAL
        self.spec = beginning.target(gpus)
        self.epochs = beginning.epochs(self.began)
        self.events: list[Event] = []
        self.alerts: list[Alert] = []
        self.verdict: Verdict | None = beginning.verdict(self.began)
        self.swap: Swap | None = None
        self.kept = False
        """Whether somebody has promoted the canary."""
        self.status: Any = "running"
        self.alive = True
        self.concurrency: int | Literal["auto"] = "auto"
        self.done = 9_871.0
        self.total = 193_010
        self.tokens = self.done * TOKENS_EACH
        self._begin()

    def _begin(self) -> None:
        self.say("action", "up: 8 servers", who="ops", at=self.began - 60)
        for gpu in range(len(self.servers)):
            text = f"GPU {gpu} is ready: 37 slots"
            self.say("server.ready", text, gpu=gpu, at=self.began + gpu)
        self.say("run.started", "747 done, 0 repaired, 8/8 healthy", at=self.began + 12)
        said = beginning.verdict(self.began).text
        self.say("verdict", said, level="warning", at=self.began + 62)
        self.say("s3.uploaded", "completions_000018.jsonl (500 records, 6.2 MiB)", at=self.now - 40)

    def say(
        self,
        kind: str,
        text: str,
        *,
        gpu: int | None = None,
        level: Any = "info",
        who: str = "",
        at: float | None = None,
    ) -> Event:
        """An event."""
        event = Event(len(self.events) + 1, at or self.now, kind, level, text, gpu, who)
        self.events.append(event)
        return event

    def work(self, seconds: float) -> None:
        """The servers generate, and log it."""
        if self.alive and self.status == "running":
            tokens = sum(self.tok_s(s) for s in self.servers) * seconds
            self.tokens += tokens
            self.done += tokens / TOKENS_EACH
        for server in self.servers:
            if server.state == "ready" and int(self.now) % 2 == 0:
                server.lines.append(self.line(server))
                del server.lines[:-500]

    def running(self, server: Server) -> int:
        """Requests decoding on a server."""
        if server.state not in ("ready", "draining") or not self.alive:
            return 0
        wobble = math.sin(self.now / 17 + server.gpu * 1.7)
        return max(0, min(server.slots, round(server.slots * (0.985 + 0.02 * wobble))))

    def tok_s(self, server: Server) -> float:
        """Decode throughput: saturating in the batch."""
        n = self.running(server)
        wobble = 1 + 0.02 * math.sin(self.now / 9 + server.gpu) + 0.01 * math.sin(self.now / 2.3)
        return 2_640 * n / (n + 96) * 0.92 * wobble * server.speed

    def mamba(self, server: Server) -> float:
        """Share of Mamba state slots held."""
        full = 0.74 if server.slots < 50 else 0.61
        return min(0.8, full * self.running(server) / server.slots)

    def kv(self, server: Server) -> float:
        """Share of the KV cache held."""
        return 0.20 * self.running(server) / 37

    def power_w(self, server: Server) -> float:
        """What a card at work draws."""
        return 428 + 20 * math.sin(self.now / 7 + server.gpu)

    def heat_c(self, server: Server) -> float:
        """How warm a card at work is, without what a test heats it by."""
        return 61 + 4 * math.sin(self.now / 300) + server.gpu % 3

    def line(self, server: Server) -> str:
        """A decode or prefill line as SGLang 0.5.12 prints it."""
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.now))
        n = self.running(server)
        mamba = self.mamba(server)
        if self.random.random() < 0.2:
            return (
                f"[{at}] Prefill batch, #new-seq: 1, #new-token: {self.random.randint(90, 1400)}, "
                f"#cached-token: 0, full token usage: 0.20, mamba usage: {mamba:.2f}, "
                f"#running-req: {n}, #queue-req: 0, #pending-token: 0, cuda graph: False, "
                f"input throughput (token/s): {self.random.uniform(300, 4000):.2f}"
            )
        return (
            f"[{at}] Decode batch, #running-req: {n}, #full token: {n * 2600}, full token usage: "
            f"{self.kv(server):.2f}, mamba num: {round(185 * mamba)}, mamba usage: {mamba:.2f}, "
            f"cuda graph: True, gen throughput (token/s): {self.tok_s(server):.2f}, #queue-req: 0"
        )
