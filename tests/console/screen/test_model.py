"""Messages in, state out; and what follows from a state."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from console import model
from console.model import State, reduce
from remote.protocol import (
    Alert,
    Epoch,
    Event,
    Happened,
    Heartbeat,
    ServerInfo,
    ServerState,
    Skipped,
    Snapshot,
)
from tests.console.screen.story import BAD, BEGAN
from tests.console.screen.told import NOW, told


def test_a_full_snapshot_is_the_whole_truth() -> None:
    """What is not in it is gone."""
    _, state = told()
    only = Snapshot(time=BEGAN + 5, seq=9, full=True, servers=[ServerState(0, "ready")])
    after = reduce(state, only, NOW)
    assert list(after.servers) == [0]
    assert after.infos == {}
    assert after.progress is None
    assert after.link == state.link


def test_a_partial_snapshot_changes_only_what_it_carries() -> None:
    """Lists by GPU are merged member by member, other sections whole."""
    _, state = told()
    part = Snapshot(
        time=BEGAN + 2,
        seq=2,
        servers=[ServerState(3, "failed", cause="out of memory")],
        swap=None,
        alerts=[Alert("a", "b", 0)],
    )
    after = reduce(state, part, NOW)
    assert after.servers[3].state == "failed"
    assert after.servers[2] is state.servers[2]
    assert after.gpus == state.gpus
    assert after.run is state.run
    assert [a.code for a in after.alerts] == ["a"]
    assert state.servers[3].state == "ready"  # the old state is untouched


def test_snapshots_survive_the_wire() -> None:
    """A section that is left out stays what it was, after JSON too."""
    _, state = told()
    wire = msgspec.json.decode(msgspec.json.encode(Snapshot(time=1.0, seq=3)), type=Snapshot)
    after = reduce(state, wire, NOW)
    assert after.servers == state.servers
    assert after.verdict == state.verdict
    assert after.seq == 3


def test_events_come_once_in_order_and_bounded() -> None:
    """Pushed again after a reconnect, they are not shown twice."""
    state = State()
    for number in (1, 2, 2, 5, 3):
        state = reduce(state, Happened(Event(number, 0, "k")), NOW)
    assert [e.id for e in state.events] == [1, 2, 3, 5]
    many = [Event(n, 0, "k") for n in range(10, 10 + 2 * model.MAX_EVENTS)]
    state = model.with_events(state, many)
    assert len(state.events) == model.MAX_EVENTS
    assert state.events[-1].id == many[-1].id


def test_what_says_nothing_changes_nothing() -> None:
    """A heartbeat is no news."""
    state = State()
    assert reduce(state, Heartbeat(1.0), NOW) is state


def test_skipped_messages_are_counted() -> None:
    """And kept over snapshots."""
    story, state = told()
    state = reduce(state, Skipped("log", 12), NOW)
    state = reduce(state, Skipped("log", 3), NOW)
    state = reduce(state, story.snapshot(), NOW)
    assert state.skipped == {"log": 15}


def test_age_is_judged_on_one_clock() -> None:
    """The other side's clock may be a year off."""
    story, state = told(now=BEGAN - 31_536_000)
    assert not model.stale(state, NOW + 3)
    assert model.stale(state, NOW + 6)
    assert model.age(state, NOW + 6) == pytest.approx(6)
    assert model.agent_now(state, NOW + 6) == pytest.approx(story.now + 6)
    assert model.age(State(), NOW) is None


def test_flag_changes_tell_absent_from_set() -> None:
    """``False`` and absent are the same, ``1`` and ``True`` are not."""
    found = model.flag_changes({"a": 1, "b": True, "c": False}, {"a": 2, "c": "x", "d": ["p", "q"]})
    assert [c.text for c in found] == ["a 1 → 2", "b on → –", "c – → x", "d – → p q"]
    assert model.flag_changes({"a": False}, {}) == []
    assert len(model.flag_changes({"a": 1}, {"a": True})) == 1


def test_flags_start_from_what_runs() -> None:
    """A server's own, else the newest epoch's, else the file's."""
    _, state = told()
    assert model.current_flags(state) == BAD
    own = replace(state, infos={3: ServerInfo(3, 30003, flags={"x": 1})})
    assert model.current_flags(own, 3) == {"x": 1}
    assert model.current_flags(replace(state, epochs=())) == BAD
    assert model.current_flags(State()) == {}


def test_the_best_epoch_needs_time_to_count() -> None:
    """Ten seconds prove nothing, and one epoch is no contest."""
    one = Epoch(1, 0, {}, tok_s_per_gpu=600, seconds=900)
    two = Epoch(2, 0, {}, tok_s_per_gpu=900, seconds=100)
    three = Epoch(3, 0, {}, tok_s_per_gpu=800, seconds=900)
    assert model.winner([one]) is None
    assert model.winner([one, two]) is None
    assert model.winner([one, two, three]) is three
