"""What a control file says, and what it leaves open."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.generate import control
from remote.generate.control import Control, ControlError, ServerControl, merged
from tests.remote.generate.conftest import Generation, Served, wait_for
from tests.remote.generate.test_run import check, indices

NOW = Control(
    servers=[
        ServerControl("http://a:1", gpu=3, epoch=2, process="7.1"),
        ServerControl("http://b:1"),
    ],
    dispatch="pause",
    concurrency=8,
    version=5,
)


@pytest.mark.parametrize(
    ("said", "changed"),
    [
        ({}, {}),
        ({"dispatch": "run"}, {"dispatch": "run"}),
        ({"concurrency": 3}, {"concurrency": 3}),
        ({"servers": []}, {}),
        (
            {"servers": [{"url": "http://a:1/", "dispatch": "abort"}]},
            {"servers": [ServerControl("http://a:1", 3, "abort", None, 2, "7.1")]},
        ),
        (
            {"servers": [{"url": "http://c:1"}, {"url": "http://a:1", "process": "8.1"}]},
            {
                "servers": [
                    ServerControl("http://c:1"),
                    ServerControl("http://a:1", 3, "run", None, 2, "8.1"),
                ]
            },
        ),
    ],
)
def test_what_is_not_said_stays(said: dict[str, Any], changed: dict[str, Any]) -> None:
    """Of the whole, and of each server by its URL."""
    names = Control.__struct_fields__
    wanted = {**{name: getattr(NOW, name) for name in names}, **changed}
    assert merged(json.dumps(said).encode(), NOW) == (Control(**wanted), [])


def test_keys_that_nobody_knows_are_named() -> None:
    """The rest is obeyed."""
    said = {"concurency": 3, "version": 6, "servers": [{"url": "http://b:1", "slots": 3}]}
    wish, unknown = merged(json.dumps(said).encode(), NOW)
    assert unknown == ["concurency", "servers: slots"]
    assert (wish.version, wish.concurrency) == (6, 8)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'{"concurrency": 0}',
        b'{"dispatch": "go"}',
        b'{"servers": [{}]}',
        b'{"servers": [{"url": null}]}',
        b'{"servers": ["http://a:1"]}',
        b'{"servers": 3}',
        b'{"servers": [{"url": "http://a:1", "dispatch": null}]}',
    ],
)
def test_what_cannot_be_meant_is_refused_whole(raw: bytes) -> None:
    """One line, why."""
    with pytest.raises(ControlError) as caught:
        merged(raw, NOW)
    assert str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """The agent's way."""
    assert control.read(tmp_path) is None
    control.write(tmp_path, NOW)
    assert control.read(tmp_path) == NOW


def test_a_file_by_hand(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """What it leaves open stays as the command line said; what cannot be meant is told once."""
    run = generation(900)
    server = serve(delay=0.2)
    run.start(server, options=("--concurrency", "8"))
    wait_for(lambda: run.progress().get("completed", 0) > 20)

    def write(text: str) -> None:
        (run.folder / control.NAME).write_text(text)

    def slots() -> int:
        found: int = run.progress()["servers"][server.url]["slots"]
        return found

    write('{"dispatch": "pause"}')
    wait_for(lambda: run.progress()["status"] == "paused")
    assert slots() == 8
    write('{"concurrency": 3}')
    wait_for(lambda: slots() == 3)
    assert run.progress()["status"] == "paused"
    write('{"dispatch": "run", "concurrency": }')
    wait_for(lambda: "control.json is not obeyed: JSON is malformed" in run.text())
    write('{"dispatsh": "run"}')
    wait_for(lambda: "control.json: unknown key dispatsh; is dispatch meant?" in run.text())
    write('{"version": 7, "dispatsh": "run"}')
    wait_for(lambda: run.progress()["control_version"] == 7)
    time.sleep(0.5)
    assert run.text().count("is not obeyed") == run.text().count("unknown key") == 1
    assert run.progress()["status"] == "paused"
    server.set(delay=0.02)
    write('{"dispatch": "run", "concurrency": 16}')
    assert run.wait() == 0
    assert indices(run) == list(range(900))
    check(run)


def test_a_server_that_came_back_is_not_a_new_one_because_a_file_lists_it(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Without an agent nobody knows its process: what it has in flight is not sent twice."""
    run = generation(300)
    server = serve(delay=0.5)
    run.start(server, options=("--concurrency", "8"))
    wait_for(lambda: run.progress().get("completed", 0) > 20)  # it has proved itself
    server.kill()
    wait_for(lambda: run.progress()["servers"][server.url]["state"] == "open")
    server.settings["delay"] = 2.0
    server.start()
    wait_for(lambda: len(server.told()["seen"]) >= 8)
    text = json.dumps({"version": 1, "servers": [{"url": server.url, "epoch": 4}]})
    (run.folder / control.NAME).write_text(text)
    wait_for(lambda: run.progress()["control_version"] == 1)
    wait_for(lambda: len(server.told()["seen"]) >= 16)
    seen = server.told()["seen"]
    assert len(seen) == len(set(seen))
    server.set(delay=0.02)
    assert run.wait() == 0
    check(run)
