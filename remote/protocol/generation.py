"""The generation, as a snapshot has it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

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
    suspects: int = 0
    """Prompts under suspicion of killing servers that have not been cleared yet: each is to be
    tried alone on a server, or is being tried."""
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
    alone: bool = False
    """It is kept for one prompt that is suspected of killing servers: its other slots are empty."""
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
    concurrency: int | Literal["auto"] = "auto"
    """Requests at once on each server, as it was told; ``auto`` follows their slots."""
    began: float | None = None
    """When its directory was begun, sessions and pauses ago."""
    again_at: float | None = None
    """When one that died is started again by itself."""
