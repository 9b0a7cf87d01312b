"""The audit, the export and the counts beside a writer of another process that seals and seals."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from remote import batches
from remote.answers import newest
from remote.export import export
from remote.mix import Finished
from remote.verify import audit

WRITER = """
import json, sys
from pathlib import Path
from remote.generate.ledger import Books, Entry, Ledger
from remote.generate.records import Seen

def line(index):
    keys = ("id", "source", "messages", "content", "reasoning_content", "tool_calls",
            "finish_reason", "outcome", "usage", "model", "server", "epoch", "attempts",
            "latency_s", "finished_at")
    record = {"index": index, **dict.fromkeys(keys), "source": "test", "outcome": "ok"}
    return json.dumps(record, separators=(",", ":")).encode() + b"\\n"

ledger = Ledger(Path(sys.argv[1]), Books())
index = 0
print("begun", flush=True)
while True:
    for _ in range(3):
        seen = Seen(index, source="test")
        ledger.add([Entry("batch", index, line(index), seen)])
        ledger.flush()
        index += 1
    ledger.seal()
    ledger.flush()
"""
SECONDS = 4.0


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Path]:
    """A run directory that is written to, three records a batch."""
    folder = tmp_path / "out"
    folder.mkdir()
    words = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "begun\n"
        while len(list(folder.glob("*.jsonl"))) < 3:
            time.sleep(0.01)
        yield folder
        assert writer.poll() is None
        writer.kill()


def looks(folder: Path) -> Iterator[None]:
    """One after the other for some seconds, and until one can see more than thirty records."""
    end = time.monotonic() + SECONDS
    while True:
        enough = len(list(folder.glob("completions_*.jsonl"))) > 11 and time.monotonic() > end
        yield
        if enough:
            return


def test_an_audit_beside_a_writer_that_seals(live: Path) -> None:
    last = 0
    for _ in looks(live):
        report = audit(live)
        assert report.violations == []
        assert report.completed >= last
        last = report.completed
    assert last > 30


def test_counts_beside_it_never_go_back(live: Path) -> None:
    counted = 0
    for _ in looks(live):
        before, counted = counted, batches.count(live).records
        assert counted >= before
    assert counted > 30


def test_the_mix_beside_it_never_goes_back(live: Path) -> None:
    finished = Finished(live)
    done = 0
    for _ in looks(live):
        before, done = done, finished.look()["test"].done
        assert done >= before
    assert done > 30


def test_the_newest_answers_beside_it_have_no_hole(live: Path) -> None:
    for _ in looks(live):
        found = [answer.index for answer in newest(live, "done", 20).answers]
        assert found == list(range(found[0], max(found[0] - 20, -1), -1))


def test_an_export_beside_it_has_every_record_so_far(live: Path, tmp_path: Path) -> None:
    rows = 0
    for _ in looks(live):
        done = export(live, tmp_path / "out.parquet").records
        indices = pq.read_table(tmp_path / "out.parquet", columns=["index"])["index"].to_pylist()
        assert sorted(indices) == list(range(done))
        assert done >= rows
        rows = done
    assert rows > 30
