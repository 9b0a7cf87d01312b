"""Whole runs whose servers refuse, break off or die: no prompt is lost, and the run ends."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable

import pytest

from remote.generate import control
from remote.generate.control import ServerControl
from tests.remote.generate.conftest import Generation, Served, wait_for
from tests.remote.generate.test_run import check, indices


@pytest.mark.parametrize("mode", ["404", "422"])
def test_prompts_that_nobody_takes_end_the_run(
    mode: str, serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Denied or refused by all servers: given up, and everything else goes on meanwhile."""
    run = generation(200)
    servers = [serve(delay=0.05, mode=mode, faulty=[3, 77, 199]) for _ in range(3)]
    run.start(*servers)
    assert run.wait() == 1, run.text()
    assert {(f["index"], f["outcome"]) for f in run.lines("failed.jsonl")} == {
        (index, "rejected") for index in (3, 77, 199)
    }
    asked = [server.told()["seen"].count(3) for server in servers]
    assert 2 <= sum(asked) <= 5, asked
    assert indices(run) == [i for i in range(200) if i not in (3, 77, 199)]
    check(run)


def test_a_server_that_refuses_everything_burns_nothing(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """It answers at once, and would get the whole file: it is stopped, others answer."""
    run = generation(400)
    good, bad = serve(delay=0.1), serve(mode="422")
    run.start(good, bad)
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(400))
    assert "rejected" in run.text() and "dispatch stopped" in run.text()
    check(run)


def test_a_lone_server_that_refuses_everything_burns_nothing(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """It refuses our own short completion, too: the run says why, and waits for it."""
    run = generation(300)
    server = serve(delay=0.1)
    run.start(server)
    wait_for(lambda: run.done() > 20)
    server.set(mode="422", picky=True)
    wait_for(lambda: "invalid 'parameters' schema" in run.progress()["problem"])
    time.sleep(1.0)
    assert run.progress()["failed"] == 0
    server.set(mode="ok")
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(300))
    check(run)


def test_a_field_that_is_refused_is_found_before_the_first_prompt(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """The trial asks with the run's own fields."""
    run = generation(3)
    server = serve(keep_bodies=True, checks=True)
    fields = {"top_k": 5, "max_tokens": 900, "min_tokens": 20}
    options = ("--request", json.dumps(fields), "--temperature", "0.5", "--no-thinking")
    run.start(server, options=options)
    assert run.wait() == 0, run.text()
    trial = server.told()["bodies"][0]
    assert trial["messages"][0]["content"].startswith("Reply with the word")
    assert (trial["top_k"], trial["temperature"], trial["max_tokens"]) == (5, 0.5, 8)
    assert trial["chat_template_kwargs"] == {"enable_thinking": False}
    assert "min_tokens" not in trial


def test_a_template_longer_than_the_margin_costs_no_prompt(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """The server's refusal names the room; a number in the prompt's params is no way around it."""
    run = generation(1)
    with run.prompts.open("w") as out:
        for index in range(4):
            message = {"role": "user", "content": f"prompt {index} " + "y" * 2600}
            params = {"max_tokens": 600} if index % 2 else {}
            out.write(json.dumps({"messages": [message], "params": params}) + "\n")
    server = serve(context=1000, template=100)
    run.start(server, options=("--max-tokens", "500"))
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(4))
    check(run)


def test_a_server_that_only_breaks_off_ends_no_run_and_gets_no_storm(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """200 with finish_reason abort and nothing made: counted, with growing pauses between."""
    run = generation(12)
    server = serve(mode="unmade")
    run.start(server, options=("--retries", "1"))
    assert run.wait() == 1, run.text()
    assert {f["outcome"] for f in run.lines("failed.jsonl")} == {"failed"}
    assert len(server.told()["seen"]) <= 12 * 10
    check(run)


def test_a_poison_prompt_is_stopped_after_few_deaths(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """It kills within a moment of being sent, and goes from server to server."""
    run = generation(600)
    servers = [serve(delay=0.3, poison="prompt 70 ") for _ in range(6)]
    run.start(*servers, options=("--concurrency", "4"))
    assert run.wait() == 1, run.text()
    failed = run.lines("failed.jsonl")
    assert [(f["index"], f["outcome"]) for f in failed] == [(70, "quarantined")]
    assert sum(server.process.poll() is not None for server in servers) == 3
    assert indices(run) == [i for i in range(600) if i != 70]
    check(run)


def test_another_clients_requests_are_not_broken_off(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """The server is shared: what is to be emptied of it is this run's alone."""
    run = generation(100)
    server = serve(delay=8.0)
    run.start(server, options=("--concurrency", "4"))
    wait_for(lambda: server.told()["running"] == 4)
    finished: list[str] = []

    def ask() -> None:
        body = {"messages": [{"role": "user", "content": "not of this run"}], "rid": "mine"}
        request = urllib.request.Request(
            f"{server.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            finished.append(json.load(answer)["choices"][0]["finish_reason"])

    client = threading.Thread(target=ask)
    client.start()
    wait_for(lambda: server.told()["running"] == 5)
    listed = [ServerControl(server.url, dispatch="abort")]
    control.write(run.folder, control.Control(servers=listed, concurrency=4))
    wait_for(lambda: server.told()["running"] == 1, what="ours came back")
    client.join(30)
    assert finished == ["stop"]
    run.kill()
    run.wait()


def test_a_server_is_soon_seen_to_be_restarted(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Degenerate, and back after a moment: it gets work again although nothing is sent to it."""
    run = generation(1200)
    good, bad = serve(delay=1.0), serve(delay=0.05, mode="same")
    run.start(good, bad)
    wait_for(lambda: "dispatch stopped" in run.text())
    time.sleep(1.0)
    bad.kill()
    time.sleep(1.0)
    bad.settings["mode"] = "ok"
    bad.start()
    states = ("probation", "run")
    wait_for(lambda: run.progress()["servers"][bad.url]["state"] in states, 20)
    run.kill()
    run.wait()
