"""Every form a source may have gives the same rows; what is broken costs itself."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.prepare import sources
from remote.prepare.errors import PrepareError, RecipeError
from remote.prepare.recipe import Source
from remote.prepare.sources import Broken, batches, file_part, file_work, parse_line
from tests.remote.prepare.conftest import Outcome, recipe_of

ROWS = [
    {"question": f"Question {n}: what is \u2028 a quay, “{n}”?", "answer": "x\ny" * n}
    for n in range(1, 2500)
]


def read(path: Path, limit: int | None = None) -> list[Any]:
    part = file_part(path, path.parent)
    return [
        row for work in file_work(0, [part], limit) for batch in batches(work) for _, row in batch
    ]


def as_jsonl(path: Path) -> Path:
    path.write_bytes(b"".join(json.dumps(r, ensure_ascii=False).encode() + b"\n" for r in ROWS))
    return path


def test_all_forms_give_the_same_rows(tmp_path: Path) -> None:
    plain = as_jsonl(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "c.jsonl.zst").write_bytes(zstandard.compress(plain.read_bytes()))
    (tmp_path / "d.json").write_text(json.dumps(ROWS, indent=1))
    (tmp_path / "e.json").write_bytes(plain.read_bytes())  # lines under a wrong name
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "f.parquet", row_group_size=700)
    with (tmp_path / "g.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, ["question", "answer"])
        writer.writeheader()
        writer.writerows(ROWS)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 7
    for path in files:
        assert read(path) == ROWS, path.name
        assert read(path, limit=800) == ROWS[:800], path.name


def test_blocks_are_cut_at_newlines_wherever_they_fall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = as_jsonl(tmp_path / "a.jsonl")
    (tmp_path / "d.json").write_text(json.dumps(ROWS))
    for size in (37, 1000, 4096):
        monkeypatch.setattr(sources, "BLOCK", size)
        assert read(path, limit=400) == ROWS[:400]
        assert read(tmp_path / "d.json", limit=400) == ROWS[:400]


def test_rows_know_their_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_jsonl(tmp_path / "a.jsonl")
    monkeypatch.setattr(sources, "BLOCK", 5000)
    part = file_part(path, tmp_path)
    places = [
        place for work in file_work(0, [part], None) for batch in batches(work)
        for place, _ in batch
    ]  # fmt: skip
    assert [place.row for place in places] == list(range(len(ROWS)))


def test_small_files_share_a_piece_of_work(tmp_path: Path) -> None:
    for n in range(30):
        (tmp_path / f"{n:02d}.json").write_text(
            json.dumps({"model": "m", "messages": []}, indent=3)
        )
    parts = sources.local_files(Source(name="s", bodies=str(tmp_path)), tmp_path)
    works = list(file_work(0, parts, None))
    assert len(works) == 1
    rows = [(place.part, row) for batch in batches(works[0]) for place, row in batch]
    assert [part for part, _ in rows] == [f"{n:02d}.json" for n in range(30)]
    assert all(row == {"model": "m", "messages": []} for _, row in rows)


def test_a_broken_line_costs_itself_and_has_a_cause(
    dataset_rows: Path, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    path = dataset_rows / "raw_broken_lines.jsonl"
    outcome = run(recipe_of({"name": "rows", "path": str(path)}))
    texts = {prompt["messages"][0]["content"] for prompt in outcome.prompts}
    assert texts == {"first line has a BOM", "wins"}
    assert outcome.dropped() == {"bad_utf8": 1, "lone_surrogate": 1, "broken_json": 2}
    (example,) = outcome.built.sources[0].examples["bad_utf8"]
    assert example[1] == 3  # the fourth line


def test_csv_rows_that_do_not_fit_their_header_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"question,answer\nWhat?,x\nToo,many,fields\nfew\nBad \xff byte,x\nLast?,y\n")
    rows = read(path)
    assert [r["question"] for r in rows if isinstance(r, dict)] == ["What?", "Last?"]
    causes = [r.cause for r in rows if isinstance(r, Broken)]
    assert causes == ["broken_csv", "broken_csv", "bad_utf8"]


def test_a_line_beyond_all_bounds_is_dropped_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BLOCK", 1000)
    monkeypatch.setattr(sources, "MAX_LINE", 5000)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt":"' + b"x" * 50_000 + b'"}\n{"prompt":"short"}\n')
    first, second = read(path)
    assert isinstance(first, Broken)
    assert first.cause == "line_too_long"
    assert second == {"prompt": "short"}


def test_a_torn_file_says_so(tmp_path: Path) -> None:
    data = gzip.compress(as_jsonl(tmp_path / "a.jsonl").read_bytes())
    (tmp_path / "b.jsonl.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(PrepareError, match=r"b\.jsonl\.gz: .*again"):
        read(tmp_path / "b.jsonl.gz")
    data = zstandard.compress((tmp_path / "a.jsonl").read_bytes())
    (tmp_path / "c.jsonl.zst").write_bytes(b"not zstandard at all")
    with pytest.raises(PrepareError, match=r"c\.jsonl\.zst"):
        read(tmp_path / "c.jsonl.zst")
    (tmp_path / "d.json").write_text(json.dumps(ROWS)[:5000])
    with pytest.raises(PrepareError, match="broken JSON array"):
        read(tmp_path / "d.json")
    (tmp_path / "e.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(PrepareError, match="no readable Parquet"):
        read(tmp_path / "e.parquet")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for path, text in (
        ("gone.jsonl", "no such file"),
        ("*.jsonl", "no such file"),
        (".", "no JSONL, JSON, Parquet or CSV file"),
    ):
        with pytest.raises(RecipeError, match=text):
            sources.local_files(Source(name="s", path=path), tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(RecipeError, match="not one of"):
        sources.local_files(Source(name="s", path="notes.txt"), tmp_path)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.dictionaries(st.text(), _json, max_size=3), max_size=8), st.integers(0, 4))
def test_a_json_array_is_its_elements(rows: list[Any], indent: int) -> None:
    import io

    text = json.dumps(rows, indent=indent or None, ensure_ascii=False)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return  # lone surrogates are no UTF-8 at all
    lines = sources._array_lines(io.BytesIO(data), "a.json")
    blocks = b"".join(sources._joined(lines))
    assert [json.loads(line) for line in blocks.split(b"\n") if line] == rows


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_named_break(line: bytes) -> None:
    found = parse_line(line)
    if isinstance(found, Broken):
        assert found.cause in (
            "broken_json", "bad_utf8", "lone_surrogate", "broken_csv", "line_too_long",
        )  # fmt: skip
