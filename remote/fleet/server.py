"""One server as it is observed: what its processes, its log and its answers say together."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from remote.fleet import ending, processes
from remote.fleet.answers import Answers, first
from remote.fleet.ends import Ends
from remote.fleet.following import Following
from remote.fleet.foreign import Foreign
from remote.fleet.identity import Process
from remote.fleet.outside import Dispatch
from remote.fleet.probe import Probe
from remote.fleet.processes import Identity
from remote.fleet.rate import Rate
from remote.fleet.records import Exit, Folder, Launch, Ready
from remote.fleet.restarts import Restarts
from remote.fleet.timing import Timing
from remote.fleet.work import Work
from remote.protocol import Flags, ServerStatus
from remote.sglang.causes import Cause
from remote.sglang.loads import Loads
from remote.sglang.loglines import LogReader

LIVE: tuple[ServerStatus, ...] = ("starting", "warming", "ready", "draining", "stalled", "foreign")
"""States in which there is a process."""

Change: TypeAlias = Literal["fired up", "failed", "ended", "stalled", "moves again", "drains"]
"""What a look can find that someone has to act on."""

_FULL = 0.8
"""Share of its slots that makes a server count as full."""

NEEDS_KEY = "needs its API key: put it as SGLANG_API_KEY into credentials_file"


@dataclass
class Server:
    """Server ``gpu`` of the fleet, whether it runs or not."""

    gpu: int
    port: int
    url: str
    folder: Folder
    probe: Probe
    timing: Timing
    start_seconds: float = 1800.0

    launch: Launch | None = None
    main: Identity | None = None
    holder: Identity | None = None
    foreign: Foreign | None = None

    status: ServerStatus = "stopped"
    cause: Cause | None = None
    doing: str = ""
    """What an action is at, in words, shown as the phase."""
    held: bool = False
    """An action (stop, swap) has this server in hand: nothing acts on it by itself."""
    again_at: float | None = None
    """When it is started again by itself after a failure, while that is awaited."""
    dispatched: Dispatch | Literal[""] = ""
    introduced: str = ""
    """The foreign process that the run has been told of."""
    ready: Ready | None = None
    before: Ready | None = None
    """What the launch before this one gave."""
    exit: Exit | None = None
    beginning: bool = False
    """Its launch is being carried out: that its process is not there yet says nothing."""

    tree: list[Process] = field(default_factory=list)
    core: dict[int, str] = field(default_factory=dict)
    """Children that the main process cannot do without: pid → birth."""
    restarts: Restarts = field(default_factory=Restarts)
    ends: Ends = field(default_factory=Ends)

    log: Following = field(default_factory=Following)
    told: Answers = field(init=False)

    in_flight: int | None = None
    started_at: float | None = None
    work: Work = field(default_factory=Work)
    _heard_at: float = 0.0
    """When its log last grew, or when it was first observed."""
    _observed_at: float = 0.0
    _lost_since: float | None = None
    _gone_since: float | None = None
    _drains: bool = False
    """It was told to end by someone else, and that is known."""

    def __post_init__(self) -> None:
        self.told = Answers(Rate(self.timing.rate))

    # --- One life of the server ---

    def listens(self, port: int, flags: Flags) -> None:
        """Where it is asked from now on: loopback, unless its ``host`` flag names one address."""
        host = flags.get("host")
        if not isinstance(host, str) or host in ("0.0.0.0", "::", "localhost"):
            host = "127.0.0.1"
        host = f"[{host}]" if ":" in host else host
        self.port = port
        self.url = self.probe.url = f"http://{host}:{port}"

    def begin(self, launch: Launch, *, adopted: bool = False) -> None:
        """Observe this launch from now on."""
        self.launch, self.foreign = launch, None
        self.main = self.holder = None
        self.cause = self.exit = None
        self.status, self.doing = "starting", ""
        self.ready = self.folder.ready(launch.launch) if adopted else None
        self.before = self.folder.previous()
        self.tree, self.core = [], {}
        self.log = Following.of(Path(launch.log), launch.log_offset)
        self._forget_numbers()
        if self.find_process() and self.ready is not None:
            self.status = "ready"

    def begin_foreign(self, main: Identity, foreign: Foreign) -> None:
        """Observe a server that someone else started; only looking, nothing else."""
        self.launch = self.holder = self.ready = self.cause = self.exit = None
        self.main, self.foreign = main, foreign
        self.listens(self.port, foreign.flags)
        self.probe.api_key = foreign.api_key
        self.status, self.doing, self.core = "foreign", "", {}
        self.log = Following.of(Path(foreign.log), 0) if foreign.log else Following()
        self.started_at = foreign.started_at
        self._forget_numbers()

    def _forget_numbers(self) -> None:
        self.told = Answers(Rate(self.timing.rate))
        self.probe.missed, self.probe.metrics_off = 0, False
        self.work = Work()
        self._heard_at = self._observed_at = time.time()
        self._drains = False
        self._lost_since = self._gone_since = None

    def find_process(self) -> bool:
        """Look up the process of the present launch; False where its holder has not said yet."""
        if self.launch is None:
            return False
        running = self.folder.running(self.launch.launch)
        if running is None:
            return False
        self.main, self.holder = running.identity, running.holder_identity
        self.started_at = running.began
        return self.main is not None

    def let_go(self) -> None:
        """The action that had it in hand is over, however it ended."""
        self.held = False
        if self.status == "draining":  # what was to end it did not
            self.status, self.doing = "ready", ""

    def note_foreign(self) -> None:
        """Keep what a foreign server gave, to compare with, and to go back to. Blocking."""
        if self.foreign is not None:
            self.folder.write_ready(
                Ready(
                    launch="",
                    at=time.time(),
                    start_seconds=0.0,
                    flags=self.foreign.flags,
                    max_running=self.max_running,
                )
            )

    def settle(self) -> None:
        """The swap that started this launch is through with it. Blocking."""
        if self.launch is not None:
            self.launch = self.folder.settle(self.launch)

    @property
    def alive(self) -> bool:
        """Whether there is a process to speak of."""
        return self.status in LIVE

    @property
    def answers(self) -> bool:
        """Whether it is worth asking over HTTP: its port may be open, and it is SGLang's."""
        if self.foreign is not None and not self.foreign.is_sglang:
            return False
        if self.status == "draining":
            return not self.held  # an action that drains it asks for itself
        return self.status in ("warming", "ready", "stalled", "foreign")

    @property
    def process(self) -> str:
        """Identity of the main process; empty where there is none."""
        return str(self.main) if self.main is not None and self.alive else ""

    # --- Looking ---

    @property
    def reader(self) -> LogReader:
        """What its log has told."""
        return self.log.reader

    def read_log(self) -> None:
        """Take in what the log has got since. Blocking (page cache, and parsing)."""
        if self.log.read():
            self._heard_at, self.probe.missed = time.time(), 0

    def look(self, table: dict[int, Process], now: float) -> Change | None:
        """Bring status and lights up to date; what has to be acted on, if anything."""
        if not self.alive:
            return None
        if self.main is None and not self.find_process():
            return self._without_process(now)
        if self.main is None:
            return None
        self.tree = processes.members(self.main, table)
        if not self.tree or self.tree[0].pid != self.main.pid:
            return self._gone(now)
        self._gone_since = None
        if self.status in ("starting", "warming"):
            return self._starting(now)
        if self.status in ("ready", "stalled") and (lost := self._lost(now)) is not None:
            self.fail(lost)
            return "failed"
        if self.reader.draining and not self.held and self._drained_by_another():
            return "drains"
        return self._working(now)

    def _drained_by_another(self) -> bool:
        """Show that it empties itself after someone else's SIGTERM; whether that is new.

        It goes on admitting requests meanwhile, and ends only once it has none.
        """
        left = f": {self.reader.remaining} left" if self.reader.remaining else ""
        if self.status in ("ready", "draining"):
            self.status, self.doing = "draining", f"draining after a SIGTERM{left}"
        new, self._drains = not self._drains, True
        return new

    def _without_process(self, now: float) -> Change | None:
        if self.launch is None or self.beginning:
            return None
        self.exit = self.folder.exit(self.launch.launch)
        if self.exit is None and now - self.launch.asked < self.timing.holder + 5:
            return None
        text = self.exit.error if self.exit is not None else "its holder was killed"
        self.fail(Cause("start", f"the server {text}" if text else "it ended at once"))
        return "failed"

    def _gone(self, now: float) -> Change | None:
        if self.foreign is not None:
            self.status, self.main = "stopped", None
            return "ended"
        assert self.launch is not None
        if self._gone_since is None:
            self._gone_since = now  # its last lines may have come after the log was read
            return None
        self.exit = self.folder.exit(self.launch.launch)
        waited = now - self._gone_since
        holder_left = self.holder is not None and self.holder.alive
        if self.exit is None and (waited < 2 * self.timing.tick or (holder_left and waited < 10)):
            return None
        return self.judge_end()

    def judge_end(self) -> Change:
        """Judge an end by what is left of it: the exit record and the log."""
        assert self.launch is not None
        if self.launch.wanted != "up":
            self.status, self.doing = "stopped", ""
            return "ended"
        running = self.folder.running(self.launch.launch)
        served = self.ready is not None
        cause = ending.judge(running, self.exit, self.reader, served=served, busy=self.busy)
        if cause.code == ending.OUTSIDE:
            self.status, self.cause, self.doing = "stopped", cause, ""
            return "ended"
        self.fail(cause)
        return "failed"

    def _starting(self, now: float) -> Change | None:
        assert self.launch is not None
        up = self.reader.phase in ("starting HTTP", "warming up", "up")
        self.status = "warming" if up else "starting"
        # One that says it is up may have served for days under an earlier agent that could not
        # write so down: it has the time to prove itself anew.
        since = self._observed_at if self.reader.fired_up else self.launch.asked
        if now - since > self.start_seconds:
            why = self.reader.cause.text if self.reader.cause else self.probe.problem if up else ""
            text = f"not ready after {self.start_seconds:.0f} s, still {self.starts_with}"
            self.fail(Cause("slow-start", f"{text}: {why}" if why else text))
            return "failed"
        return "fired up" if self.reader.fired_up else None

    def _lost(self, now: float) -> Cause | None:
        present = {p.pid: p.birth for p in self.tree}
        lost = [pid for pid, birth in self.core.items() if present.get(pid) != birth]
        if not lost:
            self._lost_since = None
            return None
        self._lost_since = self._lost_since or now
        if now - self._lost_since < self.timing.lost_child:
            return None  # SGLang mostly ends itself within a second of losing a child
        return self.reader.cause or Cause(
            "child", f"its process {lost[0]} is gone while its main process goes on"
        )

    def _working(self, now: float) -> Change | None:
        counted = self.told.work_tokens or 0.0
        work = self.work
        work.look(counted, float(self.reader.work), busy=self.busy, now=now)
        there = self.status in ("ready", "foreign") and self.dispatched not in ("pause", "abort")
        work.serves(there and self.silent_since(now) is None, now)
        serves = self.status == "ready" or (self.status == "draining" and self.answers)
        still = now - (work.stands_since or now)
        if serves and still > self.timing.stall and not self._compiles:
            self.status, self.doing, work.stalled_since = "stalled", "", now
            self.cause = Cause(
                "stalled",
                f"requests are in flight and no token came for {still:.0f} s"
                f"{': ' + self.probe.problem if self.probe.problem else ''}",
            )
            return "stalled"
        if self.status == "stalled" and work.moved_since_stall:
            self.status, self.cause, work.stalled_since = "ready", None, None
            return "moves again"
        return None

    @property
    def _compiles(self) -> bool:
        """Whether kernels are being compiled: it may stand still as long as it likes."""
        return any(p.name in processes.COMPILERS for p in self.tree)

    def silent_since(self, now: float) -> float | None:
        """Since when it gives no sign of life: questions stay unanswered one after the other, and
        its log does not grow. None for one that does, and for one that need not."""
        if self.main is None or not self.answers or self.status == "warming" or self._compiles:
            return None
        since = max(self._heard_at, self.probe.answered_at)
        missed = self.probe.missed >= self.timing.silent_questions
        return since if missed and now - since >= self.timing.silent else None

    @property
    def restart_at(self) -> float | None:
        """When it is ended and started again if nothing moves any more; None where it is not."""
        if self.held or self.foreign is not None:
            return None
        if self.work.stalled_since is not None:
            return self.work.stalled_since + self.timing.stalled_restart
        if self.status != "ready" or self.work.stands_since is None:
            return None
        return self.work.stands_since + self.timing.stall + self.timing.stalled_restart

    def fail(self, cause: Cause) -> None:
        """It has failed, and why."""
        self.status, self.cause, self.doing = "failed", cause, ""

    def note_core(self, table: dict[int, Process]) -> None:
        """Remember which children the main process has now that it serves. Blocking."""
        if self.main is None:
            return
        children = [p for p in table.values() if p.parent == self.main.pid and not p.zombie]
        commands = {p.pid: " ".join(processes.command(p.pid)) for p in children}
        titled = [p for p in children if commands[p.pid].startswith("sglang::")]
        others = [p for p in children if "resource_tracker" not in commands[p.pid]]
        self.core = {p.pid: p.birth for p in titled or others}

    # --- What it does ---

    @property
    def done(self) -> float:
        """Grows with every token; by counters where there are some, else by the log's lines."""
        counted = self.told.work_tokens
        return float(self.reader.work) if counted is None else counted

    @property
    def running(self) -> int | None:
        return self.told.running

    @property
    def queued(self) -> int | None:
        return self.told.queued

    @property
    def busy(self) -> bool:
        """Whether it has anything to do, by the run's account, its scheduler's or its HTTP's.

        A hung scheduler of 0.5.23 leaves a stale account behind: where no run can tell better,
        the open HTTP requests do.
        """
        if self.in_flight is None and self.told.open_requests:
            return True
        return any((self.in_flight, self.running, self.queued))

    @property
    def is_full(self) -> bool:
        """Whether requests queue or most slots are taken: its throughput is what it can do."""
        most = self.max_running
        return bool(self.queued) or (most is not None and (self.running or 0) >= _FULL * most)

    @property
    def max_running(self) -> int | None:
        sources = (self.told.loads, self.told.facts, self.ready, self.reader.facts)
        return first(*(source.max_running for source in sources if source is not None))

    @property
    def max_mamba(self) -> int | None:
        sources = (self.told.facts, self.ready, self.reader.facts)
        return first(*(source.max_mamba for source in sources if source is not None))

    @property
    def kv_tokens(self) -> int | None:
        sources = (self.told.facts, self.ready, self.reader.facts)
        return first(*(source.kv_tokens for source in sources if source is not None))

    @property
    def sglang(self) -> str | None:
        """The version that it says it is, else the one that was installed when it was started."""
        return self.told.version or (self.launch.sglang if self.launch is not None else None)

    def took_loads(self, loads: Loads | None, now: float) -> None:
        """An answer of ``/v1/loads``, or that there was none."""
        self.told.took_loads(loads, now)
        if loads is not None and self.doing == NEEDS_KEY:
            self.doing = ""
        elif loads is None and self.foreign is not None and self.probe.needs_key:
            self.doing = NEEDS_KEY

    def gen_tok_s(self, now: float) -> float | None:
        """Tokens decoded a second.

        From the counter of every step where metrics are on. Else the last Decode line's figure,
        unless that is diluted by an idle time before it or has gone stale. None while it gives no
        sign of life: what it did last is not what it does.
        """
        if self.silent_since(now) is not None:
            return None
        counted, at = self.told.rate.value, self.told.rate.at
        if counted is not None and at is not None and now - at < 3 * self.timing.metrics:
            return counted
        decode, at, gap = self.reader.decode, self.reader.decode_at, self.reader.decode_gap
        if not self.busy and self.told.loads is not None:
            return 0.0
        if decode is None or at is None or gap is None or gap > 30 or now - at > 30:
            return None
        return decode.gen_tok_s

    @property
    def has_its_processes(self) -> bool:
        """Whether nothing of it is missing, as of the last look."""
        return self.main is not None and self._lost_since is None and self._gone_since is None

    @property
    def starts_with(self) -> str:
        """What its start is at, in words."""
        if self.reader.phase == "up":
            return "proving itself"
        percent = f" {self.reader.percent}%" if self.reader.percent is not None else ""
        return f"{self.reader.phase}{percent}"
