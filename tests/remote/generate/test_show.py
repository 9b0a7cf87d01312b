"""What a run prints, and to whom."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.generate.show import Show
from remote.protocol import Progress
from tests.remote.generate.conftest import ROOT, Generation, Served, wait_for, write_prompts
from tests.remote.generate.test_run import check, indices


def command(prompts: Path, folder: Path, server: Served) -> list[str]:
    """A run on one server."""
    words = ["--prompts", str(prompts), "--output", str(folder), "--server", server.url]
    return [sys.executable, "-m", "remote.generate", *words]


def test_a_terminal_that_goes_away_takes_nothing_with_it(
    tmp_path: Path, serve: Callable[..., Served]
) -> None:
    """The run goes on to its end, and its exit status is its own."""
    prompts = write_prompts(tmp_path / "p.jsonl", 100)
    ours, theirs = pty.openpty()
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as out,
        subprocess.Popen(
            command(prompts, tmp_path / "out", serve(delay=0.5)),
            cwd=ROOT,
            stdout=theirs,
            stderr=out,
        ) as run,
    ):
        os.close(theirs)
        shown = b""
        while b"/100 " not in shown:
            shown += os.read(ours, 4096)
        os.close(ours)
        assert run.wait(60) == 0
    assert errors.read_text() == ""


def test_a_pipe_that_nobody_reads_changes_no_exit_status(
    tmp_path: Path, serve: Callable[..., Served]
) -> None:
    """``| head -1``."""
    prompts = write_prompts(tmp_path / "p.jsonl", 40)
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as out,
        subprocess.Popen(
            command(prompts, tmp_path / "out", serve(delay=0.2)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=out,
        ) as run,
    ):
        assert run.stdout is not None
        assert run.stdout.readline().startswith(b"Port ")
        run.stdout.close()
        assert run.wait(60) == 0
    assert errors.read_text() == ""


def test_a_disk_that_fails_is_no_finished_run(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Prompts are left, and the same command does them: exit status 130, and why."""
    run = generation(900)
    server = serve(delay=0.05)
    run.start(server)
    wait_for(lambda: run.done() > 20)
    alien = run.folder / "completions_000001.jsonl"
    alien.touch()
    assert run.wait() == 130
    assert "stopped by a failure: completions_000001.jsonl: exists already" in run.text()
    assert run.text().splitlines()[-1].endswith("the same command resumes")
    assert run.progress()["status"] == "failed"
    alien.unlink()
    run.start(server)
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(900))
    check(run)


def test_nothing_comes_before_the_logs_first_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """What is said before them stands behind them, with its own time."""
    show = Show()
    show.say("early")
    assert capsys.readouterr().out == ""
    show.begin(["Port 30000: OK", "Starting generation..."])
    show.say("late")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Port 30000: OK", "Starting generation..."]
    assert [line[22:] for line in lines[2:]] == ["early", "late"]
    said = time.mktime(time.strptime(lines[3][:21], "[%Y-%m-%d %H:%M:%S]"))
    assert abs(said - time.time()) < 60


def test_a_run_that_ends_before_its_start_says_all_the_same_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing that was said is lost."""
    show = Show()
    show.say("early")
    show.summary(Progress(), {}, 0.0)
    assert [line[22:27] for line in capsys.readouterr().out.splitlines()] == ["early", "left:"]
