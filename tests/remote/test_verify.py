"""The audit finds each way in which a run directory can be wrong, and no other."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from remote.verify import CannotVerifyError, S3Source, audit, lines


def record(index: int) -> str:
    whole = {
        "index": index,
        "id": f"p{index}",
        "source": "test",
        "messages": [{"role": "user", "content": f"question {index}"}],
        "content": "answer",
        "reasoning_content": None,
        "tool_calls": None,
        "finish_reason": "stop",
        "outcome": "ok",
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "reasoning_tokens": 0},
        "model": "m",
        "server": "http://127.0.0.1:1",
        "epoch": None,
        "attempts": 1,
        "latency_s": 0.1,
        "finished_at": "2026-01-01T00:00:00Z",
    }
    return json.dumps(whole, separators=(",", ":")) + "\n"


def manifest_line(path: Path, indices: list[int]) -> str:
    data = path.read_bytes()
    deltas = indices[:1] + [b - a for a, b in pairwise(indices)]
    entry = {
        "name": path.name,
        "state": "sealed",
        "records": len(indices),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "indices": deltas,
    }
    return json.dumps(entry) + "\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Ten prompts: 0-3 sealed, 4-5 in the open batch, 6 failed, 7 set aside, 8-9 not done."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"messages":[],"id":"p{i}"}}\n' for i in range(10)))
    folder = tmp_path / "out"
    folder.mkdir()
    sealed = folder / "completions_000000.jsonl"
    sealed.write_text("".join(record(i) for i in (2, 0, 1, 3)))
    (folder / "completions_000001.jsonl.open").write_text(record(4) + record(5))
    (folder / "manifest.jsonl").write_text(manifest_line(sealed, [2, 0, 1, 3]))
    (folder / ".done_indices").write_text("2\n0\n1\n3\n4\n5\n")
    (folder / "failed.jsonl").write_text('{"index":6}\n')
    (folder / "set_aside.jsonl").write_text(record(7))
    data = prompts.read_bytes()
    entry = {
        "path": str(prompts),
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "lines": 10,
    }
    (folder / "run.json").write_text(json.dumps({"prompts": [entry]}))
    return folder


def test_a_clean_directory(run: Path) -> None:
    report = audit(run)
    assert report.violations == []
    counts = (report.completed, report.failed, report.set_aside, report.not_done, report.total)
    assert counts == (6, 1, 1, 2, 10)
    assert lines(report)[-1] == "clean"


def append(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with (folder / name).open("a") as out:
            out.write(text)

    return change


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (append("completions_000001.jsonl.open", record(2)), "index 2 has more than one"),
        (append("failed.jsonl", '{"index":3}\n'), "index 3 is in failed.jsonl and has"),
        (append("set_aside.jsonl", record(5)), "index 5 is in set_aside.jsonl and has"),
        (append("set_aside.jsonl", record(6)), "in failed.jsonl and in set_aside.jsonl"),
        (append("failed.jsonl", '{"index":6}\n'), "failed.jsonl:2: index 6 stands twice"),
        (append(".done_indices", "8\n"), ".done_indices: 8 has no completion record"),
        (append(".done_indices", "4\n"), ".done_indices:7: 4 stands twice"),
        (append(".done_indices", "x4\n"), ".done_indices:7: not an index"),
        (replace(".done_indices", "1\n", ""), "index 1 has a completion record, but no line"),
        (replace(".done_indices", "4\n", ""), "index 4 has a completion record, but no line"),
        (append("completions_000000.jsonl", record(8)), "the manifest says"),
        (append("completions_000000.jsonl", '{"index":8'), "the last line has no newline"),
        (replace("completions_000000.jsonl", '"answer"', '"anzwer"'), "sha256 is"),
        (replace("completions_000000.jsonl", "{", "["), "completions_000000.jsonl:1: no JSON"),
        (replace("completions_000001.jsonl.open", "{", "["), "open:1: no JSON"),
        (replace("completions_000001.jsonl.open", '"usage"', '"usge"'), "lacks usage"),
        (append("completions_000001.jsonl.open", record(10)), "beyond the 10 prompts"),
        (replace("manifest.jsonl", "[2,", "[3,"), "other indices than the manifest's"),
        (replace("../prompts.jsonl", "p3", "p4"), "not the prompts that this run began with"),
        (append("failed.jsonl", '{"index":-1}\n'), "failed.jsonl:2: no JSON object with an index"),
        (append("failed.jsonl", '{"index":999999999999999}\n'), "beyond the 10 prompts"),
        (append(".done_indices", "123456789012\n"), ".done_indices: 123456789012 has no"),
        (append(".done_indices", "9" * 5000 + "\n"), ".done_indices:7: not an index"),
        (replace("manifest.jsonl", '"indices": [', '"indices": ["a", '), "jsonl:1: no indices"),
        (replace("manifest.jsonl", '"sha256"', '"sha"'), "the manifest says None"),
        (replace("run.json", '"bytes": ', '"bytes": null, "b": '), "run.json: prompts is no list"),
        (lambda d: (d / "completions_000000.jsonl").unlink(), "in the manifest, but not here"),
    ],
)
def test_each_violation_is_named(run: Path, change: Callable[[Path], None], expected: str) -> None:
    change(run)
    assert any(expected in text for text in audit(run).violations), audit(run).violations


@pytest.mark.parametrize("cut", [1, 5, 20, -1])
def test_after_a_kill_the_open_tail_may_be_torn(run: Path, cut: int) -> None:
    append("completions_000001.jsonl.open", record(8)[:cut])(run)
    report = audit(run)
    assert report.violations == []
    assert report.completed == 6
    assert any("torn" in note for note in report.notes)


def test_after_a_kill_done_lines_may_lag(run: Path) -> None:
    append("completions_000001.jsonl.open", record(8) + record(9))(run)
    report = audit(run)
    assert report.violations == []
    assert any("2 lines on their way" in note for note in report.notes)


def test_zeros_after_a_power_loss(run: Path) -> None:
    append("completions_000001.jsonl.open", "\0" * 64 + "\n")(run)
    assert audit(run).violations == []


def test_a_newest_sealed_batch_may_wait_for_its_line(run: Path) -> None:
    (run / "completions_000001.jsonl.open").rename(run / "completions_000001.jsonl")
    report = audit(run)
    assert report.violations == []
    (run / "manifest.jsonl").write_text("")
    assert any("no line in manifest" in text for text in audit(run).violations)


def test_a_deleted_batch_counts_by_its_manifest_line(run: Path) -> None:
    sealed = run / "completions_000000.jsonl"
    entry = json.loads((run / "manifest.jsonl").read_text())
    append("manifest.jsonl", json.dumps({**entry, "state": "local_deleted"}) + "\n")(run)
    sealed.unlink()
    report = audit(run)
    assert report.violations == []
    assert report.completed == 6


def test_an_old_directory(run: Path) -> None:
    for name in ("run.json", "manifest.jsonl", "failed.jsonl", "set_aside.jsonl"):
        (run / name).unlink()
    report = audit(run)
    assert report.violations == []
    assert report.total is None
    assert audit(run, prompts=run / "../prompts.jsonl").total == 10


def test_the_last_line_of_a_name_is_the_whole_truth(run: Path) -> None:
    entry = json.loads((run / "manifest.jsonl").read_text())
    del entry["bytes"]
    append("manifest.jsonl", json.dumps(entry) + "\n")(run)
    assert any("bytes is" in text for text in audit(run).violations)


def test_longer_prompts_are_not_this_runs(run: Path) -> None:
    append("../prompts.jsonl", '{"messages":[]}\n')(run)
    append(".done_indices", "x\n")(run)
    assert audit(run).total == 10


def test_an_unreachable_bucket_is_no_violation(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "stand-in")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    entry = json.loads((run / "manifest.jsonl").read_text())
    entry |= {"state": "uploaded", "bucket": "buck", "key": "k"}
    append("manifest.jsonl", json.dumps(entry) + "\n")(run)
    with pytest.raises(CannotVerifyError, match=r"S3: .*127\.0\.0\.1:9"):
        audit(run, s3=S3Source("http://127.0.0.1:9"))


def test_live_by_the_process_that_the_lock_names(run: Path) -> None:
    assert not audit(run).live
    start = psutil.Process().create_time()
    for seconds, live in ((0, True), (-99, False)):
        started = datetime.fromtimestamp(start + seconds, UTC).isoformat()
        (run / ".lock").write_text(json.dumps({"pid": os.getpid(), "started": started}))
        assert audit(run).live is live


def test_nothing_to_audit(tmp_path: Path) -> None:
    with pytest.raises(CannotVerifyError, match="no such run directory"):
        audit(tmp_path / "nope")
    with pytest.raises(CannotVerifyError, match="no run here"):
        audit(tmp_path)
