"""A look at the records of a run directory, newest first."""

from __future__ import annotations

import json
import random
import re
from itertools import accumulate
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


def test_a_look_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over every file, each record once, also when the open batch was sealed meanwhile; what is
    rare is found however old it is."""
    run(tmp_path, torn=True)
    seen: list[int] = []
    before = ""
    while True:
        found = answers.newest(tmp_path, "done", 90, before=before)
        seen += [a.index for a in found.answers]
        if found.complete:
            break
        before = found.next
        if (growing := tmp_path / "completions_000002.jsonl.open").exists():
            growing.rename(tmp_path / "completions_000002.jsonl")
    assert seen == list(range(1_006, -1, -1))
    monkeypatch.setattr(answers, "SCAN", 100_000)
    looks, looked, before = 0, 0, ""
    while not (
        found := answers.newest(tmp_path, "done", 5, "question 3\\b", "", 9, before)
    ).answers:
        looks, looked, before = looks + 1, looked + found.looked, found.next
        assert not found.complete
        assert found.looked > 100_000
    assert looks > 2
    assert [a.index for a in found.answers] == [3]


def test_one_prompt_is_found_by_its_index(tmp_path: Path) -> None:
    """In the batch that the manifest names, in one without a line there, among the failed; and
    where it is only in S3 that is said."""
    run(tmp_path)
    (tmp_path / "failed.jsonl").write_text('{"index": 7, "outcome": "rejected", "reason": "x"}\n')
    listed = [
        {"name": f"completions_00000{n}.jsonl", "indices": [n * 500] + [1] * 499} for n in range(2)
    ]
    listed.append({"name": "completions_000009.jsonl", "indices": [5_000, 3]})
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(one) + "\n" for one in listed))
    found = answers.of_prompt(tmp_path, 612)
    assert [a.index for a in found.answers] == [612]
    assert 1_500_000 < found.looked < 2_000_000, "the one file, up to its record"
    assert [a.outcome for a in answers.of_prompt(tmp_path, 7).answers] == ["ok", "rejected"]
    assert [a.index for a in answers.of_prompt(tmp_path, 1_004).answers] == [1_004]
    assert answers.of_prompt(tmp_path, 61).answers[0].content == "answer 61 é"
    gone = answers.of_prompt(tmp_path, 5_003)
    assert gone.answers == []
    assert "completions_000009.jsonl, which is only in S3" in gone.note
    assert answers.of_prompt(tmp_path, 5_001).note == ""
    assert answers.of_prompt(tmp_path / "none", 1) == Answers([])


def test_an_old_prompt_is_found_without_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where ``.done_indices`` points to, however many batches there are; else it is said how far
    was looked."""
    monkeypatch.setattr(answers, "SCAN", 50_000)
    order = list(range(3_000))
    random.Random(5).shuffle(order)
    for number in range(60):
        lines = [record(index, pad="x" * (index % 700)) for index in order[number * 50 :][:50]]
        (tmp_path / f"completions_{number:06d}.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / ".done_indices").write_text("".join(f"{index}\n" for index in order))
    for place in (0, 1, 400, 1_499, 2_222, 2_999):
        found = answers.of_prompt(tmp_path, order[place])
        assert [a.index for a in found.answers] == [order[place]], place
        assert found.looked < 150_000
    (tmp_path / ".done_indices").unlink()
    found = answers.of_prompt(tmp_path, order[2_999])
    assert [a.index for a in found.answers] == [order[2_999]], "the newest first"
    found = answers.of_prompt(tmp_path, order[0])
    assert (found.answers, found.complete) == ([], False)
    told = re.match(r"looked through (\d+) of 60 batches that manifest.jsonl does not", found.note)
    assert told is not None and 1 <= int(told[1]) < 10


def test_a_failed_prompt_is_found_by_the_index_beside_the_file(tmp_path: Path) -> None:
    """Of a large file only its line is read; what the index does not tell of yet is read, too."""
    lines = [
        json.dumps({"index": n, "outcome": "rejected", "reason": "y" * 900}) for n in range(99)
    ]
    ends = list(accumulate(len(line) + 1 for line in lines))
    (tmp_path / "failed.jsonl").write_text("".join(line + "\n" for line in lines))
    told = "".join(f'[{n},"rejected",{ends[n]}]\n' for n in range(98))
    (tmp_path / ".failed.idx").write_text(told)
    for index in (0, 50, 98):
        found = answers.of_prompt(tmp_path, index)
        assert [a.index for a in found.answers] == [index]
        assert found.looked < 2_000


def test_long_texts_are_cut_and_travel(tmp_path: Path) -> None:
    """Five hundred long answers go through the wire in pieces."""
    lines = [record(i, content="y" * 100_000) for i in range(500)]
    (tmp_path / "completions_000000.jsonl").write_text("\n".join(lines) + "\n")
    found = answers.newest(tmp_path, "done", 500)
    assert found.answers[0].content.endswith("92,000 more characters")
    assert len(encode(Reply(1, found))) > 1 << 20
