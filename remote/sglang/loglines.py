"""SGLang's log: lines out of bytes, batch lines, start-up phases, and why a server died.

The log carries no level and no logger name, so everything is told by its text. Formats are those
of SGLang 0.5.12 and 0.5.23 (``managers/scheduler*``, ``observability/scheduler_metrics_mixin.py``,
``model_executor/*``, ``entrypoints/engine.py``); keys nobody knows yet are kept, not refused.
"""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

LONGEST_LINE = 1 << 16
"""A longer line is cut to this many bytes and says so (a traceback of tensors may be megabytes)."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_BREAK = re.compile(rb"[\r\n]+")


class LineBuffer:
    """Bytes as they are read from a log → whole lines of plain text.

    Carriage returns end a line too (progress bars), colour sequences are removed, bytes that are
    no UTF-8 become U+FFFD. A line that has not ended yet waits for the next piece.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._cut = 0

    def feed(self, data: bytes) -> list[str]:
        """The lines that end in ``data``, without blank ones."""
        pieces = _BREAK.split(data)
        lines: list[str] = []
        for n, piece in enumerate(pieces):
            room = LONGEST_LINE - len(self._rest)
            self._rest += piece[:room]
            self._cut += max(len(piece) - room, 0)
            if n < len(pieces) - 1:
                self._end(lines)
        return lines

    def _end(self, lines: list[str]) -> None:
        text = _ANSI.sub("", self._rest.decode("utf-8", "replace")).rstrip()
        if self._cut:
            text += f" … ({self._cut} bytes cut)"
        self._rest.clear()
        self._cut = 0
        if text:
            lines.append(text)


# --- Batch lines ---

_BATCH = re.compile(
    r"^\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)?(?P<rank>(?: [A-Z_]+\d+)*)\]"
    r" (?P<kind>Prefill|Decode) batch(?: \[\d+\])?, (?P<rest>.*)$"
)
_STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")


@dataclass(frozen=True)
class Batch:
    """One ``Prefill batch`` or ``Decode batch`` line; a number that is absent is None."""

    kind: Literal["prefill", "decode"]
    time: str
    """As printed: local time, whole seconds."""
    rank: str
    values: dict[str, str]
    """Every ``key: value`` of the line as printed, the ``#`` of the key included."""

    def number(self, *keys: str) -> float | None:
        """The first of ``keys`` that is there and a number (``nan`` and ``inf`` are none)."""
        for key in keys:
            try:
                value = float(self.values[key].rstrip("%"))
            except (KeyError, ValueError):
                continue
            if value - value == 0:
                return value
        return None

    @property
    def running(self) -> int | None:
        """Decode: requests of the batch; prefill: those decoding before it."""
        return _whole(self.number("#running-req"))

    @property
    def queued(self) -> int | None:
        return _whole(self.number("#queue-req"))

    @property
    def new_tokens(self) -> int | None:
        """Prompt tokens this prefill computes."""
        return _whole(self.number("#new-token"))

    @property
    def gen_tok_s(self) -> float | None:
        """Tokens since the previous Decode line over the time since then, idle time included."""
        return self.number("gen throughput (token/s)")

    @property
    def kv_usage(self) -> float | None:
        """Share of the KV pool in use, 0..1 (evictable prefixes not counted)."""
        return _share(self.number("full token usage", "token usage"))

    @property
    def mamba_usage(self) -> float | None:
        """Share of the state slots in use, 0..1; None on models without linear attention."""
        return _share(self.number("mamba usage"))

    @property
    def is_probe(self) -> bool:
        """The one-token prefill with which an idle server answers ``/health``."""
        return self.kind == "prefill" and self.new_tokens == 1 and not self.running


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _share(value: float | None) -> float | None:
    return None if value is None else max(value, 0.0)


def parse_batch(line: str) -> Batch | None:
    """The batch line in ``line``, or None where it is another line (or a torn one)."""
    found = _BATCH.match(line)
    if found is None:
        return None
    values: dict[str, str] = {}
    for part in found["rest"].split(", "):
        key, colon, value = part.rpartition(": ")
        if colon:
            values[key.strip()] = value.strip()
    if not values:
        return None
    kind: Literal["prefill", "decode"] = "prefill" if found["kind"] == "Prefill" else "decode"
    return Batch(kind=kind, time=found["time"], rank=found["rank"].strip(), values=values)


def stamp(line: str) -> float | None:
    """The line's own time as Unix seconds (SGLang prints the container's local time)."""
    found = _STAMP.match(line)
    if found is None:
        return None
    try:
        return time.mktime(time.strptime(found[1], "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):
        return None


# --- Start-up phases ---

Phase: TypeAlias = Literal[
    "importing",
    "loading weights",
    "allocating caches",
    "capturing graphs",
    "starting HTTP",
    "warming up",
    "up",
]

PHASES: tuple[Phase, ...] = (
    "importing",
    "loading weights",
    "allocating caches",
    "capturing graphs",
    "starting HTTP",
    "warming up",
    "up",
)
"""In the order in which a start goes through them."""

FIRED_UP = "The server is fired up and ready to roll!"

_PHASE_SIGNS: tuple[tuple[str, Phase], ...] = (
    ("server_args=", "importing"),
    ("Init torch distributed begin", "importing"),
    ("Load weight begin", "loading weights"),
    ("Loading safetensors checkpoint shards", "loading weights"),
    ("Multi-thread loading shards", "loading weights"),
    ("Load weight end", "allocating caches"),
    ("Using KV cache dtype", "allocating caches"),
    ("max_running_requests is capped to", "allocating caches"),
    ("Mamba Cache is allocated", "allocating caches"),
    ("KV Cache is allocated", "allocating caches"),
    ("Memory pool end", "capturing graphs"),
    ("Capture cuda graph begin", "capturing graphs"),
    ("Capture piecewise CUDA graph begin", "capturing graphs"),
    ("Capture target decode CUDA graph begin", "capturing graphs"),
    ("Capture target verify CUDA graph begin", "capturing graphs"),
    ("Capture target prefill CUDA graph begin", "capturing graphs"),
    ("Capturing batches", "capturing graphs"),
    ("max_total_num_tokens=", "starting HTTP"),
    ("Engine startup timings", "starting HTTP"),
    ("Started server process", "starting HTTP"),
    ("Waiting for application startup", "starting HTTP"),
    ("Application startup complete", "warming up"),
    ("Uvicorn running on", "warming up"),
    (FIRED_UP, "up"),
)

_PERCENT = re.compile(
    r"(?:Multi-thread loading shards|Loading safetensors checkpoint shards|Capturing batches)"
    r"[^|]*?\s(\d{1,3})%"
)


def phase_of(line: str) -> Phase | None:
    """The phase that begins (or goes on) with this line; None where it says nothing of it."""
    return next((phase for sign, phase in _PHASE_SIGNS if sign in line), None)


@dataclass
class StartFacts:
    """Numbers a start prints; sizes in GiB (the log's ``GB``), None until their line came."""

    avail_before: float | None = None
    avail_after: float | None = None
    weights: float | None = None
    model_type: str | None = None
    quantization: str | None = None
    max_mamba: int | None = None
    conv_state: float | None = None
    ssm_state: float | None = None
    kv_tokens: int | None = None
    kv_cache: float | None = None
    max_running: int | None = None
    context_length: int | None = None


_NUMBER = r"(-?\d+(?:\.\d+)?)"
_LOAD_BEGIN = re.compile(rf"Load weight begin\. avail mem={_NUMBER} GB")
_LOAD_END = re.compile(
    rf"Load weight end\..*?type=([\w.]+)(?:, quant=([\w.-]+))?"
    rf".*?avail mem={_NUMBER} GB, mem usage={_NUMBER} GB"
)
_MAMBA = re.compile(
    rf"Mamba Cache is allocated\. max_mamba_cache_size: (\d+), "
    rf"conv_state size: {_NUMBER} ?GB, ssm_state size: {_NUMBER} ?GB"
)
_KV = re.compile(
    rf"KV Cache (?:is allocated|VA upper bound)\b.*?#tokens: (\d+), "
    rf"(?:K size: {_NUMBER} GB, V size: {_NUMBER} GB|KV size: {_NUMBER} GB)"
)
_LIMITS = re.compile(r"max_total_num_tokens=(\d+),.*?max_running_requests=(\d+), context_len=(\d+)")
_RETRACT = re.compile(r"Retract requests\. #retracted_reqs: (\d+)")
_REMAINING = re.compile(r"Remaining number of requests (\d+)")


def _learn(facts: StartFacts, line: str) -> None:
    if found := _LOAD_BEGIN.search(line):
        facts.avail_before = float(found[1])
    elif found := _LOAD_END.search(line):
        facts.model_type, facts.quantization = found[1], found[2]
        facts.avail_after, facts.weights = float(found[3]), float(found[4])
    elif found := _MAMBA.search(line):
        facts.max_mamba = int(found[1])
        facts.conv_state, facts.ssm_state = float(found[2]), float(found[3])
    elif found := _KV.search(line):
        facts.kv_tokens = int(found[1])
        facts.kv_cache = sum(float(size) for size in found.groups()[1:] if size is not None)
    elif found := _LIMITS.search(line):
        facts.kv_tokens = int(found[1])
        facts.max_running, facts.context_length = int(found[2]), int(found[3])


# --- Why it died ---


@dataclass(frozen=True)
class Cause:
    """Why a server failed: a stable code, one line for people, and the line that shows it."""

    code: str
    text: str
    line: str = ""
    again: bool = True
    """Whether another start with the same flags may go better."""


@dataclass(frozen=True)
class _Sign:
    pattern: re.Pattern[str]
    code: str
    text: str
    """``{0}``, ``{1}`` … are the pattern's groups; ``{phase}`` the phase it happened in."""
    rank: int = 5
    """The highest of all that were seen wins; among equals the earliest."""
    again: bool = True
    phases: tuple[Phase, ...] = ()
    """Only in these phases; empty: in any."""


def _sign(
    pattern: str,
    code: str,
    text: str,
    rank: int = 5,
    again: bool = True,
    phases: tuple[Phase, ...] = (),
) -> _Sign:
    return _Sign(re.compile(pattern), code, text, rank, again, phases)


_LOADING: tuple[Phase, ...] = ("importing", "loading weights")
_POOLS: tuple[Phase, ...] = ("allocating caches",)
_GRAPHS: tuple[Phase, ...] = ("capturing graphs",)
_OOM = r"(?:torch\.(?:cuda\.)?OutOfMemoryError: )?CUDA out of memory"

_SIGNS: tuple[_Sign, ...] = (
    # The command line and what it asks for
    _sign(
        r"^(?:[\w.]+(?: serve)?): error: (.+)",
        "flags",
        "SGLang refuses its command line: {0}",
        9,
        False,
    ),
    _sign(
        r"no_buffer do not support overlap schedule",
        "flags",
        "an explicit no_buffer needs disable-overlap-schedule in this SGLang",
        9,
        False,
    ),
    _sign(
        r"FlashAttention v3 Backend requires SM>=80 and SM<=90",
        "backend",
        "attention-backend fa3 does not run on this card: set flashinfer or triton",
        9,
        False,
    ),
    _sign(
        r"(?:only supported backends on Blackwell|backends are supported on Blackwell)(.*)",
        "backend",
        "this attention-backend does not serve hybrid models on Blackwell:"
        " set flashinfer, triton or trtllm_mha",
        9,
        False,
    ),
    _sign(
        r"[Uu]ser-specified context_length \((\d+)\) is greater than the derived",
        "flags",
        "context-length {0} is longer than the model's: lower it",
        9,
        False,
    ),
    _sign(
        r"No module named '?(sglang[\w.]*)'?",
        "python",
        "this Python has no {0}: set `python` to the interpreter that has SGLang",
        9,
        False,
    ),
    _sign(
        r"(?:is not a local folder and is not a valid model identifier"
        r"|does not appear to have a file named config\.json"
        r"|Repository Not Found|GatedRepoError|LocalEntryNotFoundError"
        r"|Cannot find any model weights)",
        "model",
        "the model cannot be read: check `model`, and HF_TOKEN where it is gated",
        8,
        False,
    ),
    # Memory, by phase: at load and at run the cures are opposite
    _sign(
        _OOM,
        "oom-load",
        "out of GPU memory while {phase}: something else holds memory of this card,"
        " or the weights do not fit",
        8,
        False,
        _LOADING,
    ),
    _sign(
        _OOM,
        "oom-pools",
        "out of GPU memory while {phase}: lower mem-fraction-static",
        8,
        False,
        _POOLS,
    ),
    _sign(
        _OOM,
        "oom-graphs",
        "out of GPU memory while {phase}: lower mem-fraction-static or the largest graph batch",
        8,
        False,
        _GRAPHS,
    ),
    _sign(
        _OOM,
        "oom-run",
        "out of GPU memory while generating: lower mem-fraction-static",
        8,
    ),
    _sign(
        r"Not enough memory\. Please try to increase --mem-fraction-static"
        r"|Loaded weights leave no GPU memory for the KV cache"
        r"|Not enough GPU memory for hybrid"
        r"|state cache is too small to serve any requests"
        r"|max_running_request is zero",
        "memory",
        "the weights leave no room for the caches: raise mem-fraction-static,"
        " or use a smaller model or cache dtype",
        9,
        False,
    ),
    _sign(
        r"Not enough space for mamba cache|alloc_req_slots runs out of memory"
        r"|(?:Prefill|Decode) out of memory",
        "oom-run",
        "a cache pool ran out while generating: lower max-running-requests",
        7,
    ),
    _sign(r"pool memory leak detected!", "leak", "SGLang found its own memory pool leaking", 7),
    _sign(
        r"Capture cuda graph failed: (.*)",
        "graphs",
        "capturing the CUDA graphs failed: {0}",
        7,
        False,
    ),
    # Compilers
    _sign(
        r"fatal error: (\S+): No such file or directory",
        "jit",
        "a kernel did not compile: header {0} is missing (install the CUDA toolkit's headers,"
        " or add their folder to CPATH in the env script)",
        9,
        False,
    ),
    _sign(
        r"No such file or directory: '(ninja|nvcc)'",
        "jit",
        "a kernel could not be compiled: {0} is not on PATH",
        9,
        False,
    ),
    _sign(
        r"Could not find CUDA installation",
        "jit",
        "a kernel could not be compiled: set CUDA_HOME in the env script",
        9,
        False,
    ),
    _sign(
        r"Ninja build failed|ninja exited with status",
        "jit",
        "a kernel did not compile: see the compiler's lines in the log",
        7,
        False,
    ),
    # Hardware and driver
    _sign(
        r"NVRM: Xid \([^)]*\): (\d+)|\bXid (\d+)\b",
        "xid",
        "the driver reports Xid {0}{1} for this card",
        10,
        False,
    ),
    _sign(
        r"GPU is lost|fallen off the bus|no CUDA-capable device is detected"
        r"|No CUDA GPUs are available|device not ready|invalid device ordinal",
        "gpu-lost",
        "the card does not answer any more: the host must look at it (reset or reboot)",
        10,
        False,
    ),
    _sign(
        r"uncorrectable ECC error",
        "gpu-lost",
        "the card reports an uncorrectable memory error",
        10,
        False,
    ),
    _sign(
        r"no kernel image is available for execution on the device",
        "arch",
        "a library was not built for this card: install the builds for its compute capability",
        9,
        False,
    ),
    _sign(
        r"CUDA driver version is insufficient",
        "driver",
        "the driver is too old for this CUDA runtime",
        9,
        False,
    ),
    _sign(
        r"illegal memory access was encountered",
        "cuda",
        "a kernel read memory that is not its own (illegal memory access)",
        8,
    ),
    _sign(r"CUDA error: (.+)", "cuda", "CUDA error: {0}", 6),
    _sign(r"NCCL (?:error|WARN)|ncclUnhandled\w*|ncclSystemError", "nccl", "NCCL failed", 7),
    # The supervisor's own findings
    _sign(
        r"Scheduler watchdog timeout",
        "watchdog",
        "the scheduler made no step within its watchdog time and was ended",
        8,
    ),
    _sign(
        r"\[Errno (?:98|48)\].*?(\d+)\)?: (?:\[errno \d+\] )?address already in use",
        "port",
        "port {0} is taken by another process",
        10,
        False,
    ),
    _sign(r"address already in use", "port", "its port is taken by another process", 9, False),
    _sign(
        r"No space left on device",
        "disk",
        "no space left on a disk of the container",
        9,
    ),
    _sign(r"Too many open files", "files", "too many open files: raise `ulimit -n`", 7),
    _sign(
        r"Initialization failed\. warmup error",
        "warm-up",
        "the warm-up request failed",
        4,
    ),
    _sign(
        r"Rank \d+ scheduler died during initialization \(exit code: (-?\d+)\)",
        "child",
        "the scheduler died while {phase} (exit code {0})",
        4,
    ),
    _sign(
        r"Subprocess (\w+) \(pid=\d+\) crashed with exit code (-?\d+)",
        "child",
        "its {0} process died (exit code {1})",
        4,
    ),
    _sign(
        r"(Scheduler|DetokenizerManager|TokenizerManager) hit an exception",
        "exception",
        "its {0} hit an exception",
        3,
    ),
)

_WORDS = (
    "rror",
    "emory",
    "died",
    "crashed",
    "exception",
    "Exception",
    "Xid",
    "NCCL",
    "nccl",
    "GPU",
    "CUDA",
    "device",
    "ninja",
    "Ninja",
    "No such file",
    "watchdog",
    "FlashAttention",
    "Blackwell",
    "overlap schedule",
    "in use",
    "No space",
    "open files",
    "mamba",
    "is zero",
    "leak",
    "model identifier",
    "config.json",
    "model weights",
    "Repository",
    "No module",
    "context_length",
    "alloc_req_slots",
    "Capture cuda graph failed",
    "Initialization failed",
)
"""Each sign has one of these in it: nearly every line of a log is passed over by them alone."""

_QUOTES = ("] Receive: obj=", "] Finish: obj=")
"""With ``log-requests``, lines that quote prompts and answers: nobody failed by what they say."""

_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: (.*))?$")
_SIGNAL_HINT = {
    "-9": " by SIGKILL: the kernel's out-of-memory killer, or someone's hand",
    "-6": " by an abort() in native code",
    "-11": " by a segmentation fault",
    "-7": " by a bus error: /dev/shm may be full",
}


def find_cause(line: str, phase: Phase) -> tuple[int, Cause] | None:
    """What this line says of a failure, with the rank of that evidence; None for other lines."""
    if not any(word in line for word in _WORDS) or any(mark in line for mark in _QUOTES):
        return None
    for sign in _SIGNS:
        if sign.phases and phase not in sign.phases:
            continue
        if found := sign.pattern.search(line):
            groups = [group or "" for group in found.groups()]
            words = "generating" if phase == "up" else phase
            text = sign.text.format(*groups, phase=words)
            if sign.code == "child":
                text = text.replace(
                    f"exit code {groups[-1]}",
                    f"exit code {groups[-1]}{_SIGNAL_HINT.get(groups[-1], '')}",
                )
            return sign.rank, Cause(sign.code, text[:400], line[:400], sign.again)
    return None


# --- The reader: one server process's log, line after line ---


@dataclass
class LogReader:
    """All that the lines of one server process say, kept up to date as they come."""

    phase: Phase = "importing"
    phase_since: float | None = None
    percent: int | None = None
    """How far the phase's own progress bar is."""
    phase_seconds: dict[str, float] = field(default_factory=dict)
    """How long each finished phase took, by the log's own times."""
    facts: StartFacts = field(default_factory=StartFacts)
    fired_up: bool = False
    decode: Batch | None = None
    decode_at: float | None = None
    decode_gap: float | None = None
    """Seconds between the last two Decode lines, as they were read."""
    prefill_at: float | None = None
    """When the last real prefill (no health probe) was read."""
    usage: Batch | None = None
    """The last batch line that carries pool usage."""
    work: int = 0
    """Grows with each token that the lines tell of: a sign of life, not an account."""
    retractions: int = 0
    draining: bool = False
    remaining: int | None = None
    """Requests that a drain still waits for."""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=200))
    _causes: list[tuple[int, Cause]] = field(default_factory=list)
    _traceback: bool = False
    _exception: str = ""
    _lines: LineBuffer = field(default_factory=LineBuffer)

    def feed(self, data: bytes, now: float) -> None:
        """Take more bytes of the log, read at ``now`` (Unix seconds)."""
        for line in self._lines.feed(data):
            self.line(line, now)

    def line(self, line: str, now: float) -> None:
        """Take one line, read at ``now``."""
        self.tail.append(line[:2000])
        batch = parse_batch(line)
        if batch is not None:
            self._batch(batch, now)
            return
        self._advance(line, now)
        _learn(self.facts, line)
        if found := _RETRACT.search(line):
            self.retractions += int(found[1])
        if "SIGTERM received" in line:
            self.draining = True
        if found := _REMAINING.search(line):
            self.draining, self.remaining = True, int(found[1])
        self._trace(line)
        if (hit := find_cause(line, self.phase)) is not None and len(self._causes) < 100:
            self._causes.append(hit)

    def _batch(self, batch: Batch, now: float) -> None:
        self._traceback = False
        if batch.kv_usage is not None:
            self.usage = batch
        if batch.kind == "decode":
            self.decode_gap = None if self.decode_at is None else now - self.decode_at
            self.decode, self.decode_at = batch, now
            self.work += 40 * (batch.running or 1)
        elif not batch.is_probe:
            self.prefill_at = now
            self.work += batch.new_tokens or 1

    def _advance(self, line: str, now: float) -> None:
        phase = phase_of(line)
        if phase is None:
            return
        at = stamp(line) or now
        if FIRED_UP in line:
            self.fired_up = True
        if PHASES.index(phase) > PHASES.index(self.phase):
            if self.phase_since is not None:
                self.phase_seconds[self.phase] = max(at - self.phase_since, 0.0)
            self.phase, self.phase_since, self.percent = phase, at, None
        elif self.phase_since is None:
            self.phase_since = at
        if phase == self.phase and (found := _PERCENT.search(line)):
            self.percent = min(int(found[1]), 100)

    def _trace(self, line: str) -> None:
        if "Traceback (most recent call last)" in line:
            self._traceback = True
        elif self._traceback and (found := _EXCEPTION.match(line)):
            name, text = found[1].rpartition(".")[2], found[2]
            self._exception = (f"{name}: {text}" if text else name)[:300]
            self._traceback = False

    @property
    def cause(self) -> Cause | None:
        """The best explanation the lines give for an end; None where they give none."""
        best: tuple[int, Cause] | None = None
        for rank, cause in self._causes:
            if best is None or rank > best[0]:
                best = (rank, cause)
        if best is None:
            if not self._exception:
                return None
            return Cause("exception", f"it ended with {self._exception}", self._exception)
        cause = best[1]
        if cause.code in ("exception", "warm-up") and self._exception:
            return Cause(cause.code, f"{cause.text}: {self._exception}", cause.line, cause.again)
        return cause
