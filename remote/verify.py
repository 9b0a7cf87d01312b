"""The audit of a run directory: what its files say, checked against each other.

Written from the file formats alone: it shares no code with the writer, so that a mistake of the
writer is not repeated here. It only reads, takes no lock, and may look at a live run.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import psutil

from remote import batchfiles

KEYS = frozenset(
    (
        *("index", "id", "source", "messages", "content", "reasoning_content", "tool_calls"),
        *("finish_reason", "outcome", "usage", "model", "server", "epoch", "attempts"),
        *("latency_s", "finished_at"),
    )
)
"""What a completion record of ours has at least."""

_MOST = 20  # violations of one kind that are printed one by one
_DIGITS = 18  # no index is longer


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

    def close(self) -> None:
        """Say how many violations of a kind were left out."""
        for kind, count in self._seen.items():
            if count > _MOST:
                self.violations.append(f"… and {count - _MOST} more: {kind}")


class _Marks:
    """Which indices were seen, in a bit each, by pages: a wild index costs one page."""

    def __init__(self) -> None:
        self._pages: defaultdict[int, bytearray] = defaultdict(lambda: bytearray(1 << 13))
        self.count = 0

    def add(self, index: int) -> bool:
        """False when it was there already."""
        page, byte, bit = self._pages[index >> 16], index >> 3 & 0x1FFF, 1 << (index & 7)
        if page[byte] & bit:
            return False
        page[byte] |= bit
        self.count += 1
        return True

    def __contains__(self, index: int) -> bool:
        page = self._pages.get(index >> 16)
        return page is not None and bool(page[index >> 3 & 0x1FFF] & (1 << (index & 7)))

    def __iter__(self) -> Iterator[int]:
        for number in sorted(self._pages):
            for byte, value in enumerate(self._pages[number]):
                if value:
                    for bit in range(8):
                        if value & (1 << bit):
                            yield (number << 16) + byte * 8 + bit


@dataclass
class _Batch:
    """One batch file, read whole: its digest, and the indices in the order of their lines."""

    indices: list[int]
    sha256: str
    size: int
    torn: bool = False


def audit(directory: Path, *, prompts: Path | None = None, s3: S3Source | None = None) -> Report:
    """Check every law of a run directory. Raises CannotVerifyError when there is no run in it."""
    if not directory.is_dir():
        raise CannotVerifyError(f"{directory}: no such run directory")
    report = Report(directory)
    # The order matters on a live run: what is in .done_indices now is in a batch already.
    done = _done_indices(directory, report)
    failed = _side_file(directory / "failed.jsonl", report)
    aside = _side_file(directory / "set_aside.jsonl", report)
    # Batches that are in the manifest before they are looked for must be here; those that are here
    # must be in the manifest that is read afterwards. A live run may seal some in between.
    owed = _manifest(directory, Report(directory)).keys()
    sealed, opened = batchfiles.listed(directory)
    if not (sealed or opened or done.count or (directory / "run.json").exists()):
        raise CannotVerifyError(
            f"{directory}: no run here (no batches, no .done_indices, no run.json)"
        )
    report.live = _live(directory)
    manifest = _manifest(directory, report)
    run = _json(directory / "run.json", report)
    report.total = _prompts(run, prompts, report)
    completed = _Marks()
    if run is not None or manifest:
        _missing(owed - set(sealed), manifest, report)
    growing, read = _batches(directory, sealed, opened, manifest, run, report, completed)
    # By now the run has written the lines of all that it had sealed before it was read.
    later = _done_indices(directory, Report(directory))
    on_its_way = _without_line(growing, later)
    _retention(manifest, read, report, completed)
    _sets(report, completed, failed, aside, done, later, on_its_way)
    if s3 is not None:
        _bucket(manifest, s3, report)
    report.completed, report.failed, report.set_aside = completed.count, failed.count, aside.count
    report.batches = len(sealed) + len(opened)
    report.close()
    return report


def _lines(path: Path, report: Report) -> Iterator[tuple[int, bytes]]:
    """Numbered complete lines of a file that need not be there; a torn end is noted."""
    with suppress(FileNotFoundError), path.open("rb") as source:
        for number, line in enumerate(source, 1):
            if line.endswith(b"\n"):
                yield number, line[:-1]
            else:
                report.notes.append(f"{path.name}: the last line is torn; it does not count")


def _done_indices(directory: Path, report: Report) -> _Marks:
    marks = _Marks()
    for number, line in _lines(directory / ".done_indices", report):
        if not line.isdigit() or len(line) > _DIGITS:
            report.violation("bad index line", f".done_indices:{number}: not an index: {line!r}")
        elif not marks.add(int(line)):
            report.violation("index twice", f".done_indices:{number}: {int(line)} stands twice")
    return marks


def _side_file(path: Path, report: Report) -> _Marks:
    """Indices of ``failed.jsonl`` or ``set_aside.jsonl``."""
    marks = _Marks()
    for number, line in _lines(path, report):
        index = _index(_object(line))
        if index is None:
            report.violation("bad record", f"{path.name}:{number}: no JSON object with an index")
        elif not marks.add(index):
            report.violation("index twice", f"{path.name}:{number}: index {index} stands twice")
    return marks


def _index(record: dict[str, Any] | None) -> int | None:
    value = record.get("index") if record is not None else None
    return value if _is_count(value) else None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None


def _json(path: Path, report: Report) -> dict[str, Any] | None:
    if not path.exists():
        return None
    value = _object(path.read_bytes())
    if value is None:
        report.violation("bad file", f"{path.name}: not a JSON object")
    return value


def _live(directory: Path) -> bool:
    """Whether the process that ``.lock`` names still runs; a lock taken here could stop a start."""
    with suppress(OSError, ValueError, TypeError, KeyError, psutil.Error):
        holder = json.loads((directory / ".lock").read_text())
        started = datetime.fromisoformat(holder["started"]).timestamp()
        return abs(psutil.Process(int(holder["pid"])).create_time() - started) < 3
    return False


def _manifest(directory: Path, report: Report) -> dict[str, dict[str, Any]]:
    """The last line of each name."""
    entries: dict[str, dict[str, Any]] = {}
    for number, line in _lines(directory / "manifest.jsonl", report):
        entry = _object(line)
        coded = entry.get("indices") if entry is not None else None
        if entry is None or not isinstance(entry.get("name"), str):
            report.violation("bad manifest", f"manifest.jsonl:{number}: no JSON object with a name")
        elif not isinstance(coded, list) or not all(type(step) is int for step in coded):
            report.violation("bad manifest", f"manifest.jsonl:{number}: no indices")
        else:
            entries[entry["name"]] = entry
    return entries


def _prompts(run: dict[str, Any] | None, given: Path | None, report: Report) -> int | None:
    """Check the prompts file against what the run began with; the number of prompts."""
    recorded = (run or {}).get("prompts") or []
    if not isinstance(recorded, list) or not all(map(_is_prompts_entry, recorded)):
        report.violation("bad file", "run.json: prompts is no list of path, sha256, bytes, lines")
        recorded = []
    last = recorded[-1] if recorded else {}
    path = given or (Path(last["path"]) if "path" in last else None)
    if path is None:
        report.notes.append("no prompts file known (an old directory): give it with --prompts")
        return None
    if not path.is_file():
        if given:
            raise CannotVerifyError(f"{path}: no such prompts file")
        report.notes.append(f"{path}: prompts file not here; its bytes were not checked")
        return last.get("lines")
    hashes, lines = _hash_prefixes(path, [entry["bytes"] for entry in recorded])
    changed = [entry for entry in recorded if hashes[entry["bytes"]] != entry["sha256"]]
    for _ in changed:
        report.violation(
            "prompts changed", f"{path}: not the prompts that this run began with (sha256)"
        )
    return lines if changed else last.get("lines", lines)


def _is_prompts_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("path"), str)
        and isinstance(entry.get("sha256"), str)
        and _is_count(entry.get("bytes"))
        and _is_count(entry.get("lines"))
    )


def _hash_prefixes(path: Path, sizes: list[int]) -> tuple[dict[int, str], int]:
    """sha256 of the first so many bytes, for each size; and the number of lines of the file."""
    wanted = sorted(set(sizes))
    digest, position, lines = hashlib.sha256(), 0, 0
    found: dict[int, str] = dict.fromkeys(sizes, "")
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            lines += block.count(b"\n")
            start = 0
            while wanted and wanted[0] <= position + len(block):
                cut = wanted.pop(0) - position
                digest.update(block[start:cut])
                found[position + cut] = digest.hexdigest()
                start = cut
            digest.update(block[start:])
            position += len(block)
    return found, lines


def _read_batch(
    name: str, data: bytes, report: Report, *, opened: bool, ours: bool, adopted: bool
) -> _Batch:
    *lines, tail = data.split(b"\n")
    batch = _Batch([], hashlib.sha256(data).hexdigest(), len(data))
    for number, line in enumerate(lines, 1):
        record = _object(line)
        index = _index(record)
        if record is None or index is None:
            if opened and not any(_object(rest) for rest in lines[number:]):
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


def _batches(
    directory: Path,
    sealed: list[str],
    opened: list[str],
    manifest: dict[str, dict[str, Any]],
    run: dict[str, Any] | None,
    report: Report,
    completed: _Marks,
) -> tuple[list[_Growing], set[str]]:
    """Read every batch into ``completed``. Those whose records may still lack their done line, and
    the names of all that could be read."""
    ours = bool(manifest) or run is not None
    adopted = bool((run or {}).get("adopted"))
    growing: list[_Growing] = []
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
        batch = _read_batch(name, data, report, opened=still_open, ours=ours, adopted=adopted)
        if still_open and batch.torn:
            report.notes.append(f"{name}: the last line is torn; the next start cuts it off")
        entry = manifest.get(name)
        if entry is not None:
            _compare(name, batch, entry, report)
        elif was_open:
            growing.append(_Growing(batch.indices, whole=False))
        elif ours and name == sealed[-1]:
            report.notes.append(f"{name}: sealed, its manifest line is on its way")
            growing.append(_Growing(batch.indices, whole=True))
        elif ours:
            report.violation("no manifest line", f"{name}: no line in manifest.jsonl")
        _count(name, batch, completed, report)
    return growing, read


@dataclass(frozen=True)
class _Growing:
    """A batch some of whose records may lack their done line: any, or those at its end."""

    indices: list[int]
    whole: bool


def _without_line(growing: list[_Growing], done: _Marks) -> set[int]:
    """The indices that may lack their line in ``.done_indices``."""
    on_its_way: set[int] = set()
    for batch in growing:
        for index in reversed(batch.indices):
            if index in done and not batch.whole:
                break
            on_its_way.add(index)
    return on_its_way


def _missing(names: set[str], manifest: dict[str, dict[str, Any]], report: Report) -> None:
    for name in sorted(names):
        if name in manifest and manifest[name].get("state") != "local_deleted":
            report.violation("batch missing", f"{name}: in the manifest, but not here")


def _gone(directory: Path, name: str, manifest: dict[str, dict[str, Any]], report: Report) -> None:
    """A batch that was listed and went away: deleted after its upload, which its newest manifest
    line says, or lost."""
    name = name.removesuffix(".open")
    entry = _manifest(directory, Report(directory)).get(name)
    if entry is not None:
        manifest[name] = entry
    if entry is None or entry.get("state") != "local_deleted":
        report.violation("batch missing", f"{name}: was here a moment ago, and is not here now")


def _compare(name: str, batch: _Batch, entry: dict[str, Any], report: Report) -> None:
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


def _count(name: str, batch: _Batch, completed: _Marks, report: Report) -> None:
    for index in batch.indices:
        if not completed.add(index):
            text = f"{name}: index {index} has more than one completion record"
            report.violation("completed twice", text)
        if report.total is not None and index >= report.total:
            text = f"{name}: index {index} is beyond the {report.total} prompts"
            report.violation("no such prompt", text)


def _sets(
    report: Report,
    completed: _Marks,
    failed: _Marks,
    aside: _Marks,
    done: _Marks,
    later: _Marks,
    on_its_way: set[int],
) -> None:
    for kind, marks in (("failed.jsonl", failed), ("set_aside.jsonl", aside)):
        for index in marks:
            if index in completed:
                text = f"index {index} is in {kind} and has a completion record"
                report.violation("in two places", text)
            if report.total is not None and index >= report.total:
                text = f"{kind}: index {index} is beyond the {report.total} prompts"
                report.violation("no such prompt", text)
    for index in failed:
        if index in aside:
            text = f"index {index} is in failed.jsonl and in set_aside.jsonl"
            report.violation("in two places", text)
    late = 0
    for index in completed:
        if index not in later:
            if index in on_its_way:
                late += 1
            else:
                text = f"index {index} has a completion record, but no line in .done_indices"
                report.violation("not in .done_indices", text)
    if late:
        report.notes.append(f".done_indices: {late} lines on their way; the next start adds them")
    for index in done:
        if index not in completed and not report._seen["batch missing"]:
            text = f".done_indices: {index} has no completion record"
            report.violation("done without record", text)


def _retention(
    manifest: dict[str, dict[str, Any]], read: set[str], report: Report, completed: _Marks
) -> None:
    """Batches deleted here after their upload still count as done, by their manifest line."""
    for name, entry in manifest.items():
        if entry.get("state") == "local_deleted" and name not in read:
            indices = list(accumulate(entry["indices"]))
            _count(name, _Batch(indices, "", 0), completed, report)


# --- S3 ---


@dataclass(frozen=True)
class S3Source:
    """Where uploads are looked for; credentials come from the environment, as boto3 does it."""

    endpoint_url: str = ""


def _bucket(manifest: dict[str, dict[str, Any]], source: S3Source, report: Report) -> None:
    import boto3
    from botocore import exceptions as errors

    client = boto3.session.Session().client("s3", endpoint_url=source.endpoint_url or None)
    report.in_bucket = 0
    for name, entry in sorted(manifest.items()):
        if entry.get("state") not in ("uploaded", "local_deleted"):
            continue
        report.uploaded += 1
        place = f"s3://{entry.get('bucket')}/{entry.get('key')}"
        try:
            body = client.get_object(Bucket=entry["bucket"], Key=entry["key"])["Body"]
            digest = hashlib.sha256()
            for block in body.iter_chunks(1 << 20):
                digest.update(block)
        except errors.NoCredentialsError:
            raise CannotVerifyError(
                "S3: no credentials here: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from None
        except (errors.ConnectionError, errors.HTTPClientError) as error:
            raise StorageError(f"S3: {error}") from None
        except (errors.ClientError, errors.BotoCoreError, KeyError) as error:
            report.violation("not in the bucket", f"{name}: {place}: {error}")
            continue
        if digest.hexdigest() != entry.get("sha256"):
            report.violation("other bytes in the bucket", f"{name}: {place} holds other bytes")
        else:
            report.in_bucket += 1


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
