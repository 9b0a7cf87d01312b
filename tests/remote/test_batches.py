"""What the batch files themselves say."""

from __future__ import annotations

import json
from pathlib import Path

from remote import batches, batchfiles


def manifest(folder: Path, *lines: tuple[str, str, int]) -> None:
    """Lines of a manifest: name, state, records; each record is of ten bytes."""
    rows = [
        {"name": name, "state": state, "records": count, "bytes": 10 * count}
        for name, state, count in lines
    ]
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_counts(tmp_path: Path) -> None:
    """Sealed ones by their line, the open one and one without a line by their newlines."""
    one, two, three, four = (f"completions_{n:06d}.jsonl" for n in range(1, 5))
    (tmp_path / one).write_text("123456789\n" * 3)
    (tmp_path / two).write_text("123456789\n" * 2)
    (tmp_path / f"{four}.open").write_text("123456789\n1234")
    (tmp_path / ".done_indices").write_text("1\n2\n")
    manifest(tmp_path, (one, "sealed", 3), (three, "uploaded", 5), (three, "local_deleted", 5))
    found = batches.count(tmp_path)
    assert (found.files, found.records, found.bytes) == (4, 11, 30 + 20 + 50 + 14)
    assert (found.uploaded, found.done_lines) == (1, 2)
    assert batches.count(tmp_path / "none").files == 0


def test_killed_before_the_deletion(tmp_path: Path) -> None:
    """A batch that is listed as deleted and still here is one batch."""
    name = "completions_000001.jsonl"
    (tmp_path / name).write_text("123456789\n" * 3)
    manifest(tmp_path, (name, "local_deleted", 3))
    found = batches.count(tmp_path)
    assert (found.files, found.records, found.bytes) == (1, 3, 30)


def test_a_batch_that_is_sealed_meanwhile_is_found_under_its_new_name(tmp_path: Path) -> None:
    """It was listed under the name that it has no more."""
    name = "completions_000001.jsonl"
    (tmp_path / f"{name}.open").write_text("123456789\n")
    assert batchfiles.listed(tmp_path) == ([], [f"{name}.open"])
    assert batchfiles.content(tmp_path, f"{name}.open") == (f"{name}.open", b"123456789\n")
    (tmp_path / f"{name}.open").rename(tmp_path / name)
    assert batchfiles.listed(tmp_path) == ([name], [])
    assert batchfiles.content(tmp_path, f"{name}.open") == (name, b"123456789\n")
    assert batches.count(tmp_path).records == 1
    (tmp_path / name).unlink()
    assert batchfiles.content(tmp_path, f"{name}.open") is None
