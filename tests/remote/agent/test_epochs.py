"""Which flags come next, and what an epoch gave."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from remote.agent import epochs
from remote.agent.reserved import Reserved
from remote.protocol import Epoch, Flags, Progress, ServerInfo, ServerState, ServerWork, Swap
from remote.sglang.flags import changed

FLAGS: Flags = {"mem-fraction-static": 0.85, "enable-metrics": True}
KNOWN = {1: Epoch(1, 0.0, FLAGS), 2: Epoch(2, 1.0, {"mem-fraction-static": 0.9})}


def info(gpu: int, epoch: int | None, pid: int | None = 7, slots: int = 37) -> ServerInfo:
    return ServerInfo(gpu=gpu, port=30000 + gpu, pid=pid, epoch=epoch, max_running=slots)


def state(gpu: int, running: int, tok_s: float, queued: int = 0) -> ServerState:
    return ServerState(
        gpu=gpu, state="ready", running=running, queued=queued, gen_tok_s=tok_s, kv_usage=0.2
    )


def test_the_present_epoch_is_that_of_most_servers() -> None:
    half_way = [info(0, 2), info(1, 1), info(2, 1), info(3, 2, pid=None)]
    assert epochs.current(half_way, KNOWN) == KNOWN[1]
    assert epochs.current([info(0, None, pid=None)], KNOWN) == KNOWN[2]
    assert epochs.current([], {}) is None


def test_one_goes_back_to_flags_that_worked() -> None:
    bad: Flags = {"mem-fraction-static": 0.3}
    good: Flags = {"mem-fraction-static": 0.9}
    known = {**KNOWN, 2: Epoch(2, 1.0, bad), 3: Epoch(3, 2.0, good)}
    failed = Swap(1, "rolling", [0], 1, 2, "me", 1.0, state="rolled back")
    done = Swap(2, "rolling", [0], 1, 3, "me", 2.0, state="done")
    assert epochs.before(known[3], known, [failed, done]) == [known[1]]
    assert epochs.before(known[1], known, [failed, done]) == []
    assert epochs.before(None, known, [failed, done]) == [known[1], known[3]]
    finished = replace(failed, id=3, state="done")  # a later swap took the other servers there
    assert epochs.before(known[3], known, [finished, failed, done]) == [known[1], known[2]]


def test_delta_leads_from_one_to_the_other() -> None:
    new: Flags = {"mem-fraction-static": 0.9, "context-length": 8192}
    set_flags, unset = epochs.delta(FLAGS, new)
    assert set_flags == new
    assert unset == ["enable-metrics"]
    assert changed(FLAGS, set_flags, unset) == new


def test_only_busy_and_warm_servers_count() -> None:
    tally, known = epochs.Tally(), dict(KNOWN)
    infos = [info(0, 1), info(1, 1), info(2, 2)]
    states = [state(0, 37, 680.0), state(1, 5, 90.0), state(2, 72, 1200.0, queued=3)]
    for second in range(31):
        known |= tally.add(known, states, infos, None, float(second), 1.0)
    assert known[1].tok_s_per_gpu == pytest.approx(680.0)
    assert known[1].seconds == 21, "ten seconds of warming up left out; the idle one never counts"
    assert known[1].max_running == 37
    assert known[2].tok_s_per_gpu == pytest.approx(1200.0)
    # A restart warms up anew.
    infos[0] = info(0, 1, pid=8)
    for second in range(31, 40):
        known |= tally.add(known, states, infos, None, float(second), 1.0)
    assert known[1].seconds == 21


def offered(slots: int, alone: bool = False) -> Progress:
    return Progress(servers={"http://127.0.0.1:30000": ServerWork(slots=slots, alone=alone)})


def test_a_server_that_is_not_offered_its_slots_tells_nothing_of_its_flags() -> None:
    full, one = state(0, 37, 680.0), info(0, 1)
    assert epochs.busy(full, one, offered(41))
    assert epochs.busy(full, one, None), "another client fills it"
    assert not epochs.busy(state(0, 16, 400.0), one, offered(16)), "requests at once: 16"
    assert not epochs.busy(state(0, 32, 600.0), one, offered(32)), "nor at 32 of its 37"
    assert epochs.busy(state(0, 24, 500.0, queued=2), one, offered(28)), "its KV cache is full"
    unknown = replace(one, max_running=None)
    assert epochs.busy(state(0, 16, 400.0), unknown, offered(16)), "nothing else is known"


def test_time_in_which_a_server_is_paused_or_broken_is_not_its_epochs() -> None:
    full, one = state(0, 37, 680.0), info(0, 1)
    for status in ("paused", "draining"):
        assert not epochs.busy(full, one, replace(offered(41), status=status))
    assert not epochs.busy(replace(full, dispatch="pause"), one, offered(41)), "a swap empties it"
    assert not epochs.busy(replace(full, silent_since=1.0), one, offered(41))
    assert not epochs.busy(replace(full, alone=True), one, offered(41)), "kept for a suspect"


def test_a_throttled_epoch_keeps_the_throughput_that_it_had() -> None:
    tally, known = epochs.Tally(), dict(KNOWN)
    for second in range(60):
        known |= tally.add(
            known, [state(0, 37, 680.0)], [info(0, 1)], offered(41), float(second), 1.0
        )
    for second in range(60, 600):
        known |= tally.add(
            known, [state(0, 12, 250.0)], [info(0, 1)], offered(12), float(second), 1.0
        )
    assert known[1].tok_s_per_gpu == pytest.approx(680.0)
    assert known[1].seconds == 50


def test_a_server_that_is_kept_for_a_suspect_is_marked_and_fills_anew() -> None:
    there = replace(state(0, 37, 680.0), steady_since=10.0)
    known = Reserved()
    (alone,) = known.look([there], [info(0, 1)], offered(41, alone=True), 100.0)
    assert (alone.alone, alone.steady_since) == (True, None)
    (free,) = known.look([there], [info(0, 1)], offered(41), 105.0)
    assert (free.alone, free.steady_since) == (False, 100.0)
    (later,) = known.look([replace(there, steady_since=300.0)], [info(0, 1)], offered(41), 400.0)
    assert later.steady_since == 300.0


def test_the_runs_file_holds_the_last_line_of_each(tmp_path: Path) -> None:
    path = tmp_path / "epochs.jsonl"
    epochs.append(path, KNOWN[1])
    epochs.append(path, KNOWN[2])
    later = Epoch(1, 0.0, FLAGS, tok_s_per_gpu=680.0)
    with path.open("ab") as out:
        out.write(b'{"id":3,"torn')
    epochs.append(path, later)
    assert epochs.read(path) == {1: later, 2: KNOWN[2]}
    assert epochs.read(tmp_path / "none") == {}


def test_going_back_to_slower_flags_is_told_with_what_both_gave() -> None:
    """Where both were measured for long enough, and it is no mere wobble."""
    now = replace(KNOWN[2], tok_s_per_gpu=26_600.0, seconds=900.0)
    old = replace(KNOWN[1], tok_s_per_gpu=15_100.0, seconds=900.0)
    assert epochs.slower(old, now) == (
        "epoch 1 gave 15,100 tok/s a GPU, the present one 26,600: slower by 43%"
    )
    assert epochs.slower(now, old) == ""
    assert epochs.slower(replace(old, tok_s_per_gpu=26_000.0), now) == ""
    assert epochs.slower(replace(old, seconds=20.0), now) == ""
    assert epochs.slower(old, None) == ""
