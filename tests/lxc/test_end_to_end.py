"""The whole way once through the real thing: OpenSSH, LXC, agent, servers, run."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from console import config
from console.config import Target
from console.lab import gpus, prompts, s3, venv
from console.lab.options import STORY
from console.lab.sim import model
from console.lab.sim.settings import SimSettings
from console.link.deploy import deploy
from console.link.push import push_file
from console.session import Session, session
from console.verbs.fleet import wait_up
from remote import verify
from remote.protocol import Plan, Restart, RunStart, Up
from tests.lxc.conftest import must_have
from tests.lxc.pair import Pair

COUNT = 700
CARDS = 2
SPEED = 40.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A container of its own: it is full of processes at the end."""
    must_have()
    pair = Pair(tmp_path / "pair")
    pair.folder.mkdir()
    try:
        pair.up()
        yield pair
    finally:
        pair.down()


@pytest.fixture
def target(pair: Pair) -> Iterator[Target]:
    """What an operator would write for it, with two simulated GPUs and an S3 in the container."""
    inside = pair.inside
    (inside / "workspace").mkdir()
    gpus.install(inside / "bin", inside / "gpus", CARDS)
    program = pair.rootfs / "sbin/nvidia-smi"
    program.write_text(f'#!/bin/sh\nexec {inside}/bin/nvidia-smi "$@"\n')
    program.chmod(0o755)
    model.write(inside / "model")
    settings = SimSettings(state_dir=str(inside / "gpus"), speed=SPEED)
    python = venv.make(inside / "sglang", "0.5.12", settings)
    secrets = inside / "secrets.env"
    secrets.write_text(s3.credentials())
    secrets.chmod(0o600)
    storage = pair.attach("env", f"PYTHONPATH={config_source()}", sys.executable, *S3)
    assert storage.stdout is not None
    assert storage.stdin is not None
    port = int(storage.stdout.readline())
    toml = pair.folder / "stoker.toml"
    flags = [f"{name} = {json.dumps(value)}" for name, value in STORY.items()]
    toml.write_text(
        f"""
[targets.ct]
ssh = "lab"
ssh_config = "ssh/config"
hop = {{ pct = {pair.vmid} }}
workspace = "{inside}/workspace"
python = "{python}"
agent_python = "{sys.executable}"
credentials_file = "{secrets}"
[fleet]
gpus = {CARDS}
model = "{inside}/model"
[fleet.flags]
{chr(10).join(flags)}
[run]
prompts = "prompts.jsonl"
[run.s3]
bucket = "{s3.BUCKET}"
prefix = "ct/"
endpoint_url = "http://127.0.0.1:{port}"
"""
    )
    yield config.load(toml).target("ct")
    storage.stdin.close()
    storage.stdout.close()
    storage.kill()
    storage.wait()


S3 = ("-m", "console.lab.s3")


def config_source() -> str:
    """Where the project's packages are, in the container too."""
    return str(Path(config.__file__).resolve().parents[1])


@pytest.mark.root
@pytest.mark.timeout(400)
async def test_deploy_run_swap_cut_finish_verify(pair: Pair, target: Target) -> None:
    """Deployed twice, two servers, a run, a hot swap with the connection cut in it, the end."""
    first = await deploy(target)
    assert "started the agent" in first
    assert "current" in await deploy(target)
    local = pair.folder / "prompts.jsonl"
    prompts.write(local, prompts.expand(prompts.shipped(), COUNT))
    await push_file(target, local, target.spec.run.prompts)

    async with session(target) as here:
        await here.follow(events_after=0)
        await here.call(Up(spec=target.spec), timeout=60)
        assert await wait_up(here, None) == 0, here.state.servers
        assert {info.max_running for info in here.state.infos.values()} == {37}
        assert here.state.host is not None
        assert here.state.host.simulated
        await here.call(RunStart(spec=target.spec), timeout=120)
        await completed(here, 60)
        before = done(here)

        request = Restart(
            spec=target.spec,
            set_flags={"mamba-scheduler-strategy": "no_buffer", "mem-fraction-static": 0.9},
            strategy="all",
        )
        plan = await here.call(request, timeout=60)
        assert isinstance(plan, Plan)
        assert plan.swap is not None
        assert pair.cut() > 0
        await here.until(lambda: here.link.state == "reconnecting" or None, 30)
        await here.until(lambda: here.link.state == "connected" or None, 60)
        number = plan.swap.id

        def swapped() -> str | None:
            swap = here.state.swap
            if swap is None or swap.id != number or swap.state == "doing":
                return None
            return swap.state

        assert await here.until(swapped, 200) == "done", here.state.swap
        await here.until(
            lambda: {info.max_running for info in here.state.infos.values()} == {72} or None, 30
        )
        assert done(here) >= before
        await completed(here, COUNT, 200)

        def ended() -> bool | None:
            run, progress = here.state.run, here.state.progress
            if run is None or run.alive or progress is None:
                return None
            return progress.status == "done" or None

        await here.until(ended, 60)

    run = Path(target.spec.workspace) / target.spec.run.output
    report = verify.audit(run, prompts=local)
    assert report.violations == []
    assert (report.completed + report.set_aside, report.not_done) == (COUNT, 0)
    kept = run / "set_aside.jsonl"
    aside = [json.loads(line) for line in kept.open()] if kept.exists() else []
    assert len(aside) <= COUNT // 50, "a few tool calls are cut at max_tokens"
    assert {(r["outcome"], r["finish_reason"]) for r in aside} <= {("bad_tool_call", "length")}
    in_bucket = [sys.executable, "-m", "console.cli", "verify", str(run), "--s3", "--s3-endpoint"]
    audit = pair.attach(
        *("env", f"PYTHONPATH={config_source()}", *s3.credentials().split()),
        *(*in_bucket, target.spec.run.s3.endpoint_url),
    )
    out, _ = await asyncio.to_thread(audit.communicate)
    assert audit.returncode == 0, out.decode()


def done(here: Session) -> int:
    """Finished prompts, as the console knows."""
    progress = here.state.progress
    return progress.completed + progress.set_aside if progress is not None else 0


async def completed(here: Session, count: int, timeout: float = 120) -> None:
    """Until so many prompts are finished."""
    await here.until(lambda: done(here) >= count or None, timeout)
