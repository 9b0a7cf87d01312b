"""The agent as a systemd unit in a real container whose first process is systemd."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from console.config import Hop, Target
from console.lab import host_files, prompts, venv
from console.lab.options import STORY
from console.lab.sim import model
from console.lab.sim.settings import SimSettings
from console.link.deploy import deploy
from console.session import Session, session
from console.verbs.fleet import wait_up
from remote import unit
from remote.protocol import FleetSpec, RunSpec, RunStart, TargetSpec, Up
from tests.lxc.conftest import must_have
from tests.lxc.pair import Pair

SYSTEMD = Path("/usr/lib/systemd/systemd")
COUNT = 150


@dataclass(frozen=True)
class SystemdPair(Pair):
    """A container that boots systemd of the machine's own ``/usr``."""

    def _make_rootfs(self) -> None:
        super()._make_rootfs()
        etc = self.rootfs / "etc"
        (etc / "machine-id").write_text(uuid.uuid4().hex + "\n")
        (etc / "systemd/system").mkdir(parents=True)
        (etc / "systemd/system/default.target").symlink_to("/usr/lib/systemd/system/basic.target")
        for name in ("var/log", "var/lib"):
            (self.rootfs / name).mkdir(parents=True, exist_ok=True)
        config = self.rootfs.parent / "config"
        text = config.read_text()
        for old, new in (
            ("/bin/busybox init", str(SYSTEMD)),
            ("proc:mixed sys:ro", "proc:mixed sys:mixed cgroup:mixed"),
            ("SIGUSR1", "SIGRTMIN+3"),
        ):
            text = text.replace(old, new)
        config.write_text(text)

    def run(self, *argv: str) -> str:
        """Standard output of a command inside."""
        process = self.attach(*argv)
        out, _ = process.communicate(timeout=30)
        return out.decode()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[SystemdPair]:
    must_have()
    if not SYSTEMD.exists():
        pytest.skip("no systemd on this machine")
    made = SystemdPair(tmp_path / "pair")
    made.folder.mkdir()
    try:
        made.up()
        deadline = time.monotonic() + 30
        while made.run("systemctl", "is-system-running").strip() not in ("running", "degraded"):
            assert time.monotonic() < deadline, made.run("systemctl", "--failed")
            time.sleep(0.1)
        yield made
    finally:
        made.down()


def target_of(pair: Pair) -> Target:
    inside = pair.inside
    (inside / "workspace").mkdir()
    (inside / "gpus").mkdir()
    model.write(inside / "model")
    settings = SimSettings(state_dir=str(inside / "gpus"), speed=60.0)
    python = venv.make(inside / "sglang", "0.5.12", settings)
    prompts.write(inside / "workspace/prompts.jsonl", prompts.expand(prompts.shipped(), COUNT))
    spec = TargetSpec(
        name="ct200",
        workspace=str(inside / "workspace"),
        python=str(python),
        fleet=FleetSpec(model=str(inside / "model"), gpus=1, flags=STORY),
        run=RunSpec(output="out"),
    )
    return Target(
        name="ct200",
        ssh=host_files.ALIAS,
        ssh_config=pair.layout.config,
        hop=Hop("pct", str(pair.vmid)),
        spec=spec,
        agent_python=sys.executable,
    )


async def until(link: Session, what: Callable[[], object], seconds: float = 60) -> None:
    try:
        await link.until(lambda: True if what() else None, seconds)
    except TimeoutError:
        pytest.fail("\n".join([link.link.text, *(e.text for e in link.state.events)]))


@pytest.mark.root
@pytest.mark.timeout(300)
async def test_a_unit_that_leaves_its_children_alone(pair: SystemdPair) -> None:
    target = target_of(pair)
    name = unit.name(Path(target.spec.workspace))
    await deploy(target)

    def shown(key: str) -> str:
        return pair.run("systemctl", "show", "--value", f"--property={key}", name).strip()

    async def show(key: str) -> str:
        return await asyncio.to_thread(shown, key)

    assert await show("ActiveState") == "active"
    assert await show("KillMode") == "process"
    lock = json.loads((pair.inside / "workspace/.stoker/agent.lock").read_bytes())
    assert int(await show("MainPID")) == lock["pid"]

    async with session(target) as link:
        await link.follow(events_after=0)
        await link.call(Up(spec=target.spec))
        assert await wait_up(link, None) == 0
        await link.call(RunStart(spec=target.spec), timeout=90)
        await until(link, lambda: link.state.progress and link.state.progress.completed > 5)
        server = link.state.infos[0].pid

        # Killed, it is started again by systemd; no console is needed for that.
        first = await show("MainPID")
        await asyncio.to_thread(pair.run, "kill", "-KILL", first)
        await until(link, lambda: len(_starts(link)) == 2)
        assert await show("MainPID") not in ("0", first)
        assert await show("NRestarts") == "1"

        # Stopped by systemd, servers and run live on, and the next one finds them.
        await asyncio.to_thread(pair.run, "systemctl", "stop", name)
        await until(link, lambda: len(_starts(link)) == 3)
        await until(link, lambda: link.state.progress and link.state.progress.completed > 20)
        assert link.state.infos[0].pid == server
        await until(
            link, lambda: link.state.progress and link.state.progress.completed == COUNT, 120
        )


def _starts(link: Session) -> list[str]:
    return [e.text for e in link.state.events if e.kind == "agent.started"]
