"""The indexed prompts file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.generate import prompts as module
from remote.generate.prompts import PromptsError, decode, open_prompts
from tests.remote.generate.conftest import write_prompts


def quiet(_: str) -> None:
    """No messages."""


@given(
    texts=st.lists(st.text(max_size=60), min_size=1, max_size=40),
    chunk=st.integers(1, 300),
    ascii_only=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_every_line_is_found(
    texts: list[str], chunk: int, ascii_only: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the texts and however the file falls into blocks."""
    folder = tmp_path_factory.mktemp("p")
    path = folder / "p.jsonl"
    rows = [
        json.dumps({"messages": [{"role": "user", "content": t}]}, ensure_ascii=ascii_only)
        for t in texts
    ]
    data = [(row + "\n").encode("utf-8", "surrogatepass") for row in rows]
    path.write_bytes(b"".join(data))
    before, module._CHUNK = module._CHUNK, chunk
    try:
        opened, entries = open_prompts(path, folder / "idx", [], tell=quiet)
    except PromptsError:
        assert not ascii_only
        assert any(0xD800 <= ord(c) < 0xE000 for t in texts for c in t)
        return
    finally:
        module._CHUNK = before
    assert len(opened) == entries[0].lines == len(texts)
    assert [opened.line(i) for i in range(len(texts))] == data
    assert entries[0].bytes == path.stat().st_size
    opened.close()


def test_index_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second start reads nothing; a touched file is hashed again and found to be the same."""
    path = write_prompts(tmp_path / "p.jsonl", 50)
    opened, entries = open_prompts(path, tmp_path / "idx", [], tell=quiet)
    opened.close()
    passes: list[int] = []
    inner = module._pass

    def counted(*arguments: Any) -> Any:
        passes.append(1)
        return inner(*arguments)

    monkeypatch.setattr(module, "_pass", counted)
    opened, same = open_prompts(path, tmp_path / "idx", entries, tell=quiet)
    assert same == entries
    assert not passes
    opened.close()
    os.utime(path, ns=(1, 1))
    opened, renewed = open_prompts(path, tmp_path / "idx", entries, tell=quiet)
    assert passes
    assert renewed[0].sha256 == entries[0].sha256
    assert renewed[0].mtime_ns == 1
    opened.close()
    (tmp_path / "idx").write_bytes(b"junk")
    opened, _ = open_prompts(path, tmp_path / "idx", renewed, tell=quiet)
    assert len(passes) == 2
    opened.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda rows: [*rows[:6], rows[6].replace("many", "mony"), *rows[7:]],
            "line 7 differs, and no",
        ),
        (lambda rows: [rows[1], rows[0], *rows[2:]], "line 1 is the first that differs"),
        (lambda rows: [*rows[:4], *rows[5:]], "line 5 is the first that differs"),
        (lambda rows: [*rows[:4], rows[0], *rows[4:]], "line 5 is the first that differs"),
        (lambda rows: rows[:5], "it ends after line 5 of 10"),
    ],
)
def test_a_changed_file_is_refused_and_the_line_named(
    change: Callable[[list[str]], list[str]], says: str, tmp_path: Path
) -> None:
    """The same size is not the same file; with the old one back the run goes on."""
    path = write_prompts(tmp_path / "p.jsonl", 10)
    opened, entries = open_prompts(path, tmp_path / "idx", [], tell=quiet)
    opened.close()
    old = path.read_text()
    path.write_text("".join(change(old.splitlines(keepends=True))))
    for _ in range(2):
        with pytest.raises(PromptsError, match="not the prompts that this run began with") as why:
            open_prompts(path, tmp_path / "idx", entries, extend=True, tell=quiet)
        assert says in str(why.value)
    (tmp_path / "idx.sum").unlink()
    with pytest.raises(PromptsError, match="something in its first 10 lines differs"):
        open_prompts(path, tmp_path / "idx", entries, tell=quiet)
    path.write_text(old)
    opened, _ = open_prompts(path, tmp_path / "idx", entries, tell=quiet)
    opened.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["idx", "idx.sum", "p.jsonl"]


def test_fields_stay_as_they_stand() -> None:
    """Messages and tools are passed on byte by byte; null tools are none."""
    messages = '[ {"role":"user", "content":"é \\u00e9"} ]'
    tools = '[{"type":"function","function":{"name":"a"}}]'
    prompt = decode(f'{{"messages":{messages},"tools":{tools},"id":7,"extra":1}}\n'.encode())
    assert bytes(prompt.messages) == messages.encode()
    assert prompt.tools is not None
    assert bytes(prompt.tools) == tools.encode()
    assert prompt.id == 7
    assert decode(b'{"messages":[],"tools":null}').tools is None
    assert decode(b'{"messages":[]}').tools is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no prompts"),
        (b'{"messages": [{"role": "user"}]}\n{"messages"\n', "line 2: "),
        (b'{"messages": []}\n', "line 1: `messages` is empty"),
        (b'{"messages": [{"role": "user"}]}\n\n', "line 2: blank"),
        (b'{"messages": [{"role": "user"}]}\n[1]\n', "line 2: "),
        (b'{"messages": [{"role": "user"}]}', "line 1 has no newline"),
        (b'{"messages": [{"role": "user"}], "x": "\xff"}\n', "line 1: not UTF-8"),
        (b'{"messages": \r[{"role": "user"}]}\n', "line 1 holds a bare carriage return"),
        (b'{"messages": [{"role": "user"}], "max_tokens": "many"}\n', "line 1: "),
    ],
)
def test_broken_lines(content: bytes, says: str, tmp_path: Path) -> None:
    """Which line, what is wrong, what it should be."""
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(PromptsError) as caught:
        open_prompts(path, tmp_path / "idx", [], tell=quiet)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "idx").exists()
