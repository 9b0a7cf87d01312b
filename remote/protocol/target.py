"""What a target is told to be: from stoker.toml; the agent keeps the last one an action brought.

Keys that are not known here are passed over, as everywhere on the wire: a console of another
version can still look. In stoker.toml they are mistakes, which the console tells.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

from msgspec import Struct

FlagValue: TypeAlias = bool | int | float | str | list[str | int | float]
"""``True`` is a bare flag, ``False`` leaves the flag out, a list is several values."""

Flags: TypeAlias = dict[str, FlagValue]
"""SGLang's own long flag names without dashes in front, e.g. ``mem-fraction-static``."""


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


MOST_AT_ONCE = 4_096
"""Requests in flight on one server that may be wanted: more than any server decodes at once, and
few enough for sockets and file descriptors of eight."""


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
