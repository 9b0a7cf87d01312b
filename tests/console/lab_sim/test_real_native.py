"""What the real SGLang 0.5.12 answered on its native endpoints, asked of the simulated one.

``real_native.jsonl`` holds one request a line with status and answer, recorded from the wheel on
a CPU with a model of noise. ``exact``: the whole body must be the same; else its keys and types.
Of a message about a malformed body the part before the place in the source was kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.console.lab_sim.servers import Server, lab
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
