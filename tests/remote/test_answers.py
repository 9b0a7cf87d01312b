"""A look at the records of a run directory, newest first."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from remote import answers
from remote.protocol import Answers, Reply, encode


def record(index: int, **more: Any) -> str:
    """One line of a batch."""
    return json.dumps(
        {
            "index": index,
            "source": "maths" if index % 2 else "code",
            "messages": [{"role": "user", "content": f"question {index}"}],
            "content": f"answer {index} é",
            "reasoning_content": "because",
            "tool_calls": None,
            "outcome": "length" if index % 10 == 0 else "ok",
            "usage": {"prompt_tokens": 5, "completion_tokens": 7},
            "finished_at": "2026-11-29T17:00:00Z",
            **more,
        }
    )


def run(folder: Path, torn: bool = False) -> None:
    """Two sealed batches and an open one, lines longer than a block now and then."""
    for number, (first, name) in enumerate(
        ((0, "completions_000000.jsonl"), (500, "completions_000001.jsonl"))
    ):
        lines = [record(first + i, pad="x" * (1_500_000 if i == 250 else 10)) for i in range(500)]
        (folder / name).write_text("\n".join(lines) + "\n")
        assert number < 2
    text = "".join(record(1_000 + i) + "\n" for i in range(7))
    if torn:
        text += record(1_007)[:40]
    (folder / "completions_000002.jsonl.open").write_text(text)


@pytest.mark.parametrize("torn", [False, True])
def test_newest_first_over_all_batches(tmp_path: Path, torn: bool) -> None:
    """The open one too, without the line that is on its way."""
    run(tmp_path, torn)
    found = answers.newest(tmp_path, "done", 1_000)
    assert [a.index for a in found.answers] == list(range(1_006, 6, -1))
    assert not found.complete
    every = answers.newest(tmp_path, "done", 5_000)
    assert [a.index for a in every.answers] == list(range(1_006, -1, -1))
    assert every.complete


def test_searched_and_by_outcome(tmp_path: Path) -> None:
    """On this side, so that only what is wanted travels."""
    run(tmp_path)
    found = answers.newest(tmp_path, "done", 50, grep=r"question 77\d")
    assert [a.index for a in found.answers] == list(range(779, 769, -1))
    assert found.answers[0].prompt == "user: question 779"
    found = answers.newest(tmp_path, "done", 3, outcome="length")
    assert [a.index for a in found.answers] == [1_000, 990, 980]
    with pytest.raises(re.error):
        answers.newest(tmp_path, "done", 3, grep="(")


def test_failed_and_foreign_lines(tmp_path: Path) -> None:
    """What was given up on with its reason; what is no record is passed over."""
    (tmp_path / "failed.jsonl").write_text(
        '{"index": 4, "outcome": "rejected", "reason": "too long", "detail": "9000 > 8192"}\n'
        "not json\n[1]\n"
        '{"index": 5, "messages": "odd", "usage": 3, "tool_calls": [{"function": 1}]}\n'
    )
    found = answers.newest(tmp_path, "failed", 10)
    assert [a.index for a in found.answers] == [5, 4]
    assert found.answers[1].reason == "too long 9000 > 8192"
    assert answers.newest(tmp_path, "set_aside", 10) == Answers([])
    assert answers.newest(tmp_path / "none", "done", 10) == Answers([])


def test_long_texts_are_cut_and_travel(tmp_path: Path) -> None:
    """Five hundred long answers go through the wire in pieces."""
    lines = [record(i, content="y" * 100_000) for i in range(500)]
    (tmp_path / "completions_000000.jsonl").write_text("\n".join(lines) + "\n")
    found = answers.newest(tmp_path, "done", 500)
    assert found.answers[0].content.endswith("92,000 more characters")
    assert len(encode(Reply(1, found))) > 1 << 20
