"""Servers, prompts and runs as real processes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from remote import verify
from tests.remote.generate.desk import Desk
from tests.remote.generate.gate import Gate

ROOT = Path(__file__).parents[3]

KEYS = {
    "AWS_ACCESS_KEY_ID": "stand-in",
    "AWS_SECRET_ACCESS_KEY": "stand-in",
    "AWS_DEFAULT_REGION": "us-east-1",
}
"""Credentials of a stand-in S3."""


class Served:
    """One engine process; may be killed and started again on its port."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.port = 0
        self.process: subprocess.Popen[str]
        self.start()

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start; returns once it listens."""
        command = [sys.executable, "-m", "tests.remote.generate.engine", "--port", str(self.port)]
        command += ["--settings", json.dumps(self.settings)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def set(self, **settings: Any) -> None:
        """Change its behaviour."""
        request = urllib.request.Request(
            f"{self.url}/_set",
            json.dumps(settings).encode(),
            {"content-type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=10).close()

    def told(self) -> dict[str, Any]:
        """What it got."""
        with urllib.request.urlopen(f"{self.url}/_seen", timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
            return document

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Generation:
    """``python -m remote.generate`` on one directory, started as often as a test likes."""

    def __init__(self, folder: Path, prompts: Path) -> None:
        self.folder = folder
        self.prompts = prompts
        self.log = folder.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None
        self.module = ["remote.generate"]

    def start(self, *servers: Served | str, options: tuple[str, ...] = ()) -> None:
        """Start or resume."""
        command = [sys.executable, "-m", *self.module, "--prompts", str(self.prompts)]
        command += ["--output", str(self.folder)]
        for server in servers:
            command += ["--server", server if isinstance(server, str) else server.url]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *options],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, "AWS_EC2_METADATA_DISABLED": "true"},
                start_new_session=True,
            )

    def fault(self, **fault: Any) -> None:
        """Have its disk be faulty from the next start on (:mod:`.faulty`); or well again."""
        self.module = ["remote.generate"]
        if fault:
            self.module = ["tests.remote.generate.faulty", json.dumps(fault)]

    def wait(self, timeout: float = 60) -> int:
        """Its exit status."""
        assert self.process is not None
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still at work:\n{self.text()[-3000:]}") from None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def text(self) -> str:
        """All it printed."""
        return self.log.read_text(errors="replace")

    def progress(self) -> dict[str, Any]:
        """``progress.json``; empty where there is none yet."""
        try:
            document: dict[str, Any] = json.loads((self.folder / "progress.json").read_bytes())
        except FileNotFoundError:
            return {}
        return document

    def done(self) -> int:
        """Lines of ``.done_indices``."""
        try:
            return (self.folder / ".done_indices").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def records(self) -> list[dict[str, Any]]:
        """Every completion record, sealed and open."""
        found = []
        for path in sorted(self.folder.glob("completions_*.jsonl*")):
            found += [json.loads(line) for line in path.read_bytes().splitlines()]
        return found

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The objects of another file."""
        path = self.folder / name
        return [json.loads(x) for x in path.read_bytes().splitlines()] if path.exists() else []


def wait_for(condition: Callable[[], Any], timeout: float = 30, what: str = "") -> Any:
    """Poll until it is true."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout} s: {what or condition}")


def write_prompts(path: Path, count: int, **extra: Any) -> Path:
    """A prompts file whose texts carry their index."""
    with path.open("w") as out:
        for index in range(count):
            text = f"prompt {index} of many, é"
            row = {"id": f"p{index}", "messages": [{"role": "user", "content": text}], **extra}
            out.write(json.dumps(row) + "\n")
    return path


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start engines; all are killed in the end."""
    made: list[Served] = []

    def make(**settings: Any) -> Served:
        made.append(Served(**settings))
        return made[-1]

    yield make
    for server in made:
        if server.process.poll() is None:
            server.kill()


@pytest.fixture
def generation(tmp_path: Path) -> Iterator[Callable[..., Generation]]:
    """Make runs; what is still alive in the end is killed."""
    made: list[Generation] = []

    def make(count: int = 100, name: str = "out", **extra: Any) -> Generation:
        prompts = tmp_path / "prompts.jsonl"
        if not prompts.exists():
            write_prompts(prompts, count, **extra)
        made.append(Generation(tmp_path / name, prompts))
        return made[-1]

    yield make
    for run in made:
        if run.process is not None and run.process.poll() is None:
            run.process.kill()
            run.process.wait()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Callable[..., Desk]]:
    """Make desks."""
    made: list[Desk] = []

    def make(**changes: Any) -> Desk:
        prompts = write_prompts(tmp_path / "prompts.jsonl", 40)
        made.append(Desk(tmp_path, prompts, **changes))
        return made[-1]

    yield make
    for one in made:
        for task in one.tasks:
            task.cancel()
        await asyncio.gather(*one.tasks, return_exceptions=True)
        await one.dispatcher.floor.client.close()
        one.close()


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    """Endpoint of a fresh S3."""
    from moto.server import ThreadedMotoServer  # slow to import, as boto3 is

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_url: str, request: pytest.FixtureRequest) -> Any:
    """A new bucket of the test's own."""
    import boto3
    from botocore.config import Config

    name = "b" + hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    s3 = boto3.resource(
        "s3",
        endpoint_url=s3_url,
        aws_access_key_id="stand-in",
        aws_secret_access_key="stand-in",
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    return s3.create_bucket(Bucket=name)


def options(url: str, bucket: Any, folder: Path) -> tuple[str, ...]:
    """What a run is told to upload to the bucket."""
    keys = folder / "keys"
    keys.write_text("".join(f"{name}={value}\n" for name, value in KEYS.items()))
    return ("--s3", f"{bucket.name}/run/", "--s3-endpoint", url, "--credentials", str(keys))


@pytest.fixture
def s3_options(s3_url: str, bucket: Any, tmp_path: Path) -> tuple[str, ...]:
    """The same, without a gate."""
    return options(s3_url, bucket, tmp_path)


@pytest.fixture
def gate(s3_url: str) -> Iterator[Gate]:
    """In front of the S3."""
    gate = Gate(s3_url)
    yield gate
    gate.close()


@dataclass
class Uploads:
    """Runs that upload to the bucket, through a gate."""

    gate: Gate
    options: tuple[str, ...]
    """What a run is told for that."""
    run: Callable[..., Generation]
    serve: Callable[..., Served]
    s3_url: str

    def clean(self, run: Generation) -> None:
        """The audit of directory and bucket finds nothing, and everything is in the bucket."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in KEYS.items():  # the run was told them in a file
                patch.setenv(name, value)
            source = verify.S3Source(self.s3_url)
            report = verify.audit(run.folder, prompts=run.prompts, s3=source)
        assert not report.violations, report.violations
        assert report.in_bucket == report.uploaded > 0
        assert report.not_done == 0


@pytest.fixture
def uploads(
    gate: Gate,
    bucket: Any,
    tmp_path: Path,
    generation: Callable[..., Generation],
    serve: Callable[..., Served],
    s3_url: str,
) -> Uploads:
    """Of one test."""
    return Uploads(gate, options(gate.url, bucket, tmp_path), generation, serve, s3_url)
