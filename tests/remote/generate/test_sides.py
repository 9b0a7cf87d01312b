"""The indexes of failed.jsonl and set_aside.jsonl: believed where they fit, else made anew."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from remote.generate import layout, sides
from remote.generate.ledger import Ledger
from remote.generate.mending import RecoveryError
from remote.generate.recovery import ASIDE, FAILED, Recovered, recover, retry_failed
from tests.remote.generate.crash import Quick
from tests.remote.generate.test_crash import aside, given_up

TOTAL = 40


def start(folder: Path) -> Recovered:
    """What a start finds."""
    return recover(folder, TOTAL, adopted=False, disk=Quick())


def write(folder: Path, set_aside: list[int], failed: list[int]) -> None:
    """Set these aside, and give those up."""
    ledger = Ledger(folder, start(folder).books, Quick())
    for index in set_aside:
        ledger.add([aside(index)])
        ledger.flush()
    ledger.add(given_up(index) for index in failed)
    ledger.flush()
    ledger.close()


def found(folder: Path) -> tuple[list[int], list[int], Counter[str], Counter[str]]:
    """What a start makes of both files."""
    out = start(folder)
    return (
        [i for i in range(TOTAL) if out.status[i] == ASIDE],
        [i for i in range(TOTAL) if out.status[i] == FAILED],
        out.aside,
        out.failures,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With five set aside and three given up, in two lives."""
    write(tmp_path, [3, 1, 4], [10, 9])
    write(tmp_path, [5, 0], [11])
    return tmp_path


WHOLE = ([0, 1, 3, 4, 5], [9, 10, 11], Counter(ok=5), Counter(rejected=3))


def test_only_what_the_index_lacks_is_read(folder: Path) -> None:
    """What stands before is not looked at, be it as large as it likes."""
    path = folder / layout.SET_ASIDE
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    assert found(folder) == WHOLE
    path.write_bytes(bytes(last) + whole[last:])  # nobody reads it
    assert found(folder) == WHOLE
    path.write_bytes(bytes(last) + whole[last:] + aside(20).line)
    assert found(folder)[0] == [0, 1, 3, 4, 5, 20]
    assert found(folder)[0] == [0, 1, 3, 4, 5, 20]
    index = sides.path_of(path).read_bytes()
    assert index.endswith(b'[20,"ok",%d]\n' % path.stat().st_size)


@pytest.mark.parametrize("name", [layout.SET_ASIDE, layout.FAILED])
def test_an_index_cut_anywhere_costs_nothing_but_time(name: str, folder: Path) -> None:
    """Lost, cut in the middle, with zeros for its end, or of another file."""
    index = sides.path_of(folder / name)
    whole = index.read_bytes()
    other = whole.replace(b",", b",1", 1)
    cuts = [whole[:n] for n in range(len(whole))]
    zeroed = [whole[:n] + bytes(len(whole) - n) for n in range(0, len(whole), 3)]
    for content in (None, other, b"junk\n", *cuts, *zeroed):
        if content is None:
            index.unlink()
        else:
            index.write_bytes(content)
        assert found(folder) == WHOLE, content
        assert index.read_bytes() == whole, content


def test_an_edited_file_is_read_again(folder: Path) -> None:
    """A line was taken out by hand: the offsets no longer fit."""
    path = folder / layout.SET_ASIDE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    assert found(folder)[0] == [0, 3, 4, 5]
    path.unlink()
    assert found(folder)[0] == []
    write(folder, [7], [])
    assert found(folder)[0] == [7]


def test_a_prompt_that_stands_elsewhere_too_is_refused_with_its_line(folder: Path) -> None:
    """Whether it is told by the index or read."""
    with (folder / layout.FAILED).open("ab") as out:
        out.write(given_up(20).line + given_up(4).line)
    (folder / layout.SET_ASIDE).rename(folder / "away")
    assert found(folder)[1] == [4, 9, 10, 11, 20]
    (folder / "away").rename(folder / layout.SET_ASIDE)
    for _ in range(2):
        with pytest.raises(RecoveryError, match=r"set_aside\.jsonl: line 3: prompt 4 has a record"):
            start(folder)


def test_another_life_begins_with_an_empty_index(folder: Path) -> None:
    """The index goes with its file."""
    assert retry_failed(folder, set_aside=True, disk=Quick()) == (
        "to be tried again: 3 of failed.jsonl (now failed.1.jsonl) and "
        "5 of set_aside.jsonl (now set_aside.1.jsonl)"
    )
    assert found(folder) == ([], [], Counter(), Counter())
    write(folder, [4], [3])
    assert found(folder)[:2] == ([4], [3])
    assert (folder / "set_aside.1.jsonl").read_bytes().count(b"\n") == 5
