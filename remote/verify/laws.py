"""The audit itself: in which order the files are read, and what must hold between them."""

from __future__ import annotations

from pathlib import Path

from remote import batchfiles
from remote.verify.batches import check_missing, count_deleted, read_batches, without_line
from remote.verify.bucket import S3Source, check_bucket
from remote.verify.prompts import count_prompts
from remote.verify.reading import (
    Marks,
    done_indices,
    is_live,
    json_file,
    manifest_entries,
    side_file,
)
from remote.verify.report import CannotVerifyError, Report


def audit(directory: Path, *, prompts: Path | None = None, s3: S3Source | None = None) -> Report:
    """Check every law of a run directory. Raises CannotVerifyError when there is no run in it."""
    if not directory.is_dir():
        raise CannotVerifyError(f"{directory}: no such run directory")
    report = Report(directory)
    # The order matters on a live run: what is in .done_indices now is in a batch already.
    done = done_indices(directory, report)
    failed = side_file(directory / "failed.jsonl", report)
    aside = side_file(directory / "set_aside.jsonl", report)
    # Batches that are in the manifest before they are looked for must be here; those that are here
    # must be in the manifest that is read afterwards. A live run may seal some in between.
    owed = manifest_entries(directory, Report(directory)).keys()
    sealed, opened = batchfiles.listed(directory)
    if not (sealed or opened or done.count or (directory / "run.json").exists()):
        raise CannotVerifyError(
            f"{directory}: no run here (no batches, no .done_indices, no run.json)"
        )
    report.live = is_live(directory)
    manifest = manifest_entries(directory, report)
    run = json_file(directory / "run.json", report)
    report.total = count_prompts(run, prompts, report)
    completed = Marks()
    if run is not None or manifest:
        check_missing(owed - set(sealed), manifest, report)
    growing, read = read_batches(directory, sealed, opened, manifest, run, report, completed)
    # By now the run has written the lines of all that it had sealed before it was read.
    later = done_indices(directory, Report(directory))
    on_its_way = without_line(growing, later)
    count_deleted(manifest, read, report, completed)
    _sets(report, completed, failed, aside, done, later, on_its_way)
    if s3 is not None:
        check_bucket(manifest, s3, report)
    report.completed, report.failed, report.set_aside = completed.count, failed.count, aside.count
    report.batches = len(sealed) + len(opened)
    report.close()
    return report


def _sets(
    report: Report,
    completed: Marks,
    failed: Marks,
    aside: Marks,
    done: Marks,
    later: Marks,
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
        if index not in completed and not report.has("batch missing"):
            text = f".done_indices: {index} has no completion record"
            report.violation("done without record", text)
