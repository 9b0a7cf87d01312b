"""One run under hundreds of SIGKILLs, audited after each, its uploads too.

    python -m tests.bench.kills [--kills 500] [--seed N]

Each life of the run gets another concurrency and is killed at a random moment, sometimes while
it still reads its folder. Lives are forked from a process that has the run's modules loaded
already, so that five hundred take minutes. The servers reset a connection now and then. In the
end every prompt has exactly one record, and the bucket holds the very bytes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

import remote.generate.run  # noqa: F401  loaded once, for every life
from remote import verify
from remote.generate import command
from tests.bench.tools import ROOT, report
from tests.remote.generate.conftest import KEYS, Generation, Served, write_prompts

LONGEST_S = 1.5
EARLY, EARLY_S = 0.15, 0.3
"""Share of the lives that are killed so soon that they may not have sent anything."""
PROMPTS_A_KILL = 80


class Lives(Generation):
    """A run whose processes are forks of this one."""

    pid = 0

    def fork(self, *options: str) -> None:
        """Start or resume."""
        words = ["--prompts", str(self.prompts), "--output", str(self.folder), *options]
        self.log.write_bytes(b"")
        self.pid = os.fork()
        if self.pid:
            return
        code = 70
        try:
            os.setsid()
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for number in (1, 2):
                os.dup2(log, number)
            code = command.main(words)
        finally:
            sys.stdout.flush()
            os._exit(code)

    def await_start(self) -> None:
        """Until it sends its first requests."""
        deadline = time.monotonic() + 60
        while not (self.log.exists() and "Starting generation" in self.text()):
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.005)

    def end(self) -> int:
        """Its exit status; negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def bucket() -> Iterator[str]:
    """A stand-in S3 with a bucket ``kills``, in a process of its own."""
    code = (
        "from moto.server import ThreadedMotoServer as S\nimport time\n"
        "s = S(ip_address='127.0.0.1', port=0, verbose=False)\ns.start()\n"
        "print(*s.get_host_and_port(), flush=True)\ntime.sleep(1e9)"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        host, port = process.stdout.readline().split()
        endpoint = f"http://{host}:{port}"
        try:
            config = Config(s3={"addressing_style": "path"})
            client = boto3.client("s3", endpoint_url=endpoint, config=config)
            client.create_bucket(Bucket="kills")
            yield endpoint
        finally:
            process.kill()


def audit(run: Lives, endpoint: str) -> None:
    """The laws hold, in the bucket too."""
    found = verify.audit(run.folder, prompts=run.prompts, s3=verify.S3Source(endpoint))
    assert not found.violations, (found.violations, run.text()[-2000:])


def bench(kills: int = 500, seed: int = 0) -> dict[str, Any]:
    """Kill, audit, resume; ``seed`` 0 is another one each time."""
    seed = seed or int.from_bytes(os.urandom(3), "big")
    print(f"seed {seed}", file=sys.stderr, flush=True)
    dice = random.Random(seed)
    os.environ.update(KEYS)
    os.chdir(ROOT)
    began = time.monotonic()
    prompts = PROMPTS_A_KILL * kills
    servers = [Served(delay=0.2, size=300, mode="reset", share=0.01) for _ in range(2)]
    early = 0
    try:
        with bucket() as endpoint, tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            run = Lives(folder / "out", write_prompts(folder / "prompts.jsonl", prompts))
            base = ["--s3", "kills/run/", "--s3-endpoint", endpoint]
            for server in servers:
                base += ["--server", server.url]
            for number in range(1, kills + 1):
                run.fork(*base, "--concurrency", str(dice.choice([1, 3, 8, 20])))
                if dice.random() < EARLY:
                    time.sleep(dice.random() * EARLY_S)
                else:
                    run.await_start()
                    time.sleep(dice.random() ** 2 * LONGEST_S)
                os.kill(run.pid, signal.SIGKILL)
                code = run.end()
                assert code == -signal.SIGKILL, f"ended by itself: {code}\n{run.text()[-2000:]}"
                early += "Starting generation" not in run.text()
                if run.folder.exists() and any(run.folder.glob("completions_*")):
                    audit(run, endpoint)
                if number % 25 == 0:
                    took = time.monotonic() - began
                    line = f"{number} kills, {run.done()} of {prompts} done, {took:.0f} s"
                    print(line, file=sys.stderr, flush=True)
            killed = run.done()
            for server in servers:
                server.set(delay=0.0)
            run.fork(*base, "--concurrency", "64")
            code = run.end()
            audit(run, endpoint)
            assert code == 0, run.text()[-2000:]
            indices = sorted(record["index"] for record in run.records())
            assert indices == list(range(prompts))
            sent = sum(len(_seen(server)) for server in servers)
    finally:
        for server in servers:
            server.kill()
    return {
        "kills": kills,
        "before_the_first_request": early,
        "prompts": prompts,
        "done_when_last_killed": killed,
        "requests": sent,
        "each_exactly_once": True,
        "seconds": round(time.monotonic() - began),
        "seed": seed,
    }


def _seen(server: Served) -> list[int]:
    seen: list[int] = server.told()["seen"]
    return seen


if __name__ == "__main__":
    report(bench, kills=500, seed=0)
