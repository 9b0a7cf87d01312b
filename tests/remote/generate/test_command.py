"""The command line of the run: as the agent builds it, and as people get it wrong."""

from __future__ import annotations

import contextlib
import os
import pty
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.generate import control
from remote.generate.command import parser, settings_of
from remote.generate.limits import short_of_memory
from remote.protocol import FleetSpec, RunSpec, S3Spec, TargetSpec
from remote.runline import argv
from tests.remote.generate.conftest import ROOT, Generation, Served, wait_for, write_prompts


def test_what_the_file_says_reaches_the_run() -> None:
    """Every key of ``[run]`` comes through the command line as it was meant."""
    run = RunSpec(
        prompts="p.jsonl",
        output="out",
        max_tokens=77,
        concurrency=5,
        thinking=False,
        temperature=0.5,
        retries=9,
        params={"top_p": 0.9, "chat_template_kwargs": {"a": [1, "é"]}},
        policy={"looped": "retry:2", "empty": "keep", "length": "set-aside"},
        hedge=True,
        delete_uploaded=True,
        s3=S3Spec("bucket", "a/b/", "http://127.0.0.1:9"),
    )
    spec = TargetSpec("t", "/w", credentials_file="/root/keys", fleet=FleetSpec(gpus=2), run=run)
    command = argv("python", spec, Path("/run/a.sock"))
    assert command[:3] == ["python", "-m", "remote.generate"]
    settings = settings_of(parser().parse_args(command[3:]))
    assert settings.servers == ("http://127.0.0.1:30000", "http://127.0.0.1:30001")
    assert (settings.prompts, settings.output) == (Path("p.jsonl"), Path("out"))
    assert (settings.max_tokens, settings.concurrency, settings.retries) == (77, 5, 9)
    assert (settings.thinking, settings.temperature) == (False, 0.5)
    assert settings.request == run.params
    assert settings.retry_outcomes == {"looped": 2}
    assert settings.keep == {"ok", "empty"}
    assert (settings.hedge, settings.delete_uploaded) == (True, True)
    assert settings.s3 == run.s3
    assert (settings.agent, settings.credentials) == (Path("/run/a.sock"), Path("/root/keys"))


def test_defaults_are_those_of_the_file() -> None:
    """A file that says nothing runs as the bare command does."""
    base = ["--prompts", "p", "--output", "o"]
    bare = settings_of(parser().parse_args(base))
    spec = TargetSpec("t", "/w", run=RunSpec(prompts="p", output="o"), fleet=FleetSpec(gpus=0))
    assert settings_of(parser().parse_args(argv("x", spec, None)[3:])) == bare


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--concurrency", "many"], "--concurrency many: a number or auto"),
        (["--concurrency", "0"], "--concurrency: at least 1"),
        (["--max-tokens", "0"], "--max-tokens: at least 1"),
        (["--retries", "-1"], "--retries: 0 or more"),
        (["--temperature", "nan"], "--temperature nan: a number from 0 on"),
        (["--request", "[]"], "--request: a JSON object of request fields"),
        (["--request", '{"top_p": 7}'], "--request: top_p = 7: a number above 0 to 1"),
        (["--request", '{"temperature": -1}'], "temperature = -1: a number, 0 or more"),
        (["--request", '{"max_tokens": 2.5}'], "max_tokens = 2.5: a whole number, 1 or more"),
        (["--request", '{"top_k": true}'], "--request: top_k = True: a whole number, -1 or more"),
        (["--policy", "looped"], "--policy looped: keep, set-aside or retry:N"),
        (["--policy", "looped=retry:0"], "retry:N (N from 1 to 99)"),
        (["--policy", "failed=keep"], "--policy failed=keep: the outcomes are ok, length"),
        (["--s3", "/x"], "--s3 /x: BUCKET/PREFIX"),
        (["--delete-uploaded"], "--delete-uploaded: nothing is uploaded without --s3"),
        (["--server", "ftp://x"], "--server ftp://x: not a URL"),
        (["--credentials", "/nowhere"], "--credentials /nowhere: No such file"),
        ([], "no --server given"),
    ],
)
def test_mistakes_are_one_line(options: list[str], says: str, tmp_path: Path) -> None:
    """Exit status 2 and what to do, before anything is made or read."""
    command = [sys.executable, "-m", "remote.generate", "--prompts", "nowhere.jsonl"]
    server = ["--server", "http://127.0.0.1:9"] if options else []
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "out"), *server, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def limited(files: tuple[int, int], *words: str) -> subprocess.CompletedProcess[str]:
    """The run under a limit of open files (soft, hard)."""
    return subprocess.run(
        [sys.executable, "-m", "remote.generate", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files),
    )


def test_too_few_open_files_are_told_before_the_start(
    tmp_path: Path, serve: Callable[..., Served]
) -> None:
    """A hard limit is one line and nothing is made; a soft one is raised."""
    prompts = write_prompts(tmp_path / "p.jsonl", 700)
    server = serve(delay=0.3)
    words = ["--prompts", str(prompts), "--output", str(tmp_path / "out")]
    words += ["--server", server.url, "--concurrency", "300"]
    done = limited((256, 256), *words)
    assert done.returncode == 2
    assert "300 requests at once need 428 open files, the limit is 256; raise it" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
    done = limited((256, 1024), *words)
    assert done.returncode == 0, done.stdout
    assert server.told()["peak"] > 256


def test_more_requests_than_open_files_are_not_sent(
    tmp_path: Path, serve: Callable[..., Served]
) -> None:
    """Concurrency raised while it runs stops at what the machine allows, and the run says so."""
    prompts = write_prompts(tmp_path / "p.jsonl", 900)
    server = serve(delay=0.5)
    run = Generation(tmp_path / "out", prompts)
    run.folder.mkdir()
    files = (192, 192)
    run.start(server, options=("--concurrency", "20"))
    assert run.process is not None
    resource.prlimit(run.process.pid, resource.RLIMIT_NOFILE, files)
    wait_for(run.done)
    control.write(run.folder, control.Control(concurrency=500))
    wait_for(lambda: "no more than 64 requests at once" in run.progress().get("problem", ""))
    assert run.wait() == 0
    assert server.told()["peak"] <= 64 + 1
    assert run.progress()["failed"] == 0


def test_little_memory_is_told() -> None:
    """As far as it can be known before."""
    assert short_of_memory(10_000_000, 512) == ""
    assert "MB of memory are free, 1,000,000,000,000 prompts" in short_of_memory(10**12, 8)


def test_on_a_terminal_there_is_a_bar(tmp_path: Path, serve: Callable[..., Served]) -> None:
    """One line that is renewed, and the summary below it."""
    prompts = write_prompts(tmp_path / "p.jsonl", 60)
    words = ["--prompts", str(prompts), "--output", str(tmp_path / "out")]
    words += ["--server", serve(delay=0.5).url, "--concurrency", "10"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "remote.generate", *words], cwd=ROOT, stdout=theirs
    ) as run:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the last writer has gone
            while part := os.read(ours, 4096):
                shown += part
        os.close(ours)
        assert run.wait() == 0
    bars = [line for line in shown.decode().split("\r") if "█" in line]
    assert len(bars) >= 2
    assert all("/60 " in bar and "tok/s ETA" in bar for bar in bars)
    assert shown.decode().rindex("finished: 60 of 60 done") > shown.decode().rindex("█")
