"""Following files that grow, rotate, are cut, and flood."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote.agent import logs
from remote.protocol import LogPart


def follow(path: Path, part: LogPart | None) -> LogPart | None:
    return logs.follow("x", path, *((part.inode, part.next) if part else (0, -1)))


def read_on(path: Path, part: LogPart | None) -> LogPart:
    """What is new, where something must be."""
    new = follow(path, part)
    assert new is not None
    return new


def test_tail_then_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {i}\n" for i in range(500)))
    part = read_on(path, None)
    assert part.lines[0] == "line 300"
    assert len(part.lines) == 200
    assert part.offset == path.read_bytes().index(b"line 300\n")
    assert follow(path, part) is None
    with path.open("a") as out:
        out.write("whole\nhalf")
    more = read_on(path, part)
    assert more.lines == ["whole"]
    with path.open("a") as out:
        out.write(" and the rest\n")
    rest = read_on(path, more)
    assert rest.lines == ["half and the rest"]


def test_tail_leaves_an_unfinished_line_for_later(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo")
    part = logs.tail("x", path, 10)
    assert part.lines == ["one"]
    with path.open("a") as out:
        out.write(" ends\n")
    more = read_on(path, part)
    assert more.lines == ["two ends"]


def test_rotated_and_truncated_files_are_read_from_their_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    part = follow(path, None)
    path.rename(tmp_path / "log.1")
    path.write_text("new 1\nnew 2\n")
    fresh = read_on(path, part)
    assert fresh.lines == ["new 1", "new 2"]
    path.write_text("cut\n")
    again = read_on(path, fresh)
    assert again.lines == ["cut"]


def test_a_missing_file_may_come(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert follow(path, None) is None
    path.write_text("here\n")
    part = read_on(path, None)
    assert part.lines == ["here"]


def test_a_flood_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("start\n")
    part = follow(path, None)
    with path.open("a") as out:
        out.writelines(f"flood {i:07}\n" for i in range(200_000))
    seen = skipped = 0
    last = ""
    while (part := follow(path, part)) is not None:
        skipped += part.skipped
        seen += len(part.lines)
        last = part.lines[-1]
    assert last == "flood 0199999"
    assert seen + skipped == 200_000
    assert skipped > 150_000


def test_hostile_bytes_and_endless_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe bad \x00\r\n" + b"x" * 300_000 + b"\nafter\n")
    part = logs.follow("x", path, path.stat().st_ino, 0)
    lines: list[str] = []
    while part is not None:
        lines += part.lines
        part = follow(path, part)
    assert lines[0] == "\ufffd\ufffd bad \x00"
    assert lines[-1] == "after"
    assert all(len(line) < logs.LINE + 100 for line in lines)


def test_grep_looks_back_for_what_matches(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "".join(f"line {i}{' ERROR' if i % 50_000 == 0 else ''}\n" for i in range(200_000))
    )
    part = logs.tail("x", path, 3, grep="ERROR")
    assert part.lines == ["line 50000 ERROR", "line 100000 ERROR", "line 150000 ERROR"]


def test_read_by_offset_goes_on_where_it_left_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{i}\n" for i in range(100)))
    got: list[str] = []
    offset = 0
    while True:
        part = logs.read("x", path, offset, 7)
        if not part.lines:
            break
        got += part.lines
        offset = part.next
    assert got == [str(i) for i in range(100)]


def test_a_missing_file_raises_when_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        logs.tail("x", tmp_path / "no", 5)
