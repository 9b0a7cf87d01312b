"""Which flags come next, and what an epoch gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote.agent import epochs
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


def test_busy_is_measured_by_what_the_run_offers() -> None:
    work = {"http://127.0.0.1:30000": ServerWork(slots=16)}
    progress = Progress(servers=work)
    assert epochs.busy(state(0, 15, 400.0), info(0, 1), progress)
    assert not epochs.busy(state(0, 15, 400.0), info(0, 1), None)


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
