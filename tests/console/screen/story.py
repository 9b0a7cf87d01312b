"""A made-up target that tells the story, as protocol messages: for tests and for looking.

Eight servers stand at 37 slots under ``extra_buffer``; a restart with ``no_buffer`` brings 72.
Everything is computed from a seed and a clock that the caller may turn by hand (:meth:`Story.at`).
``python -m tests.console.screen.story`` opens the console on it.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec.structs import replace

from console.feed import FeedError
from console.lab.options import STORY
from console.lab.sim import flags as sim_flags
from console.lab.sim.flag_help import HELP
from console.model import Link
from remote.protocol import (
    READ_ONLY,
    Alert,
    Answer,
    Answers,
    Batches,
    BatchFile,
    Decide,
    Done,
    Down,
    Epoch,
    Event,
    Events,
    FlagCatalogue,
    FlagInfo,
    FlagKind,
    FleetSpec,
    Get,
    GpuState,
    Happened,
    History,
    HostState,
    Lights,
    LogPart,
    Machine,
    Message,
    Mix,
    Plan,
    Predicted,
    Progress,
    ReadAnswers,
    ReadBatches,
    ReadEvents,
    ReadFlags,
    ReadHistory,
    ReadLog,
    ReadMachine,
    ReadMix,
    Request,
    Restart,
    Result,
    RetryFailed,
    Rollback,
    RunControl,
    RunSpec,
    RunStart,
    RunState,
    S3Spec,
    ServerInfo,
    ServerState,
    ServerWork,
    Snapshot,
    SourceMix,
    StepName,
    Subscribe,
    Swap,
    SwapStep,
    TargetSpec,
    Up,
    Verdict,
)

BEGAN = 1_796_140_000.0
"""The story's first second, for pictures that never change."""

JOURNAL = "5a0e61d2c3b47f98"
"""Which journal the story's agent writes."""

BAD = {**STORY}
STEPS: tuple[tuple[StepName, float], ...] = (
    ("pause", 1),
    ("drain", 9),
    ("stop", 2),
    ("start", 2),
    ("ready", 18),
    ("compare", 1),
    ("resume", 1),
)
SOURCES = (
    ("infinity-instruct", 98_420, 0.46, 2_650),
    ("webinstruct-sub", 39_870, 0.19, 2_900),
    ("codefeedback", 29_000, 0.23, 2_500),
    ("metamathqa", 23_968, 0.113, 1_800),
    ("hermes", 1_199, 0.005, 900),
    ("agent-training", 553, 0.002, 3_800),
)
"""Name, planned prompts, share of what is done, output tokens expected of one."""
JUDGED_S = 120.0
"""How long a canary is looked at where nobody decides."""
PHASE_USUAL_S = 6.0
PHASES = ("loading weights", "allocating caches", "capturing graphs", "warming up")


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


class Story:
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
        self.now = now
        self.began = now - 5_040
        self.random = random.Random(seed)
        self.servers = [Server(gpu) for gpu in range(gpus)]
        self.journal = JOURNAL
        self.calls: list[Request] = []
        self.wanted = Subscribe()
        self.spec = TargetSpec(
            name="ct200",
            workspace="/workspace",
            python="/root/venv/bin/python",
            fleet=FleetSpec(model="Qwen/Qwen3.6-27B", gpus=gpus, flags=BAD),
            run=RunSpec(
                prompts="expansion_prompts.jsonl",
                output="expansion_completions",
                s3=S3Spec(bucket="expansion"),
            ),
        )
        self.epochs = self._first_epochs()
        self.swap: Swap | None = None
        self.kept = False
        """Whether somebody has promoted the canary."""
        self.status: Any = "running"
        self.alive = True
        self.concurrency: int | Literal["auto"] = "auto"
        self.done = 9_871.0
        self.total = 193_010
        self.tokens = self.done * 2_711
        self.alerts: list[Alert] = []
        self.verdict: Verdict | None = self._first_verdict()
        self.events: list[Event] = []
        self.seq = 0
        self._closed = asyncio.Event()
        self.connected = True
        self._tell_of_the_start()
        self.advance(elapsed)

    def _first_epochs(self) -> list[Epoch]:
        return [
            Epoch(
                1,
                self.began - 900,
                {**BAD, "mem-fraction-static": 0.80},
                "ops",
                "first start",
                602.4,
                34,
                0.79,
                0.22,
                5_900.0,
            ),
            Epoch(
                2, self.began, BAD, "ops", "a little more memory", 661.8, 37, 0.74, 0.20, 38_000.0
            ),
        ]

    def _first_verdict(self) -> Verdict:
        return Verdict(
            self.began + 62,
            "37 slots a server, 660 tok/s a GPU: 1.94 prompts/s, done in 26 h. "
            "The Mamba state pool is the limit; the KV cache is 80% empty",
            None,
            1.94,
            26.0,
            660.0,
            37,
            "the Mamba state pool",
        )

    def _tell_of_the_start(self) -> None:
        self.say("action", "up: 8 servers", who="ops", at=self.began - 60)
        for server in self.servers:
            self.say(
                "server.ready",
                f"GPU {server.gpu} is ready: 37 slots",
                gpu=server.gpu,
                at=self.began + server.gpu,
            )
        self.say("run.started", "747 done, 0 repaired, 8/8 healthy", at=self.began + 12)
        self.say("verdict", self._first_verdict().text, level="warning", at=self.began + 62)
        self.say("s3.uploaded", "completions_000018.jsonl (500 records, 6.2 MiB)", at=self.now - 40)

    # --- what happens ---

    def say(
        self,
        kind: str,
        text: str,
        *,
        gpu: int | None = None,
        level: Any = "info",
        who: str = "",
        at: float | None = None,
    ) -> None:
        """An event."""
        event = Event(len(self.events) + 1, at or self.now, kind, level, text, gpu, who)
        self.events.append(event)
        if self.seq:
            self.on_message(Happened(event))

    def advance(self, seconds: float) -> None:
        """Let time pass, without a word to the console."""
        step = 1.0
        while seconds > 0:
            dt = min(step, seconds)
            seconds -= dt
            self.now += dt
            self._work(dt)

    def _work(self, dt: float) -> None:
        if self.swap is not None and self.swap.state == "doing":
            self._swap(dt)
        if self.alive and self.status == "running":
            tokens = sum(self.tok_s(s) for s in self.servers) * dt
            self.tokens += tokens
            self.done += tokens / 2_711
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

    def line(self, server: Server) -> str:
        """A decode or prefill line as SGLang 0.5.12 prints it."""
        import time

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

    def mamba(self, server: Server) -> float:
        """Share of Mamba state slots held."""
        full = 0.74 if server.slots < 50 else 0.61
        return min(0.8, full * self.running(server) / server.slots)

    def kv(self, server: Server) -> float:
        """Share of the KV cache held."""
        return 0.20 * self.running(server) / 37

    def _swap(self, dt: float) -> None:
        swap = self.swap
        assert swap is not None
        steps = list(swap.steps)
        doing = [i for i, s in enumerate(steps) if s.state == "doing"]
        waiting = [i for i, s in enumerate(steps) if s.state == "waiting"]
        if not doing:
            if not waiting:
                new = self.epochs[-1]
                self.epochs[-1] = replace(
                    new,
                    tok_s_per_gpu=1_043.0,
                    max_running=72,
                    mamba_usage=0.61,
                    kv_usage=0.39,
                    seconds=300.0,
                )
                self.swap = replace(
                    swap,
                    state="done",
                    ended=self.now,
                    text="8 servers on epoch 3, 37 → 72 slots each",
                )
                self.verdict = Verdict(
                    self.now,
                    "72 slots a server (37 before), 1,043 tok/s a GPU (×1.58): "
                    "3.08 prompts/s, done in 16.5 h",
                    True,
                    3.08,
                    16.5,
                    1_043.0,
                    72,
                    "",
                )
                self.say("swap.done", self.swap.text, who="ops")
                self.say("verdict", self.verdict.text)
                return
            doing = waiting[:1]
            if swap.strategy == "all":
                name = steps[waiting[0]].name
                doing = [i for i in waiting if steps[i].name == name]
            for i in doing:
                steps[i] = replace(steps[i], state="doing", began=self.now)
        for i in doing:
            step = steps[i]
            server = self.servers[step.gpu]
            took = self.now - (step.began or self.now)
            length = {**dict(STEPS), "judge": 0.0 if self.kept else JUDGED_S}[step.name]
            text = step.text
            match step.name:
                case "pause":
                    server.dispatch = "pause"
                case "drain":
                    server.state = "draining"
                    left = max(0, round(37 * (1 - took / length)))
                    text = server.phase = f"{left} in flight"
                case "stop":
                    server.state, server.phase = "stopped", ""
                case "start":
                    server.state, server.phase = "starting", "process up"
                case "ready":
                    text = PHASES[min(3, int(took / length * 4))]
                    if text != server.phase:
                        server.phase, server.phase_since = text, self.now
                    server.state = "warming" if text == "warming up" else "starting"
                case "compare":
                    server.state, server.phase = "ready", ""
                    server.slots, server.epoch = 72, swap.to_epoch
                    text = "37 → 72 slots"
                case "resume":
                    server.dispatch = "run"
                case "judge":
                    swap = replace(swap, text=f"canary GPU {step.gpu}: ×1.58 of the others so far")
            if took >= length:
                step = replace(step, state="done", ended=self.now)
                if step.name == "resume":
                    self.say(
                        "server.ready", f"GPU {step.gpu} is ready: 37 → 72 slots", gpu=step.gpu
                    )
            steps[i] = replace(step, text=text)
        self.swap = replace(swap, steps=steps)

    # --- what is told ---

    def snapshot(self, full: bool = True) -> Snapshot:
        """The state now."""
        self.seq += 1
        return Snapshot(
            time=self.now,
            seq=self.seq,
            full=full,
            target=self.spec,
            infos=self._infos(),
            servers=self._servers(),
            gpus=self._gpus(),
            host=HostState(0.18, 6.1, 61 << 30, 512 << 30, 1_400 << 30, 2_000 << 30, True),
            run=RunState(
                self.alive,
                4242 if self.alive else None,
                "expansion_completions",
                "expansion_prompts.jsonl",
                self._progress(),
                concurrency=self.concurrency,
            ),
            epochs=list(self.epochs),
            swap=self.swap,
            alerts=list(self.alerts),
            verdict=self.verdict,
            journal=self.journal,
        )

    def _progress(self) -> Progress:
        rate = sum(self.tok_s(s) for s in self.servers) / 2_711 if self.alive else 0.0
        left = int(self.total - self.done)
        return Progress(
            total=self.total,
            completed=int(self.done),
            failed=12,
            rate_per_sec=rate,
            eta_hours=left / rate / 3600 if rate else None,
            total_input_tokens=int(self.done * 410),
            total_output_tokens=int(self.tokens),
            avg_output_tokens=2_711.0,
            elapsed_hours=(self.now - self.began) / 3600,
            s3_uploaded=int(self.done // 500),
            s3_bytes=int(self.done // 500) * 6_500_000,
            status=self.status,
            time=self.now,
            pid=4242,
            run_id="a1b2",
            tok_s=rate * 2_711,
            set_aside=31,
            waiting_retry=3,
            waiting_by_source={"infinity-instruct": 3},
            on_probation=0,
            in_flight=sum(self.running(s) for s in self.servers),
            remaining=left,
            outcomes={
                "ok": int(self.done * 0.93),
                "length": int(self.done * 0.07),
                "empty": 19,
                "looped": 8,
                "bad_tool_call": 4,
            },
            failures={"rejected: too long": 9, "timeout": 3},
            retries={"connection reset": 21, "http 500": 6},
            servers={
                f"http://127.0.0.1:{30000 + s.gpu}": ServerWork(
                    s.slots + 4,
                    self.running(s),
                    int(self.done / len(self.servers)),
                    int(self.tokens / len(self.servers)),
                )
                for s in self.servers
            },
            batch_files=int(self.done // 500) + 1,
            batch_records=int(self.done // 500) * 500,
            batch_bytes=int(self.done * 13_000),
            not_in_s3=int(self.done % 500),
            partial=5,
            continued=311,
            tokens_kept=402_118,
            tokens_lost=9_040,
            message="747 done, 0 repaired, 8/8 healthy",
        )

    def _infos(self) -> list[ServerInfo]:
        return [
            ServerInfo(
                s.gpu,
                30000 + s.gpu,
                5000 + s.gpu,
                self.began,
                ["python", "-m", "sglang.launch_server"],
                self.epochs[s.epoch - 1].flags,
                f"sglang_logs/sglang_gpu{s.gpu}.log",
                s.epoch,
                "0.5.12",
                s.slots,
                s.slots * 5,
                483_922,
            )
            for s in self.servers
        ]

    def _servers(self) -> list[ServerState]:
        return [
            ServerState(
                s.gpu,
                s.state,  # type: ignore[arg-type]
                Lights(
                    s.state not in ("stopped", "failed"),
                    s.state in ("ready", "draining"),
                    self.running(s) > 0,
                ),
                s.phase,
                s.phase_since if s.phase else None,
                PHASE_USUAL_S if s.phase_since and s.phase else None,
                running=self.running(s),
                queued=2 if s.state == "ready" else 0,
                gen_tok_s=self.tok_s(s) if s.state in ("ready", "draining") else None,
                kv_usage=self.kv(s) if s.state == "ready" else None,
                mamba_usage=self.mamba(s) if s.state == "ready" else None,
                retractions=0,
                dispatch=s.dispatch,
                in_flight=self.running(s) + 4 if s.state == "ready" else 0,
                cause=s.cause,
            )
            for s in self.servers
        ]

    def _gpus(self) -> list[GpuState]:
        heat = 4 * math.sin(self.now / 300)
        return [
            GpuState(
                s.gpu,
                "NVIDIA RTX PRO 6000 Blackwell",
                0.97 if self.running(s) else 0.0,
                83_204 if s.state != "stopped" else 4,
                97_887,
                (61 + heat + s.gpu % 3 if self.running(s) else 38) + s.heat,
                428 + 20 * math.sin(self.now / 7 + s.gpu) if self.running(s) else 74,
                600,
            )
            for s in self.servers
        ]

    def history(self, since: float, until: float, points: int) -> History:
        """Samples of the past, as they would have been on the bad flags."""
        step = (until - since) / points
        times = [since + i * step for i in range(points)]
        keep = self.now
        series: dict[str, list[list[float | None]]] = {
            name: [[] for _ in self.servers]
            for name in (
                "gen_tok_s",
                "kv_usage",
                "mamba_usage",
                "running",
                "queued",
                "power_w",
                "temperature_c",
            )
        }
        for at in times:
            self.now = at
            for server in self.servers:
                values = (self.tok_s(server), self.kv(server), self.mamba(server))
                more = (
                    float(self.running(server)),
                    2.0,
                    428 + 20 * math.sin(at / 7 + server.gpu),
                    61 + 4 * math.sin(at / 300) + server.gpu % 3,
                )
                for name, value in zip(series, (*values, *more), strict=True):
                    series[name][server.gpu].append(value)
        self.now = keep
        return History(times, series)

    # --- the feed ---

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
            self._tail(source)

    def _tail(self, source: str) -> None:
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
                self.on_message(LogPart(source, 1, 0, 0, lines))
            else:
                self.on_message(
                    LogPart(source, 1, 0, 0, [f"Port {30000 + i}: OK" for i in range(8)])
                )

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
        if not isinstance(request, READ_ONLY) and not getattr(request, "dry_run", False):
            self.say("action", type(request).__name__.lower(), who="ops")
        match request:
            case Get():
                return self.snapshot()
            case ReadHistory(since=since, until=until, points=points):
                return self.history(since, until or self.now, min(points, 120))
            case ReadAnswers(kind=kind, limit=limit, grep=grep):
                found = [
                    Answer(
                        9_870 - n,
                        "rejected" if kind == "failed" else "length" if n % 7 == 3 else "ok",
                        SOURCES[n % len(SOURCES)][0],
                        "user: What is [bold]7[/] times 6?",
                        "Seven sixes.",
                        f"42, n {n} \x1b[2J",
                        prompt_tokens=12,
                        completion_tokens=9,
                        server="http://127.0.0.1:30000",
                        reason="too long" if kind == "failed" else "",
                    )
                    for n in range(40)
                ]
                return Answers([a for a in found if grep in a.content][:limit])
            case ReadBatches():
                return self.batches()
            case ReadMix():
                return self.mix()
            case ReadEvents(after=after, limit=limit, before=before):
                end = self.events[-1].id + 1 if before is None else before
                return Events([e for e in self.events if after < e.id < end][-limit:])
            case ReadLog(source=("run" | "agent") as source):
                return LogPart(source, 1, 0, 0, ["Port 30000: OK"])
            case ReadLog(source=source, lines=lines):
                server = self.servers[int(source[3:])]
                return LogPart(source, 1, 0, 0, server.lines[-lines:])
            case ReadFlags():
                return catalogue()
            case ReadMachine():
                return Machine(
                    {"torch": "2.9.1", "sglang": "0.5.12"},
                    {"nvidia-smi-q.txt": "Driver Version : 580.95.05\n"},
                    {"kernel.log": "/dev/kmsg: Operation not permitted"},
                )
            case Restart():
                return self.restart(request)
            case Decide(keep=keep):
                return self.decide(keep)
            case Rollback(dry_run=dry, epoch=wanted):
                then = [e for e in self.epochs if e.id == wanted] or [self.epochs[-2]]
                flags = then[0].flags
                return self.restart(Restart(self.spec, flags, dry_run=dry))
            case RunControl(do=do):
                self.concurrency = request.concurrency or self.concurrency
                self.status = {"pause": "paused", "resume": "running"}.get(do, "stopped")
                self.alive = do in ("pause", "resume")
                return Done(f"the run is {self.status}")
            case RunStart():
                self.alive, self.status = True, "running"
                return Done("the run is starting")
            case Up(gpus=gpus) | Down(gpus=gpus):
                for server in self.servers:
                    if gpus is None or server.gpu in gpus:
                        server.state = "ready" if isinstance(request, Up) else "stopped"
                        server.cause = ""
                self.tell()
                return Done(f"{type(request).__name__.lower()} is under way")
            case RetryFailed():
                return Done("12 prompts are open again")
            case _:
                raise FeedError(f"not in this story: {type(request).__name__}")

    def batches(self) -> Batches:
        """The files of the run: 20 sealed ones, the newest of them not uploaded yet, and one open;
        nine thousand records were lost, as the Run screen has to say."""
        done = int(self.done)
        last = done // 500 + 1
        files = [
            BatchFile(
                f"completions_{n:06d}.jsonl" + (".open" if n == last else ""),
                "open" if n == last else "sealed" if n == last - 1 else "uploaded",
                done % 500 if n == last else 500,
                (done % 500 if n == last else 500) * 13_000,
                "" if n == last else f"2026-12-01T{n % 24:02d}:15:00.000Z",
            )
            for n in range(last, 0, -1)
        ]
        return Batches(last, done - 9_000, done * 13_000, last - 2, done - 9_000, files)

    def mix(self) -> Mix:
        """Six sources; the code one is ahead of its share."""
        rows = []
        ended = {"ok": 0.93, "length": 0.07}
        for number, (name, planned, weight, tokens) in enumerate(SOURCES):
            done = int(self.done * weight)
            outcomes = {kind: int(done * share) for kind, share in ended.items()}
            failed = 12 if number == 0 else 0
            if failed:
                outcomes |= {"rejected": 9, "failed": 3, "looped": 8}
            rows.append(
                SourceMix(
                    name, planned, planned * 410, planned * tokens, done, done * 410,
                    done * (tokens + 90), outcomes, failed, 8 if failed else 0,
                )
            )  # fmt: skip
        return Mix(rows, "expansion_prompts.manifest.json")

    def restart(self, request: Restart) -> Plan:
        """Plan a swap, and begin it unless it is a dry run."""
        old = self.epochs[-1].flags
        new = {**old, **request.set_flags}
        for name in request.unset_flags:
            new.pop(name, None)
        if "mem-fraction-static" in request.set_flags:
            value = request.set_flags["mem-fraction-static"]
            if not isinstance(value, float | int) or not 0 < value < 1:
                raise FeedError("mem-fraction-static must lie between 0 and 1")
        flags = {epoch.id: epoch.flags for epoch in self.epochs}
        goes_on = [s.gpu for s in self.servers if flags.get(s.epoch) == new]
        if request.gpus is not None or len(goes_on) == len(self.servers):
            goes_on = []
        gpus = request.gpus or [s.gpu for s in self.servers if s.gpu not in goes_on]
        names = [n for n, _ in STEPS]
        steps = [SwapStep(gpu, name) for gpu in gpus for name in names]
        if request.strategy == "canary":
            steps.insert(len(names), SwapStep(gpus[0], "judge"))
        if request.strategy == "all":
            steps = [SwapStep(gpu, name) for name in names for gpu in gpus]
        swap = Swap(
            len(self.epochs),
            request.strategy,
            gpus,
            self.epochs[-1].id,
            self.epochs[-1].id + 1,
            "ops",
            self.now,
            steps=steps,
            set_flags=request.set_flags,
            unset_flags=request.unset_flags,
        )
        diff = [
            f"{n} {old.get(n, '–')} → {new.get(n, '–')}"
            for n in sorted({*old, *new})
            if old.get(n) != new.get(n)
        ]
        if not request.dry_run:
            self.swap, self.kept = swap, False
            self.epochs.append(Epoch(swap.to_epoch, self.now, new, "ops", request.why))
            self.tell()
        warnings = (
            ["no_buffer turns the overlap scheduler off"]
            if (new.get("mamba-scheduler-strategy") == "no_buffer")
            else []
        )
        slots = 72 if new.get("mamba-scheduler-strategy") == "no_buffer" else 37
        whole = request.strategy == "all"
        together = len(gpus) if whole else request.at_once
        span = 24 * -(-len(gpus) // together)
        where = f"{together} of {len(gpus)} servers at a time for {span} s"
        kept = "about 292 answers with 395,000 tokens are broken off and continued"
        costs = [
            f"{24 * len(gpus)} GPU-seconds without tokens, {where}",
            f"continue: {kept}; nothing is thrown away",
            "drain: waits up to 83 s a server; nothing is broken off",
            "redo: about 292 answers are broken off, 395,000 tokens thrown away",
        ]
        predicted = Predicted(612_000, slots * 5, 57.3, 6.1, "state slots")
        return Plan(swap, diff, warnings, slots, costs, predicted, goes_on=goes_on)

    def decide(self, keep: bool) -> Done:
        """Promote the canary, or put the old flags back at once."""
        swap = self.swap
        if swap is None or swap.state != "doing":
            raise FeedError("no swap is under way")
        if keep:
            self.kept = True
            return Done("the new flags are kept")
        for server in self.servers:
            server.slots, server.epoch, server.state = 37, 2, "ready"
        self.swap = replace(swap, state="rolled back", ended=self.now, text="taken back by ops")
        self.tell()
        return Done("the previous flags come back")


def catalogue() -> FlagCatalogue:
    """Every flag of SGLang 0.5.12, as an agent tells them: those of the lab's stand-in."""
    kinds: dict[str, FlagKind] = {"int": "int", "float": "float", "json": "json", "human": "size"}
    flags: list[FlagInfo] = []
    for options, dest, kind, type_, nargs, choices, default in sim_flags.table("0.5.12"):
        names = [option.removeprefix("--") for option in options if option.startswith("--")]
        switch = kind in ("true", "boolean", "deprecated")
        flags.append(
            FlagInfo(
                names[0],
                "bool" if switch else kinds.get(type_, "str"),
                False if switch else default,
                choices,
                HELP.get(dest, ""),
                many=nargs in ("+", "*"),
                optional=nargs == "?",
                aliases=names[1:],
                deprecated=kind == "deprecated",
            )
        )
    return FlagCatalogue(flags, "0.5.12")


def connect(**options: Any) -> Callable[..., Story]:
    """A maker of feeds that remembers the last story it made as ``.story``."""

    def make(on_message: Callable[[Message], None], on_link: Callable[[Link], None]) -> Story:
        story = Story(on_message, on_link, **options)
        make.story = story  # type: ignore[attr-defined]
        return story

    return make


def main() -> None:
    """The console on the story, in this terminal."""
    import time

    from console.app import StokerApp

    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--trouble", action="store_true")
    parser.add_argument("--call", type=float, default=0.0, help="an alert after so many seconds")
    given = parser.parse_args()

    class Alerting(Story):
        def advance(self, seconds: float) -> None:
            super().advance(seconds)
            if given.call and self.seq >= given.call and not self.alerts:
                self.alerts.append(Alert("hot.1", "GPU 1: 91 °C", self.now))
                self.say("alert", "GPU 1: 91 °C", level="warning")

    def make(on_message: Callable[[Message], None], on_link: Callable[[Link], None]) -> Story:
        story = Alerting(
            on_message, on_link, gpus=given.gpus, rate=given.rate, now=time.time(), elapsed=60
        )
        if given.trouble:
            story.servers[3].state = "failed"
            story.servers[3].cause = "CUDA out of memory: tried to allocate 2.41 GiB (exit 1)"
            story.servers[5].speed, story.servers[5].heat = 0.6, 24
            story.alerts.append(
                Alert(
                    "eta",
                    "Done only in 208 h, over the 48 h of alerts.eta_hours_over",
                    time.time(),
                    "error",
                )
            )
        return story

    app = StokerApp(make, name="ct200", read_only=given.read_only)
    app.run()
    sys.exit(app.return_code)


if __name__ == "__main__":
    main()
