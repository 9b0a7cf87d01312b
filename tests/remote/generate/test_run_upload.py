"""Whole runs that upload to a real S3-protocol server (moto), on loopback."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote import batches, verify
from tests.remote.generate.conftest import Generation, Served, Uploads, wait_for
from tests.remote.generate.gate import Step


def test_run_uploads_and_resumes(
    serve: Callable[..., Served],
    generation: Callable[..., Generation],
    s3_options: tuple[str, ...],
    bucket: Any,
) -> None:
    """A whole run: every batch in the bucket at the end, also after kills; the last one short."""
    run = generation(1700)
    server = serve(delay=0.05)
    run.start(server, options=s3_options)
    wait_for(lambda: run.progress().get("s3_uploaded", 0) >= 1, 40)
    run.kill()
    run.wait()
    run.start(server, options=s3_options)
    assert run.process is not None
    pid = run.process.pid  # the progress of the one before is there until this one's first
    wait_for(lambda: run.progress().get("pid") == pid, 40)
    wait_for(lambda: run.progress().get("s3_uploaded", 0) >= 2, 40)
    run.kill(signal.SIGTERM)
    assert run.wait() == 130
    assert run.progress()["not_in_s3"] > 0
    run.start(server, options=s3_options)
    assert run.wait() == 0
    files = {path.name: path.read_bytes() for path in run.folder.glob("completions_*.jsonl")}
    stored = {o.key.removeprefix("run/"): o.get()["Body"].read() for o in bucket.objects.all()}
    assert stored == files
    assert len(files) == 4
    progress = run.progress()
    assert progress["s3_uploaded"] == 4
    assert progress["s3_bytes"] == sum(map(len, files.values()))
    assert progress["not_in_s3"] == 0
    states = {line["name"]: line["state"] for line in run.lines("manifest.jsonl")}
    assert set(states.values()) == {"uploaded"}


def test_retention(
    serve: Callable[..., Served],
    generation: Callable[..., Generation],
    s3_options: tuple[str, ...],
) -> None:
    """By option a batch goes from the disk once it is in the bucket; it stays done."""
    run = generation(600)
    server = serve(delay=0.01)
    run.start(server, options=s3_options)
    assert run.wait() == 0
    assert len(list(run.folder.glob("completions_*"))) == 2
    run.start(server, options=(*s3_options, "--delete-uploaded"))
    assert run.wait() == 0
    assert not list(run.folder.glob("completions_*"))
    asked = len(server.told()["seen"])
    run.start(server, options=s3_options)
    assert run.wait() == 0
    assert len(server.told()["seen"]) == asked == 600
    assert run.progress()["completed"] == 600
    assert run.progress()["s3_uploaded"] == 2
    run.start(server)  # without S3: what is there is still there
    assert run.wait() == 0
    assert run.progress()["s3_uploaded"] == 2
    assert batches.count(run.folder).uploaded == 2
    report = verify.audit(run.folder, prompts=run.prompts)
    assert not report.violations, report.violations


@pytest.mark.parametrize("step", ["received", "stored", "answered"])
def test_killed_while_a_batch_goes_up(
    step: Step,
    uploads: Uploads,
) -> None:
    """Before S3 has it, before the answer goes out, and right after that."""
    run = uploads.run(600)
    server = uploads.serve(delay=0.0)
    killed: list[Step] = []

    def kill(now: Step) -> None:
        if now == step and not killed:
            killed.append(now)
            run.kill()
            raise ConnectionAbortedError

    uploads.gate.on_put = kill
    run.start(server, options=(*uploads.options, "--delete-uploaded"))
    assert run.wait() == -signal.SIGKILL
    assert killed
    assert len(uploads.gate.stored) == (step != "received")
    run.start(server, options=(*uploads.options, "--delete-uploaded"))
    assert run.wait() == 0, run.text()
    assert sorted(uploads.gate.stored) == sorted(set(uploads.gate.stored)), "nothing is put twice"
    assert len(uploads.gate.stored) == 2
    assert not list(run.folder.glob("completions_*"))
    uploads.clean(run)


FIRST = "completions_000001.jsonl"


@pytest.mark.parametrize(
    ("fault", "state", "here"),
    [
        ({"die": "write", "name": "manifest.jsonl", "text": '"state":"uploaded"'}, "sealed", True),
        (
            {"die": "write", "name": "manifest.jsonl", "text": '"state":"local_deleted"'},
            "uploaded",
            True,
        ),
        ({"die": "unlink", "name": FIRST}, "local_deleted", True),
        ({"die": "unlink", "name": FIRST, "after": True}, "local_deleted", False),
    ],
    ids=["before the manifest", "before it says deleted", "before the deletion", "after it"],
)
def test_killed_between_the_upload_and_the_deletion(
    fault: dict[str, Any],
    state: str,
    here: bool,
    uploads: Uploads,
) -> None:
    """What the manifest says then, and whether the file is still here; the next start ends it."""
    run = uploads.run(600)
    server = uploads.serve(delay=0.0)
    run.fault(**fault)
    run.start(server, options=(*uploads.options, "--delete-uploaded"))
    assert run.wait() == -signal.SIGKILL
    states = {line["name"]: line["state"] for line in run.lines("manifest.jsonl")}
    assert states[FIRST] == state
    assert (run.folder / FIRST).exists() == here
    assert uploads.gate.stored[0].endswith(FIRST)
    run.fault()
    run.start(server, options=(*uploads.options, "--delete-uploaded"))
    assert run.wait() == 0, run.text()
    assert len(uploads.gate.stored) == len(set(uploads.gate.stored)) == 2, "nothing is put twice"
    assert not list(run.folder.glob("completions_*"))
    assert len(run.lines("manifest.jsonl")) == 6
    uploads.clean(run)


def test_credentials_that_are_renewed_on_disk_are_taken_up(uploads: Uploads) -> None:
    """Those of before have expired in the middle of the run: it goes on with the new ones."""
    run = uploads.run(1200)
    server = uploads.serve(delay=0.2)
    run.start(server, options=uploads.options)
    wait_for(lambda: uploads.gate.stored, 40)
    uploads.gate.key = "renewed"
    wait_for(lambda: "have expired" in run.progress().get("s3_error", ""), 40)
    assert len(uploads.gate.stored) == 1
    keys = Path(uploads.options[-1])
    keys.write_text(keys.read_text().replace("ACCESS_KEY_ID=stand-in", "ACCESS_KEY_ID=renewed"))
    assert run.wait() == 0, run.text()
    assert run.progress()["s3_error"] == ""
    assert len(uploads.gate.stored) == len(set(uploads.gate.stored)) == 3
    uploads.clean(run)


@pytest.mark.parametrize(
    ("refuse", "says"),
    [
        ((400, "ExpiredToken"), "the credentials have expired"),
        ((403, "RequestTimeTooSkewed"), "clock is wrong"),
        ((404, "NoSuchBucket"), "there is no such bucket"),
        ((403, "AccessDenied"), "access denied"),
        ((500, "InternalError"), "InternalError"),
        ("hang up", "cannot be reached"),
    ],
)
def test_s3_that_fails_is_named_and_harms_nothing(
    refuse: Any,
    says: str,
    uploads: Uploads,
) -> None:
    """Every prompt is done meanwhile; once S3 is well the rest goes up by itself."""
    run = uploads.run(40)
    uploads.gate.refuse = refuse
    run.start(uploads.serve(delay=0.0), options=uploads.options)
    wait_for(lambda: says in run.progress().get("s3_error", ""), 40, says)
    progress = run.progress()
    assert (progress["completed"], progress["not_in_s3"]) == (40, 40)
    assert "Traceback" not in run.text()
    uploads.gate.refuse = ""
    assert run.wait() == 0, run.text()
    assert run.progress()["s3_error"] == ""
    uploads.clean(run)


def test_left_with_uploads_to_do(uploads: Uploads) -> None:
    """Told to leave while S3 is down: exit status 1, and what is missing is sent next time."""
    run = uploads.run(40)
    uploads.gate.refuse = (403, "AccessDenied")
    server = uploads.serve(delay=0.0)
    run.start(server, options=uploads.options)
    wait_for(lambda: run.progress().get("s3_error"), 40)
    run.kill(signal.SIGTERM)
    assert run.wait() == 1
    assert "40 records not yet in S3" in run.text()
    uploads.gate.refuse = ""
    run.start(server, options=uploads.options)
    assert run.wait() == 0, run.text()
    assert len(server.told()["seen"]) == 40
    uploads.clean(run)
