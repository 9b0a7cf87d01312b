"""Agent → console: what requests are answered with."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from remote.protocol.events import Event
from remote.protocol.snapshot import Snapshot
from remote.protocol.swaps import Swap


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
    goes_on: list[int] = []
    """GPUs of servers that are left alone: they are well and run these very flags already."""


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


class MergedPart(Struct, tag="log.merged", frozen=True):
    """Lines of several logs in the order of their times; those without a time follow the line
    before them. Logs that are not there are not among ``sources``.

    ``begin`` is the place before the first line and ``next`` that behind the last, as an offset in
    each log; ``sizes`` is the end of each.
    """

    sources: list[str]
    whose: list[int]
    """For each line, which of the sources it is from."""
    lines: list[str]
    begin: dict[str, int]
    next: dict[str, int]
    sizes: dict[str, int]


class History(Struct, tag="history", frozen=True):
    """Downsampled samples: per GPU, one column a series, all as long as ``times``."""

    times: list[float]
    series: dict[str, list[list[float | None]]]
    """Name (one of :data:`SERIES`) → one list of values a GPU."""


class Events(Struct, tag="events", frozen=True):
    """Events in the order of their ids."""

    events: list[Event]


class Marks(Struct, tag="marks", frozen=True):
    """What is marked on the axis of a chart: events in the order of their ids, with gaps."""

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


class Machine(Struct, tag="machine", frozen=True):
    """The machine that the servers run on, secrets removed."""

    facts: dict[str, str] = {}
    """Versions and limits by name."""
    texts: dict[str, str] = {}
    """What commands and the kernel log say, by a file's name."""
    missing: dict[str, str] = {}
    """What cannot be had, each with why."""


Result: TypeAlias = (
    Snapshot
    | Done
    | Plan
    | LogPart
    | MergedPart
    | History
    | Events
    | Marks
    | Batches
    | Mix
    | Answers
    | FlagCatalogue
    | Machine
)
