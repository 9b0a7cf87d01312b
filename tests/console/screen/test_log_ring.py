"""A log as the console holds it: bounded, with lasting numbers, and its gaps marked."""

from __future__ import annotations

from console import model
from console.model import GAP, LogRing, State, reduce
from remote.protocol import (
    LogPart,
)
from tests.console.screen.told import NOW


def part(*lines: str, skipped: int = 0, inode: int = 1, offset: int = 0) -> LogPart:
    """A log part."""
    return LogPart("gpu0", inode, offset, offset + 10, list(lines), skipped)


def test_logs_are_rings_with_lasting_numbers() -> None:
    """Old lines fall out, numbers stay, cursors move."""
    state = reduce(State(), part("a", "b"), NOW)
    ring = state.logs["gpu0"]
    assert ring.since(0) == (0, ["a", "b"])
    assert (ring.inode, ring.next) == (1, 10)
    state = reduce(state, part(*map(str, range(model.MAX_LINES)), offset=10), NOW)
    assert ring.first == 2
    assert ring.end == model.MAX_LINES + 2
    start, lines = ring.since(0)
    assert start == 2
    assert lines[0] == "0"
    assert ring.since(ring.end - 2) == (ring.end - 2, ["4998", "4999"])
    assert ring.since(ring.end) == (ring.end, [])


def test_rings_are_bounded_in_characters_too() -> None:
    """Five thousand lines of a megabyte would be the end of a laptop."""
    ring = model.LogRing()
    for number in range(100):
        ring.append(str(number) * 200_000)
    assert ring.end == 100
    assert sum(map(len, ring.since(0)[1])) <= model.MAX_CHARS
    assert ring.since(0)[1][-1].startswith("99")


def test_gaps_and_rotation_are_said() -> None:
    """Nothing is dropped in silence."""
    state = reduce(State(), part("a"), NOW)
    state = reduce(state, part("b", skipped=1_200), NOW)
    state = reduce(state, part("c", inode=2), NOW)
    lines = state.logs["gpu0"].since(0)[1]
    assert [line for line in lines if "1,200 lines skipped" in line]
    assert [line for line in lines if "rotated" in line]
    assert state.logs["gpu0"].skipped == 1_200


def test_a_ring_marks_its_own_lines() -> None:
    """So that they can be told from the log's."""
    ring = LogRing(10)
    ring.add(LogPart("gpu0", 1, 0, 5, ["x"], skipped=3))
    assert ring.since(0)[1][0].startswith(GAP)
