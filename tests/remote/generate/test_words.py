"""What the command says to who sits before it: why prompts were given up, what it waits for."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

from remote.generate.reasons import MOST, Reasons
from tests.remote.generate.conftest import Generation, Served, wait_for, write_prompts


def test_a_prompt_that_is_given_up_is_told_with_its_reason(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """At once, and again at the end, with the prompt's line; each reason once."""
    run = generation(30)
    rows = [json.loads(line) for line in run.prompts.read_text().splitlines()]
    for index in (4, 17):
        rows[index]["max_tokens"] = -4
    run.prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.start(serve(negative=True), options=("--concurrency", "1"))
    assert run.wait() == 1, run.text()
    text = run.text()
    said = "max_tokens must be at least 1, got -4. (prompt 4, line 5)"
    assert f"] given up, rejected: {said}" in text
    assert f"]   2 rejected: {said}" in text
    assert "move failed.jsonl away" in text
    assert text.count("must be at least 1") == 2
    run.start(serve(), options=("--concurrency", "1"))
    assert run.wait() == 1
    assert "2 for other reasons, or given up before: see failed.jsonl" in run.text()


def test_reasons_that_are_all_different_are_bounded() -> None:
    """Only numbers may differ in one; the rest counts together."""
    reasons = Reasons()
    for index in range(200):
        reasons.note(index, "rejected", f"so {chr(97 + index % 100)} it is {index}")
    assert len(reasons._counts) == MOST + 1
    assert reasons.summary(205)[-2].startswith("199 for other reasons")
    assert Reasons().summary(0) == []


def test_a_server_that_cannot_be_reached_is_named_within_seconds(
    generation: Callable[..., Generation],
) -> None:
    """It takes the connection and never answers; nothing stands in the log before it begins."""
    run = generation(3)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        began = time.monotonic()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        run.start(url)
        wait_for(lambda: f"waiting up to 20 s for a first short answer of {url}: " in run.text())
        assert time.monotonic() - began < 10
        assert "correct --server" in run.text()
        run.kill(15)
        assert run.wait() == 130


def test_a_name_that_nobody_knows_is_told_and_what_to_do(
    generation: Callable[..., Generation],
) -> None:
    """The first words of the log stay as they are."""
    run = generation(3)
    run.start("nowhere.invalid")
    wait_for(
        lambda: "no server answers: see that they run, and that --server is right" in run.text()
    )
    lines = run.text().splitlines()
    begins = lines.index("Starting generation...")
    assert all(line.startswith("remote.generate: waiting") for line in lines[:begins])
    assert any("Port 80: not ready: cannot connect" in line for line in lines[begins:])
    run.kill(15)
    assert run.wait() == 130


def test_a_changed_line_is_named_on_the_command_line(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """One line, exit status 2."""
    run = generation(40)
    server = serve()
    run.start(server)
    assert run.wait() == 0
    write_prompts(run.prompts, 40)
    text = run.prompts.read_text().replace("prompt 29 of many", "prompt 29 of manz")
    run.prompts.write_text(text)
    run.start(server)
    assert run.wait() == 2
    assert "line 30 differs, and no other" in run.text().splitlines()[-1]
