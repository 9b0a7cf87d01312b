"""What is told of a time in which no agent was."""

from __future__ import annotations

import pytest

from remote.agent.watched import BEAT_S, Beat, Watched, gap
from remote.journal import Journal

AT = 1_796_140_800.0  # 16:00:00 UTC


@pytest.mark.parametrize(
    ("last", "servers", "run", "words"),
    [
        (Beat(AT, [0, 1, 2], True), [0, 1, 2], True, "; all 3 servers went on; the run went on"),
        (
            Beat(AT, [0, 1, 2], True),
            [1],
            False,
            "; 1 of 3 servers went on, GPU 0, 2 ended meanwhile; the run ended meanwhile",
        ),
        (Beat(AT, [4]), [4], False, "; its server went on"),
        (Beat(AT), [], False, "(killed, or the machine with it)"),
    ],
)
def test_what_went_on_without_an_agent(
    last: Beat, servers: list[int], run: bool, words: str
) -> None:
    text = gap(last, AT + 125, servers, run)
    assert text.startswith("nothing was watched for 2 min 5 s, since 16:00:00 UTC: the agent")
    assert text.endswith(words)


def test_only_an_end_without_a_word_is_a_gap() -> None:
    journal = Journal(None)
    assert Watched(journal).read_back() is None
    watched = Watched(journal)
    watched.beat(AT, [0, 1], True)
    watched.beat(AT + BEAT_S / 2, [0, 1], True)
    assert Watched(journal).read_back() == Beat(AT, [0, 1], True)
    watched.beat(AT + BEAT_S / 2 + 0.1, [0], True)
    assert Watched(journal).read_back() == Beat(AT + BEAT_S / 2 + 0.1, [0], True)
    watched.over(AT + 60)
    again = Watched(journal)
    assert again.read_back() is None
    again.beat(AT + 62, [0], True)
    assert Watched(journal).read_back() is not None
