"""Parts of the fleet by themselves: identities and trees, logs, environment, restarts, records."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from remote.fleet import environment, identity, memory, processes, tail
from remote.fleet.ending import describe_status
from remote.fleet.environment import EnvScriptError
from remote.fleet.holder import MARK
from remote.fleet.launcher import describe
from remote.fleet.processes import Identity
from remote.fleet.records import Exit, Folder, Launch, Ready, Running
from remote.fleet.restarts import Restarts
from remote.fleet.timing import Timing
from tests.waiting import until

PARENT = """
import subprocess, sys, time
away = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                        start_new_session=True)
near = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(away.pid, near.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """A process in a session of its own, a child beside it, and one that left the session."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, MARK: "family"},
    )
    assert parent.stdout is not None
    away, near = map(int, parent.stdout.readline().split())
    yield parent, away, near
    for pid in (away, near, parent.pid):
        if (one := identity.process(pid)) is not None:
            processes.send([one], signal.SIGKILL)
    parent.wait()
    parent.stdout.close()


def test_members_of_a_tree(family: tuple[subprocess.Popen[str], int, int]) -> None:
    parent, away, near = family
    main = processes.identify(parent.pid)
    assert main is not None
    assert main.alive
    table = identity.table()
    found = [p.pid for p in processes.members(main, table)]
    assert found[0] == parent.pid
    assert set(found) == {parent.pid, away, near}
    assert {p.pid for p in processes.marked("family", table)} == {parent.pid, away, near}
    # Orphaned, the child is still in the group; the one that left is found by its mark.
    parent.kill()
    parent.wait()
    table = identity.table()
    assert [p.pid for p in processes.members(main, table)] == [near]
    assert {p.pid for p in processes.marked("family", table)} == {away, near}
    assert processes.end_tree(main, "family") == []
    assert identity.birth(away) is None
    assert identity.birth(near) is None


def test_another_process_with_the_pid_is_never_touched(
    family: tuple[subprocess.Popen[str], int, int],
) -> None:
    parent, _, near = family
    earlier = Identity(parent.pid, "1")
    assert not earlier.alive
    assert processes.members(earlier, identity.table()) == []
    assert processes.end_tree(earlier, None, 0.2) == []
    one = identity.process(near)
    assert one is not None
    assert processes.send([replace(one, birth="1")], signal.SIGKILL) == []
    assert parent.poll() is None
    assert identity.birth(near) == one.birth


def test_a_process_is_described_in_one_line() -> None:
    child = subprocess.Popen(["a\n\tb\r\x85c\u2028d", "600"], executable="/bin/sleep")
    try:
        said = describe(child.pid)
        assert said.startswith(f"pid {child.pid} of ")
        assert said.endswith(" (a b c d 600)")
    finally:
        child.kill()
        child.wait()


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert identity.birth(child.pid) is None
        found = identity.process(child.pid)
        assert found is not None
        assert found.zombie
    finally:
        child.wait()
    assert identity.process(child.pid) is None


def test_births_agree_with_psutil() -> None:
    own = identity.process(os.getpid())
    assert own is not None
    assert (own.parent, own.group) == (os.getppid(), os.getpgrp())
    table = identity.table()
    assert table[os.getpid()].birth == own.birth
    assert len(table) == pytest.approx(len(psutil.pids()), abs=20)
    assert set(identity.table([os.getpid(), 2**22 + 1])) == {os.getpid()}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("7 (a) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 123 0", "a"),
        ("7 (x) y) ( z) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 123 0", "x) y) ( z"),
    ],
)
def test_hostile_process_names(text: str, name: str) -> None:
    found = identity._parse_stat(text)
    assert found is not None
    assert (found.pid, found.name, found.birth, found.parent) == (7, name, "123", 1)
    assert identity._parse_stat("7 (torn") is None
    assert identity._parse_stat("") is None


def test_a_log_is_read_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    reader = tail.Tail(log)
    assert reader.read() == b""
    log.write_bytes(b"one\n")
    assert reader.read() == b"one\n"
    with log.open("ab") as out:
        out.write(b"two\n")
    assert reader.read(2) == b"tw"
    assert reader.read() == b"o\n"
    log.write_bytes(b"new\n")
    reader.offset = 100
    assert reader.read() == b"new\n"


def test_of_a_long_log_head_and_tail_are_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = b"x" * 99 + b"\n"
    log.write_bytes(b"first\n" + line * 40_000 + b"last\n")
    reader = tail.Tail(log)
    data = reader.read_first()
    assert data.startswith(b"first\n")
    assert data.endswith(b"last\n")
    assert len(data) <= tail.HEAD + tail.TAIL + 1
    assert reader.skipped > 2_000_000
    assert reader.offset == log.stat().st_size
    assert all(len(part) in (0, 4, 5, 99) or part == b"x" * len(part) for part in data.split(b"\n"))


async def test_env_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"PATH": os.environ["PATH"], "KEEP": "1", "DROP": "x"}
    script = tmp_path / "env.sh"
    script.write_text("unset DROP\nKEEP=2\nexport MULTI=$'a\\nb'\nread -t 0 || true\n")
    env, changed = await environment.sourced(str(script), base)
    assert changed == ["KEEP", "MULTI"]
    assert env["MULTI"] == "a\nb"
    assert "DROP" not in env
    for text, words in (("false_command_xyz\nexit 3\n", "failed"), ("return 5\n", "failed")):
        script.write_text(text)
        with pytest.raises(EnvScriptError, match=words):
            await environment.sourced(str(script), base)
    with pytest.raises(EnvScriptError, match="is not there"):
        await environment.sourced(str(tmp_path / "none.sh"), base)
    monkeypatch.setattr(environment, "_SECONDS", 1.0)
    pid = tmp_path / "pid"
    script.write_text(f"sleep 600 & echo $! >{pid}\nwait\n")
    with pytest.raises(EnvScriptError, match="did not end within 1 s"):
        await environment.sourced(str(script), base)
    await until(lambda: identity.birth(int(pid.read_text())) is None)


def test_credentials(tmp_path: Path) -> None:
    path = tmp_path / "secrets.env"
    path.write_text("# HF_TOKEN=no\nexport HF_TOKEN=\"a b\"\nAWS_KEY=x\nSGLANG_API_KEY='k'\nbad\n")
    path.chmod(0o644)
    with pytest.raises(EnvScriptError, match="chmod 600"):
        environment.credentials(str(path))
    path.chmod(0o600)
    assert environment.credentials(str(path)) == {"HF_TOKEN": "a b", "SGLANG_API_KEY": "k"}
    assert environment.credentials("") == {}
    with pytest.raises(EnvScriptError, match="No such file"):
        environment.credentials(str(tmp_path / "none"))


def test_restarts_back_off_and_end() -> None:
    timing = Timing()
    restarts = Restarts()
    waits: list[float | None] = []
    now = 1000.0
    for _ in range(7):
        waits.append(restarts.wait(now, timing))
        restarts.note(now)
        now += 60
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, None]
    assert restarts.wait(now + 3600, timing) == 5.0
    restarts.note(now)
    restarts.forget()
    assert restarts.wait(now, timing) == 5.0


def test_records_of_another_launch_are_absent(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "0")
    assert folder.launch() is None
    launch = Launch(
        launch="a", gpu=0, port=1, argv=[], cwd="/", log="l", log_offset=0, flags={"x": True}
    )
    folder.write_launch(launch)
    assert folder.launch() == launch
    assert (folder.root / "launch.json").stat().st_mode & 0o077 == 0
    folder.write_ready(Ready(launch="a", at=1.0, start_seconds=2.0, max_running=37))
    assert folder.ready("a") is not None
    assert folder.ready("b") is None
    (folder.root / "exit.json").write_bytes(msgspec.json.encode(Exit(launch="a", ended=1.0)))
    assert folder.exit("a") is not None
    assert folder.exit("b") is None
    (folder.root / "running.json").write_text("{torn")
    assert folder.running("a") is None
    assert folder.want(launch, "down").wanted == "down"
    folder.write_launch(replace_launch(launch))
    previous = folder.previous()
    assert previous is not None
    assert previous.max_running == 37
    assert folder.ready("a") is None


def replace_launch(launch: Launch) -> Launch:
    return msgspec.structs.replace(launch, launch="b")


def test_a_process_of_an_earlier_boot_is_gone() -> None:
    running = Running(launch="a", holder=1, pid=1, began=0.0, birth="1", holder_birth="1")
    assert running.identity == Identity(1, "1")
    earlier = msgspec.structs.replace(running, boot="another boot")
    assert earlier.identity is None
    assert earlier.holder_identity is None


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "exit status 0"), (2, "exit status 2"), (-9, "SIGKILL"), (-250, "signal 250")],
)
def test_exits_in_words(status: int, words: str) -> None:
    assert words in describe_status(status)
    assert "nobody knows" in describe_status(None)


def test_kills_for_memory_are_counted_in_both_hierarchies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(memory.ENVIRON, str(tmp_path))
    nothing = memory.OomKills()
    assert nothing.look(1.0) == 0
    old = tmp_path / "memory" / "memory.oom_control"
    old.parent.mkdir()
    old.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert nothing.look(2.0) == 0  # where nothing was known, nothing is new
    kills = memory.OomKills()
    old.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 6\n")
    assert kills.look(3.0) == 2
    assert kills.look(4.0) == 0
    assert kills.last == 3.0
    # In the present hierarchy the container's own count comes first.
    (tmp_path / "memory.events").write_text("oom 9\noom_kill 1\noom_group_kill 0\n")
    kills = memory.OomKills()
    (tmp_path / "memory.events").write_text("oom 9\noom_kill 2\noom_group_kill 7\n")
    assert kills.look(5.0) == 1


def test_ages_are_those_of_the_processes() -> None:
    before = time.time()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        began = identity.began(child.pid)
        assert began is not None
        assert began == pytest.approx(before, abs=2.0)
        assert processes.started_at(child.pid) == pytest.approx(began, abs=0.1)
    finally:
        child.kill()
        child.wait()
    assert identity.began(child.pid) is None
