"""``stoker lab --headless``: a whole job through SSH, ``pct``, agent and servers."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from console.lab import container
from console.lab.headless import line, verdict
from remote import verify
from remote.protocol import Progress

STOKER = Path(sys.executable).with_name("stoker")


async def headless(folder: Path, *more: str) -> asyncio.subprocess.Process:
    """The command, under way."""
    fixed = ["lab", "--headless", "--gpus", "1", "--speed", "200", "--dir", str(folder)]
    return await asyncio.create_subprocess_exec(
        STOKER,
        *fixed,
        *more,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """Its exit status and what it said."""
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return process.returncode, out.decode()


@pytest.mark.timeout(200)
async def test_whole_job(tmp_path: Path) -> None:
    """Every prompt done, exit 0, and a directory that passes its audit."""
    status, said = await ended(await headless(tmp_path, "--count", "40"))
    assert status == 0, said
    assert "40 of 40 done, 0 failed" in said
    assert "1 files in S3, 0 records not yet" in said
    assert said.rstrip().endswith(f"kept: {tmp_path}/ct/200/workspace/completions")
    report = verify.audit(tmp_path / "ct/200/workspace/completions")
    assert (report.violations, report.completed) == ([], 40)
    assert list(container.processes(tmp_path)) == []


@pytest.mark.timeout(300)
async def test_interrupted_and_again(tmp_path: Path) -> None:
    """Ctrl-C leaves the run in order and nothing alive; the same command finishes the job."""
    run = tmp_path / "ct/200/workspace/completions"
    first = await headless(tmp_path, "--count", "600", "--speed", "60")

    def some() -> bool:
        try:
            return int(json.loads((run / "progress.json").read_bytes())["completed"]) >= 20
        except FileNotFoundError:
            return False

    async with asyncio.timeout(100):
        while not some():  # noqa: ASYNC110 - it is another process's file
            await asyncio.sleep(0.1)
    first.send_signal(signal.SIGINT)
    status, said = await ended(first)
    assert status == 130, said
    assert "Traceback" not in said
    assert list(container.processes(tmp_path)) == []
    assert json.loads((run / "progress.json").read_bytes())["status"] == "stopped"
    report = verify.audit(run)
    assert report.violations == []
    assert 20 <= report.completed < 600
    status, said = await ended(await headless(tmp_path, "--count", "600", "--speed", "500"))
    report = verify.audit(run)
    assert report.completed + report.set_aside == 600
    assert report.set_aside <= 12, "a few tool calls are cut at max_tokens"
    assert status == (1 if report.set_aside else 0), said


def test_verdict() -> None:
    """0 only when every prompt is done and nothing waits for S3."""
    good = Progress(total=5, completed=5, status="done")
    assert verdict(good) == 0
    assert verdict(None) == 1
    for bad in (
        Progress(total=5, completed=4, failed=1, status="done"),
        Progress(total=5, completed=4, set_aside=1, status="done"),
        Progress(total=5, completed=5, not_in_s3=5, status="done"),
        Progress(total=5, completed=2, status="stopped"),
    ):
        assert verdict(bad) == 1


def test_line() -> None:
    """What is nothing is not said."""
    progress = Progress(total=400, completed=100, rate_per_sec=2.5, in_flight=9, eta_hours=0.5)
    assert line(progress) == "100/400 done (25%), 2.5/s, 9 in flight, eta 30m00s"
