"""Requests that were once sent to the real SGLang 0.5.12, sent to the simulated one.

Status, keys and types of the answers are compared, and the texts of refusals; the words of a
model of noise are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.lab_sim.servers import Server, lab

REAL = Path(__file__).parents[4] / "shared" / "fixtures" / "real-engines" / "sglang"
NAMES = sorted(
    path.stem
    for pattern in ("chat_*.txt", "err_*.txt", "get_*.txt", "x_*.txt", "completions.txt")
    for path in REAL.glob(pattern)
    if path.stem != "chat_stream"
)
UNLIKE = {
    "chat_logprobs": "the simulation has no log probabilities",
    "chat_regex_ebnf": "the simulation follows no grammar",
    "x_regex_nothink": "the simulation follows no grammar",
    "x_structured_outputs_regex_nothink": "the simulation follows no grammar",
}
SAID = ("err_bad_temperature", "err_empty_messages", "err_max_tokens_too_large", "err_404")
"""Refusals whose whole body must be the same."""

pytestmark = pytest.mark.skipif(not NAMES, reason="no recorded answers of the real server here")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with lab(tmp_path_factory.mktemp("lab"), "0.5.12", length_mean=300.0) as made:
        yield made.start(
            context_length=4096, served_model_name="tiny-qwen3", enable_metrics=True
        ).ready()


def alike(ours: Any, real: Any, where: str = "") -> list[str]:
    """Differences in keys and types; what may be absent in one answer may be in another."""
    if ours is None or real is None:
        return []
    if isinstance(real, dict):
        if not isinstance(ours, dict):
            return [f"{where}: {type(ours).__name__} for an object"]
        wrong = [f"{where}: {name} is missing" for name in real.keys() - ours.keys()]
        wrong += [f"{where}: {name} is not the real one's" for name in ours.keys() - real.keys()]
        for name in real.keys() & ours.keys():
            wrong += alike(ours[name], real[name], f"{where}.{name}")
        return wrong
    if isinstance(real, list):
        if not isinstance(ours, list):
            return [f"{where}: {type(ours).__name__} for a list"]
        return alike(ours[0], real[0], f"{where}[0]") if ours and real else []
    numbers = (int, float)
    if isinstance(real, numbers) and isinstance(ours, numbers):
        return []
    return [] if type(ours) is type(real) else [f"{where}: {ours!r} for {real!r}"]


def parts(text: str) -> tuple[str, str, str, int, dict[str, Any] | None, Any]:
    """Method, path, body, status, headers and answer of one recording."""
    request, _, answer = text.partition("\n\nHTTP ")
    first, _, sent = request.partition("\n")
    method, path = first.split()
    status, _, rest = answer.partition("\n")
    head, _, body = rest.partition("\n\n")
    if '"Date"' not in head:
        return method, path, sent.strip(), int(status), None, rest.strip()
    headers = json.loads(head)
    return method, path, sent.strip(), int(status), headers, body.strip()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_request_gets_an_answer_of_the_same_kind(tiny: Server, name: str) -> None:
    if name in UNLIKE:
        pytest.skip(UNLIKE[name])
    method, path, sent, status, headers, body = parts((REAL / f"{name}.txt").read_text())
    if name.startswith("x_") and '"messages"' not in sent:  # recorded without what all had
        hello = {"messages": [{"role": "user", "content": "hi there"}]}
        sent = json.dumps({**hello, **json.loads(sent)})
    given = {"Content-Type": "application/json"} if sent else {}
    answer = tiny.client.request(method, path, content=sent.encode(), headers=given)
    assert answer.status_code == status
    if headers:
        kept = ("Server", "Content-Type")
        assert {key: answer.headers.get(key) for key in kept} == {k: headers.get(k) for k in kept}
    if not body:
        assert not answer.content
        return
    real = json.loads(body)
    if name in SAID:
        assert answer.json() == real
    assert alike(answer.json(), real) == []
    if status == 200 and path.startswith("/v1/chat"):
        ours, theirs = answer.json()["choices"][0], real["choices"][0]
        if json.loads(sent).get("max_tokens", 1000) < 100 and "logit_bias" not in sent:
            assert ours["finish_reason"] == theirs["finish_reason"]


def test_the_events_of_a_stream_are_of_the_same_kind(tiny: Server) -> None:
    _, path, sent, _, headers, body = parts((REAL / "chat_stream.txt").read_text())

    def events(text: str) -> list[Any]:
        lines = [line.removeprefix("data: ") for line in text.split("\n") if line]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    answer = tiny.client.post(path, content=sent, headers={"Content-Type": "application/json"})
    assert headers is not None
    assert answer.headers["content-type"] == headers["Content-Type"]
    ours, real = events(answer.text), events(body)
    for place in (0, 1, -2, -1):
        assert alike(ours[place], real[place]) == []
    assert ours[-1]["usage"]["completion_tokens"] == real[-1]["usage"]["completion_tokens"]
