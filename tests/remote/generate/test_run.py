"""Whole runs: real processes, real servers, real faults."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from remote import batches, verify
from remote.generate import control, recovery
from remote.generate.lock import LockedError
from tests.remote.generate.conftest import Generation, Served, wait_for, write_prompts


def check(run: Generation) -> None:
    """The laws of a run directory hold."""
    report = verify.audit(run.folder, prompts=run.prompts)
    assert not report.violations, report.violations


def indices(run: Generation) -> list[int]:
    """Every index with a completion record, in order."""
    return sorted(record["index"] for record in run.records())


def agrees_with_files(run: Generation, progress: dict[str, Any]) -> None:
    """What a finished run counts over all its lives is what its files hold."""
    records, found = run.records(), batches.count(run.folder)
    assert progress["completed"] == found.records == found.done_lines == len(records)
    assert (progress["batch_files"], progress["batch_records"]) == (found.files, found.records)
    assert progress["batch_bytes"] == found.bytes
    for total, tokens in (("input", "prompt_tokens"), ("output", "completion_tokens")):
        used = sum(record["usage"][tokens] for record in records)
        assert progress[f"total_{total}_tokens"] == used
    assert progress["outcomes"] == Counter(record["outcome"] for record in records)


def test_a_whole_run(serve: Callable[..., Served], generation: Callable[..., Generation]) -> None:
    """Log, records, batches, progress and exit status are as outsiders expect them."""
    run = generation(620, source="mine")
    one, two = serve(delay=0.02), serve(delay=0.02)
    run.start(one, two)
    assert run.wait() == 0
    lines = run.text().splitlines()
    assert lines[:3] == [f"Port {one.port}: OK", f"Port {two.port}: OK", "Starting generation..."]
    stamped = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] .")
    assert all(map(stamped.match, lines[3:])), "every other line bears its time"
    assert lines[3].endswith("] 0 done, 0 repaired, 2/2 healthy")
    assert indices(run) == list(range(620))
    check(run)
    assert sorted(p.name for p in run.folder.glob("completions_*")) == [
        "completions_000001.jsonl",
        "completions_000002.jsonl",
    ]
    record = run.records()[0]
    assert next(iter(record)) == "index"
    assert record["source"] == "mine"
    assert record["id"] == f"p{record['index']}"
    assert record["content"].startswith(f"answer to prompt {record['index']} ")
    assert record["reasoning_content"].startswith("thinking")
    assert record["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": record["usage"]["completion_tokens"],
        "reasoning_tokens": 3,
    }
    assert record["epoch"] is None
    assert record["attempts"] == 1
    progress = run.progress()
    assert progress["status"] == "done"
    assert (progress["total"], progress["completed"], progress["failed"]) == (620, 620, 0)
    assert progress["total_input_tokens"] == 620 * 11
    assert progress["total_reasoning_tokens"] == 620 * 3
    assert one.told()["peak"] <= 20

    run.start(one, two)  # nothing is left to do, and nothing is sent
    assert run.wait() == 0
    assert run.progress()["total_reasoning_tokens"] == 620 * 3
    assert sum(len(s.told()["seen"]) for s in (one, two)) == 620


def test_killed_again_and_again(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """SIGKILL at random moments: nothing acknowledged is lost, nothing is there twice."""
    run = generation(900)
    servers = [serve(delay=0.1, size=3000), serve(delay=0.1, size=3000)]
    dice = random.Random(os.urandom(4))
    seen = 0
    for _ in range(6):
        run.start(*servers)
        goal = seen + dice.randrange(40)
        while run.done() <= goal:
            assert run.process is not None
            assert run.process.poll() is None, run.text()
            time.sleep(0.02)
        time.sleep(dice.random() * 0.1)
        run.kill()
        run.wait()
        now = run.done()
        assert now >= seen
        seen = now
        check(run)
    run.start(*servers)
    assert run.wait() == 0
    assert indices(run) == list(range(900))
    check(run)
    progress = run.progress()
    assert progress["elapsed_hours"] > 0
    agrees_with_files(run, progress)


def test_drain_and_resume(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """SIGTERM lets what is in flight end; the same command goes on."""
    run = generation(300)
    server = serve(delay=0.3)
    run.start(server)
    wait_for(lambda: run.progress().get("completed", 0) > 30)
    run.kill(signal.SIGTERM)
    assert run.wait() == 130
    progress = run.progress()
    assert progress["status"] == "stopped"
    done = progress["completed"]
    assert 30 < done < 300
    assert done == len(indices(run)) == len(server.told()["seen"])
    assert list(run.folder.glob("completions_*.open")), "a drain seals nothing"
    run.start(server)
    assert run.wait() == 0
    assert f"{done} done, 0 repaired, 1/1 healthy" in run.text()
    assert indices(run) == list(range(300))
    check(run)


def test_second_run_is_refused(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Two writers in one directory: the second leaves and says who holds it."""
    run = generation(200)
    server = serve(delay=0.5)
    run.start(server)
    wait_for(run.progress)
    second = generation(name="out")
    second.log = run.folder.with_suffix(".second")
    second.start(server)
    assert second.wait() == 2
    assert run.process is not None
    assert f"process {run.process.pid}" in second.text()
    with pytest.raises(LockedError):
        recovery.retry_failed(run.folder)


def test_faults_are_tried_again(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Whatever servers do to some requests, every prompt ends in exactly one record."""
    run = generation(900)
    modes = ["500", "503", "429", "reset", "garbage", "abort"]
    servers = [serve(delay=0.05, mode=mode, share=0.15) for mode in modes]
    run.start(*servers, options=("--retries", "6"))
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(900))
    retries = run.progress()["retries"]
    assert {"server", "busy", "reset", "garbage", "abort"} <= set(retries)
    assert all(record["finish_reason"] == "stop" for record in run.records())
    check(run)


def test_rejected_prompts_are_given_up(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """A 400 is final for its prompt and kept with its cause; retry-failed revives it."""
    run = generation(60)
    server = serve(mode="400", share=0.2)
    run.start(server)
    assert run.wait() == 1
    failed = run.lines("failed.jsonl")
    assert failed
    assert {f["outcome"] for f in failed} == {"rejected"}
    assert {f["status"] for f in failed} == {400}
    assert "longer than the model" in failed[0]["reason"]
    assert sorted([*indices(run), *(f["index"] for f in failed)]) == list(range(60))
    check(run)
    text = recovery.retry_failed(run.folder)
    assert str(len(failed)) in text
    server.set(mode="ok")
    run.start(server)
    assert run.wait() == 0
    assert indices(run) == list(range(60))
    assert (run.folder / "failed.1.jsonl").exists()
    check(run)


def test_dead_server_comes_back(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """What was in flight on a dead server is done elsewhere; it gets work again by itself."""
    run = generation(900)
    live, dying = serve(delay=0.3), serve(delay=0.3)
    run.start(live, dying)
    wait_for(lambda: run.progress().get("completed", 0) > 60)
    dying.kill()
    wait_for(lambda: run.progress()["servers"][dying.url]["state"] == "open", what="breaker opens")
    assert run.progress()["problem"] == ""
    live.set(delay=5.0)  # so that there is work left however long the other takes to start
    dying.start()
    wait_for(lambda: len(dying.told()["seen"]) > 20, 60, "it is used again")
    live.set(delay=0.3)
    assert run.wait() == 0
    assert indices(run) == list(range(900))
    assert run.progress()["failed"] == 0
    check(run)


def test_no_server_burns_nothing(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """All servers down: the run waits, says so, and goes on when one is there."""
    run = generation(50)
    server = serve()
    server.kill()
    run.start(server, options=("--retries", "0"))
    wait_for(lambda: "no server answers" in run.progress().get("problem", ""))
    assert run.progress()["status"] == "running"
    server.start()
    assert run.wait() == 0
    assert indices(run) == list(range(50))


def test_hung_server_loses_its_requests(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Silence is judged per server: no answer and no token for so long, with work in flight."""
    run = generation(900)
    good, bad = serve(delay=0.3), serve(delay=0.3)
    run.start(good, bad, options=("--patience", "1.5"))
    wait_for(lambda: run.progress().get("completed", 0) > 40)
    bad.set(mode="hang", engine="sglang")
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(900))
    assert "no sign of life" in run.text()
    check(run)


@pytest.mark.parametrize("mode", ["same", "empty"])
def test_degenerate_server_is_stopped(
    mode: str, serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Its first answers wait to be judged together: not one of them reaches a file that counts."""
    run = generation(400)
    good, bad = serve(delay=0.05), serve(delay=0.05, mode=mode)
    run.start(good, bad)
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(400))
    assert {record["server"] for record in run.records()} == {good.url}
    assert "dispatch stopped" in run.text()
    assert len(bad.told()["seen"]) <= 40
    check(run)


def test_a_degenerate_server_gets_work_once_it_is_restarted(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """As the run advises; without an agent it has to see for itself that nobody listens there."""
    run = generation(1200)
    good, bad = serve(delay=1.0), serve(delay=0.05, mode="same")
    run.start(good, bad)

    def state() -> str:
        word: str = run.progress()["servers"][bad.url]["state"]
        return word

    wait_for(lambda: "dispatch stopped" in run.text())
    wait_for(lambda: state() == "stopped")
    bad.kill()
    wait_for(lambda: state() == "open", what="seen to be gone")
    bad.settings["mode"] = "ok"
    bad.start()
    wait_for(lambda: state() in ("probation", "run"), what="given work again")
    good.set(delay=0.02)
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(1200))
    assert {record["server"] for record in run.records()} == {good.url, bad.url}
    check(run)


def test_another_model_is_refused_from_the_first_record_on(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """What the servers serve is a part of the run as soon as one of them said it."""
    run = generation(200)
    server = serve(delay=0.2)
    run.start(server)
    wait_for(run.done)
    run.kill()
    run.wait()
    server.set(model="huge")
    run.start(server)
    wait_for(lambda: "serves huge, but this run is of tiny" in run.progress().get("problem", ""))
    run.kill(signal.SIGTERM)
    assert run.wait() == 130


def test_probation_survives_a_kill(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Answers that still wait for their verdict are read back, not asked for again."""
    run = generation(12)
    server = serve(delay=0.3)
    slow = generation(name="out")
    run.start(server, options=("--concurrency", "2"))
    wait_for(lambda: len(run.lines("pending.jsonl")) >= 6)
    run.kill()
    run.wait()
    waited = {entry["index"] for entry in run.lines("pending.jsonl")}
    before = len(server.told()["seen"])
    slow.start(server)
    assert slow.wait() == 0
    again = server.told()["seen"][before:]
    assert not waited & set(again)
    assert indices(run) == list(range(12))
    check(run)


def test_outcomes_decide_where_answers_go(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Cut answers are kept and counted; looped ones are set aside, never in a batch."""
    run = generation(200)
    server = serve(delay=0.01, mode="loop", share=0.1)
    other = serve(delay=0.01, mode="length", share=0.2)
    run.start(server, other)
    assert run.wait() == 1
    aside = run.lines("set_aside.jsonl")
    assert {record["outcome"] for record in aside} == {"looped"}
    outcomes = Counter(record["outcome"] for record in run.records())
    assert set(outcomes) == {"ok", "length"}
    assert run.progress()["set_aside"] == len(aside)
    assert run.progress()["outcomes"] == dict(outcomes)
    check(run)
    recovery.retry_failed(run.folder, set_aside=True)
    server.set(mode="ok")
    run.start(server, other)
    assert run.wait() == 0
    check(run)


def test_prompts_may_grow_only_on_request(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Another file is refused; a longer one needs --extend; other parameters need a word."""
    run = generation(30)
    server = serve()
    run.start(server)
    assert run.wait() == 0
    with run.prompts.open("a") as out:
        message = {"role": "user", "content": "prompt 30 more"}
        out.write(json.dumps({"messages": [message]}) + "\n")
    run.start(server)
    assert run.wait() == 2
    assert "--extend" in run.text()
    run.start(server, options=("--extend",))
    assert run.wait() == 0
    assert indices(run) == list(range(31))
    check(run)
    run.start(server, options=("--max-tokens", "77"))
    assert run.wait() == 2
    assert "--accept-params" in run.text()
    run.start(server, options=("--max-tokens", "77", "--accept-params"))
    assert run.wait() == 0
    write_prompts(run.prompts, 40, source="other")
    run.start(server, options=("--extend",))
    assert run.wait() == 2
    assert "not the prompts that this run began with" in run.text()


def test_broken_prompts_file(generation: Callable[..., Generation]) -> None:
    """One line that names the file and the line, and exit status 2."""
    run = generation(1)
    with run.prompts.open("a") as out:
        out.write('{"messages"\n')
    run.start("http://127.0.0.1:9")
    assert run.wait() == 2
    assert f"{run.prompts}: line 2: " in run.text()
    assert run.text().count("\n") == 1
    run.prompts.unlink()
    run.start("http://127.0.0.1:9")
    assert run.wait() == 2
    assert "no such file" in run.text()
    assert "Traceback" not in run.text()


def test_control_file(serve: Callable[..., Served], generation: Callable[..., Generation]) -> None:
    """Pause, resume, abort one server, change concurrency, drain: by control.json alone."""
    run = generation(2000)
    one, two = serve(delay=0.3), serve(delay=0.3)
    run.start(one, two)
    wait_for(lambda: run.progress().get("completed", 0) > 30)

    def wish(**changes: object) -> None:
        names = {"servers": [control.ServerControl(s.url) for s in (one, two)], **changes}
        control.write(run.folder, control.Control(**names))  # type: ignore[arg-type]

    wish(dispatch="pause")
    wait_for(lambda: run.progress()["status"] == "paused" and not run.progress()["in_flight"])
    count = len(one.told()["seen"])
    wish(concurrency=3)
    wait_for(lambda: run.progress()["servers"][one.url]["in_flight"] == 3)
    wait_for(lambda: len(one.told()["seen"]) > count)
    wish(
        servers=[
            control.ServerControl(one.url, max_running=30),
            control.ServerControl(two.url, dispatch="abort"),
        ]
    )
    wait_for(lambda: run.progress()["servers"][two.url]["in_flight"] == 0)
    wait_for(lambda: run.progress()["servers"][one.url]["slots"] in (20, 34))
    wish(dispatch="drain", seal=True)
    assert run.wait() == 130
    assert not list(run.folder.glob("*.open")), "sealed short on request"
    (run.folder / control.NAME).unlink()
    one.set(delay=0.02)
    two.set(delay=0.02)
    run.start(one, two)
    assert run.wait() == 0
    assert indices(run) == list(range(2000))
    assert run.progress()["failed"] == 0
    check(run)


def test_an_earlier_tools_directory(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Only .done_indices and completions files, the newest one torn: resumed, numbering goes on."""
    run = generation(40)
    run.folder.mkdir()
    lines = [json.dumps({"index": i, "text": "é" * 50}, ensure_ascii=False) for i in range(20)]
    (run.folder / "completions_0001.jsonl").write_text("".join(x + "\n" for x in lines[:12]))
    torn = ("".join(x + "\n" for x in lines[12:20])).encode()[:-20]
    (run.folder / "completions_0002.jsonl").write_bytes(torn)
    (run.folder / ".done_indices").write_text("".join(f"{i}\n" for i in [*range(20), 3]))
    server = serve()
    run.start(server)
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(40))
    assert sorted(server.told()["seen"]) == list(range(19, 40))
    assert (run.folder / "completions_0003.jsonl").exists()
    assert list((run.folder / "torn").iterdir())
    check(run)


def test_api_key(serve: Callable[..., Served], generation: Callable[..., Generation]) -> None:
    """The key comes from the credentials file; without it the run says what is wrong."""
    run = generation(20)
    server = serve(key="secret")
    run.start(server)
    wait_for(lambda: "Unauthorized" in run.progress().get("problem", ""))
    run.kill(signal.SIGTERM)
    assert run.wait() == 130
    keys = run.folder.with_suffix(".env")
    keys.write_text('export OPENAI_API_KEY="secret"\n')
    run.start(server, options=("--credentials", str(keys)))
    assert run.wait() == 0
    assert "secret" not in run.text()
