"""What the real SGLang 0.5.12 answered on its native endpoints, asked of the simulated one.

``real_native.jsonl`` holds one request a line with status and answer, recorded from the wheel on
a CPU with a model of noise. ``exact``: the whole body must be the same; else its keys and types.
Of a message about a malformed body the part before the place in the source was kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.console.lab_sim.servers import Server, lab, wait_for
from tests.console.lab_sim.test_real_answers import alike


class Row(msgspec.Struct):
    """One recorded request and its answer."""

    path: str
    body: dict[str, Any]
    status: int
    exact: bool
    answer: Any


ROWS = [
    msgspec.json.decode(line, type=Row)
    for line in Path(__file__).with_name("real_native.jsonl").read_bytes().splitlines()
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with lab(tmp_path_factory.mktemp("lab"), "0.5.12") as made:
        yield made.start(context_length=4096, tool_call_parser="qwen", enable_metrics=True).ready()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.path[1:]}-{ROWS.index(row)}")
def test_native_endpoints_answer_as_the_real_ones(tiny: Server, row: Row) -> None:
    answer = tiny.client.post(row.path, json=row.body)
    assert answer.status_code == row.status, answer.text
    if not isinstance(row.answer, dict | list):
        assert answer.text == row.answer
        return
    got = answer.json()
    if row.exact:
        assert got == row.answer
    assert alike(got, row.answer) == []
    if isinstance(row.answer, dict) and row.answer.get("type") == "Bad Request":
        assert got["message"].startswith(row.answer["message"].split("\n")[0])


RUNNING = """{"type": "abort", "message": "Aborted", "status_code": null, "err_type": null}"""
QUEUED = """{"text": "", "output_ids": [], "meta_info": {"id": "q-056-", "finish_reason":
{"type": "abort", "message": "Abort in waiting queue"}, "weight_version": "default",
"e2e_latency": 2.739684731000125, "completion_tokens": 0,
"response_sent_to_client_ts": 1795991402.3993487}}"""
"""What the real one answered for a request that ran, and for one that waited."""


def test_an_abort_of_all_is_answered_as_by_the_real_one(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    real = msgspec.json.decode(QUEUED)
    with (
        lab(tmp_path_factory.mktemp("lab"), "0.5.12") as made,
        ThreadPoolExecutor() as pool,
    ):
        server = made.start(max_running_requests=1, enable_metrics=True).ready()

        def generate(n: int) -> dict[str, Any]:
            params = {"max_new_tokens": 20_000, "ignore_eos": True}
            body = {"input_ids": [500, 501], "rid": f"q-{n:03d}-", "sampling_params": params}
            return dict(server.client.post("/generate", json=body).json())

        asked = [pool.submit(generate, n) for n in range(3)]
        wait_for(lambda: server.load()["num_waiting_reqs"] == 2, why="two wait")
        wait_for(lambda: server.load()["num_used_tokens"] > 10, why="one has tokens")
        assert server.client.post("/abort_request", json={"abort_all": True}).content == b""
        answers = sorted((one.result() for one in asked), key=lambda one: len(one["output_ids"]))
    for queued in answers[:2]:
        assert queued["meta_info"].keys() == real["meta_info"].keys()
        assert queued["meta_info"]["finish_reason"] == real["meta_info"]["finish_reason"]
        assert (queued["text"], queued["output_ids"]) == (real["text"], real["output_ids"])
        assert queued["meta_info"]["completion_tokens"] == 0
    assert answers[2]["meta_info"]["finish_reason"] == msgspec.json.decode(RUNNING)
    assert answers[2]["output_ids"]
