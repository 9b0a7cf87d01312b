"""A run as Parquet, read back by pyarrow and by datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remote import export as module
from remote.export import ExportError, export


def record(index: int, **more: Any) -> dict[str, Any]:
    """A completion record."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {
        "index": index,
        "id": index if index % 2 else f"id{index}",
        "source": "s",
        "messages": [
            {"role": "user", "content": f"é {index}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "x"}]},
        ],
        "content": "answer",
        "reasoning_content": None,
        "tool_calls": [call],
        "finish_reason": "stop",
        "outcome": "ok",
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "reasoning_tokens": 0},
        "model": "m",
        "server": "u",
        "epoch": None if index % 2 else 3,
        "attempts": 1,
        "latency_s": 1.5,
        "finished_at": "2026-01-01T00:00:00.000Z",
        **more,
    }


def write(path: Path, *records: dict[str, Any]) -> None:
    """A batch file."""
    path.write_text("".join(json.dumps(r) + "\n" for r in records))


def test_round_trip(tmp_path: Path) -> None:
    """Every record once, in the order of the batches; legacy ones with what they have."""
    datasets = pytest.importorskip("datasets")
    run = tmp_path / "run"
    run.mkdir()
    write(run / "completions_000001.jsonl", {"index": 9, "text": "old"})
    write(run / "completions_000002.jsonl", *(record(i) for i in range(1500, 2700)))
    with (run / "completions_000003.jsonl.open").open("w") as out:
        out.write(json.dumps(record(5)) + "\n" + '{"index":6,"con')
    write(run / "set_aside.jsonl", record(7, outcome="looped"))
    out_file = tmp_path / "out.parquet"
    report = export(run, out_file)
    assert (report.records, report.torn) == (1202, 1)
    loaded = datasets.load_dataset(
        "parquet", data_files=str(out_file), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(loaded) == 1202
    assert loaded["index"][0] == 9
    assert json.loads(loaded[0]["extra"]) == {"text": "old"}
    assert loaded[0]["messages"] is None
    row = loaded[1]
    assert (row["index"], row["id"], row["epoch"]) == (1500, "id1500", 3)
    assert row["messages"][0] == {
        "role": "user",
        "content": "é 1500",
        "reasoning_content": None,
        "tool_calls": None,
        "tool_call_id": None,
        "name": None,
    }
    assert json.loads(row["messages"][1]["tool_calls"])[0]["function"]["name"] == "f"
    assert json.loads(row["messages"][2]["content"]) == [{"type": "text", "text": "x"}]
    assert (row["prompt_tokens"], row["completion_tokens"]) == (1, 2)
    assert loaded[2]["id"] == "1501"
    assert loaded[2]["epoch"] is None
    assert export(run, out_file, set_aside=True).records == 1203


def test_a_live_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The open batch may be sealed before its turn comes: read under its new name, once."""
    write(tmp_path / "completions_000001.jsonl", record(1))
    grows = tmp_path / "completions_000002.jsonl.open"
    write(grows, record(2))
    rows = module._rows

    def later(*arguments: Any) -> Any:
        grows.rename(tmp_path / "completions_000002.jsonl")
        yield from rows(*arguments)

    monkeypatch.setattr(module, "_rows", later)
    assert export(tmp_path, tmp_path / "o.parquet").records == 2


def test_refusals(tmp_path: Path) -> None:
    """One line each, and nothing half written."""
    with pytest.raises(ExportError, match="no such run directory"):
        export(tmp_path / "none", tmp_path / "o.parquet")
    with pytest.raises(ExportError, match="no completion records"):
        export(tmp_path, tmp_path / "o.parquet")
    (tmp_path / "completions_000001.jsonl").write_text('{"index":1}\nbroken\n')
    with pytest.raises(ExportError, match="line 2: not a record"):
        export(tmp_path, tmp_path / "o.parquet")
    assert not list(tmp_path.glob("*.parquet*"))
    assert not list(tmp_path.glob(".*tmp"))


def test_batches_that_are_only_in_s3_are_named(tmp_path: Path) -> None:
    """They are not in the file, and the report says so."""
    write(tmp_path / "completions_000002.jsonl", record(1))
    states = [("completions_000001.jsonl", "local_deleted"), ("completions_000002.jsonl", "sealed")]
    lines = [json.dumps({"name": name, "state": state}) for name, state in states]
    (tmp_path / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    report = export(tmp_path, tmp_path / "o.parquet")
    assert report.elsewhere == ["completions_000001.jsonl"]
