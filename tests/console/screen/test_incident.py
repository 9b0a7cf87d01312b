"""What goes into a bug report, and what must not."""

from __future__ import annotations

import json
import tarfile
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from console import incident
from console.model import Link, State, reduce
from remote.agent import logs
from remote.protocol import AlertSpec, LogPart, ReadLog, Request, Result
from tests.console.screen.driver import driven
from tests.console.screen.story import BEGAN, Story

SECRETS = {
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "wJalrXUtnFEMI",
    "export HF_TOKEN='hf_abcdefghijklmnopqrstuvwx'": "hf_abcdefghij",
    "server_args=ServerArgs(api_key='sk-very-secret-1234567890', port=1)": "very-secret",
    "python -m sglang.launch_server --api-key hunter2 --port 1": "hunter2",
    '{"Authorization": "Bearer abcdefgh12345678"}': "abcdefgh12345678",
    "key AKIAIOSFODNN7EXAMPLE was denied": "AKIAIOSFODNN7EXAMPLE",
    "https://user:pa55word@host/x": "pa55word",
    "GET /b/k?X-Amz-Credential=AKIA%2F1&X-Amz-Signature=deadbeef01": "deadbeef01",
    "password: correcthorse": "correcthorse",
    "STOKER_WEBHOOK=https://chat.example/hooks/abc123def": "abc123def",
    "posting to https://hooks.slack.com/services/T01/B02/abcXYZ": "abcXYZ",
}


@pytest.mark.parametrize(("line", "secret"), SECRETS.items())
def test_secrets_are_removed(line: str, secret: str) -> None:
    """In every form they take in logs."""
    assert secret not in incident.redact(line)
    assert incident.GONE in incident.redact(line)


@pytest.mark.parametrize(
    "line",
    [
        "Decode batch, #running-req: 37, #full token: 151230, full token usage: 0.31, gen: 1.0",
        '{"prompt_tokens": 12, "completion_tokens": 2711, "max_tokens": 4096}',
        "max_total_num_tokens=483922, chunked_prefill_size=8192",
        "api_key=None, admin_api_key=None",
    ],
)
def test_numbers_of_tokens_are_no_secrets(line: str) -> None:
    """Or the report would tell nothing."""
    assert incident.redact(line) == line


def test_a_word_without_end_takes_no_time() -> None:
    """A log may hold anything; the text is gone through once, not once a letter."""
    began = time.process_time()
    found = incident.redact("token" * 60_000 + "=abcdef " + "x" * 300_000)
    assert "abcdef" not in found
    assert time.process_time() - began < 5


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
    story = Story(lambda _: None, lambda _: None)
    state = reduce(State(link=Link("connected")), story.snapshot(), BEGAN)

    async def ask(request: Request) -> Result | None:
        if isinstance(request, ReadLog):
            if request.source == "agent":
                return None
            return LogPart(request.source, 1, 0, 9, ["--api-key hunter2", "\udcff torn"])
        return await story.call(request)

    path = await incident.bundle(ask, state, tmp_path)
    read = unpack(path)
    names = set(read)
    assert {"state.json", "events.jsonl", "epochs.json", "history.json", "about.txt"} <= names
    assert {f"logs/gpu{n}.log" for n in range(8)} <= names
    assert "missing: logs/agent.log" in read["about.txt"]
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
    story = Story(lambda _: None, lambda _: None)
    story.say("server.failed", "GPU 3: out (of) memory", gpu=3, level="error")
    spec = replace(story.spec, alerts=AlertSpec(webhook="https://chat.example/s3cret"))
    story.spec = spec
    state = reduce(State(link=Link("connected")), story.snapshot(), BEGAN)

    async def ask(request: Request) -> Result | None:
        if isinstance(request, ReadLog):
            path = logged.get(request.source)
            if path is None:
                return None
            if request.offset is None:
                return logs.tail(request.source, path, request.lines, request.grep)
            return logs.read(request.source, path, request.offset, request.lines, request.grep)
        return await story.call(request)

    path = await incident.bundle(ask, state, tmp_path)
    read = unpack(path)
    number = story.events[-1].id
    lines = read[f"around/{number}-gpu3.log"].splitlines()
    assert lines[0].endswith("line 1880")
    assert lines[-1].endswith("line 2060")
    assert "out (of) memory" in read[f"around/{number}-agent.log"]
    assert "s3cret" not in "".join(read.values())
