"""The run against simulated servers: broken off in the middle, continued, nothing lost."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from console.lab.sim import model
from remote import verify
from remote.generate import control
from tests.console.lab_sim import servers
from tests.remote.generate.conftest import Generation, wait_for
from tests.remote.generate.test_continue import TOOL

COUNT = 36
Endpoint = Literal["chat", "generate"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Lab]:
    """Answers that take a few seconds."""
    folder = tmp_path_factory.mktemp("interrupted")
    model.write(folder / "model")
    with servers.lab(folder, "0.5.12", speed=20, length_mean=1500) as made:
        yield made


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """Says at once what the others say by and by."""
    folder = tmp_path_factory.mktemp("oracle")
    model.write(folder / "model")
    with servers.lab(folder, "0.5.12", speed=2000, length_mean=1500) as made:
        yield made.start(model_path=str(folder / "model")).ready()


@pytest.fixture
def start(lab: servers.Lab) -> Iterator[Callable[..., servers.Server]]:
    """Start servers; all end with the test."""
    made: list[servers.Server] = []

    def one(**flags: Any) -> servers.Server:
        made.append(lab.start(gpu=len(made), model_path=str(lab.folder / "model"), **flags))
        return made[-1]

    yield one
    for server in made:
        server.end()


def url(server: servers.Server) -> str:
    """Its base URL."""
    return f"http://127.0.0.1:{server.port}"


def prompts(path: Path, count: int = COUNT, **extra: Any) -> None:
    """Thinking, not thinking, and with a tool, by turns."""
    kinds: list[dict[str, Any]] = [
        {},
        {"params": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"tools": [TOOL]},
    ]
    with path.open("w") as out:
        for index in range(count):
            text = f"Tell me the {index}. story about a lantern – größer, please."
            row = {"messages": [{"role": "user", "content": text}], **kinds[index % 3], **extra}
            out.write(json.dumps(row) + "\n")


class Wish:
    """``control.json`` of one run."""

    def __init__(self, run: Generation, *members: servers.Server) -> None:
        self.run, self.members, self.version = run, members, 0

    def __call__(self, dispatch: Any = "run", **by_url: Any) -> None:
        self.version += 1
        listed = [
            control.ServerControl(url(server), dispatch=by_url.get(f"s{n}", "run"))
            for n, server in enumerate(self.members)
        ]
        control.write(
            self.run.folder,
            control.Control(
                servers=listed, dispatch=dispatch, version=self.version, concurrency=10
            ),
        )

    def obeyed(self) -> bool:
        """The run says so."""
        return bool(self.run.progress().get("control_version") == self.version)

    def empty(self, number: int) -> bool:
        """The run owes that server nothing, and nothing comes from it."""
        work = self.run.progress()["servers"][url(self.members[number])]
        return self.obeyed() and work["in_flight"] == 0


def begin(
    generation: Callable[..., Generation],
    endpoint: Endpoint,
    *members: servers.Server,
    write: Callable[[Path], None] = prompts,
    options: tuple[str, ...] = (),
) -> tuple[Generation, Wish]:
    """A greedy run that has begun to generate."""
    run = generation(1)
    write(run.prompts)
    for server in members:
        server.ready()
    again(run, endpoint, *members, options=options)
    wish = Wish(run, *members)
    return run, wish


def again(
    run: Generation, endpoint: Endpoint, *members: servers.Server, options: tuple[str, ...] = ()
) -> None:
    """Start or resume it."""
    more = ("--endpoint", endpoint, "--temperature", "0", "--concurrency", "10", *options)
    run.start(*map(url, members), options=("--max-tokens", "4000", *more))


def busy(*members: servers.Server, tokens: int = 5000) -> None:
    """Every one of them is in the middle of answers."""
    for server in members:
        wait_for(partial(_has, server, tokens), what="tokens")


def _has(server: servers.Server, tokens: int) -> bool:
    return bool(server.load()["num_used_tokens"] > tokens)


def whole(run: Generation, server: servers.Server) -> None:
    """Every record says what the same prompt is answered without any interruption."""
    report = verify.audit(run.folder, prompts=run.prompts)
    assert not report.violations, report.violations
    records = {record["index"]: record for record in run.records()}
    lines = run.prompts.read_text().splitlines()
    assert sorted(records) == list(range(len(lines)))
    for index, record in records.items():
        prompt = json.loads(lines[index])
        body = {"model": "m", "messages": prompt["messages"], "temperature": 0, "max_tokens": 4000}
        body |= {
            **prompt.get("params", {}),
            **({"tools": prompt["tools"]} if "tools" in prompt else {}),
        }
        answer = server.client.post("/v1/chat/completions", json=body).json()
        message = answer["choices"][0]["message"]
        for name in ("content", "reasoning_content"):
            assert record[name] == message[name], (index, name, record.get("segments"))
        assert calls(record) == calls(message), index
        assert record["finish_reason"] == answer["choices"][0]["finish_reason"]
        used = answer["usage"]
        assert record["usage"]["prompt_tokens"] == used["prompt_tokens"]
        if segments := record.get("segments"):
            told = sum(part["tokens"] for part in segments)
            assert record["usage"]["completion_tokens"] == told
            assert segments[-1]["server"] == record["server"]
            assert abs(sum(part["latency_s"] for part in segments) - record["latency_s"]) < 0.01
            assert len(segments) > 1
        if not segments or segments[0]["endpoint"] == "generate":
            assert record["usage"]["completion_tokens"] == used["completion_tokens"]
            assert record["usage"]["reasoning_tokens"] == used["reasoning_tokens"]


def calls(message: dict[str, Any]) -> list[Any]:
    """The calls without their random ids."""
    return [call["function"] for call in message.get("tool_calls") or ()]


def continued(run: Generation) -> list[dict[str, Any]]:
    """Records that say they were interrupted."""
    return [record for record in run.records() if "segments" in record]


@pytest.mark.parametrize("endpoint", ["chat", "generate"])
def test_one_server_is_emptied_and_the_other_goes_on(
    endpoint: Endpoint,
    start: Callable[..., Any],
    generation: Callable[..., Generation],
    oracle: servers.Server,
) -> None:
    one, two = start(max_running_requests=6), start()  # four wait in its own queue
    run, wish = begin(generation, endpoint, one, two)
    busy(one, two)
    assert one.load()["num_waiting_reqs"] > 0
    wish(s0="abort")
    wait_for(lambda: wish.empty(0), what="emptied")
    assert one.load()["num_running_reqs"] == 0
    # What the run owes nothing for is on disk, or went on and is done or in flight.
    kept = [entry for entry in run.lines("pending.jsonl") if entry["kind"] == "partial"]
    assert kept and all(entry["data"]["identity"] for entry in kept)
    assert run.progress()["tokens_kept"] == sum(
        part["tokens"] for entry in kept for part in entry["data"]["segments"]
    )
    one.process.send_signal(signal.SIGTERM)
    one.exit()  # nothing leaked: a server with nothing open ends by itself
    assert run.wait() == 0, run.text()
    whole(run, oracle)
    parts = continued(run)
    assert parts
    for record in parts:
        assert [part["server"] for part in record["segments"]] == [url(one), url(two)]
        assert record["segments"][1]["endpoint"] == "generate"
    progress = run.progress()
    assert progress["continued"] == len(parts) == len(kept)
    assert progress["tokens_lost"] == 0 and progress["partial"] == 0
    assert f"{len(parts)} answers continued" in run.text()


@pytest.mark.parametrize("endpoint", ["chat", "generate"])
def test_the_run_is_killed_between_keeping_and_going_on(
    endpoint: Endpoint,
    start: Callable[..., Any],
    generation: Callable[..., Generation],
    oracle: servers.Server,
) -> None:
    """Both servers are emptied, the run is killed, the servers are other processes by then."""
    one, two = start(), start()
    run, wish = begin(generation, endpoint, one, two)
    busy(one, two)
    wish(s0="abort", s1="abort")
    wait_for(lambda: wish.empty(0) and wish.empty(1), what="emptied")
    assert run.progress()["partial"] > 0
    kept = run.progress()["tokens_kept"]
    run.kill()
    run.wait()
    one.end()
    two.end()
    three = start().ready()
    again(run, endpoint, three)
    assert run.wait() == 0, run.text()
    whole(run, oracle)
    parts = continued(run)
    assert {part["server"] for record in parts for part in record["segments"][:1]} == {
        url(one),
        url(two),
    }
    assert all(record["server"] == url(three) for record in parts)
    assert run.progress()["tokens_lost"] == 0
    assert run.progress()["tokens_kept"] == kept > 0
    assert f"{kept:,} tokens kept" in run.text()
    assert not run.lines("pending.jsonl")


def test_another_make_of_server_answers_anew(
    start: Callable[..., Any], generation: Callable[..., Generation], oracle: servers.Server
) -> None:
    """Another number format of the cache would not have gone on like that."""
    one, two = start(), start(kv_cache_dtype="fp8_e5m2")
    run, wish = begin(generation, "generate", one, two)
    busy(one, two)
    wish(s0="abort")
    wait_for(lambda: wish.empty(0), what="emptied")
    kept = run.progress()["tokens_kept"]
    assert kept > 0
    assert run.wait() == 0, run.text()
    whole(run, oracle)
    assert not continued(run)
    assert run.progress()["tokens_lost"] == kept


def test_a_server_of_the_same_make_is_waited_for_by_its_own(
    start: Callable[..., Any], generation: Callable[..., Generation], oracle: servers.Server
) -> None:
    """Of three the one that could not go on takes other prompts."""
    one, two, odd = start(), start(), start(kv_cache_dtype="fp8_e5m2")
    run, wish = begin(generation, "chat", one, two, odd)
    busy(one, two, odd)
    wish(s0="abort")
    wait_for(lambda: wish.empty(0), what="emptied")
    assert run.wait() == 0, run.text()
    whole(run, oracle)
    assert run.progress()["tokens_lost"] == 0
    assert {record["server"] for record in continued(run)} == {url(two)}


def test_redo_throws_away(
    start: Callable[..., Any], generation: Callable[..., Generation], oracle: servers.Server
) -> None:
    one, two = start(), start()
    run, wish = begin(generation, "generate", one, two)
    busy(one, two)
    wish(s0="redo")
    wait_for(lambda: wish.empty(0), what="emptied")
    progress = run.progress()
    assert progress["tokens_lost"] > 0 and progress["tokens_kept"] == 0
    assert run.wait() == 0, run.text()
    assert not continued(run)
    whole(run, oracle)


@pytest.mark.parametrize("how", ["control", "signals"])
def test_a_stop_keeps_what_is_in_flight(
    how: str,
    start: Callable[..., Any],
    generation: Callable[..., Generation],
    oracle: servers.Server,
) -> None:
    """By the agent's word, or by a second SIGTERM."""
    one = start()
    run, wish = begin(generation, "chat", one)
    busy(one)
    if how == "control":
        wish("stop")
    else:
        run.kill(signal.SIGTERM)
        wait_for(lambda: "draining" in run.text())
        run.kill(signal.SIGTERM)
    assert run.wait() == 130, run.text()
    assert [entry["kind"] for entry in run.lines("pending.jsonl")].count("partial") == 10
    again(run, "chat", one)
    assert run.wait() == 0, run.text()
    whole(run, oracle)
    assert len(continued(run)) == 10


def test_an_open_turn_goes_on(
    start: Callable[..., Any], generation: Callable[..., Generation], oracle: servers.Server
) -> None:
    """A conversation asked turn by turn keeps its turns and the one that was interrupted."""

    def write(path: Path) -> None:
        users = [{"role": "user", "content": f"Question {n} about a lantern"} for n in range(2)]
        with path.open("w") as out:
            for index in range(8):
                row = {"messages": users, "mode": "each", "id": index}
                row["messages"] = [{"role": "user", "content": f"Story {index}"}, *users]
                out.write(json.dumps(row) + "\n")

    one = start()
    run, wish = begin(generation, "generate", one, write=write)
    wait_for(lambda: len(run.lines("pending.jsonl")) >= 8, what="first turns")
    busy(one, tokens=9000)
    wish(s0="abort")
    wait_for(lambda: wish.empty(0), what="emptied")
    kept = {entry["index"]: entry for entry in run.lines("pending.jsonl")}
    assert any(entry["kind"] == "partial" and entry["data"]["turns"] for entry in kept.values())
    run.kill()
    run.wait()
    again(run, "generate", one)
    assert run.wait() == 0, run.text()
    report = verify.audit(run.folder, prompts=run.prompts)
    assert not report.violations, report.violations
    turns = [turn for record in run.records() for turn in record["turns"]]
    assert len(turns) == 24
    assert any("segments" in turn for turn in turns)
    for record in run.records():
        sent: list[dict[str, Any]] = []
        for number, turn in enumerate(record["turns"]):
            users = [m for m in record["messages"] if m["role"] == "user"]
            sent.append(users[number])
            message = oracle.client.post(
                "/v1/chat/completions",
                json={"model": "m", "messages": sent, "temperature": 0, "max_tokens": 4000},
            ).json()["choices"][0]["message"]
            assert turn["content"] == message["content"]
            sent.append({"role": "assistant", "content": turn["content"]})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--request", '{"best_of": 3}'), "no best_of with endpoint"),
        (("--request", '{"n": 2}'), "n = 2 is not possible"),
        (("--request", '{"tool_choice": "required"}'), "tool_choice other than auto or none"),
    ],
)
def test_what_generate_has_no_word_for_is_refused_at_the_start(
    options: tuple[str, ...], said: str, generation: Callable[..., Generation]
) -> None:
    run = generation(3)
    run.start("http://127.0.0.1:1", options=("--endpoint", "generate", *options))
    assert run.wait() == 2
    assert said in run.text() and len(run.text().splitlines()) == 1
