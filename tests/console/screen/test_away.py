"""What is told to one who comes back."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import console.app
from console import away, prefs
from console.app import StokerApp
from console.clocks import zone
from console.looks import KEEP_S
from console.model import Link, State
from console.prefs import Prefs, Seen
from console.screens.away import AwayScreen
from console.screens.run import RunScreen
from console.text import moment
from console.widgets.progress import ProgressHeader
from remote.protocol import Alert, Event
from tests.bench.terminal import Terminal
from tests.console.screen import told
from tests.console.screen.driver import Driven, driven
from tests.console.screen.story import BEGAN, JOURNAL, Story, connect
from tests.console.screen.test_terminal import STORY, environment
from tests.console.screen.told import silent


def night(story: Story, hours: float = 8.0) -> tuple[State, Seen]:
    """The story's state, and how it was seen so long before."""
    state = told.seen(story, BEGAN)
    progress = state.progress
    assert progress is not None
    progress = msgspec.structs.replace(
        progress, failed=12, set_aside=30, not_in_s3=9_000, pid=7, retries={"timeout": 300, "x": 1}
    )
    state = replace(state, run=msgspec.structs.replace(state.run, progress=progress))
    done, eta = int(story.done) - 20_000, state.time + 3_600
    seen = Seen(state.time - hours * 3_600, 10, done, 2.0, eta, 2, 0, 500, {"timeout": 10}, 7)
    return state, seen


def test_a_night_is_told_worst_first_with_times_causes_and_what_is_over() -> None:
    """Deaths, restarts, alerts, swaps, deeds; rate, ETA, failures, retries and uploads."""
    story = silent()
    state, seen = night(story)
    at = state.time
    events = [
        Event(11, at - 7_000, "server.failed", "error", "GPU 3: out of memory", 3),
        Event(12, at - 6_000, "server.failed", "error", "GPU 3: out of memory", 3),
        Event(13, at - 5_990, "server.restart", "info", "GPU 3: starting again in 5 s", 3),
        Event(14, at - 5_900, "server.ready", "info", "GPU 3: ready after 40 s", 3),
        Event(15, at - 5_000, "alert", "error", "ETA 208 h, over the 48 h allowed"),
        Event(16, at - 4_900, "alert.over", "info", "over: ETA 51.0 h, over the 48 h allowed"),
        Event(17, at - 4_800, "alert", "error", "ETA 99.1 h, over the 48 h allowed"),
        Event(18, at - 4_700, "alert", "warning", "GPU 5: 88 °C", 5),
        Event(19, at - 4_600, "alert.over", "info", "GPU 5: 84 °C, no longer hot", 5),
        Event(24, at - 4_590, "alert", "warning", "disk: 1.0 GB free in the workspace"),
        Event(25, at - 4_500, "alert", "error", "GPU 1: not seen by the driver"),
        Event(26, at - 4_400, "alert.over", "info", "GPU: all are seen by the driver again"),
        Event(20, at - 4_000, "swap.done", "info", "37 → 72 slots", None, "kim"),
        Event(21, at - 3_000, "action", "info", "run pause", None, "kim"),
        Event(22, at - 2_000, "server.stalled", "error", "GPU 1: no token for 300 s", 1),
        Event(23, at - 1_000, "run.failed", "error", "the run ended (killed) with 9 done"),
    ]
    state = replace(state, alerts=(Alert("eta", "ETA 90.0 h, over the 48 h allowed", at - 4_800),))
    found = away.account(seen, state, events)(20)
    texts = [n.text for n in found]

    def said(ago: float) -> str:
        return moment(at - ago, at)

    assert f"GPU 3 ×2 died {said(7_000)} to {said(6_000)}: out of memory; " in texts[1]
    assert texts[1].endswith(f"ready again {said(5_900)}")
    assert texts[0] == f"GPU 1 stalled {said(2_000)}: no token for 300 s; not ready since"
    one = f"the agent started servers again by itself 1×, {said(5_990)}"
    two = f"2×, {said(5_000)} to {said(4_800)} ETA 99.1 h, over the 48 h allowed: still so"
    three = f"{said(4_700)} GPU 5: 88 °C: over {said(4_600)}"
    four = f"{said(4_500)} GPU 1: not seen by the driver: over {said(4_400)}"
    five = f"{said(4_590)} disk: 1.0 GB free in the workspace: over"
    assert {one, two, three, four, five} <= set(texts)
    assert f"{said(1_000)} the run ended (killed) with 9 done" in texts
    assert f"{said(4_000)} swap: 37 → 72 slots" in texts
    assert f"{said(3_000)} kim: run pause" in texts
    assert any(t.startswith("20,000 prompts were done, 0.69/s (it was 2.00/s, is ") for t in texts)
    assert any("later than it looked then" in t for t in texts)
    assert "prompts: 10 given up, 30 set aside, 291 tries again (timeout 290, x 1)" in texts
    assert "S3: 9,000 records not uploaded (500 then)" in texts
    levels = ["error", "warning", "good", "info"]
    assert [n.level for n in found] == sorted((n.level for n in found), key=levels.index)


def test_what_is_wrong_since_before_is_told_and_another_process_counts_from_nothing() -> None:
    """An alert that began before the look, and retries of a run that was started again."""
    story = silent()
    state, seen = night(story)
    seen = msgspec.structs.replace(seen, pid=6, retries={"timeout": 290})
    at = state.time
    hot = Alert("hot.2", "GPU 2: 90 °C", seen.time - 60)
    down = Alert("server.failed.1", "GPU 1: failed", seen.time - 60, "error")
    state = replace(state, alerts=(hot, down))
    over = Event(11, at - 50, "alert.over", "info", "over: disk: 1.0 GB free in the workspace")
    texts = [n.text for n in away.account(seen, state, [over])(20)]
    assert f"{moment(hot.since, at)} GPU 2: 90 °C: still so" in texts
    assert f"from before disk: 1.0 GB free in the workspace: over {moment(at - 50, at)}" in texts
    assert any("301 tries again (timeout 300, x 1)" in t for t in texts)
    assert not any("GPU 1: failed" in t for t in texts)


def flood(story: Story, seen: Seen) -> list[Event]:
    """Five hundred events of a bad night."""
    kinds = [
        (
            "server.failed",
            "error",
            "GPU {g}: CUDA out of memory: tried to allocate {n} MiB",
        ),
        ("server.restart", "info", "GPU {g}: starting again in {n} s"),
        ("alert", "warning", "GPU {g}: {n} °C"),
        ("alert.over", "info", "over: GPU {g}: {n} °C"),
        ("swap.failed", "error", "swap {n}: canary GPU {g} gave 3% less than the others"),
        ("action", "info", "restart GPU {g}, attempt {n}"),
        ("run.control", "error", "control.json {n}: No space left on device; trying again"),
    ]
    step = (story.now - seen.time) / 500
    found = []
    for n in range(500):
        kind, level, text = kinds[n % len(kinds)]
        gpu = n % 8
        said = text.format(g=gpu, n=n)
        who = "kim@laptop" if kind == "action" else ""
        found.append(Event(11 + n, seen.time + n * step, kind, level, said, gpu, who))  # type: ignore[arg-type]
    return found


def test_five_hundred_events_are_a_few_lines_and_the_rest_is_counted() -> None:
    """However few lines there are, nothing is lost: it is in a line or counted."""
    story = silent()
    state, seen = night(story)
    account = away.account(seen, state, flood(story, seen))
    for most in (8, 12, 24):
        texts = [n.text for n in account(most)]
        assert len(texts) <= most
        assert any("20,000 prompts were done" in t for t in texts)
        assert any("CUDA out of memory" in t for t in texts)
        assert texts[-1].startswith("and more: ")
    assert "swaps" in texts[-1]
    gone = away.account(seen, state, flood(story, seen)[100:])(12)
    assert "100 earlier events" in gone[-1].text


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (220, 60)])
async def test_such_a_night_is_one_panel(size: tuple[int, int]) -> None:
    """Whole lines, the work among them, and the key to the rest."""
    async with driven(size) as one:
        story, app = one.story, one.app
        _, seen = night(story)
        seen = msgspec.structs.replace(seen, event=story.events[-1].id)
        for event in flood(story, seen):
            story.say(
                event.kind,
                event.text,
                gpu=event.gpu,
                level=event.level,
                who=event.who,
                at=event.time,
            )
        await one.until(lambda: len(app.state.events) > 500)
        app.front.seen = seen
        await one.keys("w")
        await one.sees("You were away 8h")
        await one.sees(f"({zone(time.localtime().tm_gmtoff)})")
        await one.sees("prompts were done")
        await one.sees("and more: ")
        assert "e events" in " ".join(one.screen().split())
        assert "any other key goes on" in one.screen()
        await one.keys("e")
        await one.until(lambda: app.current_mode == "events")


def test_a_short_absence_is_not_worth_a_panel() -> None:
    """Nor is a first look."""
    state = told.seen(silent(), BEGAN)
    assert not away.worth_telling(None, state)
    assert not away.worth_telling(Seen(state.time - 10), state)
    assert away.worth_telling(Seen(state.time - 1_000), state)


async def test_the_panel_comes_by_itself_after_a_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next look starts from this one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    now = time.time()
    prefs.keep(seen={JOURNAL: Seen(now - 30_000, 2, 1_000, 1.9, now + 3_600)})
    app = StokerApp(connect(now=now, elapsed=10), name="ct200", strict=True)
    async with app.run_test(size=(100, 30)) as pilot:
        one = Driven(app, pilot)
        await one.until(lambda: isinstance(app.screen, AwayScreen))

        await one.sees("prompts were done")
        await pilot.press("space")
        await one.until(lambda: not isinstance(app.screen, AwayScreen))
        await pilot.press("w")
        await one.until(lambda: isinstance(app.screen, AwayScreen))
        await pilot.press("g")
        await one.until(lambda: isinstance(app.screen, RunScreen))
    assert prefs.read().seen[JOURNAL].time >= now


def gone_for(app: StokerApp, seconds: float) -> None:
    """As if the newest snapshot had come so long ago."""
    app.state = replace(app.state, received=time.time() - seconds)


async def test_the_panel_comes_again_after_a_night_with_the_console_open() -> None:
    """The laptop slept: what it tells of is the time since the link was gone, not since the last
    session; a short cut tells nothing."""
    async with driven() as one:
        story, app = one.story, one.app
        app.front.looked = True
        done, now = int(story.done), story.now
        story.lose()
        story.advance(60)
        gone_for(app, 60)
        story.find()
        await one.until(lambda: app.state.time > now + 50)
        assert len(app.screen_stack) == 1
        await one.until(lambda: app.state.events)
        story.lose()
        story.on_message, hear = (lambda message: None), story.on_message
        story.advance(3_600)
        story.say("server.failed", "GPU 3: out of memory", gpu=3, level="error")
        story.advance(3_600)
        gone_for(app, 7_200)
        story.on_message = hear
        story.find()
        await one.until(lambda: isinstance(app.screen, AwayScreen))
        await one.sees("You were away 2h0")
        await one.sees("GPU 3 died ")
        await one.sees("out of memory; not ready since")
        told = re.search(r"([0-9,]+) prompts were done", one.screen())
        assert told is not None
        assert int(told[1].replace(",", "")) < story.done - done
        await one.keys("space")
        await one.keys("w")
        await one.sees("You were away 2h0")


async def test_a_dialog_is_not_covered_by_the_panel() -> None:
    """Whoever was in one is told which key tells."""
    async with driven() as one:
        await one.keys("question_mark")
        one.story.lose()
        one.story.advance(3_600)
        gone_for(one.app, 3_600)
        one.story.find()
        await one.sees("w tells what happened")
        assert not isinstance(one.app.screen, AwayScreen)


async def test_a_console_that_is_killed_has_remembered_and_forgets_nothing_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every few seconds, by journal; one whose link is gone puts no old look over a newer one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(console.app, "KEEP_S", 0.2)
    now = time.time()
    app = StokerApp(connect(now=now, elapsed=10), name="ct200", strict=True)
    async with app.run_test(size=(100, 30)) as pilot:
        one = Driven(app, pilot)
        prefs.keep(theme="light", seen={"ct300": Seen(now - 5)})
        await one.until(lambda: prefs.read().seen.get(JOURNAL, Seen()).time >= now)
        assert prefs.read().seen["ct300"] == Seen(now - 5)
        assert prefs.read().theme == "light"
        assert isinstance(app.front.feed, Story)
        app.front.feed.lose()
        await pilot.pause(0.5)
        prefs.keep(seen={JOURNAL: Seen(now + 9_000)})
        await pilot.pause(0.5)
    assert prefs.read().seen[JOURNAL] == Seen(now + 9_000)


async def test_another_target_of_the_same_name_was_never_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lab that is begun anew has the name of the last one and nothing else of it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    now = time.time()
    old = {"ct200": Seen(now - 260_000, 2, 1_000, 1.9), "0123456789abcdef": Seen(now - 90_000)}
    prefs.keep(seen=old)
    async with driven(remember=True, now=now) as one:
        await one.until(lambda: one.app.front.greeted)
        assert one.app.front.seen is None
        await one.keys("w")
        await one.sees("never looked at from here before")
        one.story.lose()
        gone_for(one.app, 7_200)
        one.story.journal = "fedcba9876543210"
        one.story.now += 7_200
        one.story.find()
        await one.until(lambda: one.app.state.journal == one.story.journal)
        await one.until(lambda: one.app.front.greeted)
        assert one.app.front.seen is None
        assert one.app.screen.query(ProgressHeader)
    assert set(prefs.read().seen) == {*old, JOURNAL, "fedcba9876543210"}


@pytest.mark.parametrize("sign", [None, signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_no_way_to_end_it_loses_what_was_seen(tmp_path: Path, sign: signal.Signals | None) -> None:
    """A terminal that is gone, with and without its signal; a polite end; one without a last
    word."""
    terminal = Terminal(STORY, environment(tmp_path))
    terminal.until("CUDA out of memory", 60)
    terminal.drain(KEEP_S + 2)
    asked = time.time()
    if sign in (None, signal.SIGHUP):
        os.close(terminal.main)
    if sign is not None:
        terminal.process.send_signal(sign)
    status = terminal.process.wait(15)
    assert status == (-sign if sign is signal.SIGKILL else 128 + (sign or signal.SIGHUP))
    kept = msgspec.json.decode((tmp_path / "state/stoker/console.json").read_bytes(), type=Prefs)
    assert kept.seen[JOURNAL].time > asked - KEEP_S - 2


async def test_what_is_wrong_goes_on_while_it_is_looked_at() -> None:
    """No snapshot: what ended meanwhile is gone from the panel."""
    async with driven() as one:
        before = one.app.notices()
        assert before
        await one.keys("exclamation_mark")
        await one.until(lambda: isinstance(one.app.screen, AwayScreen))
        one.app.front.state = replace(one.app.state, link=Link("failed", "the cable is out"))
        await one.sees("the cable is out")
