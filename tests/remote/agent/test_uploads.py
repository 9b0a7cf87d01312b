"""What is told of batches that reach the bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from remote.agent import uploads
from remote.agent.uploads import Uploads
from remote.protocol import Progress

RUN = Progress(run_id="a")


def upload(folder: Path, *numbers: int) -> None:
    """The manifest's lines of these batches, as the run writes them."""
    with (folder / "manifest.jsonl").open("a") as out:
        for state in ("sealed", "uploaded"):
            for number in numbers:
                told = {"name": f"completions_{number:06d}.jsonl", "state": state}
                out.write(json.dumps({**told, "records": 500, "bytes": 6_500_000}) + "\n")


def test_each_file_is_named_and_many_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Uploads()
    assert followed.look(tmp_path, None) == ""
    assert followed.look(tmp_path, replace(RUN, s3_uploaded=17)) == "", "those of before"
    upload(tmp_path, *range(18))
    told = followed.look(tmp_path, replace(RUN, s3_uploaded=18))
    assert told == "completions_000017.jsonl (500 records, 6.2 MiB)"
    assert followed.look(tmp_path, replace(RUN, s3_uploaded=18)) == ""
    upload(tmp_path, 18, 19)
    assert followed.look(tmp_path, replace(RUN, s3_uploaded=20)) == "", "a moment later"
    monkeypatch.setattr(uploads, "EACH_S", 0.0)
    upload(tmp_path, 20)
    told = followed.look(tmp_path, replace(RUN, s3_uploaded=21))
    assert told == "3 files, the last completions_000020.jsonl (1,500 records, 18.6 MiB)"
    assert followed.look(tmp_path, replace(RUN, run_id="b", s3_uploaded=30)) == "", "another run"


def test_the_end_of_a_run_keeps_nothing_back(tmp_path: Path) -> None:
    followed = Uploads()
    followed.look(tmp_path, RUN)
    upload(tmp_path, 0)
    assert followed.look(tmp_path, replace(RUN, s3_uploaded=1))
    upload(tmp_path, 1)
    assert not followed.look(tmp_path, replace(RUN, s3_uploaded=2))
    done = replace(RUN, s3_uploaded=2, status="done")
    assert followed.look(tmp_path, done) == "completions_000001.jsonl (500 records, 6.2 MiB)"
    assert not followed.look(tmp_path, done)
