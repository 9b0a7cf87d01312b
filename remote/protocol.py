"""Every message that console, agent and run exchange, typed; and how one travels.

A message is one JSON object a line, ASCII-escaped, at most :data:`MAX_LINE` bytes. A larger one
travels as a series of :class:`Piece` lines. A line that does not parse is counted and skipped:
what comes from the other side is data, never a reason to die.

Units, everywhere: fractions 0..1, rates per second, sizes in bytes (``_mib`` where the driver
speaks MiB), times as Unix seconds (float, UTC). What is unknown is ``None``, never 0.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from remote.paths import STOKER_DIR as STOKER_DIR

VERSION = 1
"""Raised whenever a message changes its meaning; consoles of another version are read-only."""

MAX_LINE = 1 << 20
"""Longest line on the wire, newline included."""

HEARTBEAT_S = 10.0
"""Each side sends something at least this often."""

SILENCE_S = 60.0
"""After so long without a line from the other side the bridge leaves."""

FlagValue: TypeAlias = bool | int | float | str | list[str | int | float]
"""``True`` is a bare flag, ``False`` leaves the flag out, a list is several values."""

Flags: TypeAlias = dict[str, FlagValue]
"""SGLang's own long flag names without dashes in front, e.g. ``mem-fraction-static``."""


# --- What a target is (from stoker.toml; the agent keeps the last one an action brought) ---
#
# Keys that are not known here are passed over, as everywhere on the wire: a console of another
# version can still look. In stoker.toml they are mistakes, which the console tells.


class FleetSpec(Struct, frozen=True):
    """``[fleet]``: one SGLang server a GPU; server *i* listens on ``base_port + i``."""

    model: str = ""
    gpus: int = 8
    base_port: int = 30000
    log_dir: str = "sglang_logs"
    drain_seconds: float = 120.0
    """How long a drain may take before what still runs is aborted."""
    start_seconds: float = 1800.0
    """How long a start may take before it counts as failed."""
    flags: Flags = {}


class S3Spec(Struct, frozen=True):
    """``[run.s3]``; an empty bucket means no uploads. Key = prefix + file name."""

    bucket: str = ""
    prefix: str = ""
    endpoint_url: str = ""


ANSWERED = ("ok", "length", "looped", "empty", "bad_tool_call")
"""Outcomes that an answer can have, and so those that a policy may name."""

POLICY = re.compile(r"keep|set-aside|retry:[1-9]\d?")
"""What a policy may say of one: put it into a batch, set it aside, or ask again with another
seed, so many times at most."""


class RunSpec(Struct, frozen=True):
    """``[run]``: what the generation does. Paths are relative to the workspace."""

    prompts: str = "prompts.jsonl"
    output: str = "completions"
    max_tokens: int = 4096
    concurrency: int | Literal["auto"] = "auto"
    thinking: bool = True
    endpoint: Literal["chat", "generate"] = "chat"
    temperature: float | None = None
    retries: int = 3
    params: dict[str, Any] = {}
    """Further request fields, sent as they are (``top_p``, ``chat_template_kwargs`` …)."""
    policy: dict[str, str] = {}
    """By outcome: ``keep``, ``set-aside`` or ``retry:N``; the others as by default."""
    hedge: bool = False
    """Send the last stragglers to a second server."""
    delete_uploaded: bool = False
    """Delete a batch here once its upload was verified."""
    s3: S3Spec = S3Spec()


class AlertSpec(Struct, frozen=True):
    """``[alerts]``: when to call a person."""

    eta_hours_over: float | None = None
    webhook: str = ""
    """Where the agent posts alerts as JSON (``{"text": …}``); ``STOKER_WEBHOOK`` in the
    credentials file where the address itself is a secret."""


class TargetSpec(Struct, frozen=True):
    """All that the agent needs to know of a target; nothing here is a secret."""

    name: str
    workspace: str
    python: str = ""
    env_script: str = ""
    credentials_file: str = ""
    fleet: FleetSpec = FleetSpec()
    run: RunSpec = RunSpec()
    alerts: AlertSpec = AlertSpec()


# --- What is known (sections of the once-a-second snapshot) ---

ServerStatus: TypeAlias = Literal[
    "starting", "warming", "ready", "draining", "stalled", "failed", "stopped", "foreign"
]


class Lights(Struct, frozen=True):
    """Three separate signs of life: the process tree, HTTP answers, tokens being produced."""

    process: bool | None = None
    http: bool | None = None
    tokens: bool | None = None


class ServerInfo(Struct, frozen=True):
    """What changes only at a (re)start of a server."""

    gpu: int
    port: int
    pid: int | None = None
    started_at: float | None = None
    argv: list[str] = []
    flags: Flags = {}
    log: str = ""
    epoch: int | None = None
    sglang: str | None = None
    max_running: int | None = None
    """Effective ``max_running_requests``: what the server really admits at once."""
    max_mamba: int | None = None
    """Mamba state slots of the pool."""
    kv_tokens: int | None = None
    """KV cache capacity in tokens."""


class ServerState(Struct, frozen=True):
    """What moves while a server runs."""

    gpu: int
    state: ServerStatus = "stopped"
    lights: Lights = Lights()
    phase: str = ""
    """Start-up phase in words (``loading weights``, ``capturing graphs`` …) or drain progress."""
    phase_since: float | None = None
    phase_usual_s: float | None = None
    """What this phase took at the last start."""
    running: int | None = None
    queued: int | None = None
    gen_tok_s: float | None = None
    kv_usage: float | None = None
    mamba_usage: float | None = None
    retractions: int | None = None
    dispatch: str = ""
    """The run's side of it: ``run``, ``pause``, ``abort``; empty where no run is."""
    in_flight: int | None = None
    """Requests that the run has open on this server."""
    cause: str = ""
    """Why it failed or stalled, one line."""


class GpuState(Struct, frozen=True):
    """One card as ``nvidia-smi`` tells it."""

    gpu: int
    name: str = ""
    utilization: float | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None


class HostState(Struct, frozen=True):
    """The container (psutil)."""

    cpu: float | None = None
    load_1m: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    disk_free: int | None = None
    disk_total: int | None = None
    simulated: bool = False
    """True where the hardware is a simulation (the lab says so in its environment)."""
    clock_east_s: int | None = None
    """Seconds by which the clock that stamps its logs is east of UTC."""


RunStatus: TypeAlias = Literal["running", "paused", "draining", "done", "stopped", "failed"]


class Progress(Struct, omit_defaults=False):
    """``progress.json``: the keys of the operators' existing tooling, then ours."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    rate_per_sec: float = 0.0
    eta_hours: float | None = None
    total_input_tokens: int = 0
    total_output_tokens: int = 0
    avg_output_tokens: float = 0.0
    elapsed_hours: float = 0.0
    s3_uploaded: int = 0
    s3_bytes: int = 0
    status: RunStatus = "running"
    # More keys of ours from here on.
    time: float = 0.0
    pid: int = 0
    run_id: str = ""
    tok_s: float | None = None
    """Output tokens a second over the same moving window as ``rate_per_sec``."""
    total_reasoning_tokens: int = 0
    """Thinking, a part of ``total_output_tokens``, as far as the servers tell it."""
    set_aside: int = 0
    waiting_retry: int = 0
    """Prompts to be sent again."""
    waiting_by_source: dict[str, int] = {}
    """The same by source; empty for prompts that name none."""
    on_probation: int = 0
    in_flight: int = 0
    remaining: int = 0
    outcomes: dict[str, int] = {}
    failures: dict[str, int] = {}
    """Given-up prompts by reason."""
    retries: dict[str, int] = {}
    """Attempts that did not count as an answer, by cause."""
    servers: dict[str, ServerWork] = {}
    """By server URL."""
    control_version: int = 0
    """The ``version`` of the ``control.json`` that all of this already obeys."""
    partial: int = 0
    """Interrupted answers that are kept and wait to be continued."""
    continued: int = 0
    """Records of this process's whose answer was interrupted and continued."""
    tokens_kept: int = 0
    """Output tokens of interrupted answers that this process kept, or took over from the one before
    it."""
    tokens_lost: int = 0
    """Output tokens of interrupted answers that this process had to throw away, as far as the
    servers told them."""
    batch_files: int = 0
    batch_records: int = 0
    batch_bytes: int = 0
    not_in_s3: int = 0
    """Records that are durable here and not yet uploaded (0 where S3 is off)."""
    s3_error: str = ""
    message: str = ""
    """The last line for people, e.g. ``747 done, 0 repaired, 8/8 healthy``."""
    problem: str = ""
    """What stands in the way now (disk full, no server up), with what to do."""


class ServerWork(Struct, frozen=True):
    """The run's own account of one server."""

    slots: int = 0
    in_flight: int = 0
    completed: int = 0
    output_tokens: int = 0
    state: str = "run"
    """``run``, ``pause``, ``abort``, ``redo``, ``open`` (breaker open), ``probation``,
    ``stopped``."""
    problem: str = ""
    whole: str = ""
    """Why an interrupted answer of it can only be made anew; empty where it is continued."""


class RunState(Struct, frozen=True):
    """The generation, as the agent sees its process and its files."""

    alive: bool = False
    pid: int | None = None
    output: str = ""
    prompts: str = ""
    progress: Progress | None = None
    foreign: bool = False
    exit: int | None = None


class Epoch(Struct, frozen=True):
    """One set of flags the fleet ran with, and what it gave."""

    id: int
    since: float
    flags: Flags
    who: str = ""
    why: str = ""
    tok_s_per_gpu: float | None = None
    """Mean decode throughput of a busy, ready server of this epoch."""
    max_running: int | None = None
    mamba_usage: float | None = None
    kv_usage: float | None = None
    seconds: float = 0.0
    """Busy server-seconds behind ``tok_s_per_gpu``."""
    cost: str = ""
    """What the swap to it has cost, as measured: one line."""


StepName: TypeAlias = Literal[
    "pause",
    "drain",
    "abort",
    "stop",
    "start",
    "ready",
    "compare",
    "resume",
    "judge",
    "confirm",
    "put back",
]
StepState: TypeAlias = Literal["waiting", "doing", "done", "failed", "skipped"]

InFlight: TypeAlias = Literal["continue", "drain", "redo"]
"""What a swap does with answers that are under way. ``continue``: broken off, kept, and gone on
with on another server or after the restart; where the engine can't, as ``drain``. ``drain``: they
may end within the drain's bound, and what is left then is continued. ``redo``: broken off and
generated again from nothing."""


class SwapStep(Struct, frozen=True):
    """One step on one server."""

    gpu: int
    name: StepName
    state: StepState = "waiting"
    began: float | None = None
    ended: float | None = None
    text: str = ""


class Swap(Struct, frozen=True):
    """A plan to bring servers to other flags, and how far it is."""

    id: int
    strategy: Literal["rolling", "all", "canary"]
    gpus: list[int]
    from_epoch: int | None
    to_epoch: int
    who: str
    began: float
    state: Literal["doing", "done", "failed", "rolled back"] = "doing"
    ended: float | None = None
    steps: list[SwapStep] = []
    set_flags: Flags = {}
    unset_flags: list[str] = []
    in_flight: InFlight = "drain"
    at_once: int = 1
    tokens_kept: int = 0
    """Output tokens of interrupted answers that the run has kept meanwhile."""
    tokens_lost: int = 0
    """Those that it had to throw away, as far as the servers told them."""
    text: str = ""
    """One line on how it ended, or on what holds it up."""
    confirm_s: float | None = None
    """Once all servers have the new flags, the old ones come back after so many seconds unless a
    :class:`Decide` has kept the new ones and they do no worse."""
    take_over: list[int] = []
    """Processes (pids) of servers not started by Stoker that may be ended."""
    decision: Literal["", "keep", "take back"] = ""
    """What a :class:`Decide` has said and what is not carried out yet."""
    decided_by: str = ""


class Event(Struct, frozen=True):
    """Something that happened. Ids only grow; the journal keeps every event."""

    id: int
    time: float
    kind: str
    """Dotted and lower case: ``server.failed``, ``swap.done``, ``action``, ``verdict``, …"""
    level: Literal["info", "warning", "error"] = "info"
    text: str = ""
    gpu: int | None = None
    who: str = ""


class Alert(Struct, frozen=True):
    """Something that is wrong now; gone when it is mended."""

    code: str
    text: str
    since: float
    level: Literal["warning", "error"] = "warning"


class Verdict(Struct, frozen=True):
    """First-minute verdict after a start, resume or swap."""

    time: float
    text: str
    good: bool | None = None
    """None where there is nothing to compare with."""
    rate_per_sec: float | None = None
    eta_hours: float | None = None
    tok_s_per_gpu: float | None = None
    slots: int | None = None
    bound_by: str = ""


class Snapshot(Struct, tag="snapshot", frozen=True):
    """State, once a second. A section that did not change since the last one is left out.

    Lists keyed by ``gpu`` carry only the changed members unless ``full`` is set; the other
    sections are whole whenever they are there.
    """

    time: float
    seq: int
    full: bool = False
    target: TargetSpec | UnsetType = UNSET
    infos: list[ServerInfo] | UnsetType = UNSET
    servers: list[ServerState] | UnsetType = UNSET
    gpus: list[GpuState] | UnsetType = UNSET
    host: HostState | UnsetType = UNSET
    run: RunState | UnsetType = UNSET
    epochs: list[Epoch] | UnsetType = UNSET
    swap: Swap | UnsetType | None = UNSET
    alerts: list[Alert] | UnsetType = UNSET
    verdict: Verdict | UnsetType | None = UNSET


SERVER_SERIES = ("gen_tok_s", "kv_usage", "mamba_usage", "running", "queued")
"""Fields of :class:`ServerState` of which the past is kept."""

CARD_SERIES = ("temperature_c", "power_w", "memory_used_mib", "utilization")
"""Fields of :class:`GpuState` of which the past is kept."""

SERIES = (*SERVER_SERIES, *CARD_SERIES)
"""What the history keeps of each GPU, in the order of a stored row; new ones only at the end."""


# --- Console → agent: requests, each answered by one result or one failure ---


class Get(Struct, tag="get", frozen=True):
    """A full snapshot, once. → :class:`Snapshot`"""


class Up(Struct, tag="up", frozen=True):
    """Start servers (all, or some GPUs) with the spec's flags. → :class:`Done`"""

    spec: TargetSpec
    gpus: list[int] | None = None


class Down(Struct, tag="down", frozen=True):
    """Drain and stop servers. → :class:`Done`"""

    gpus: list[int] | None = None


class Restart(Struct, tag="restart", frozen=True):
    """Hot swap to changed flags; with no change, a plain restart. → :class:`Plan`

    With ``dry_run`` nothing is done: the plan and the difference come back.
    """

    spec: TargetSpec
    set_flags: Flags = {}
    unset_flags: list[str] = []
    strategy: Literal["rolling", "all", "canary"] = "rolling"
    gpus: list[int] | None = None
    in_flight: InFlight = "continue"
    at_once: int = 1
    """How many servers a rolling swap (and a canary's rest) takes out of service together."""
    confirm_within_min: float | None = None
    take_over: list[int] = []
    """Processes (pids) of servers not started by Stoker that may be ended, as the plan named
    them; without their being named here the restart is refused."""
    dry_run: bool = False
    why: str = ""


class Rollback(Struct, tag="rollback", frozen=True):
    """Swap back to an earlier epoch (the previous one by default). → :class:`Plan`

    With ``dry_run`` nothing is done: the plan and the difference come back.
    """

    spec: TargetSpec
    epoch: int | None = None
    strategy: Literal["rolling", "all"] = "rolling"
    in_flight: InFlight = "continue"
    at_once: int = 1
    dry_run: bool = False


class Decide(Struct, tag="swap.decide", frozen=True):
    """Keep the new flags of the swap under way (promote its canary, or confirm it), or take them
    back on every server that has them. → :class:`Done`"""

    keep: bool


class RunStart(Struct, tag="run.start", frozen=True):
    """Start the generation, or resume it where it stopped. → :class:`Done`"""

    spec: TargetSpec
    extend: bool = False
    accept_params: bool = False


class RunControl(Struct, tag="run.control", frozen=True):
    """Change a running generation. → :class:`Done`"""

    do: Literal["pause", "resume", "drain", "stop"]
    seal: bool = False
    concurrency: int | Literal["auto"] | None = None


class RetryFailed(Struct, tag="run.retry", frozen=True):
    """Give the given-up (and, by option, set-aside) prompts another life. → :class:`Done`"""

    set_aside: bool = False


class ReadLog(Struct, tag="log.read", frozen=True):
    """Lines of one log. → :class:`LogPart`

    ``source`` is ``gpu0`` …, ``run`` or ``agent``. With ``offset`` None the last ``lines``
    lines; else lines from that byte offset on, or with a negative number of lines those before
    it. A search looks through 64 MiB at most: where it found nothing, ``offset`` of the part
    (backwards) or ``next`` (forwards) is where to go on looking.
    """

    source: str
    offset: int | None = None
    lines: int = 200
    grep: str = ""


class ReadHistory(Struct, tag="history", frozen=True):
    """Samples of the past. → :class:`History`"""

    since: float
    until: float | None = None
    points: int = 300


class ReadEvents(Struct, tag="events", frozen=True):
    """Events with an id above ``after`` and below ``before`` (None: up to the newest), newest
    ``limit`` of them. → :class:`Events`"""

    after: int = 0
    limit: int = 500
    before: int | None = None


class ReadBatches(Struct, tag="batches", frozen=True):
    """What the batch files of the run's directory themselves say. → :class:`Batches`"""


class ReadMix(Struct, tag="mix", frozen=True):
    """The run by source: what was planned, what has come of it. → :class:`Mix`"""


class ReadAnswers(Struct, tag="answers", frozen=True):
    """Newest records of the run's directory, those whose line matches, or with ``index`` all
    that there is of one prompt. → :class:`Answers`"""

    kind: Literal["done", "failed", "set_aside"] = "done"
    limit: int = 50
    grep: str = ""
    outcome: str = ""
    chars: int = 8000
    """At most so many characters of each text travel."""
    before: str = ""
    """Go on where an earlier answer ended: its ``next``."""
    index: int | None = None


class ReadFlags(Struct, tag="flags", frozen=True):
    """All flags of the SGLang that the servers' Python has; asked of its parser once, which may
    take a minute, then kept. → :class:`FlagCatalogue`"""


class Subscribe(Struct, tag="subscribe", frozen=True):
    """What this connection wants pushed. Replaces the earlier subscription. → :class:`Done`

    Cursors say where the subscriber stands: events by last id seen, logs by
    ``source → (inode, offset)``; a source with offset -1 starts with its last 200 lines.
    """

    snapshots: bool = True
    events_after: int | None = None
    logs: dict[str, tuple[int, int]] = {}
    readings: bool = False
    """The run's subscription: server readings as they are taken."""


class Shutdown(Struct, tag="shutdown", frozen=True):
    """End the agent; servers and run go on. Deploy uses it to make room. → :class:`Done`"""


Request: TypeAlias = (
    Get
    | Up
    | Down
    | Restart
    | Rollback
    | Decide
    | RunStart
    | RunControl
    | RetryFailed
    | ReadLog
    | ReadHistory
    | ReadEvents
    | ReadBatches
    | ReadMix
    | ReadAnswers
    | ReadFlags
    | Subscribe
    | Shutdown
)

READ_ONLY: tuple[type, ...] = (
    Get,
    ReadLog,
    ReadHistory,
    ReadEvents,
    ReadBatches,
    ReadMix,
    ReadAnswers,
    ReadFlags,
    Subscribe,
)
"""Requests that change nothing."""


# --- Agent → console: results ---


class Done(Struct, tag="done", frozen=True):
    """It was done, or is under way; ``text`` says which, in one line."""

    text: str = ""


class Predicted(Struct, frozen=True):
    """What a server with a plan's flags should come to, as the capacity model says."""

    kv_tokens: int
    max_mamba: int | None = None
    """State slots of the pool; None on models without linear attention."""
    pools_gib: float = 0.0
    """GiB of state and KV pools together."""
    left_gib: float = 0.0
    """GiB that remain for graphs and activations."""
    bound_by: str = ""
    """What keeps the requests at once at their number, e.g. ``state slots``."""


class Plan(Struct, tag="plan", frozen=True):
    """A swap, planned or begun."""

    swap: Swap | None
    diff: list[str] = []
    """One line a changed flag: ``mem-fraction-static 0.85 → 0.90``."""
    warnings: list[str] = []
    predicted_max_running: int | None = None
    costs: list[str] = []
    """What it will cost, a line each: GPU-seconds without tokens, then each mode of dealing with
    answers under way, its name in front (``drain: …``)."""
    predicted: Predicted | None = None
    take_over: list[int] = []
    """Processes of servers not started by Stoker that it would end."""


class LogPart(Struct, tag="log", frozen=True):
    """Lines of one log file, as text with undecodable bytes replaced.

    ``offset`` is where the first line begins and ``next`` where reading goes on, in bytes of
    the file ``inode``. ``skipped`` lines were dropped before the first one (a flood).
    """

    source: str
    inode: int
    offset: int
    next: int
    lines: list[str]
    skipped: int = 0
    size: int = 0


class History(Struct, tag="history", frozen=True):
    """Downsampled samples: per GPU, one column a series, all as long as ``times``."""

    times: list[float]
    series: dict[str, list[list[float | None]]]
    """Name (one of :data:`SERIES`) → one list of values a GPU."""


class Events(Struct, tag="events", frozen=True):
    """Events in the order of their ids."""

    events: list[Event]


class BatchFile(Struct, frozen=True):
    """One batch file, as its line in the manifest has it; the open one as it is on disk."""

    name: str
    state: Literal["open", "sealed", "uploaded", "local_deleted"]
    records: int
    bytes: int
    last_at: str = ""
    """When its last record was finished (RFC 3339, UTC)."""
    uploaded_at: str = ""


class Batches(Struct, tag="batches", frozen=True):
    """Counted in the run directory, not taken from the run's own counters."""

    files: int = 0
    records: int = 0
    bytes: int = 0
    uploaded: int = 0
    """Files that the manifest says are in S3."""
    done_lines: int = 0
    """Lines of ``.done_indices``."""
    newest: list[BatchFile] = []
    """The last of them, newest first."""


class SourceMix(Struct, frozen=True):
    """One source of the prompts, planned against finished. Planned amounts are None where nobody
    has told them, tokens too where a part of the records was written by a version that did not
    sum them by source."""

    source: str
    """Empty for prompts that name none."""
    planned: int | None = None
    """Prompts."""
    planned_prompt_tokens: int | None = None
    planned_output_tokens: int | None = None
    """As `stoker prepare` expected them."""
    done: int = 0
    prompt_tokens: int | None = 0
    output_tokens: int | None = 0
    outcomes: dict[str, int] = {}
    """Of all prompts that have ended: done, given up and set aside; ``?`` counts those whose
    outcome was not summed by source."""
    failed: int = 0
    set_aside: int = 0


class Mix(Struct, tag="mix", frozen=True):
    """The run's sources, largest plan first."""

    sources: list[SourceMix] = []
    planned_by: str = ""
    """Name of the file that the plan was read in: a manifest of ``stoker prepare``, or the
    prompts themselves; empty where there is none, or while they are counted."""
    counting: bool = False
    """Whether the prompts are being counted now: ask again."""


class Answer(Struct, frozen=True):
    """One record of the run, its texts cut to what a person reads."""

    index: int
    outcome: str = "ok"
    source: str = ""
    prompt: str = ""
    """All messages, each with its role in front."""
    reasoning: str = ""
    content: str = ""
    tool_calls: str = ""
    """One call a line: name(arguments)."""
    finish_reason: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    server: str = ""
    epoch: int | None = None
    attempts: int = 0
    segments: int = 0
    """Parts of an answer that was interrupted and continued."""
    latency_s: float | None = None
    finished_at: str = ""
    reason: str = ""
    """Why it was given up on."""


class Answers(Struct, tag="answers", frozen=True):
    """Records, newest first; not ``complete`` where there are or may be more."""

    answers: list[Answer]
    complete: bool = True
    next: str = ""
    """Where a further look begins."""
    looked: int = 0
    """Bytes that were looked through."""
    note: str = ""
    """One line that people should know, e.g. that a record is only in S3."""


FlagKind: TypeAlias = Literal["bool", "int", "float", "str", "json", "size"]
"""What a flag takes; ``bool`` is a switch without a value, ``size`` an integer that may be
written ``32k`` or ``32Ki``."""


class FlagInfo(Struct, frozen=True):
    """One flag of SGLang as its own parser declares it."""

    name: str
    """Long name without dashes in front."""
    kind: FlagKind = "str"
    default: Any = None
    """None where it has none, or where SGLang computes it at start."""
    choices: list[str | int | float] | None = None
    help: str = ""
    many: bool = False
    """Takes several values."""
    optional: bool = False
    """May stand without its value."""
    aliases: list[str] = []
    """Its other long names."""
    deprecated: bool = False


class FlagCatalogue(Struct, tag="flags", frozen=True):
    """All flags of one installed SGLang, in its parser's order."""

    flags: list[FlagInfo]
    version: str | None = None
    source: Literal["parser", "source text"] = "parser"
    """Where it comes from: SGLang's parser itself, or its source read without running it (then
    a flag may be missing)."""


Result: TypeAlias = (
    Snapshot | Done | Plan | LogPart | History | Events | Batches | Mix | Answers | FlagCatalogue
)


# --- The envelope ---


class Hello(Struct, tag="hello", frozen=True):
    """First message of each side.

    The agent takes ``spec`` only when it has none yet: looking changes nothing.
    """

    version: int
    code: str
    """Hash of the deployed ``remote`` package."""
    role: Literal["console", "run", "agent"]
    who: str = ""
    spec: TargetSpec | None = None
    pid: int = 0


class Call(Struct, tag="call", frozen=True):
    """A request; ``id`` is chosen by the caller and comes back once."""

    id: int
    request: Request


class Reply(Struct, tag="reply", frozen=True):
    """The result of call ``id``."""

    id: int
    result: Result


class Failure(Struct, tag="failure", frozen=True):
    """Call ``id`` was not done: one line that says what and what to do."""

    id: int
    text: str
    code: str = "refused"


class Heartbeat(Struct, tag="heartbeat", frozen=True):
    """Nothing to say, still here."""

    time: float


class Happened(Struct, tag="happened", frozen=True):
    """An event as it happens."""

    event: Event


class Skipped(Struct, tag="skipped", frozen=True):
    """So many messages of a kind are not pushed: the subscriber was too slow, or begins behind
    more events than are pushed. Events can still be read."""

    what: str
    count: int


class Reading(Struct, tag="reading", frozen=True):
    """One server's numbers, as the agent polled them, for the run's dispatcher."""

    time: float
    url: str
    alive: bool
    running: int | None = None
    queued: int | None = None
    max_running: int | None = None
    tokens: int | None = None
    """A counter that grows while tokens are produced; None where the server has none."""


class Piece(Struct, tag="piece", frozen=True):
    """Part ``n`` (from 0) of ``of`` of a line that is longer than :data:`MAX_LINE`."""

    key: int
    n: int
    of: int
    text: str


Message: TypeAlias = (
    Hello
    | Call
    | Reply
    | Failure
    | Heartbeat
    | Happened
    | Skipped
    | Reading
    | Snapshot
    | LogPart
    | Piece
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_PIECE = MAX_LINE // 8  # escaping can make six characters of one; leave room for the envelope


def _ascii(message: Message) -> bytes:
    data = _encoder.encode(message)
    if data.isascii():
        return data
    return json.dumps(json.loads(data), separators=(",", ":")).encode("ascii")


def encode(message: Message) -> bytes:
    """The message as one or more complete lines, each at most :data:`MAX_LINE` bytes."""
    line = _ascii(message)
    if len(line) < MAX_LINE:
        return line + b"\n"
    text = line.decode("ascii")
    parts = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
    key = hash(line) & 0x7FFFFFFF
    return b"".join(
        _ascii(Piece(key=key, n=n, of=len(parts), text=part)) + b"\n"
        for n, part in enumerate(parts)
    )


class Decoder:
    """Lines of one connection → messages.

    ``bad`` counts the lines that were no message; the rest of the stream is unharmed by them.
    """

    def __init__(self) -> None:
        self.bad = 0
        self._parts: list[str] = []
        self._key = -1

    def feed(self, line: bytes) -> Message | None:
        """The message of this line, or None (blank, unfinished piece, or not a message)."""
        if not line.strip():
            return None
        try:
            message = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.bad += 1
            return None
        if not isinstance(message, Piece):
            return message
        if message.n == 0:
            self._parts, self._key = [], message.key
        if message.key != self._key or message.n != len(self._parts):
            self.bad += 1
            self._parts, self._key = [], -1
            return None
        self._parts.append(message.text)
        if len(self._parts) < message.of:
            return None
        whole = "".join(self._parts).encode("ascii", "replace")
        self._parts, self._key = [], -1
        return self.feed(whole)
