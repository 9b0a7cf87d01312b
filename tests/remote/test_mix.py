"""The run by source, of real run directories: the ledger's own files, read while they grow."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from remote import mix
from remote.appended import Appended
from remote.generate import layout
from remote.generate.ledger import Books, Entry, Ledger
from remote.generate.records import Seen, Usage
from remote.protocol import Mix, SourceMix


def record(index: int, source: str | None, outcome: str = "ok", kind: str = "batch") -> Entry:
    """What the run hands to its ledger, with 10 tokens in and 100 out."""
    usage = Usage(10, 100, 0)
    data: dict[str, object] = {"index": index, "source": source, "outcome": outcome}
    if kind != "failed":
        data["usage"] = {"prompt_tokens": 10, "completion_tokens": 100}
    seen = Seen(index, source, outcome, usage, None, "2026-01-01T00:00:00.000Z")
    return Entry(kind, index, json.dumps(data).encode() + b"\n", seen)  # type: ignore[arg-type]


def prompts(folder: Path, sources: list[str | None]) -> Path:
    """A prompts file with a line a source."""
    path = folder / "prompts.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": '"source":"no"'}], "source": s} for s in sources
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def by_name(found: Mix) -> dict[str, SourceMix]:
    return {row.source: row for row in found.sources}


def settled(mixer: mix.Mixer, folder: Path, file: Path) -> Mix:
    """The mix once the prompts are counted."""
    end = time.monotonic() + 20
    while mixer.look(folder, file).counting:
        assert time.monotonic() < end
        time.sleep(0.01)
    return mixer.look(folder, file)


def test_planned_against_finished_while_the_run_goes_on(tmp_path: Path) -> None:
    """Sealed batches by the manifest, the open one by its lines, what was given up and set aside;
    each look reads on, and the sums are those of everything."""
    folder = tmp_path / "out"
    folder.mkdir()
    file = prompts(tmp_path, ["maths"] * 700 + ["code"] * 300 + [None] * 10)
    ledger = Ledger(folder, Books())
    mixer = mix.Mixer()
    assert by_name(settled(mixer, folder, file))["maths"].planned == 700
    ledger.add(record(n, "maths") for n in range(450))
    ledger.add(record(n, "code", "length") for n in range(700, 800))
    ledger.flush()  # 500 sealed, 50 open
    found = by_name(mixer.look(folder, file))
    assert (found["maths"].done, found["code"].done) == (450, 100)
    assert found["code"].outcomes == {"length": 100}
    assert found["maths"].output_tokens == 45_000
    ledger.add(record(n, None) for n in range(1000, 1010))
    ledger.add(
        [record(451, "maths", "looped", "set_aside"), record(801, "code", "failed", "failed")]
    )
    ledger.flush()
    found = by_name(mixer.look(folder, file))
    assert found[""].done == 10
    assert (found["maths"].set_aside, found["maths"].outcomes["looped"]) == (1, 1)
    assert (found["code"].failed, found["code"].outcomes["failed"]) == (1, 1)
    ledger.seal()
    ledger.flush()
    again = by_name(mixer.look(folder, file))
    assert again == found, "sealing moves records from one file to another, and counts none twice"
    assert again == by_name(settled(mix.Mixer(), folder, file)), "read anew it is the same"
    ledger.close()
    total = sum(row.done for row in again.values())
    assert total == 560
    (folder / layout.FAILED).rename(folder / "failed.1.jsonl")  # as retry-failed does
    assert by_name(mixer.look(folder, file))["code"].failed == 0


def test_an_older_manifest_line_tells_no_tokens(tmp_path: Path) -> None:
    """Then nothing is made up: records are counted, tokens are not known."""
    old = {"name": "completions_000001.jsonl", "state": "sealed", "records": 3, "bytes": 9}
    (tmp_path / layout.MANIFEST).write_text(json.dumps({**old, "sources": {"a": 3}}) + "\n")
    row = mix.Finished(tmp_path).look()["a"]
    assert (row.done, row.output_tokens, row.outcomes) == (3, None, {"?": 3})


def test_the_plan_of_prepare_is_believed_for_its_own_file_only(tmp_path: Path) -> None:
    """Prompts and tokens as planned; a manifest of other bytes is passed over."""
    file = prompts(tmp_path, ["a", "b"])
    manifest = {
        "output": {"bytes": file.stat().st_size, "lines": 2},
        "mix": {"sources": {"a": {"prompts": 1, "prompt_tokens": 7, "output_tokens": 900}}},
    }
    mix.manifest_of(file).write_text(json.dumps(manifest))
    found = mix.Mixer().look(tmp_path, file)
    (row,) = found.sources
    assert found.planned_by == "prompts.manifest.json"
    assert (row.planned, row.planned_prompt_tokens, row.planned_output_tokens) == (1, 7, 900)
    prompts(tmp_path, ["a", "b", "b"])
    other = settled(mix.Mixer(), tmp_path, file)
    assert other.planned_by == "prompts.jsonl"
    assert by_name(other)["b"].planned == 2


def test_no_prompts_and_no_directory_are_an_empty_mix(tmp_path: Path) -> None:
    assert mix.Mixer().look(tmp_path / "none", tmp_path / "none.jsonl") == Mix()


@pytest.mark.parametrize("size", [1, 7, 1 << 18])
def test_a_growing_file_gives_each_whole_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Whatever the pieces; half a line waits; a replaced file begins again."""
    monkeypatch.setattr("remote.appended.BLOCK", size)
    path = tmp_path / "f"
    reader = Appended(path)
    assert not reader.fresh()
    assert list(reader.lines()) == []
    path.write_bytes(b"one\ntwo\nthr")
    assert not reader.fresh()
    assert list(reader.lines()) == [b"one", b"two"]
    with path.open("ab") as file:
        file.write(b"ee\n")
    assert not reader.fresh()
    assert list(reader.lines()) == [b"three"]
    assert list(reader.lines()) == []
    other = tmp_path / "other"
    other.write_bytes(b"new\nand longer than the old one was\n")
    other.replace(path)
    assert reader.fresh(), "another file"
    assert list(reader.lines()) == [b"new", b"and longer than the old one was"]
    path.write_bytes(b"short\n")
    assert reader.fresh(), "the same file, shorter"
    assert list(reader.lines()) == [b"short"]
