"""Uploads to a real S3-protocol server (moto), on loopback."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remote.generate import upload
from remote.generate.records import Batch, deltas
from remote.generate.upload import Uploader, explain
from remote.protocol import S3Spec
from tests.remote.generate.conftest import KEYS, wait_for
from tests.remote.generate.gate import Gate


def make_batch(folder: Path, number: int, size: int = 1000) -> Batch:
    """A sealed batch file and its manifest line."""
    name = f"completions_{number:06d}.jsonl"
    data = (f'{{"index":{number},' + f'"x":"{number}' + "y" * size + '"}\n').encode()
    (folder / name).write_bytes(data)
    return Batch(name, "sealed", 1, len(data), hashlib.sha256(data).hexdigest(), deltas([number]))


def make(
    folder: Path,
    url: str,
    bucket: str,
    run_id: str = "r1",
    *,
    sparing: bool = True,
    on_note: Callable[[str], None] = lambda text: None,
) -> tuple[Uploader, list[Batch]]:
    """An uploader and what it reports."""
    told: list[Batch] = []
    uploader = Uploader(
        folder,
        S3Spec(bucket, "pre/fix/", url),
        run_id,
        credentials=lambda: KEYS,
        on_safe=told.append,
        on_note=on_note,
        sparing=sparing,
    )
    return uploader, told


def test_uploads_what_is_sealed(tmp_path: Path, s3_url: str, bucket: Any) -> None:
    """The object holds the same bytes, the run's id and the sha256; the manifest says where."""
    batch = make_batch(tmp_path, 1)
    uploader, told = make(tmp_path, s3_url, bucket.name)
    uploader.start([])
    uploader.offer(batch)
    wait_for(lambda: told and uploader.done)
    uploader.close()
    item = bucket.Object("pre/fix/completions_000001.jsonl").get(ChecksumMode="ENABLED")
    assert hashlib.sha256(item["Body"].read()).hexdigest() == batch.sha256
    assert item["Metadata"] == {"run-id": "r1", "sha256": batch.sha256}
    assert told[0].state == "uploaded"
    assert (told[0].bucket, told[0].key) == (bucket.name, "pre/fix/completions_000001.jsonl")
    assert told[0].checksum == f"sha256:{item['ChecksumSHA256']}"
    assert (uploader.files, uploader.bytes, uploader.records_waiting) == (1, batch.bytes, 0)


def test_a_restart_uploads_exactly_what_is_missing(
    tmp_path: Path, s3_url: str, bucket: Any
) -> None:
    """Known objects are compared by the listing, a missing one goes up again, one that a killed
    process had uploaded without noting it is recognised."""
    batches = [make_batch(tmp_path, n) for n in range(1, 5)]
    uploader, told = make(tmp_path, s3_url, bucket.name)
    uploader.start(batches)
    wait_for(lambda: len(told) == 4)
    uploader.close()
    bucket.Object("pre/fix/completions_000002.jsonl").delete()
    first = {o.key: o.last_modified for o in bucket.objects.all()}
    again, told2 = make(tmp_path, s3_url, bucket.name)
    again.start([*told[:2], batches[2], told[3]])  # the third one's manifest line was lost
    wait_for(lambda: again.done and len(told2) == 4)
    again.close()
    assert {b.name[-8:-6] for b in told2 if b not in told} == {"02", "03"}
    now = {o.key: o.last_modified for o in bucket.objects.all()}
    assert len(now) == 4
    assert all(now[key] == stamp for key, stamp in first.items()), "nothing was overwritten"
    assert again.files == 4


@pytest.mark.parametrize("sparing", [True, False])
@pytest.mark.parametrize("marked", [True, False])
def test_other_bytes_of_the_same_size_are_seen_at_a_restart(
    sparing: bool, marked: bool, tmp_path: Path, s3_url: str, bucket: Any
) -> None:
    """Even where they claim in their metadata to be the right ones; the local file stays."""
    batches = [make_batch(tmp_path, n) for n in (1, 2)]
    uploader, told = make(tmp_path, s3_url, bucket.name)
    uploader.start(batches)
    wait_for(lambda: len(told) == 2)
    uploader.close()
    bucket.Object("pre/fix/completions_000001.jsonl").put(
        Body=b"x" * batches[0].bytes,
        ChecksumAlgorithm="SHA256",
        Metadata={"run-id": "r1", "sha256": batches[0].sha256} if marked else {},
    )
    again, safe = make(tmp_path, s3_url, bucket.name, sparing=sparing)
    again.start(told)
    wait_for(lambda: again.done)
    again.close()
    assert [batch.name for batch in safe] == ["completions_000002.jsonl"]
    assert "completions_000001.jsonl is a different file" in again.error
    assert (again.files, again.records_waiting, len(again.lost)) == (1, 1, 1)


def test_before_a_deletion_the_object_itself_is_asked(
    tmp_path: Path, s3_url: str, bucket: Any, gate: Gate
) -> None:
    """One question for each batch that is still here; none where nothing is deleted."""
    batches = [make_batch(tmp_path, n) for n in (1, 2, 3)]
    uploader, told = make(tmp_path, s3_url, bucket.name)
    uploader.start(batches)
    wait_for(lambda: len(told) == 3)
    uploader.close()
    (tmp_path / told[2].name).unlink()
    for sparing, asked in ((True, []), (False, [told[0].name, told[1].name])):
        gate.heads.clear()
        again, safe = make(tmp_path, gate.url, bucket.name, sparing=sparing)
        again.start(told)
        wait_for(partial(getattr, again, "done"))
        again.close()
        assert safe == told
        assert [path.rpartition("/")[2] for path in gate.heads] == asked


@pytest.mark.parametrize(
    ("method", "code", "says"),
    [
        ("HEAD", "403", "2 uploaded batches may not be looked at (s3:GetObject is missing): their"),
        ("GET", "AccessDenied", "may not be listed (s3:ListBucket is missing): 2 batches of"),
    ],
)
def test_what_the_credentials_do_not_allow_is_told_and_deletes_nothing(
    method: str,
    code: str,
    says: str,
    tmp_path: Path,
    s3_url: str,
    bucket: Any,
    gate: Gate,
) -> None:
    """Once, with the permission that is missing; later batches still go up."""
    batches = [make_batch(tmp_path, n) for n in (1, 2)]
    uploader, told = make(tmp_path, s3_url, bucket.name)
    uploader.start(batches)
    wait_for(lambda: len(told) == 2)
    uploader.close()
    gate.methods, gate.refuse = (method,), (403, code)
    notes: list[str] = []
    again, safe = make(tmp_path, gate.url, bucket.name, sparing=False, on_note=notes.append)
    again.start(told)
    again.offer(make_batch(tmp_path, 3))
    wait_for(lambda: again.done)
    again.close()
    assert [batch.name for batch in safe] == ["completions_000003.jsonl"], "the rest is not safe"
    assert len(notes) == 1 and says in notes[0] and "here are kept" in notes[0]
    assert again.note == notes[0]
    assert (again.error, again.lost, again.files) == ("", [], 3)


@pytest.mark.parametrize("size", [1000, 900])
def test_a_batch_of_before_that_may_not_be_looked_at_holds_up_no_other(
    size: int, tmp_path: Path, s3_url: str, bucket: Any, gate: Gate
) -> None:
    """Killed before its manifest line: the bucket has it (or something else) under its name."""
    batches = [make_batch(tmp_path, n) for n in (1, 2)]
    other = tmp_path / "other"
    other.mkdir()
    theirs, _ = make(other, s3_url, bucket.name)
    theirs.start([make_batch(other, 1, size)])
    wait_for(lambda: theirs.done)
    theirs.close()
    gate.methods, gate.refuse = ("HEAD",), (403, "403")
    mine, safe = make(tmp_path, gate.url, bucket.name)
    mine.start(batches)
    wait_for(lambda: mine.done, 20)
    mine.close()
    assert [batch.name for batch in safe] == ["completions_000002.jsonl"]
    assert "completions_000001.jsonl: may not be looked at (s3:GetObject is missing" in mine.error
    assert mine.records_waiting == 1
    known = make_batch(tmp_path, 1)  # as its manifest line says
    again, safe = make(tmp_path, gate.url, bucket.name, sparing=False)
    again.start([msgspec.structs.replace(known, state="uploaded", etag="x")])
    wait_for(lambda: again.done, 20)
    again.close()
    assert safe == []
    assert bool(again.note) == (size == 1000)
    assert bool(again.lost) == (size == 900), "another size is another file"


def test_a_file_that_cannot_be_read_does_not_hold_up_the_others(
    tmp_path: Path, s3_url: str, bucket: Any
) -> None:
    """Gone, a folder in its place, or changed: named, counted as not uploaded, passed over."""
    batches = [make_batch(tmp_path, n) for n in range(1, 5)]
    (tmp_path / batches[0].name).unlink()
    (tmp_path / batches[1].name).unlink()
    (tmp_path / batches[1].name).mkdir()
    (tmp_path / batches[2].name).write_text("other")
    uploader, told = make(tmp_path, s3_url, bucket.name)
    uploader.start(batches)
    wait_for(lambda: uploader.done, 10)
    uploader.close()
    assert [batch.name for batch in told] == [batches[3].name]
    assert uploader.records_waiting == 3
    for batch, why in zip(
        batches,
        ("cannot be read (No such file", "cannot be read (Is a dir", "not the bytes"),
        strict=False,
    ):
        assert any(batch.name in text and why in text for text in uploader.lost)


def test_another_runs_object_is_an_alarm(tmp_path: Path, s3_url: str, bucket: Any) -> None:
    """Nothing is overwritten; later batches still go up."""
    other = tmp_path / "other"
    other.mkdir()
    theirs, _ = make(other, s3_url, bucket.name, "r0")
    theirs.start([make_batch(other, 1, 500)])
    wait_for(lambda: theirs.done)
    theirs.close()
    mine, told = make(tmp_path, s3_url, bucket.name)
    mine.start([make_batch(tmp_path, 1), make_batch(tmp_path, 2)])
    wait_for(lambda: mine.done)
    mine.close()
    assert [b.name for b in told] == ["completions_000002.jsonl"]
    assert "another run's file: nothing was overwritten" in mine.error
    assert mine.lost
    assert mine.records_waiting == 1
    assert bucket.Object("pre/fix/completions_000001.jsonl").metadata["run-id"] == "r0"


def test_waits_for_a_bucket(
    tmp_path: Path, s3_url: str, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing bucket is named, and the upload goes on by itself once it is there."""
    monkeypatch.setattr(upload, "FIRST_PAUSE_S", 0.1)
    name = bucket.name + "x"
    uploader, told = make(tmp_path, s3_url, name)
    uploader.start([make_batch(tmp_path, 1)])
    wait_for(lambda: "no such bucket" in uploader.error)
    bucket.meta.client.create_bucket(Bucket=name)
    wait_for(lambda: told)
    wait_for(lambda: not uploader.error)
    uploader.close()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("ExpiredToken", "expired"),
        ("RequestTimeTooSkewed", "clock"),
        ("NoSuchBucket", "no such bucket"),
        ("AccessDenied", "access denied"),
        ("SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
        ("InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        ("SlowDown", "slow"),
    ],
)
def test_causes_are_named(code: str, says: str) -> None:
    """One line, what to do."""
    from botocore.exceptions import ClientError

    answer: Any = {"Error": {"Code": code, "Message": "slow down"}}
    text = explain(ClientError(answer, "PutObject"), S3Spec("buck", "p/"))
    assert text.startswith("s3://buck/p/: ")
    assert says in text


def test_unreachable_and_unauthorised_are_named(tmp_path: Path) -> None:
    """The endpoint, or the credentials."""
    uploader = Uploader(
        tmp_path,
        S3Spec("buck", "", "http://127.0.0.1:9"),
        "r",
        credentials=lambda: KEYS,
        on_safe=lambda _: None,
    )
    uploader.start([make_batch(tmp_path, 1)])
    wait_for(lambda: "http://127.0.0.1:9 cannot be reached" in uploader.error)
    uploader.close()
