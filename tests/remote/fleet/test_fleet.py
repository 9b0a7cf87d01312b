"""The fleet over real processes: up, ready, watched, adopted, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec
import pytest

from console.lab import venv
from console.lab.sim.settings import SimSettings
from remote.agent import logs
from remote.fleet import identity, knowledge, memory, processes, tail
from remote.fleet.fleet import Fleet, FleetError
from remote.fleet.records import Folder
from remote.kernel_log import Xid
from remote.paths import Workspace
from tests.remote.fleet.conftest import FAST, Site, until


def pid_of(fleet: Fleet, gpu: int) -> int:
    pid = next(info.pid for info in fleet.infos() if info.gpu == gpu)
    assert pid is not None
    return pid


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
    fleet = site.fleet(spec)
    await fleet.up(None, epoch=site.epoch(spec), who="ann")
    await site.all_are(fleet, "ready")
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
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
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


def by_hand(site: Site, log: Path, *flags: str) -> subprocess.Popen[bytes]:
    """A server as an operator starts it in a terminal."""
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", "/models/other"]
    with log.open("wb") as out:
        return subprocess.Popen(
            [*command, "--port", str(site.base), *flags],
            cwd=site.root,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


async def test_a_foreign_server_is_shown_and_not_touched(site: Site) -> None:
    log = site.root / "hand.log"
    model = ("--model-path", "/models/line\nbreak\x1b[2J")
    hand = by_hand(site, log, "--mem-fraction-static", "0.85", *model)
    try:
        spec = site.spec()
        fleet = site.fleet(spec)
        await until(lambda: fleet.states()[0].state == "foreign", 10)
        info = fleet.infos()[0]
        assert info.pid == hand.pid
        assert info.flags["mem-fraction-static"] == 0.85
        assert info.log == str(log)
        await until(lambda: fleet.infos()[0].max_running == 37)
        # A run may use it: it is told of it, once.
        await until(lambda: site.run.servers)
        assert [(gpu, slots, epoch) for gpu, slots, epoch, _ in site.run.servers] == [(0, 37, None)]
        with pytest.raises(FleetError, match="not started by Stoker"):
            await fleet.up([0], epoch=site.epoch(spec), who="ann")
        with pytest.raises(FleetError, match="not started by Stoker"):
            await fleet.down([0], who="ann")
        # There is a line break in its model's path, but none in what is told of it.
        planned = await fleet.plan(
            current=None, set_flags={}, unset_flags=[], strategy="all", gpus=[0]
        )
        told = site.events.texts("server.foreign") + planned.warnings
        named = [text for text in told if "/models/line break [2J" in text]
        assert len(named) == 2, told
        assert all(text.isprintable() for text in told), told
        assert hand.poll() is None
    finally:
        main = processes.identify(hand.pid)
        assert main is not None
        # Reaped first: a zombie of ours keeps its pid.
        os.killpg(hand.pid, signal.SIGKILL)
        await asyncio.to_thread(hand.wait)


@contextlib.asynccontextmanager
async def found_by_hand(site: Site, *flags: str) -> AsyncIterator[Fleet]:
    """A fleet that has found a server which was started in a terminal."""
    hand = by_hand(site, site.root / "hand.log", *flags)
    fleet = site.fleet(site.spec())
    try:
        await until(lambda: fleet.states()[0].state == "foreign", 10)
        yield fleet
    finally:
        await site.close(fleet)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(hand.pid, signal.SIGKILL)
        await asyncio.to_thread(hand.wait)


async def test_a_foreign_server_is_asked_with_its_own_key(site: Site) -> None:
    async with found_by_hand(site, "--api-key", "theirs") as fleet:
        await until(lambda: fleet.states()[0].lights.http)
        assert "theirs" not in str(fleet.infos()[0])
        assert "theirs" not in str(fleet.server(0).foreign)


async def test_a_foreign_server_whose_key_cannot_be_read_says_so(site: Site) -> None:
    (site.root / "key").write_text("hidden")
    async with found_by_hand(site) as fleet:
        await until(lambda: "needs its API key" in fleet.states()[0].phase)
        assert fleet.states()[0].lights.http is not True
        credentials = site.root / "credentials"
        credentials.write_text("SGLANG_API_KEY=hidden\n")
        credentials.chmod(0o600)
        fleet.spec = msgspec.structs.replace(fleet.spec, credentials_file=str(credentials))
        await until(lambda: fleet.states()[0].lights.http)
        assert fleet.states()[0].phase == ""
    (told,) = site.events.texts("server.key")
    assert "SGLANG_API_KEY into credentials_file" in told


async def test_the_key_of_our_own_servers_is_read_by_nobody_else(site: Site) -> None:
    credentials = site.root / "credentials"
    credentials.write_text("SGLANG_API_KEY='s3cret'\n")
    credentials.chmod(0o600)
    spec = msgspec.structs.replace(site.spec(), credentials_file=str(credentials))
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
    log = Path(fleet.infos()[0].log)
    # SGLang prints its arguments.
    assert "api_key='s3cret'" in await asyncio.to_thread(log.read_text)
    assert (await asyncio.to_thread(log.stat)).st_mode & 0o077 == 0
    shown = logs.tail("gpu0", log, 100).lines
    assert any("api_key=***" in line for line in shown)
    assert not any("s3cret" in line for line in shown)


def append(log: Path, text: str) -> None:
    with log.open("a") as out:
        print(text, file=out)


async def test_a_sigterm_from_elsewhere_empties_the_server_and_is_obeyed(site: Site) -> None:
    spec = site.spec(enable_metrics=True)
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
    first = pid_of(fleet, 0)
    append(Path(fleet.infos()[0].log), time.strftime("[%Y-%m-%d %H:%M:%S] Error in request: x"))
    append(Path(fleet.infos()[0].log), "Traceback (most recent call last):\nTemplateError: x")
    asked = asyncio.create_task(chat(fleet.url(0), 150))
    await until(lambda: fleet.states()[0].running)
    os.kill(first, signal.SIGTERM)
    await until(lambda: fleet.states()[0].state == "draining")
    assert site.run.told[-1] == (0, "pause")
    await until(lambda: "1 left" in fleet.states()[0].phase)
    assert await asked == "stop"  # what it had is finished
    await until(lambda: fleet.states()[0].state == "stopped")
    assert "SIGTERM that did not come from here" in fleet.states()[0].cause
    assert fleet.states()[0].phase == ""
    assert not site.events.texts("server.failed")
    assert not site.events.texts("server.restart")
    assert len(site.events.texts("server.draining")) == 1


async def test_a_drain_from_elsewhere_that_is_cut_short_is_no_failure(site: Site) -> None:
    """As of a supervisor that sends SIGTERM, waits a while, and sends SIGKILL."""
    spec = site.spec(fake_leak=True)
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
    pid = pid_of(fleet, 0)
    os.kill(pid, signal.SIGTERM)
    await until(lambda: "4 left" in fleet.states()[0].phase)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: fleet.states()[0].state == "stopped")
    assert "did not come from here, with 4 requests left" in fleet.states()[0].cause
    assert not site.events.texts("server.failed")


async def test_a_sigterm_to_a_foreign_server_ends_it_too_and_the_next_one_is_used(
    site: Site,
) -> None:
    async with found_by_hand(site) as fleet:
        await until(lambda: (0, "run") in site.run.told)
        asked = asyncio.create_task(chat(fleet.url(0), 150))
        await until(lambda: fleet.states()[0].running)
        os.kill(pid_of(fleet, 0), signal.SIGTERM)
        await until(lambda: site.run.told[-1] == (0, "pause"))
        assert fleet.states()[0].state == "foreign"
        assert await asked == "stop"
        await until(lambda: fleet.states()[0].state == "stopped")
    async with found_by_hand(site):
        await until(lambda: site.run.told[-1] == (0, "run"))


async def test_a_restart_of_the_machine_is_told_as_one(site: Site) -> None:
    spec = site.spec()
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
    server = fleet.server(0)
    assert server.holder is not None
    assert server.main is not None
    await site.close(fleet)
    os.kill(server.holder.pid, signal.SIGKILL)
    processes.end_tree(server.main, None)
    record = site.root / ".stoker" / "servers" / "0" / "running.json"
    running = json.loads(record.read_text())
    assert running["init"] == identity.birth(1)
    record.write_text(json.dumps({**running, "init": "before"}))
    again = site.fleet(spec)
    (line,) = await again.adopt()
    assert "the machine was restarted at 20" in line
    await until(lambda: again.states()[0].state == "ready")


async def test_the_kernels_killing_for_memory_is_told_as_that(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = site.root / "cgroup"
    group.mkdir()
    events = group / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n")
    monkeypatch.setenv(memory.ENVIRON, str(group))
    spec = site.spec()
    fleet = site.fleet(spec)
    await fleet.up(None, epoch=site.epoch(spec), who="ann")
    await site.all_are(fleet, "ready")
    first, second = pid_of(fleet, 0), pid_of(fleet, 1)
    os.kill(first, signal.SIGKILL)
    await until(lambda: site.events.texts("server.failed"))
    assert "kernel" not in site.events.texts("server.failed")[0]
    events.write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 3\n")
    os.kill(second, signal.SIGKILL)
    await until(lambda: len(site.events.texts("server.failed")) == 2)
    assert "killed by the kernel: the container's memory" in site.events.texts("server.failed")[1]
    assert len(site.events.texts("host.oom")) == 1
    await until(lambda: fleet.infos()[1].pid not in (None, second))  # it may go better


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


async def chat(url: str, tokens: int) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json={"max_tokens": tokens}) as answer,
    ):
        body = await answer.json()
        return str(body["choices"][0]["finish_reason"])


async def test_down_waits_for_what_runs_where_it_cannot_be_continued(site: Site) -> None:
    site.run.cannot = "this run does not keep them"
    spec = site.spec()
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
    asked = asyncio.create_task(chat(fleet.url(0), 100))
    await until(lambda: fleet.states()[0].running)
    await fleet.down([0], who="ann")
    assert await asked == "stop"
    assert site.run.told[-1] == (0, "pause")


async def test_down_breaks_off_what_can_be_continued(site: Site) -> None:
    spec = site.spec(drain=60.0)
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
    site.run.open[0] = 1
    asked = asyncio.create_task(chat(fleet.url(0), 100_000))
    await until(lambda: fleet.states()[0].running)
    began = time.monotonic()
    await fleet.down([0], who="ann")
    assert time.monotonic() - began < 20
    assert await asked == "abort"
    assert (0, "abort") in site.run.told
    (told,) = site.events.texts("server.aborted")
    assert told == "GPU 0: 1 answers broken off, to be continued"


async def test_down_aborts_after_the_bound_and_kills_a_drain_without_end(site: Site) -> None:
    site.run.cannot = "this run does not keep them"
    spec = site.spec(drain=0.5, fake_leak=True)
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
    main = pid_of(fleet, 0)
    asked = asyncio.create_task(chat(fleet.url(0), 100_000))
    await until(lambda: fleet.states()[0].running)
    began = time.monotonic()
    await fleet.down([0], who="ann")
    assert await asked == "abort"
    assert (0, "abort") in site.run.told
    assert time.monotonic() - began < 12
    assert identity.birth(main) is None
    assert fleet.states()[0].state == "stopped"


async def test_orphans_of_a_killed_server_are_ended(site: Site) -> None:
    spec = site.spec(fake_orphan=True)
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
    tree = list(fleet.server(0).tree)
    os.kill(tree[0].pid, signal.SIGKILL)
    await until(lambda: all(identity.birth(p.pid) is None for p in tree))


async def test_leftovers_of_an_earlier_start_are_ended_before_the_next(site: Site) -> None:
    """Its agent was killed in the middle of a stop: the main process ended, a child did not."""
    site.gpus = 1
    spec = site.spec(fake_orphan=True, fake_load=1.2)
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
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
    fleet = site.fleet(spec, replace(FAST, stalled_restart=60.0))
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
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
    fleet = site.fleet(spec)
    await fleet.up([0], epoch=site.epoch(spec), who="ann")
    await until(lambda: fleet.states()[0].state == "ready")
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


def report(number: int) -> Xid:
    return Xid("0000:41:00", number, "of the driver", time.time())


async def test_the_drivers_report_explains_a_death(site: Site) -> None:
    spec = site.spec()
    fleet = site.fleet(spec)
    await fleet.up(None, epoch=site.epoch(spec), who="ann")
    await site.all_are(fleet, "ready")
    # A fault of the program: it is started again. A lost card: it is not, and the rest go on.
    site.reports.update({0: report(31), 1: report(79)})
    first, second = pid_of(fleet, 0), pid_of(fleet, 1)
    os.kill(first, signal.SIGKILL)
    os.kill(second, signal.SIGKILL)
    await until(lambda: fleet.infos()[0].pid not in (None, first))
    await until(lambda: site.events.texts("server.set_aside"))
    failed = sorted(site.events.texts("server.failed"))
    assert failed[0].startswith("GPU 0: Xid 31 (of the driver); its log says: was killed by")
    assert failed[1].startswith("GPU 1: Xid 79 (of the driver): the host must be rebooted; its")
    (aside,) = site.events.texts("server.set_aside")
    assert aside.startswith("GPU 1: not started again by itself")
    assert fleet.states()[1].state == "failed"
    assert "Xid 79" in fleet.states()[1].cause


async def test_a_report_that_comes_after_the_death_stops_the_restart(site: Site) -> None:
    site.gpus = 1
    spec = site.spec()
    fleet = site.fleet(spec, replace(FAST, restart_first=1.5))
    await fleet.up(None, epoch=site.epoch(spec), who="ann")
    await site.all_are(fleet, "ready")
    os.kill(pid_of(fleet, 0), signal.SIGKILL)
    await until(lambda: site.events.texts("server.restart"))
    fleet.hurt(0)  # nothing is known that explains it
    assert "Xid" not in fleet.states()[0].cause
    site.reports[0] = report(79)
    fleet.hurt(0)
    assert "Xid 79" in fleet.states()[0].cause
    await until(lambda: site.events.texts("server.set_aside"))
    assert len(site.events.texts("server.starting")) == 1
    fleet.hurt(0)  # told once
    assert sum("Xid 79" in text for text in site.events.texts("server.failed")) == 1
