"""How the run stands, as `stoker status` and the console's header say it from the same words."""

from __future__ import annotations

import dataclasses
from typing import Literal

import msgspec
import pytest
from msgspec.structs import replace

from console import model, standing, status
from console.model import Link, State, reduce
from console.text import moment
from console.widgets.progress import header
from remote.protocol import Alert, Batches, Event, Progress, RunState, Snapshot
from tests.console.screen.story import BEGAN
from tests.console.screen.told import NOW, plain, silent


def told(alive: bool = True, **changes: object) -> State:
    """The story's state, its run as wanted; this side's clock is a second ahead."""
    snapshot = silent(elapsed=120).snapshot()
    assert isinstance(snapshot.run, RunState)
    assert isinstance(snapshot.run.progress, Progress)
    progress = replace(snapshot.run.progress, **changes)
    run = replace(snapshot.run, alive=alive, progress=progress)
    return reduce(State(link=Link("connected")), replace(snapshot, run=run), NOW)


def run_line(state: State) -> str:
    """What `stoker status` says of the run."""
    found = status.lines(status.document("t", state, None), state, NOW)
    return next(line for line in found if line.startswith("run "))


def in_header(state: State) -> str:
    """The header's lines."""
    return plain(header(state, NOW, 218))


def event(number: int, kind: str, text: str, who: str = "") -> Event:
    return Event(number, BEGAN, kind, text=text, who=who)


def test_one_at_work_tells_its_end() -> None:
    state = told(set_aside=3, waiting_retry=2)
    line = run_line(state)
    flying = state.progress.in_flight if state.progress else 0
    assert line.startswith("run       running, ")
    assert f", 3 set aside, {flying:,} in flight, 2 wait for a retry, " in line
    when = "".join(text for text, _ in standing.when(state, state.progress, NOW))  # type: ignore[arg-type]
    assert when.startswith("done ")
    assert line.endswith(f", {when}")
    assert when in in_header(state)


def test_one_that_was_stopped_tells_since_when_and_by_whom() -> None:
    """And no time to go, whatever its last account says."""
    state = told(alive=False, status="stopped", eta_hours=0.0, time=BEGAN - 7200)
    state = model.with_events(
        state,
        [
            event(1, "action", "run start", "ann@a"),
            event(2, "action", "run drain: draining", "bob@b"),
            event(3, "action", "run start", "cas@c"),
            event(4, "action", "run drain: draining", "dan@d"),
        ],
    )
    since = moment(BEGAN - 7200 + NOW - state.time, NOW)
    assert run_line(state).startswith(f"run       stopped since {since} by dan@d after ")
    assert "to go" not in run_line(state)
    assert " in 0" not in run_line(state)
    assert f"stopped since {since} by dan@d" in in_header(state)


def test_one_that_is_done_tells_when_and_how_long_it_took() -> None:
    state = told(alive=False, status="done", eta_hours=0.0, time=BEGAN - 60, elapsed_hours=9.8)
    since = moment(BEGAN - 60 + NOW - state.time, NOW)
    assert run_line(state).startswith(f"run       done {since} in 9.8 h, ")
    assert f"done {since} in 9.8 h" in in_header(state)
    short = told(alive=False, status="done", time=BEGAN - 60, elapsed_hours=0.012)
    assert run_line(short).startswith(f"run       done {since} in 43s, ")


def test_one_that_has_died_tells_why() -> None:
    state = told(alive=False, status="running", time=BEGAN - 60)
    state = model.with_events(state, [event(1, "run.failed", "the run ended (killed by SIGKILL)")])
    assert run_line(state).startswith("run       not running since ")
    found = status.lines(status.document("t", state, None), state, NOW)
    assert "why       the run ended (killed by SIGKILL)" in found


@pytest.mark.parametrize("level", ["warning", "error"])
def test_an_alert_is_something_wrong(level: Literal["warning", "error"]) -> None:
    """Whatever its level: what a line calls ALERT does not end with 0."""
    state = told()
    alert = Alert("eta", "ETA 12 h, over the 10 h allowed", state.time, level)
    state = reduce(state, Snapshot(time=state.time, seq=2, alerts=[alert]), NOW)
    document = status.document("t", state, None)
    assert f"ALERT     {alert.text}" in status.lines(document, state, NOW)
    assert status.wrong(document, state)


@pytest.mark.parametrize(("seconds", "wrong"), [(5, False), (23, True)])
def test_a_silent_server_is_not_ready(seconds: int, wrong: bool) -> None:
    state = told()
    assert not status.wrong(status.document("t", state, None), state)
    quiet = replace(state.servers[1], silent_since=state.time - seconds)
    section = Snapshot(time=state.time, seq=2, servers=[quiet])
    state = reduce(state, section, NOW)
    document = status.document("t", state, None)
    found = status.lines(document, state, NOW)
    assert "servers   7 of 8 ready" in "\n".join(found)
    assert any(line.startswith(f"  gpu 1   silent {seconds}s") for line in found)
    assert status.wrong(document, state) is wrong
    assert msgspec.json.encode(document)


def codes(state: State, records: int = -1) -> set[str]:
    """Which disagreements are told; the files hold what progress.json says, or so many records."""
    assert state.progress is not None
    count = state.progress.completed if records < 0 else records
    files = Batches(1, count, 0, state.progress.s3_uploaded, count, [])
    return {found["code"] for found in status.disagreements(state, files)}


def idle(state: State, seconds: float) -> State:
    """Its servers produce nothing since so long."""
    servers = {
        gpu: replace(server, gen_tok_s=0.0, steady_since=state.time - seconds)
        for gpu, server in state.servers.items()
    }
    return dataclasses.replace(state, servers=servers)


def test_what_servers_do_now_is_not_held_against_the_mean_of_two_minutes_after_a_change() -> None:
    """As after each resume: the run's rate is a mean over what was before."""
    state = told(tok_s=49_025.0, in_flight=320)
    assert codes(idle(state, 5)) == set()
    assert codes(idle(state, 60)) == {"no_tokens"}
    assert codes(idle(state, 130)) == {"throughput", "no_tokens"}


def test_a_fast_run_may_be_further_than_its_files() -> None:
    """Files and counts are of moments seconds apart; a loss is more than that."""
    fast = told(completed=18_698, rate_per_sec=120.0)
    assert codes(fast, 18_034) - {"done_files"} == set()
    assert "progress_files" in codes(fast, 9_698)
    assert "progress_files" in codes(told(completed=18_698, rate_per_sec=2.0), 18_034)


def test_settings_that_the_agent_has_not_are_named() -> None:
    """By name and verb; never a value, which may be a secret."""
    state = told()
    assert state.target is not None
    assert status.document("t", state, None, spec=state.target)["settings"] == []
    alerts = replace(state.target.alerts, webhook="https://hooks.example/s3cret")
    run = replace(state.target.run, max_tokens=9)
    document = status.document("t", state, None, spec=replace(state.target, alerts=alerts, run=run))
    found = status.lines(document, state, NOW)
    other = "the agent has others than stoker.toml"
    assert [line for line in found if line.startswith("settings")] == [
        f"settings  alerts.webhook: {other}; `stoker deploy` applies it",
        f"settings  run.max_tokens: {other}; `stoker run stop, then stoker run start` applies it",
    ]
    assert not any("s3cret" in line for line in found)
