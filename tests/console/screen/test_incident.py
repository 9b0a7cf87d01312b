"""What goes into a bug report, and what must not."""

from __future__ import annotations

import dataclasses
import json
import tarfile
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from console import incident
from console.feed import FeedError
from console.model import Link, State, reduce
from console.screens.events import EventsScreen
from remote.agent import logs
from remote.protocol import (
    AlertSpec,
    HostState,
    LogPart,
    ReadHistory,
    ReadLog,
    ReadMachine,
    Request,
    Result,
)
from tests.console.screen.driver import driven
from tests.console.screen.story import BEGAN, Story
from tests.console.screen.told import seen, silent


def unpack(path: Path) -> dict[str, str]:
    """The files of a bundle."""
    found = {}
    with tarfile.open(path) as tar:
        for member in tar.getmembers():
            stream = tar.extractfile(member)
            assert stream is not None
            found[member.name.split("/", 1)[1]] = stream.read().decode()
    return found


def packed(folder: Path) -> list[Path]:
    """Everything in a folder, hidden files too: no half-written bundle may lie about."""
    return list(folder.iterdir())


async def test_a_bundle_holds_what_is_known_and_says_what_is_missing(tmp_path: Path) -> None:
    """Also where the agent answers only half of the questions."""
    story = silent()
    state = seen(story, BEGAN)

    async def ask(request: Request, timeout: float) -> Result | None:
        if isinstance(request, ReadLog):
            if request.source == "agent":
                raise FeedError("agent.log: Permission denied")
            return LogPart(request.source, 1, 0, 9, ["--api-key hunter2", "\udcff torn"])
        if isinstance(request, ReadMachine):
            return None
        return await story.call(request, timeout)

    path = await incident.bundle(ask, state, tmp_path)
    read = unpack(path)
    names = set(read)
    assert {"state.json", "events.jsonl", "epochs.json", "history.json", "about.txt"} <= names
    assert {f"logs/gpu{n}.log" for n in range(8)} <= names
    assert "logs/agent.log: agent.log: Permission denied" in read["about.txt"]
    assert "nvidia-smi -q, kernel log, environment): no answer" in read["about.txt"]
    assert json.loads(read["state.json"])["servers"][3]["state"] == "ready"
    assert "hunter2" not in "".join(read.values())
    assert packed(tmp_path) == [path]


async def test_one_key_packs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the folder the console was started in."""
    monkeypatch.chdir(tmp_path)
    async with driven() as one:
        await one.keys("I")
        await one.sees("secrets were removed")
    assert len(packed(tmp_path)) == 1


def log_reader(logged: dict[str, Path], story: Story) -> incident.Call:
    """One who answers as an agent does, with these files as its logs."""

    async def call(request: Request, timeout: float) -> Result | None:
        if isinstance(request, ReadLog):
            path = logged.get(request.source)
            if path is None:
                return None
            if request.offset is None:
                return logs.tail(request.source, path, request.lines, request.grep)
            return logs.read(request.source, path, request.offset, request.lines, request.grep)
        story.calls.append(request)
        return await story.call(request, timeout)

    return call


async def test_the_logs_around_an_error_are_in_it(tmp_path: Path) -> None:
    """Two minutes before it and one after, by the clock of the logs; the webhook's address not."""
    logged = {source: tmp_path / f"{source}.log" for source in ("gpu3", "agent")}
    for source, path in logged.items():
        with path.open("w") as out:
            for n in range(3_000):
                at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1_700_000_000 + n))
                out.write(f"[{at}] {source} line {n}\n" if source == "gpu3" else f"{at},1 I {n}\n")
                if n == 2_000 and source == "agent":
                    out.write(f"{at},123 E agent: server.failed: GPU 3: out (of) memory\n")
    story = silent()
    story.say("server.failed", "GPU 3: out (of) memory", gpu=3, level="error")
    spec = replace(story.spec, alerts=AlertSpec(webhook="https://chat.example/s3cret"))
    story.spec = spec
    state = seen(story, BEGAN)
    path = await incident.bundle(log_reader(logged, story), state, tmp_path)
    read = unpack(path)
    failed = story.events[-1]
    at = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime(failed.time))
    lines = read[f"around/{at}-server.failed-gpu3-gpu3.log"].splitlines()
    assert lines[0].endswith("line 1880")
    assert lines[-1].endswith("line 2060")
    assert "out (of) memory" in read[f"around/{at}-server.failed-gpu3-agent.log"]
    assert "s3cret" not in "".join(read.values())


async def test_with_an_event_chosen_it_tells_of_that_one(tmp_path: Path) -> None:
    """Its server's, the run's and the agent's lines of its time by the clock of the logs, and what
    the journal has of that time; nothing around later errors."""
    story = silent()
    at = story.now - 30_000
    logged = {source: tmp_path / f"{source}.log" for source in ("gpu3", "run", "agent")}
    for source, path in logged.items():
        with path.open("w") as out:
            for n in range(-3_000, 3_000):
                there = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at + n + 7_200))
                out.write(f"[{there}] {source} line {n}\n")
    story.say("server.ready", "GPU 3: ready after 40 s", gpu=3, at=at)
    chosen = story.events[-1]
    story.say("server.failed", "GPU 5: out of memory", gpu=5, level="error")
    state = seen(story, BEGAN)
    state = dataclasses.replace(state, host=HostState(clock_east_s=7_200))
    story.calls.clear()
    path = await incident.bundle(log_reader(logged, story), state, tmp_path / ".", chosen)
    read = unpack(path)
    stem = time.strftime("around/%Y-%m-%dT%H-%M-%SZ-server.ready-gpu3", time.gmtime(at))
    for source in logged:
        lines = read[f"{stem}-{source}.log"].splitlines()
        assert (lines[0].split()[-1], lines[-1].split()[-1]) == ("-120", "60")
    around = [json.loads(line) for line in read[f"{stem}-events.jsonl"].splitlines()]
    assert chosen.text in [e["text"] for e in around]
    assert f"{stem}-history.json" in read
    asked = [r for r in story.calls if isinstance(r, ReadHistory)]
    assert any(r.since <= at - 3_600 and r.until and r.until >= at + 900 for r in asked)
    assert not [n for n in read if n.startswith("around/") and not n.startswith(stem)]
    assert f"about event {chosen.id} of " in read["about.txt"]
    assert "server.ready: GPU 3: ready after 40 s" in read["about.txt"]


async def test_it_lists_what_is_in_it_and_has_the_configuration(tmp_path: Path) -> None:
    """Each file on one line; the configuration with its comments, and without its secrets."""
    story = silent()
    story.say("server.failed", "GPU 3: out of memory", gpu=3, level="error")
    state = seen(story, BEGAN)
    toml = tmp_path / "stoker.toml"
    toml.write_text(
        '# by hand\n[alerts]\nwebhook = "https://chat.example/s3cret"\neta_hours_over = 9\n'
    )
    path = await incident.bundle(story.call, state, tmp_path, toml=toml)
    read = unpack(path)
    assert read["stoker.toml"].startswith("# by hand\n[alerts]\nwebhook = ")
    assert "eta_hours_over = 9" in read["stoker.toml"]
    assert "s3cret" not in "".join(read.values())
    listed = dict(line.split("  ", 1) for line in read["contents.txt"].splitlines())
    assert {name.strip() for name in listed} == set(read)
    assert all(listed.values())
    away = await incident.bundle(story.call, state, tmp_path, toml=tmp_path / "no.toml")
    assert "  stoker.toml: " in unpack(away)["about.txt"]


async def test_where_it_is_stays_to_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many errors are told behind it, and in a small terminal too."""
    monkeypatch.chdir(tmp_path)
    for size in ((120, 40), (80, 24)):
        async with driven(size=size) as one:
            await one.keys("I")
            await one.sees("secrets were removed")
            for number in range(12):
                one.app.say(f"this went wrong: {number}", "error")
            await one.sees("this went wrong: 11")
            await one.sees("secrets were removed")


async def test_what_an_issue_wants_is_in_it(tmp_path: Path) -> None:
    """Versions and the machine, what is not known with why, and command lines one may type."""
    story = silent()
    state = seen(story, BEGAN)
    info = replace(state.infos[0], argv=["python", "-m", "x y", "--api-key", "hunter2"])
    state = dataclasses.replace(state, infos={0: info})
    read = unpack(await incident.bundle(story.call, state, tmp_path))
    assert "torch: 2.9.1" in read["machine/versions.txt"]
    assert "kernel.log: not known: /dev/kmsg" in read["machine/versions.txt"]
    assert "  kernel.log: /dev/kmsg" in read["about.txt"]
    assert "Driver Version" in read["machine/nvidia-smi-q.txt"]
    assert "python -m 'x y' --api-key" in read["argv.txt"]
    assert "hunter2" not in "".join(read.values())


async def test_the_key_packs_the_event_that_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the Events screen; the whole path of the file is told."""
    monkeypatch.chdir(tmp_path)
    async with driven() as one:
        await one.keys("e", "up", "up")
        screen = one.app.screen
        assert isinstance(screen, EventsScreen)
        chosen = screen.chosen
        assert chosen is not None
        await one.keys("I")
        await one.until(lambda: packed(tmp_path))
        await one.sees(str(tmp_path)[:20])
        await one.until(lambda: packed(tmp_path)[0].suffix == ".gz")
    assert f"about event {chosen.id} of " in unpack(packed(tmp_path)[0])["about.txt"]


async def test_an_agent_of_another_version_is_not_waited_for_long(tmp_path: Path) -> None:
    """It may not know the question about the machine: then it says nothing at all."""
    story = silent()
    waits: list[float] = []

    async def call(request: Request, timeout: float) -> Result | None:
        if isinstance(request, ReadMachine):
            waits.append(timeout)
            raise FeedError("no answer in time")
        return await story.call(request, timeout)

    for link in ("connected", "read-only"):
        state = reduce(State(link=Link(link)), story.snapshot(), BEGAN)
        read = unpack(await incident.bundle(call, state, tmp_path))
        assert "kernel log, environment): no answer in time" in read["about.txt"]
    assert waits[0] >= 100
    assert waits[1] <= 15
