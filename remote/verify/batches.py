"""The batch files, and what the manifest says of each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from remote import batchfiles
from remote.verify.reading import Marks, index_of, json_object, manifest_entries
from remote.verify.report import Report

KEYS = frozenset(
    (
        *("index", "id", "source", "messages", "content", "reasoning_content", "tool_calls"),
        *("finish_reason", "outcome", "usage", "model", "server", "epoch", "attempts"),
        *("latency_s", "finished_at"),
    )
)
"""What a completion record of ours has at least."""


@dataclass
class Batch:
    """One batch file, read whole: its digest, and the indices in the order of their lines."""

    indices: list[int]
    sha256: str
    size: int
    torn: bool = False


@dataclass(frozen=True)
class Growing:
    """A batch some of whose records may lack their done line: any, or those at its end."""

    indices: list[int]
    whole: bool


def without_line(growing: list[Growing], done: Marks) -> set[int]:
    """The indices that may lack their line in ``.done_indices``."""
    on_its_way: set[int] = set()
    for batch in growing:
        for index in reversed(batch.indices):
            if index in done and not batch.whole:
                break
            on_its_way.add(index)
    return on_its_way


def read_batch(
    name: str, data: bytes, report: Report, *, opened: bool, ours: bool, adopted: bool
) -> Batch:
    """One batch from its bytes, each line of it checked. An open one may end in a torn record."""
    *lines, tail = data.split(b"\n")
    batch = Batch([], hashlib.sha256(data).hexdigest(), len(data))
    for number, line in enumerate(lines, 1):
        record = json_object(line)
        index = index_of(record)
        if record is None or index is None:
            if opened and not any(json_object(rest) for rest in lines[number:]):
                batch.torn = True
                return batch
            report.violation("bad record", f"{name}:{number}: no JSON object with an index")
            continue
        batch.indices.append(index)
        if ours and not (adopted and "outcome" not in record):  # an earlier tool's record
            lacking = KEYS - record.keys()
            if lacking:
                text = f"{name}:{number}: lacks {', '.join(sorted(lacking))}"
                report.violation("incomplete record", text)
            if not line.startswith(b'{"index":'):
                report.violation("order of keys", f"{name}:{number}: index is not first")
    if tail:
        batch.torn = True
        if not opened:
            report.violation("torn batch", f"{name}: the last line has no newline")
    return batch


def read_batches(
    directory: Path,
    sealed: list[str],
    opened: list[str],
    manifest: dict[str, dict[str, Any]],
    run: dict[str, Any] | None,
    report: Report,
    completed: Marks,
) -> tuple[list[Growing], set[str]]:
    """Read every batch into ``completed``. Those whose records may still lack their done line, and
    the names of all that could be read."""
    ours = bool(manifest) or run is not None
    adopted = bool((run or {}).get("adopted"))
    growing: list[Growing] = []
    read: set[str] = set()
    if len(opened) > 1:
        report.violation("open batches", f"more than one open batch: {', '.join(opened)}")
    for listed in (*sealed, *opened):
        found = batchfiles.content(directory, listed)
        if found is None:
            _gone(directory, listed, manifest, report)
            continue
        name, data = found
        read.add(name)
        was_open = listed in opened
        still_open = was_open and name == listed
        batch = read_batch(name, data, report, opened=still_open, ours=ours, adopted=adopted)
        if still_open and batch.torn:
            report.notes.append(f"{name}: the last line is torn; the next start cuts it off")
        entry = manifest.get(name)
        if entry is not None:
            _compare(name, batch, entry, report)
        elif was_open:
            growing.append(Growing(batch.indices, whole=False))
        elif ours and name == sealed[-1]:
            report.notes.append(f"{name}: sealed, its manifest line is on its way")
            growing.append(Growing(batch.indices, whole=True))
        elif ours:
            report.violation("no manifest line", f"{name}: no line in manifest.jsonl")
        _count(name, batch, completed, report)
    return growing, read


def check_missing(names: set[str], manifest: dict[str, dict[str, Any]], report: Report) -> None:
    """Batches that have a manifest line and no file must have been deleted after their upload."""
    for name in sorted(names):
        if name in manifest and manifest[name].get("state") != "local_deleted":
            report.violation("batch missing", f"{name}: in the manifest, but not here")


def _gone(directory: Path, name: str, manifest: dict[str, dict[str, Any]], report: Report) -> None:
    """A batch that was listed and went away: deleted after its upload, which its newest manifest
    line says, or lost."""
    name = name.removesuffix(".open")
    entry = manifest_entries(directory, Report(directory)).get(name)
    if entry is not None:
        manifest[name] = entry
    if entry is None or entry.get("state") != "local_deleted":
        report.violation("batch missing", f"{name}: was here a moment ago, and is not here now")


def _compare(name: str, batch: Batch, entry: dict[str, Any], report: Report) -> None:
    facts: dict[str, object] = {
        "records": len(batch.indices),
        "bytes": batch.size,
        "sha256": batch.sha256,
    }
    for key, value in facts.items():
        if entry.get(key) != value:
            text = f"{name}: {key} is {value}, the manifest says {entry.get(key)}"
            report.violation("manifest differs", text)
    if sorted(accumulate(entry["indices"])) != sorted(batch.indices):
        report.violation("manifest differs", f"{name}: other indices than the manifest's")


def _count(name: str, batch: Batch, completed: Marks, report: Report) -> None:
    for index in batch.indices:
        if not completed.add(index):
            text = f"{name}: index {index} has more than one completion record"
            report.violation("completed twice", text)
        if report.total is not None and index >= report.total:
            text = f"{name}: index {index} is beyond the {report.total} prompts"
            report.violation("no such prompt", text)


def count_deleted(
    manifest: dict[str, dict[str, Any]], read: set[str], report: Report, completed: Marks
) -> None:
    """Batches deleted here after their upload still count as done, by their manifest line."""
    for name, entry in manifest.items():
        if entry.get("state") == "local_deleted" and name not in read:
            indices = list(accumulate(entry["indices"]))
            _count(name, Batch(indices, "", 0), completed, report)
