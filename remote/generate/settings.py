"""What a run is asked to do, as the command line gives it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from remote.protocol import S3Spec


class UsageError(Exception):
    """Wrong usage or a directory that cannot be resumed: one line that says what to do."""


@dataclass(frozen=True)
class Settings:
    """One run. Only what ``params()`` returns is a part of its identity."""

    prompts: Path
    output: Path
    servers: tuple[str, ...]
    """Base URLs without ``/v1`` and without a slash at the end."""
    concurrency: int | Literal["auto"] = "auto"
    max_tokens: int = 4096
    thinking: bool = True
    temperature: float | None = None
    request: dict[str, Any] = field(default_factory=dict)
    """Further fields of every request."""
    model: str = ""
    """Empty: whatever the servers say they serve."""
    endpoint: Literal["chat", "generate"] = "chat"
    """``generate``: SGLang's own, by token ids, so that an interrupted answer goes on exactly."""
    retries: int = 3
    retry_outcomes: dict[str, int] = field(default_factory=dict)
    """Outcome → how often another seed is tried before the policy below applies."""
    keep: frozenset[str] = frozenset({"ok", "length"})
    """Outcomes that go into a batch; other answers are set aside."""
    hedge: bool = False
    """At the end, send stragglers to a second server; the first answer counts."""
    delete_uploaded: bool = False
    """Delete a batch here once it is safely in S3."""
    extend: bool = False
    accept_params: bool = False
    s3: S3Spec = field(default_factory=S3Spec)
    agent: Path | None = None
    """Socket of the agent whose run this is."""
    credentials: Path | None = None
    patience: float = 180.0
    """Seconds without a sign of life from a server before its requests are taken back."""

    def params(self, model: str) -> dict[str, Any]:
        """What every answer is asked with, as ``run.json`` records it."""
        return {
            "model": self.model or model,
            "endpoint": self.endpoint,
            "max_tokens": self.max_tokens,
            "thinking": self.thinking,
            "temperature": self.temperature,
            "request": self.request,
        }
