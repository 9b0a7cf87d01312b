"""The fleet over real processes: up, ready, watched, adopted, stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from console.lab import venv
from console.lab.sim.settings import SimSettings
from remote.agent import logs
from remote.fleet import identity, knowledge, tail
from remote.fleet.fleet import Fleet, FleetError
from remote.fleet.records import Folder
from remote.paths import Workspace
from tests.remote.fleet.conftest import FAST, Site
from tests.remote.fleet.servers import chat, pid_of
from tests.waiting import until


async def test_up_until_ready_then_down(site: Site) -> None:
    spec = site.spec(mamba_scheduler_strategy="no_buffer", fake_load=0.8)
    fleet = site.fleet(spec)
    await fleet.adopt()
    await fleet.up(None, epoch=site.epoch(spec), who="ann")
    seen: set[str] = set()

    def ready() -> bool:
        seen.update(f"{s.state}:{s.phase}" for s in fleet.states())
        return all(s.state == "ready" for s in fleet.states())

    await until(ready)
    assert "starting:loading weights" in seen
    first = fleet.infos()[0]
    assert (first.max_running, first.max_mamba, first.kv_tokens) == (72, 186, 200000)
    assert first.sglang == "0.5.12"
    assert first.epoch == 1
    assert first.flags["mamba-scheduler-strategy"] == "no_buffer"
    assert (0, "run") in site.run.told
    assert [(gpu, slots, epoch) for gpu, slots, epoch, _ in sorted(site.run.servers)] == [
        (0, 72, 1),
        (1, 72, 1),
    ]
    await until(lambda: all(s.lights.http for s in fleet.states()))
    assert all(s.lights.process for s in fleet.states())
    assert [r.alive for r in fleet.readings()] == [True, True]

    pids = [pid_of(fleet, gpu) for gpu in (0, 1)]
    trees = [p.pid for s in map(fleet.server, (0, 1)) for p in s.tree]
    assert len(trees) == 6
    await fleet.down(None, who="ann")
    assert [s.state for s in fleet.states()] == ["stopped", "stopped"]
    assert all(identity.birth(pid) is None for pid in [*pids, *trees])
    # 0.5.12 ends a clean drain with SIGKILL of itself: that is no crash.
    launch = Folder(Workspace(site.root).server(0)).launch()
    assert launch is not None
    ended = Folder(Workspace(site.root).server(0)).exit(launch.launch)
    assert ended is not None
    assert ended.status == -9
    assert not site.events.texts("server.failed")


async def test_environment_of_a_server(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/agent/only")
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "shared")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    script = site.root / "env.sh"
    script.write_text("export CPATH=/usr/local/cuda/include\nFROM_SCRIPT=1\necho noise\n")
    secrets = site.root / "secrets.env"
    secrets.write_text("export HF_TOKEN='abc'\nAWS_SECRET_ACCESS_KEY=no\n")
    secrets.chmod(0o600)
    spec = site.spec()
    spec = msgspec.structs.replace(spec, env_script=str(script), credentials_file=str(secrets))
    fleet = site.fleet(spec)
    await fleet.up([1], epoch=site.epoch(spec), who="ann")
    path = site.root / f"env-{site.base + 1}.json"
    await until(path.exists)
    await until(lambda: path.read_text().endswith("}"))
    env = json.loads(path.read_text())
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["CPATH"] == "/usr/local/cuda/include"
    assert env["FROM_SCRIPT"] == "1"
    assert env["HF_TOKEN"] == "abc"
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "PROMETHEUS_MULTIPROC_DIR"} & set(env)
    assert not any(name.startswith("AWS_") for name in env)
    assert "HF_TOKEN" not in (Workspace(site.root).server(1) / "launch.json").read_text()


async def test_a_new_fleet_adopts_the_servers(site: Site) -> None:
    spec = site.spec()
    old = site.fleet(spec)
    await old.up(None, epoch=site.epoch(spec, 7), who="ann")
    await site.all_are(old, "ready")
    pids = [pid_of(old, 0), pid_of(old, 1)]
    await site.close(old)
    os.kill(pids[1], signal.SIGKILL)
    folder = Folder(Workspace(site.root).server(1))
    launch = folder.launch()
    assert launch is not None
    await until(lambda: folder.exit(launch.launch))

    site.run.servers.clear()
    new = site.fleet(spec)
    lines = await new.adopt()
    assert f"GPU 0: runs, pid {pids[0]}, ready, epoch 7" in lines
    assert any(line.startswith("GPU 1: ended") and "SIGKILL" in line for line in lines)
    assert new.states()[0].state == "ready"
    assert pid_of(new, 0) == pids[0]
    assert site.run.servers[0][0] == 0
    # It was wanted up, so it is started again, and the one that lives is left alone.
    await site.all_are(new, "ready")
    assert pid_of(new, 0) == pids[0]
    assert pid_of(new, 1) != pids[1]
    assert new.infos()[1].epoch == 7


async def test_a_killed_server_fails_within_seconds_and_comes_back(site: Site) -> None:
    spec = site.spec()
    fleet = await site.ready(spec)
    victim = pid_of(fleet, 0)
    site.run.open[0] = 5
    os.kill(victim, signal.SIGKILL)
    await until(lambda: site.events.texts("server.failed"))
    assert "SIGKILL" in site.events.texts("server.failed")[0]
    assert (0, "abort") in site.run.told
    await site.all_are(fleet, "ready")
    assert pid_of(fleet, 0) != victim


async def test_a_lost_child_is_a_failed_server(site: Site) -> None:
    """The main process goes on and answers, as it does when native code aborts the scheduler."""
    spec = site.spec(fake_deaf=True)
    fleet = await site.ready(spec, [0])
    main = pid_of(fleet, 0)
    await until(lambda: len(fleet.server(0).tree) > 1)  # as of the next look at the processes
    scheduler = next(p for p in fleet.server(0).tree if p.pid != main)
    os.kill(scheduler.pid, signal.SIGKILL)
    await until(lambda: site.events.texts("server.failed"))
    assert f"process {scheduler.pid} is gone" in site.events.texts("server.failed")[0]
    await until(lambda: identity.birth(main) is None)


async def test_cause_from_the_log_and_no_restart_that_cannot_help(site: Site) -> None:
    spec = site.spec(fake_die="weights")
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: site.events.texts("server.set_aside"))
    state = fleet.states()[0]
    assert state.state == "failed"
    assert "out of GPU memory while loading weights" in state.cause
    assert state.lights.process is False


async def test_refused_command_line(site: Site) -> None:
    spec = site.spec(fake_die="argparse")
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "failed")
    assert "unrecognized arguments: --nope" in fleet.states()[0].cause


async def test_fired_up_without_the_port_is_not_ready(site: Site) -> None:
    """The loser of a fight for a port prints the last start-up line all the same."""
    spec = site.spec(fake_false_up=30.0)
    with socket.socket() as other:
        fleet = site.fleet(spec)
        await fleet.up([0], epoch=site.epoch(spec), who="ann")
        other.bind(("127.0.0.1", site.base))
        other.listen()
        await until(lambda: fleet.states()[0].state == "failed")
        assert f"port {site.base} is held by pid {os.getpid()}" in fleet.states()[0].cause
        assert (0, "run") not in site.run.told


async def test_a_taken_port_is_said_before_anything_is_started(site: Site) -> None:
    spec = site.spec()
    with socket.socket() as other:
        other.bind(("127.0.0.1", site.base))
        other.listen()
        fleet = site.fleet(spec)
        with pytest.raises(FleetError, match=f"port {site.base} .*pid {os.getpid()}"):
            await fleet.up(None, epoch=site.epoch(spec), who="ann")
        # The other one went ahead.
        await until(lambda: fleet.states()[1].state == "ready")


async def test_the_key_of_our_own_servers_is_read_by_nobody_else(site: Site) -> None:
    credentials = site.root / "credentials"
    credentials.write_text("SGLANG_API_KEY='s3cret'\n")
    credentials.chmod(0o600)
    spec = msgspec.structs.replace(site.spec(), credentials_file=str(credentials))
    fleet = await site.ready(spec, [0])
    log = Path(fleet.infos()[0].log)
    # SGLang prints its arguments.
    assert "api_key='s3cret'" in await asyncio.to_thread(log.read_text)
    assert (await asyncio.to_thread(log.stat)).st_mode & 0o077 == 0
    shown = logs.tail("gpu0", log, 100).lines
    assert any("api_key=***" in line for line in shown)
    assert not any("s3cret" in line for line in shown)


async def test_a_parser_that_gave_no_answer_is_asked_again(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the flags are those of its source, and unknown ones pass."""
    monkeypatch.setattr(knowledge, "_TRUE_FOR", 0.0)
    made = venv.make(tmp_path / "venv", "0.5.12", SimSettings(state_dir=str(tmp_path / "state")))
    python, broken = tmp_path / "python", tmp_path / "broken"
    python.write_text(
        f'#!/bin/sh\ncase "$2" in *"print(d.version)"*) ;; *) [ -e {broken} ] && exit 1 ;; esac\n'
        f'exec {made} "$@"\n'
    )
    python.chmod(0o755)
    broken.touch()
    spec = msgspec.structs.replace(site.spec(), python=str(python))
    fleet = Fleet(Workspace(site.root), spec, run=site.run, emit=site.events, timing=FAST)
    try:
        await fleet.learn()
        known = fleet.knowledge.catalogue
        assert known is None or known.source == "source text"
        broken.unlink()
        await fleet.learn()
        assert fleet.knowledge.catalogue is known  # that soon it is not worth the wait
        monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 400)
        await fleet.learn()
        assert fleet.knowledge.catalogue is not None
        assert fleet.knowledge.catalogue.source == "parser"
    finally:
        await fleet.close()


async def test_orphans_of_a_killed_server_are_ended(site: Site) -> None:
    spec = site.spec(fake_orphan=True)
    fleet = await site.ready(spec, [0])
    tree = list(fleet.server(0).tree)
    os.kill(tree[0].pid, signal.SIGKILL)
    await until(lambda: all(identity.birth(p.pid) is None for p in tree))


async def test_leftovers_of_an_earlier_start_are_ended_before_the_next(site: Site) -> None:
    """Its agent was killed in the middle of a stop: the main process ended, a child did not."""
    site.gpus = 1
    spec = site.spec(fake_orphan=True, fake_load=1.2)
    fleet = await site.ready(spec, [0])
    assert fleet.states()[0].phase_usual_s is None
    server = fleet.server(0)
    tree = list(server.tree)
    await site.close(fleet)
    fleet.operations.want(server, "down")
    os.kill(tree[0].pid, signal.SIGKILL)
    await until(lambda: identity.birth(tree[0].pid) is None)
    assert any(identity.birth(p.pid) == p.birth for p in tree)
    other = site.fleet(spec)
    assert await other.adopt() == ["GPU 0: stopped, as it was meant to be"]
    await other.up([0], epoch=site.epoch(spec), who="ann")
    assert all(identity.birth(p.pid) != p.birth for p in tree)
    usual: set[float | None] = set()

    def ready() -> bool:
        usual.add(other.states()[0].phase_usual_s)
        return other.states()[0].state == "ready"

    await until(ready)
    assert any(usual), "what a phase took at the last start is shown while it lasts"


async def test_stall_is_told_by_tokens_not_by_health(site: Site) -> None:
    spec = site.spec(enable_metrics=True)
    fleet = await site.ready(spec, [0], timing=replace(FAST, stalled_restart=60.0))
    asked = asyncio.create_task(chat(fleet.url(0), 100_000))
    await until(lambda: fleet.states()[0].lights.tokens)
    await until(lambda: fleet.states()[0].gen_tok_s and fleet.states()[0].running)
    (site.root / "hang").touch()
    await until(lambda: fleet.states()[0].state == "stalled")
    assert fleet.states()[0].lights.tokens is False
    assert site.run.told[-1] == (0, "pause")
    (site.root / "hang").unlink()
    await until(lambda: fleet.states()[0].state == "ready")
    assert site.run.told[-1] == (0, "run")
    asked.cancel()


async def test_a_stalled_server_is_started_again(site: Site) -> None:
    spec = site.spec()
    fleet = await site.ready(spec, [0])
    main = pid_of(fleet, 0)
    (site.root / "hang").touch()
    site.run.open[0] = 3
    await until(lambda: fleet.states()[0].state == "stalled", 10)
    await until(lambda: site.events.texts("server.failed"), 10)
    (site.root / "hang").unlink()
    site.run.open[0] = 0
    await until(lambda: fleet.states()[0].state == "ready")
    assert pid_of(fleet, 0) != main


async def test_records_that_the_disk_does_not_take(site: Site) -> None:
    spec = site.spec(fake_load=0.8)
    fleet = site.fleet(spec)
    folder = Workspace(site.root).server(0)
    folder.parent.mkdir(parents=True)
    folder.touch()
    with pytest.raises(FleetError, match="servers/0 cannot be written: "):
        await fleet.up([0], epoch=site.epoch(spec), who="ann")
    folder.unlink()
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    (folder / "ready.json").mkdir()
    # It serves all the same, and that is said once.
    await until(lambda: fleet.states()[0].state == "ready")
    assert (0, "run") in site.run.told
    assert len(site.events.texts("server.record")) == 1
    (folder / "ready.json").rmdir()


def test_log_is_rotated_between_two_servers_only(tmp_path: Path) -> None:
    log = tmp_path / "sglang_gpu0.log"
    log.write_bytes(b"x" * 10)
    assert tail.rotate(log) is None
    with log.open("r+b") as grown:
        grown.truncate(tail.ROTATE_OVER + 1)
    aside = tail.rotate(log)
    assert aside == tmp_path / "sglang_gpu0.1.log"
    assert aside.stat().st_size == tail.ROTATE_OVER + 1
    assert not log.exists()
