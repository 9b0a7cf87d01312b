"""One run under hundreds of SIGKILLs, audited after each, its uploads too.

    python -m tests.bench.kills [--kills 500] [--prompts 20000]

Concurrency changes from life to life. In the end every prompt has exactly one record, and the
bucket holds the very bytes.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from pathlib import Path

import boto3
from botocore.config import Config
from moto.server import ThreadedMotoServer

from remote import verify
from tests.remote.generate.conftest import KEYS, Generation, Served, write_prompts


def main() -> None:
    """Kill, audit, resume."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--prompts", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    dice = random.Random(chosen.seed)
    os.environ.update(KEYS)
    s3 = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    s3.start()
    host, port = s3.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    config = Config(s3={"addressing_style": "path"})
    boto3.client("s3", endpoint_url=endpoint, config=config).create_bucket(Bucket="kills")
    servers = [Served(delay=0.05, size=2000, mode="reset", share=0.01) for _ in range(2)]
    options = ("--s3", "kills/run/", "--s3-endpoint", endpoint)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prompts = write_prompts(folder / "prompts.jsonl", chosen.prompts)
            run = Generation(folder / "out", prompts)
            kills = 0
            while kills < chosen.kills:
                slots = ("--concurrency", str(dice.choice([1, 3, 8, 20])))
                run.log.write_bytes(b"")
                run.start(*servers, options=(*options, *slots))
                while "Starting" not in run.text() and run.process and run.process.poll() is None:
                    time.sleep(0.01)
                time.sleep(dice.random() ** 2 * 3)
                run.kill()
                if run.wait() == 0:
                    break
                kills += 1
                audit(run, endpoint)
                if kills % 20 == 0:
                    print(f"{kills} kills, {run.done()} done", flush=True)
            run.start(*servers, options=options)
            code = run.wait(3600)
            audit(run, endpoint)
            indices = sorted(record["index"] for record in run.records())
            assert code == 0, run.text()[-2000:]
            assert indices == list(range(chosen.prompts))
            print(f"{kills} kills: {len(indices)} prompts, each exactly once; uploads the same")
    finally:
        for server in servers:
            server.kill()
        s3.stop()


def audit(run: Generation, endpoint: str) -> None:
    """The laws hold, in the bucket too."""
    report = verify.audit(run.folder, prompts=run.prompts, s3=verify.S3Source(endpoint))
    assert not report.violations, report.violations


if __name__ == "__main__":
    main()
