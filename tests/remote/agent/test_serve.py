"""The agent's process and its socket, as hostile and slow others meet them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from remote import bridge
from remote.agent import search
from remote.paths import Workspace
from remote.protocol import (
    Done,
    Down,
    Events,
    Failure,
    Get,
    Happened,
    Hello,
    LogPart,
    Mix,
    ReadEvents,
    ReadHistory,
    ReadLog,
    ReadMix,
    RunControl,
    Shutdown,
    Skipped,
    Snapshot,
    Subscribe,
    TargetSpec,
    encode,
)
from tests.remote.agent.conftest import Agent, Link, mode
from tests.waiting import until


async def test_the_socket_is_private_and_the_agent_alone(
    agent: Agent, socket: Path, workspace: Workspace
) -> None:
    assert mode(socket) == 0o600
    assert mode(socket.parent) == 0o700
    assert len(str(socket)) < 104
    second = agent.start()
    assert second.wait(20) == bridge.HELD
    assert json.loads(workspace.agent_lock.read_bytes())["pid"] == agent.processes[0].pid


async def test_a_folder_of_others_is_refused(agent: Agent, workspace: Workspace) -> None:
    workspace.stoker.mkdir()
    folder = workspace.root / "open"
    folder.mkdir(mode=0o755)
    workspace.agent_lock.write_text(json.dumps({"socket": str(folder / "a.sock")}))
    process = agent.start()
    assert await asyncio.to_thread(process.wait, 20) == 1
    assert f"{folder} is open to others: chmod 700 it" in agent.log
    assert "Traceback" not in agent.log


async def test_hangup_is_ignored_and_terminate_ends_it_well(agent: Agent, socket: Path) -> None:
    process = agent.processes[0]
    process.send_signal(signal.SIGHUP)
    link = await Link.open(socket)
    assert isinstance(await link.ask(Get()), Snapshot)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 20) == 0
    assert "servers and run go on" in agent.log
    await until(lambda: not socket.exists())


def test_the_log_begins_anew_in_time(tmp_path: Path) -> None:
    """What is written to standard error goes along: a later crash stands in the new file."""
    code = (
        "import logging, os, sys, pathlib\n"
        "from remote.agent import daemon\n"
        "daemon.LOG_BYTES = 2000\n"
        "handler = daemon.log_handler(pathlib.Path(sys.argv[1]))\n"
        "logging.basicConfig(level=logging.INFO, handlers=[handler])\n"
        "for n in range(1000): logging.info('line %d', n)\n"
        "os.write(2, b'last words')\n"
    )
    path = tmp_path / "agent.log"
    with path.open("ab") as out:
        subprocess.run([sys.executable, "-c", code, str(path)], stderr=out, check=True)
    assert path.stat().st_size < 3000
    assert (tmp_path / "agent.log.1").stat().st_size < 3000
    assert path.read_text().endswith("last words")
    assert "line 999" in path.read_text()


async def test_shutdown_answers_first(agent: Agent, socket: Path) -> None:
    link = await Link.open(socket)
    assert isinstance(await link.ask(Shutdown()), Done)
    assert await asyncio.to_thread(agent.processes[0].wait, 20) == 0


async def test_a_socket_that_was_removed_comes_back(agent: Agent, socket: Path) -> None:
    """``/run/user/UID`` goes with the last login, and so does what is in it."""
    await asyncio.to_thread(socket.unlink)
    await until(socket.exists)
    link = await Link.open(socket)
    assert isinstance(await link.ask(Get()), Snapshot)


async def test_a_console_of_a_later_version_may_look(socket: Path, workspace: Workspace) -> None:
    """Its target has keys that this agent has never heard of."""
    link = await Link.open(socket)
    spec = TargetSpec(name="t", workspace=str(workspace.root))
    hello = json.loads(encode(Hello(version=9, code="y", role="console", spec=spec)))
    hello["spec"]["fleet"]["later"] = hello["spec"]["later"] = 1
    link.writer.write(json.dumps(hello).encode() + b"\n")
    await until(workspace.spec.exists)
    shown = await link.ask(Get())
    assert isinstance(shown, Snapshot)
    assert shown.target == spec


async def test_after_a_kill_the_next_one_takes_over(agent: Agent, socket: Path) -> None:
    link = await Link.open(socket)
    await link.ask(Get())
    before = await link.ask(ReadEvents())
    assert isinstance(before, Events)
    agent.processes[0].kill()
    agent.processes[0].wait()
    agent.start()
    link = await Link.open(await agent.ready())
    after = await link.ask(ReadEvents())
    assert isinstance(after, Events)
    assert after.events[: len(before.events)] == before.events
    assert after.events[-1].id > before.events[-1].id


async def test_a_request_of_another_version_is_answered(socket: Path) -> None:
    """Whoever asks need not wait for an answer that never comes."""
    link = await Link.open(socket)
    link.writer.write(b'{"type":"call","id":7,"request":{"type":"of.tomorrow","x":[1]}}\n')
    while not isinstance(message := await link.receive(), Failure):
        assert message is not None
    assert (message.id, message.code) == (7, "protocol")
    link.close()


async def test_garbage_and_endless_lines_do_no_harm(agent: Agent, socket: Path) -> None:
    link = await Link.open(socket)
    for junk in (b"\xff\xfe\n", b"{}\n", b"[]\n", b'{"type":"call"}\n', b"x" * 5_000_000 + b"\n"):
        link.writer.write(junk)
        await link.writer.drain()
    assert isinstance(await link.ask(Get()), Snapshot)
    # And one that hangs up in the middle of a line.
    other = await Link.open(socket)
    other.writer.write(b'{"type":"call","id":')
    other.close()
    assert isinstance(await link.ask(Get()), Snapshot)
    assert "Traceback" not in agent.log


async def test_refusals_are_one_line(agent: Agent, socket: Path, workspace: Workspace) -> None:
    link = await Link.open(socket)
    asked = (
        Down(),
        RunControl(do="pause"),
        ReadLog(source="no"),
        ReadLog(source="agent", grep="("),
        ReadLog(source="run"),
        ReadHistory(since=10.0, until=5.0),
    )
    for request in asked:
        answer = await link.ask(request)
        assert isinstance(answer, Failure), request
        assert "\n" not in answer.text
    unsaid = await asyncio.open_unix_connection(socket)
    unsaid[1].write(b'{"type":"call","id":1,"request":{"type":"get"}}\n')
    lines = [json.loads(await unsaid[0].readline()) for _ in range(2)]
    assert lines[1]["type"] == "failure"
    unsaid[1].close()
    assert "Traceback" not in agent.log


async def test_the_spec_is_taken_once_and_only_of_this_workspace(
    agent: Agent, socket: Path, workspace: Workspace
) -> None:
    def hello(workspace: str, name: str) -> bytes:
        spec = TargetSpec(name=name, workspace=workspace)
        return encode(Hello(version=1, code="", role="console", spec=spec))

    link = await Link.open(socket)
    link.writer.write(hello("/elsewhere", "wrong"))
    link.writer.write(hello(str(workspace.root), "first"))

    async def target() -> object:
        shown = await link.ask(Get())
        assert isinstance(shown, Snapshot)
        return shown.target

    deadline = time.monotonic() + 20
    while getattr(await target(), "name", "") != "first":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    link.writer.write(hello(str(workspace.root), "second"))
    await asyncio.sleep(0.3)
    assert getattr(await target(), "name", "") == "first"
    assert json.loads(workspace.spec.read_bytes())["name"] == "first"


async def test_a_subscriber_is_told_little_at_rest(socket: Path) -> None:
    link = await Link.open(socket)
    await link.ask(Subscribe(events_after=0))
    first = await link.receive()
    while not isinstance(first, Snapshot):
        first = await link.receive()
    assert first.full
    began, size = time.monotonic(), 0
    while time.monotonic() - began < 4:
        with contextlib.suppress(TimeoutError):
            size += len(await asyncio.wait_for(link.reader.readline(), 1))
    assert size / 4 < 2000, "bytes a second at rest"


async def test_events_come_once_and_a_cursor_far_behind_is_told(socket: Path, agent: Agent) -> None:
    link = await Link.open(socket)
    await link.ask(Subscribe(events_after=0, snapshots=False))
    for _ in range(3):
        await link.ask(ReadLog(source="no"))
    event = next(m.event for m in link.seen if isinstance(m, Happened))
    again = await Link.open(socket)
    await again.ask(Subscribe(events_after=event.id, snapshots=True))
    while not any(isinstance(m, Snapshot) for m in again.seen):
        await again.receive()
    assert event.id not in [m.event.id for m in again.seen if isinstance(m, Happened)]


async def test_a_new_subscriber_is_told_how_much_it_is_not_sent(
    agent: Agent, socket: Path, workspace: Workspace
) -> None:
    """And what that was can be read, page by page, to the very first."""
    link = await Link.open(socket)
    first = await link.ask(ReadEvents(limit=5_000))
    assert isinstance(first, Events)
    agent.processes[0].kill()
    agent.processes[0].wait()
    last = first.events[-1].id
    with contextlib.closing(sqlite3.connect(workspace.journal)) as db:
        rows = [(last + n, 1e9, "x", "info", f"event {n}", None, "") for n in range(1, 1_501)]
        db.executemany("INSERT INTO events VALUES (?,?,?,?,?,?,?)", rows)
        db.commit()
    agent.start()
    link = await Link.open(await agent.ready())
    await link.ask(Subscribe(events_after=0, snapshots=False))
    while not any(isinstance(m, Happened) for m in link.seen):
        await link.receive()
    (skipped,) = [m for m in link.seen if isinstance(m, Skipped)]
    oldest = next(m.event.id for m in link.seen if isinstance(m, Happened))
    assert (skipped.what, skipped.count) == ("events", oldest - first.events[0].id)
    assert skipped.count > 500
    read: list[int] = []
    while oldest > first.events[0].id:
        older = await link.ask(ReadEvents(before=oldest, limit=400))
        assert isinstance(older, Events)
        read = [*(e.id for e in older.events), *read]
        oldest = read[0]
    assert len(read) == skipped.count
    assert read == list(range(read[0], read[-1] + 1))


async def test_a_subscriber_that_does_not_read_slows_nobody(
    agent: Agent, socket: Path, workspace: Workspace
) -> None:
    """A flood into a followed log while one console reads nothing: the agent's memory stays, the
    other console goes on at once, and the slow one is told how much it missed."""
    log = workspace.run_log
    log.write_text("first\n")
    slow = await Link.open(socket)
    await slow.ask(Subscribe(logs={"run": (0, -1), "agent": (0, -1)}))
    while not any(isinstance(m, LogPart) and m.source == "run" for m in slow.seen):
        await slow.receive()
    quick = await Link.open(socket)
    await quick.ask(Get())
    process = psutil.Process(agent.processes[0].pid)
    before = process.memory_info().rss
    written = 1
    began = time.monotonic()
    worst = 0.0
    with log.open("a") as out:
        while time.monotonic() - began < 5:
            out.writelines(f"flood {written + i:09} {'x' * 80}\n" for i in range(20_000))
            out.flush()
            written += 20_000
            asked = time.monotonic()
            assert isinstance(await quick.ask(Get()), Snapshot)
            worst = max(worst, time.monotonic() - asked)
    assert worst < 3.0
    assert process.memory_info().rss - before < 40e6
    # The slow one reads at last: every line is either there or counted.
    seen, skipped = 1, 0
    last = ""
    deadline = time.monotonic() + 30
    while last != f"flood {written - 1:09} {'x' * 80}":
        assert time.monotonic() < deadline
        message = await slow.receive()
        if isinstance(message, LogPart) and message.source == "run":
            seen += len(message.lines)
            skipped += message.skipped
            last = message.lines[-1] if message.lines else last
    assert seen + skipped == written
    assert skipped > 0
    assert not any(isinstance(m, Skipped) for m in slow.seen)


async def test_a_pattern_without_end_holds_up_nobody(
    agent: Agent, socket: Path, workspace: Workspace
) -> None:
    """The search is given up; meanwhile the agent looks and answers as ever."""
    with workspace.agent_log.open("a") as log:
        log.write("a" * 4_000 + "!\n")
    link, other = await Link.open(socket), await Link.open(socket)
    searching = asyncio.create_task(link.ask(ReadLog(source="agent", grep="(a|aa)+$")))
    for _ in range(5):
        began = time.monotonic()
        assert isinstance(await other.ask(Get()), Snapshot)
        assert time.monotonic() - began < 5
        await asyncio.sleep(0.2)
    assert not searching.done()
    searching.cancel()
    with pytest.raises(search.SearchError, match="takes over 1 s"):
        await search.search(ReadLog(source="agent", grep="(a|aa)+$"), workspace.agent_log, 1)


async def test_a_search_finds_what_reading_finds(
    agent: Agent, socket: Path, workspace: Workspace
) -> None:
    """The same lines, at the same places, whether they were looked for or read."""
    with workspace.agent_log.open("a") as log:
        log.write("".join(f"line {n} {'ERROR' if n % 100 == 7 else 'ok'}\n" for n in range(1_000)))
    link = await Link.open(socket)
    found = await link.ask(ReadLog(source="agent", grep="ERROR", lines=4))
    assert isinstance(found, LogPart)
    assert found.lines == [f"line {n} ERROR" for n in (607, 707, 807, 907)]
    read = await link.ask(ReadLog(source="agent", offset=found.offset, lines=1))
    assert isinstance(read, LogPart)
    assert read.lines == ["line 607 ERROR"]
    mix = await link.ask(ReadMix())
    assert isinstance(mix, Mix), "there is no run: an empty one"
