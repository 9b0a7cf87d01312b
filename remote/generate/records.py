"""The lines of a run directory's files, typed.

Every line is one compact JSON object. A completion record begins ``{"index":N,`` (the order of
the fields here is the order on disk), so that its index can be read without parsing the rest.
Sizes are bytes, token counts as the server's ``usage`` gives them, ``*_at`` RFC 3339 in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

Outcome: TypeAlias = Literal[
    "ok", "length", "looped", "empty", "bad_tool_call", "rejected", "failed", "quarantined"
]
"""How a prompt ended. The first five describe an answer; the others are given up without one."""

SCHEMA = 1
"""Version of the files written here, in ``run.json``."""


class Usage(Struct):
    """Tokens of one answer; ``reasoning_tokens`` is a part of ``completion_tokens``."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0


class Completion(Struct):
    """One finished prompt (``completions_*.jsonl``, ``set_aside.jsonl``)."""

    index: int
    id: Any
    source: str | None
    messages: Raw
    tools: Raw | UnsetType
    content: str | None
    reasoning_content: str | None
    tool_calls: Raw | None
    finish_reason: str | None
    outcome: Outcome
    usage: Usage
    model: str
    server: str
    epoch: int | None
    attempts: int
    latency_s: float
    finished_at: str
    segments: list[dict[str, Any]] | UnsetType = UNSET
    """Where an interrupted answer was continued: one object a part."""
    turns: list[dict[str, Any]] | UnsetType = UNSET
    """Where several user turns were asked one by one: one object an answer."""


class Seen(Struct):
    """What recovery needs of a completion record; a legacy record has only ``index``."""

    index: int
    source: str | None = None
    outcome: str = "ok"
    usage: Usage | None = None
    epoch: int | None = None
    finished_at: str = ""


class GivenUp(Struct):
    """One line of ``failed.jsonl``."""

    index: int
    id: Any
    outcome: str
    reason: str
    status: int | None
    attempts: int
    server: str
    time: str
    detail: str = ""
    source: str | None = None


class Pending(Struct):
    """One line of ``pending.jsonl``; ignored once its prompt is done.

    ``answer``: a finished record whose server is on probation. ``turns``: the answered turns of
    a conversation that is asked turn by turn. ``partial``: what an interrupted answer had so far.
    """

    kind: Literal["answer", "turns", "partial"]
    index: int
    prompt: str
    """First 16 hex digits of the sha256 of the prompt's line, newline included."""
    server: str
    process: str
    data: Raw


class SourceSums(Struct):
    """Of one source's records in a batch: tokens, and how many of each outcome."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    outcomes: dict[str, int] = {}


class Batch(Struct):
    """One line of ``manifest.jsonl``: the last line of a name wins, each is complete."""

    name: str
    state: Literal["sealed", "uploaded", "local_deleted"]
    records: int
    bytes: int
    sha256: str
    indices: Raw
    """A list of integers, ascending: the first as it is, then differences. Left as it stands in
    its line, since a long run has thousands of these lists and needs them only at its start."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    outcomes: dict[str, int] = {}
    sources: dict[str, int] = {}
    """Records without a source count under the empty name."""
    by_source: dict[str, SourceSums] = {}
    """The same names; empty in lines of versions that did not sum by source."""
    epochs: dict[str, int] = {}
    """By decimal epoch id; records outside the agent count under ``null``."""
    first_at: str = ""
    last_at: str = ""
    bucket: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    etag: str | UnsetType = UNSET
    checksum: str | UnsetType = UNSET
    """What S3 says of the whole object, e.g. ``sha256:<base64>``; empty where it says nothing."""
    uploaded_at: str | UnsetType = UNSET


class PromptsEntry(Struct):
    """A prompts file that the run was given; a later entry begins with the bytes of the earlier."""

    path: str
    sha256: str
    bytes: int
    lines: int
    mtime_ns: int
    inode: int


class Session(Struct):
    """One life of the generation process. ``end`` is refreshed while it runs."""

    start: float
    end: float
    pid: int
    gpu_hours: float | None = None
    """The servers that answered in it, each for as long as it lasted; None where nobody counted."""


class RunFile(Struct):
    """``run.json``: what the run is."""

    run_id: str
    prompts: list[PromptsEntry]
    params: dict[str, Any]
    """Request parameters that every answer was asked with."""
    created: str
    schema: int = SCHEMA
    adopted: bool = False
    """The directory was begun by an earlier tool."""
    sessions: list[Session] = []


class LockFile(Struct):
    """Who holds ``.lock``."""

    pid: int
    started: str
    boot_id: str


encode = msgspec.json.Encoder().encode


def line(record: Struct) -> bytes:
    """The record as one line, newline included."""
    return encode(record) + b"\n"


def now() -> str:
    """This moment as RFC 3339 in UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_steps = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0)]]).decode


def deltas(indices: Iterable[int]) -> Raw:
    """Indices as a batch lists them: ascending, the first value and then differences."""
    ordered = sorted(indices)
    return Raw(encode(ordered[:1] + [b - a for a, b in pairwise(ordered)]))


def coded(indices: Raw) -> list[int]:
    """The first value and the differences.

    :raises msgspec.DecodeError: no list of integers from 0 on.
    """
    return _steps(indices)


def undelta(indices: Raw) -> Iterator[int]:
    """The indices that :func:`deltas` coded, ascending."""
    return accumulate(coded(indices))
