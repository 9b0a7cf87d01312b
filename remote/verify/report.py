"""What an audit found, and how it is told."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_MOST = 20  # violations of one kind that are printed one by one


class CannotVerifyError(Exception):
    """There is nothing to audit: one line that says why."""


class StorageError(CannotVerifyError):
    """The bucket cannot be reached."""


@dataclass
class Report:
    """What an audit found. ``violations`` empty means that every law holds."""

    directory: Path
    total: int | None = None
    completed: int = 0
    failed: int = 0
    set_aside: int = 0
    batches: int = 0
    live: bool = False
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    uploaded: int = 0
    in_bucket: int | None = None
    _seen: Counter[str] = field(default_factory=Counter)

    @property
    def not_done(self) -> int | None:
        """Prompts without a record anywhere; None where the number of prompts is unknown."""
        if self.total is None:
            return None
        return self.total - self.completed - self.failed - self.set_aside

    def violation(self, kind: str, text: str) -> None:
        """Record a violation; past twenty of one kind only their number grows."""
        self._seen[kind] += 1
        if self._seen[kind] <= _MOST:
            self.violations.append(text)

    def has(self, kind: str) -> bool:
        """Whether there was a violation of this kind."""
        return self._seen[kind] > 0

    def close(self) -> None:
        """Say how many violations of a kind were left out."""
        for kind, count in self._seen.items():
            if count > _MOST:
                self.violations.append(f"… and {count - _MOST} more: {kind}")


def lines(report: Report) -> list[str]:
    """The report for people, a line each, violations last."""
    total = "?" if report.total is None else f"{report.total:,}"
    text = [
        f"{report.directory}: {report.completed:,} of {total} prompts completed in "
        f"{report.batches} batches, {report.failed:,} failed, {report.set_aside:,} set aside"
        + (f", {report.not_done:,} not done" if report.not_done else "")
        + (" (a run is going on)" if report.live else "")
    ]
    if report.in_bucket is not None:
        text.append(f"S3: {report.in_bucket} of {report.uploaded} uploaded batches are as sent")
    text += [f"note: {note}" for note in report.notes]
    text += [f"VIOLATION: {violation}" for violation in report.violations]
    text.append("clean" if not report.violations else f"{len(report.violations)} violations")
    return text


def as_json(report: Report) -> str:
    """The report as one JSON document."""
    keys = ("total", "completed", "failed", "set_aside", "not_done", "batches", "live")
    counts = {key: getattr(report, key) for key in keys}
    found = {"notes": report.notes, "violations": report.violations}
    s3 = {"uploaded": report.uploaded, "in_bucket": report.in_bucket}
    return json.dumps({"directory": str(report.directory), **counts, **s3, **found})
