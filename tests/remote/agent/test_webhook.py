"""Alerts by webhook, posted to a real HTTP server, and what happened while nobody looked."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace

from remote.agent import webhook
from remote.agent.diff import Picture
from remote.agent.lookers import Lookers
from remote.agent.webhook import Caller, Webhook, WebhookError, address, post
from remote.journal import Journal
from remote.paths import Workspace
from remote.protocol import (
    Alert,
    AlertSpec,
    FleetSpec,
    Get,
    Hello,
    Progress,
    RunState,
    Snapshot,
    TargetSpec,
    encode,
)
from tests.remote.agent.conftest import Agent, Link
from tests.waiting import until


class Ear:
    """A server that keeps what is posted to it; ``answers`` are the statuses it gives, in turn."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.paths: list[str] = []
        self.answers: list[int] = []
        self.delay = 0.0
        ear = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(size))
                time.sleep(ear.delay)
                status = ear.answers.pop(0) if ear.answers else 200
                ear.paths.append(self.path)
                if status == 200:
                    assert list(body) == ["text"]
                    assert self.headers["Content-Type"] == "application/json"
                    ear.heard.append(body["text"])
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks/s3cret"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def ear() -> Iterator[Ear]:
    """A listening one."""
    made = Ear()
    yield made
    made.close()


def spec(url: str = "", credentials: str = "") -> TargetSpec:
    return TargetSpec(
        "ct200",
        "/w",
        credentials_file=credentials,
        fleet=FleetSpec(gpus=1),
        alerts=AlertSpec(webhook=url),
    )


async def sent(hook: Webhook, true: Callable[[], object]) -> None:
    """Run the webhook until something is true."""
    task = asyncio.create_task(hook.run())
    try:
        await until(true, 20)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_comes_together_is_one_post(ear: Ear) -> None:
    """Each line with the target in front."""
    hook = Webhook(lambda: spec(ear.url), pytest.fail, together=0.2)
    hook.say("✖ GPU 3: failed")
    hook.say("▲ disk: 1.0 GB free")
    await sent(hook, lambda: ear.heard)
    assert ear.heard == ["ct200 ✖ GPU 3: failed\nct200 ▲ disk: 1.0 GB free"]


async def test_a_server_in_trouble_is_asked_again_and_one_that_refuses_is_not(ear: Ear) -> None:
    """The trouble is told once, with no more of the address than the host; and when it is over."""
    told: list[str] = []
    hook = Webhook(lambda: spec(ear.url), told.append, waits=(0.05, 0.05), together=0.05)
    ear.answers = [503, 429]
    hook.say("one")
    await sent(hook, lambda: ear.heard)
    assert (ear.heard, told) == (["ct200 one"], [])
    ear.answers = [404]
    hook.say("two")
    await sent(hook, lambda: told)
    assert told == ["webhook: 127.0.0.1 answers HTTP 404; 1 messages were given up"]
    ear.answers = [500] * 3
    hook.say("three")
    await sent(hook, lambda: not ear.answers)
    hook.say("four")
    await sent(hook, lambda: "ct200 four" in ear.heard)
    await until(lambda: len(told) == 2)
    assert told[1] == "", "told once, and once that it is over"
    assert not any("s3cret" in line for line in told)


async def test_a_redirect_is_not_followed_and_a_flood_is_bounded(ear: Ear) -> None:
    told: list[str] = []
    hook = Webhook(lambda: spec(ear.url), told.append, together=0.05)
    ear.answers = [302]
    hook.say("x")
    await sent(hook, lambda: told)
    assert ear.paths == ["/hooks/s3cret"]
    for n in range(1_000):
        hook.say(f"line {n}")
    await sent(hook, lambda: ear.heard)
    lines = ear.heard[0].split("\n")
    assert len(lines) == webhook.MOST + 1
    assert "960 earlier messages were dropped" in lines[0]
    assert lines[-1] == "ct200 line 999"


def test_where_the_address_is_from(tmp_path: Path, ear: Ear) -> None:
    """The spec, else the credentials file; nonsense and an open file are one line."""
    secrets = tmp_path / "secrets.env"
    secrets.write_text(f"HF_TOKEN=x\nexport STOKER_WEBHOOK='{ear.url}'\n")
    secrets.chmod(0o600)
    assert address(spec(credentials=str(secrets))) == ear.url
    assert address(spec("http://other/", str(secrets))) == "http://other/"
    assert address(spec()) == ""
    secrets.chmod(0o644)
    with pytest.raises(WebhookError, match="may be read by others"):
        address(spec(credentials=str(secrets)))
    for wrong in ("ftp://x/", "hooks.example", "http://", "http://x:99999/", "file:///etc/passwd"):
        with pytest.raises(WebhookError, match="no http"):
            address(spec(wrong))


def test_nobody_there_is_one_line(ear: Ear) -> None:
    ear.close()
    with pytest.raises(WebhookError) as caught:
        post(ear.url, "x", 2)
    assert caught.value.again
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_an_alert_is_told_once_when_it_comes_and_once_when_it_is_over() -> None:
    """One that flickers, or was told by an earlier agent, is the same one."""
    caller = Caller()
    hot = Alert("hot.1", "GPU 1: 90 °C", 100.0)
    assert caller.look([hot], 100) == ["▲ GPU 1: 90 °C"]
    for second in range(101, 400):
        assert caller.look([hot] if second % 20 < 3 else [], second) == []
    assert [line for s in range(400, 500) for line in caller.look([], s)] == [
        "✔ over: GPU 1: 90 °C (it stood for 5 min)"
    ]
    again = Caller([hot])
    assert again.look([hot], 600) == []
    assert Caller([hot]).look([], 700) == [], "it may come back in a moment"


async def test_while_nobody_looks_the_end_of_the_run_is_told_with_all_before(ear: Ear) -> None:
    """And not while a console is there."""
    journal = Journal(None)
    await journal.open()
    hook = Webhook(lambda: spec(ear.url), pytest.fail, together=0.05)
    now = [1_000_000.0]
    lookers = Lookers(journal, hook, lambda: now[0])
    lookers.read_back()
    going = Picture(
        run=RunState(alive=True, progress=Progress(completed=100, rate_per_sec=2.0, eta_hours=1.0))
    )
    lookers.came()
    lookers.look(going)
    journal.emit("run.ended", "x")
    lookers.look(going)
    lookers.left(going)
    lookers.look(going)
    journal.emit("server.failed", "GPU 3: out of memory", gpu=3, level="error")
    journal.emit("run.done", "the run is done: 7300 of 7300 prompts")
    now[0] += 3_600
    ended = Progress(completed=7_300, status="done")
    lookers.look(replace(going, run=RunState(alive=False, progress=ended)))
    await sent(hook, lambda: ear.heard)
    (text,) = ear.heard
    first, *lines = text.split("\n")
    assert first.startswith("ct200 since ")
    assert lines[0].startswith("✖ GPU 3 died ")
    assert lines[0].endswith(" UTC: out of memory; not ready since")
    assert "✔ 7,200 prompts were done, 2.00/s (it was 2.00/s)" in lines
    assert "✔ the run is done" in lines
    now[0] += 9 * 3_600
    lookers.look(replace(going, run=RunState(alive=False, progress=ended)))
    assert not hook._queue, "nothing goes on that could be told of"
    await journal.close()


async def test_the_agent_calls(agent: Agent, workspace: Workspace, ear: Ear) -> None:
    """A real agent, real alerts (a card too hot, another not seen by the driver), the address a
    secret; while the other side is slow the agent answers as ever."""
    secrets = workspace.root / "secrets.env"
    secrets.write_text(f"STOKER_WEBHOOK={ear.url}\n")
    secrets.chmod(0o600)
    smi = workspace.root / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(
        "#!/bin/sh\nwhile echo '0, 00000000:17:00.0, NVIDIA X, 97, 10, 100, 95, 70, 600'\n"
        "do sleep 1; done\n"
    )
    smi.chmod(0o755)
    agent.start(PATH=f"{smi.parent}:/usr/bin:/bin")
    link = await Link.open(await agent.ready())
    told = TargetSpec(
        "ct200", str(workspace.root), credentials_file=str(secrets), fleet=FleetSpec(gpus=2)
    )
    link.writer.write(encode(Hello(version=1, code="x", role="console", spec=told)))
    second = await Link.open(workspace.socket)
    second.writer.write(encode(Hello(version=1, code="x", role="console", spec=told)))
    ear.delay = 1.0
    began = time.monotonic()
    for _ in range(5):
        assert isinstance(await second.ask(Get()), Snapshot)
    assert time.monotonic() - began < 5
    await until(lambda: ear.heard, 60)
    await until(lambda: "GPU 1: not seen by the driver" in "\n".join(ear.heard), 60)
    assert "ct200 ✖ GPU 0: 95 °C" in "\n".join(ear.heard)
    assert "s3cret" not in agent.log
    assert "Traceback" not in agent.log
