"""How fast it goes, how long it takes, what it has cost."""

from __future__ import annotations

import pytest

from remote.generate.accounts import Accounts
from remote.generate.opening import _merge, gpu_hours, open_run
from remote.generate.progress import Meter
from remote.generate.records import RunFile, Session
from remote.generate.settings import Settings
from tests.remote.generate.conftest import write_prompts
from tests.remote.generate.test_crash import aside, given_up, record


def test_the_rate_counts_what_is_kept_and_the_pace_what_is_finished() -> None:
    """Over two minutes."""
    meter = Meter(0.0)
    assert meter.rates() == (0.0, 0.0, 0.0)
    for second in range(1, 301):
        meter.tick(float(second), second, 50 * second, 4 * second)
    assert meter.rates() == pytest.approx((1.0, 50.0, 4.0))


def test_prompts_that_are_given_up_or_set_aside_bring_the_end_nearer(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """One of four answers is kept: the rest takes a quarter of what that rate alone says."""
    prompts = write_prompts(tmp_path / "p.jsonl", 100)
    opened = open_run(Settings(prompts, tmp_path / "out", ("http://127.0.0.1:1",)))
    accounts = Accounts(opened)
    accounts.durable([record(0), aside(1), aside(2), given_up(3)])
    accounts.tick(accounts.began + 2.0)
    progress = accounts.progress()
    assert (progress.completed, progress.set_aside, progress.failed) == (1, 2, 1)
    assert progress.rate_per_sec == 0.5
    assert progress.eta_hours == pytest.approx(96 / 2.0 / 3600, abs=1e-4)
    opened.prompts.close()
    opened.lock.release()


def test_gpu_hours_are_those_of_each_session() -> None:
    """Eight servers for an hour, none for a while, then two for half an hour."""
    sessions = [
        Session(0.0, 3600.0, 1, 8.0),
        Session(4000.0, 4600.0, 2, 0.0),
        Session(5000.0, 6800.0, 3, 1.0),
    ]
    run = RunFile("r", [], {}, "", sessions=sessions)
    assert gpu_hours(run, 2) == 9.0
    run.sessions.append(Session(7000.0, 8800.0, 4))  # by a version that did not count them
    assert gpu_hours(run, 2) == 10.0


def test_merged_sessions_keep_their_gpu_hours() -> None:
    """Of more than a thousand the oldest become one."""
    many = [Session(float(n), n + 0.5, n, 0.25) for n in range(1001)]
    run = RunFile("r", [], {}, "", sessions=many)
    before = gpu_hours(run, 1)
    _merge(run.sessions)
    assert len(run.sessions) == 501
    assert gpu_hours(run, 1) == pytest.approx(before)
