"""A log read page by page, both ways, and searched: what a console that scrolls back does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from remote.agent import logs


def write(path: Path, count: int, seed: int = 3) -> list[str]:
    """A log of lines of all lengths."""
    chosen = random.Random(seed)
    lines = [f"{n} " + "é" * chosen.randint(0, 90) for n in range(count)]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return lines


def test_backwards_and_forwards_give_every_line_once(tmp_path: Path) -> None:
    """From the end to the start, and back."""
    path = tmp_path / "a.log"
    lines = write(path, 5_000)
    part = logs.tail("x", path, 300)
    back = list(part.lines)
    while part.offset > 0:
        end = part.offset
        part = logs.read("x", path, end, -300)
        assert part.next == end
        back = list(part.lines) + back
    assert back == lines
    at, forth = 0, []
    while at < path.stat().st_size:
        part = logs.read("x", path, at, 700)
        forth += part.lines
        at = part.next
    assert forth == lines


@pytest.mark.parametrize("scan", [1 << 26, 1 << 18])
def test_a_search_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scan: int
) -> None:
    """Both ways, over files longer than one search looks through."""
    monkeypatch.setattr(logs, "SCAN", scan)
    path = tmp_path / "a.log"
    lines = write(path, 40_000)
    wanted = "^(77|7777|39999) "
    expected = [line for n, line in enumerate(lines) if n in (77, 7777, 39999)]
    found: list[str] = []
    at = path.stat().st_size
    while at > 0:
        part = logs.read("x", path, at, -1, wanted)
        found = list(part.lines) + found
        assert part.offset < at
        at = part.offset
    assert found == expected
    found, at = [], 0
    while at < path.stat().st_size:
        part = logs.read("x", path, at, 1, wanted)
        found += part.lines
        assert part.next > at
        at = part.next
    assert found == expected
