"""SGLang's log: lines out of bytes, batch lines, and all that the lines of one server say.

The log carries no level and no logger name, so everything is told by its text. Formats are those
of SGLang 0.5.12 and 0.5.23 (``managers/scheduler*``,
``observability/scheduler_metrics_mixin.py``); keys nobody knows yet are kept, not refused.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Literal

from remote.sglang.causes import Cause, find_cause
from remote.sglang.startup import FIRED_UP, PERCENT, PHASES, Phase, StartFacts, phase_of

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


# --- The reader: one server process's log, line after line ---

_PREFIX = r"^(?:\[[^\]]*\] )?"
_RETRACT = re.compile(r"Retract requests\. #retracted_reqs: (\d+)")
# Of a drain only the server itself may speak: an answer that names these words is no drain.
_SIGTERM = re.compile(_PREFIX + r"(?:Signal )?SIGTERM received")
_REMAINING = re.compile(_PREFIX + r"Gracefully exiting\.\.\. Remaining number of requests (\d+)")
_QUOTES = re.compile(r"\b(?:Receive|Finish): obj=|" + _PREFIX + r"\{\"")
"""With ``log-requests`` (text, JSON), lines that quote prompts and answers: they say nothing of the
server."""
_REQUEST_FAILED = re.compile(
    _PREFIX + r"(?:ERROR: +)?(?:Error in request|Exception in ASGI application)"
)
"""What was thrown while one request was handled: it is answered with 500, and the server lives on.
The traceback stands below it."""
_OUTLIVED_S = 10.0
"""A batch that much later than a sign of failure shows that the server did not die of it (a
watchdog ends its server after 5 s)."""
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: (.*))?$")


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
    usage: Batch | None = None
    """The last batch line that carries pool usage."""
    work: int = 0
    """Grows with each token that the lines tell of: a sign of life, not an account."""
    retractions: int = 0
    draining: bool = False
    remaining: int | None = None
    """Requests that a drain still waits for."""
    _best: tuple[int, Cause] | None = None
    """Of all that the lines gave as causes the one of the highest rank, the first among equals."""
    _traceback: bool = False
    _exception: str = ""
    _evidence_at: float | None = None
    """When the last of those was told, by the log's own time where it has one."""
    _stamped: str = ""
    """The last line with a time of its own."""
    _excused: bool = False
    """These lines tell of a request that failed."""
    _lines: LineBuffer = field(default_factory=LineBuffer)

    def feed(self, data: bytes, now: float) -> None:
        """Take more bytes of the log, read at ``now`` (Unix seconds)."""
        for line in self._lines.feed(data):
            self.line(line, now)

    def line(self, line: str, now: float) -> None:
        """Take one line, read at ``now``."""
        if line.startswith("[20"):
            self._stamped, self._excused = line, False
        batch = parse_batch(line)
        if batch is not None:
            self._batch(batch, now)
            return
        if _REQUEST_FAILED.match(line):
            self._excused = True
        if self._excused or _QUOTES.search(line):
            return
        self._advance(line, now)
        self.facts.read(line)
        if found := _RETRACT.search(line):
            self.retractions += int(found[1])
        if _SIGTERM.match(line):
            self.draining = True
        if found := _REMAINING.match(line):
            self.draining, self.remaining = True, int(found[1])
        self._judge(line, now)

    def _judge(self, line: str, now: float) -> None:
        """Keep what the line says of a failure."""
        traced = self._trace(line)
        hit = find_cause(line, self.phase)
        if hit is not None and (self._best is None or hit[0] > self._best[0]):
            self._best = hit
        if traced or hit is not None:
            self._evidence_at = stamp(self._stamped) or now

    def _batch(self, batch: Batch, now: float) -> None:
        self._traceback = False
        if self._evidence_at is not None:
            at = stamp(self._stamped) or now
            if at - self._evidence_at > _OUTLIVED_S:
                self._best, self._exception, self._evidence_at = None, "", None
        if batch.kv_usage is not None:
            self.usage = batch
        if batch.kind == "decode":
            self.decode_gap = None if self.decode_at is None else now - self.decode_at
            self.decode, self.decode_at = batch, now
            self.work += 40 * (batch.running or 1)
        elif not batch.is_probe:
            self.work += batch.new_tokens or 1

    def _advance(self, line: str, now: float) -> None:
        phase = phase_of(line)
        if phase is None or (phase == "up" and not line.endswith(FIRED_UP)):
            return
        at = stamp(line) or now
        if phase == "up":
            self.fired_up = True
            # What went wrong before did not keep it from coming up. One whose port is taken says
            # this too: the other server has answered its warm-up.
            self._exception = ""
            if self._best is not None and self._best[1].code != "port":
                self._best = None
        if PHASES.index(phase) > PHASES.index(self.phase):
            if self.phase_since is not None:
                self.phase_seconds[self.phase] = max(at - self.phase_since, 0.0)
            self.phase, self.phase_since, self.percent = phase, at, None
        elif self.phase_since is None:
            self.phase_since = at
        if phase == self.phase and (found := PERCENT.search(line)):
            self.percent = min(int(found[1]), 100)

    def _trace(self, line: str) -> bool:
        """Follow a traceback to its last line; whether this is it."""
        if "Traceback (most recent call last)" in line:
            self._traceback = True
        elif self._traceback and (found := _EXCEPTION.match(line)):
            name, text = found[1].rpartition(".")[2], found[2]
            self._exception = (f"{name}: {text}" if text else name)[:300]
            self._traceback = False
            return True
        return False

    @property
    def cause(self) -> Cause | None:
        """The best explanation the lines give for an end; None where they give none."""
        if self._best is None:
            if not self._exception:
                return None
            return Cause("exception", f"it ended with {self._exception}")
        cause = self._best[1]
        if cause.code in ("exception", "warm-up") and self._exception:
            return Cause(cause.code, f"{cause.text}: {self._exception}", cause.again)
        return cause
