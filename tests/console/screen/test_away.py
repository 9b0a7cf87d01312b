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
from textual.pilot import Pilot

import console.app
from console import away, prefs
from console.app import StokerApp
from console.looks import KEEP_S
from console.model import Link, State, reduce
from console.prefs import Prefs, Seen
from console.screens.away import AwayScreen
from console.screens.run import RunScreen
from console.widgets.progress import ProgressHeader
from remote.protocol import Event
from tests.bench.terminal import Terminal
from tests.console.screen.driver import driven
from tests.console.screen.story import BEGAN, JOURNAL, Story, connect
from tests.console.screen.test_terminal import STORY, environment


def told(story: Story) -> State:
    """The state after the story's snapshot."""
    return reduce(State(link=Link("connected")), story.snapshot(), BEGAN)


def test_deaths_alerts_swaps_and_drift_are_told_worst_first() -> None:
    """A night on one panel."""
    story = Story(lambda _: None, lambda _: None)
    state = told(story)
    night = 8 * 3600
    seen = Seen(state.time - night, 10, int(story.done) - 20_000, 2.0, state.time + 3_600)
    events = [
        Event(11, state.time - 7_000, "server.failed", "error", "GPU 3: out of memory", 3),
        Event(12, state.time - 6_000, "server.failed", "error", "GPU 3: out of memory", 3),
        Event(13, state.time - 5_990, "server.restart", "info", "GPU 3: starting again in 5 s", 3),
        Event(14, state.time - 5_000, "alert", "error", "ETA 208 h, over the 48 h allowed"),
        Event(15, state.time - 5_000, "alert", "error", "ETA 208 h, over the 48 h allowed"),
        Event(16, state.time - 4_000, "swap.done", "info", "37 → 72 slots", None, "kim"),
        Event(17, state.time - 3_000, "action", "info", "run pause", None, "kim"),
        Event(18, state.time - 2_000, "agent.lost", "warning", "nothing was watched for 2 min 5 s"),
    ]
    found = away.account(seen, state, events)
    texts = [n.text for n in found]
    assert texts[0] == "2 server deaths: GPU 3 ×2"
    assert texts.count("ETA 208 h, over the 48 h allowed") == 1
    assert any("swap: 37 → 72 slots" in t for t in texts)
    assert any("kim: run pause" in t for t in texts)
    assert any("nothing was watched for 2 min 5 s" in t for t in texts)
    assert any("20,000 prompts were done, 0.69/s (it was 2.00/s)" in t for t in texts)
    assert any("later than it looked then" in t for t in texts)
    assert [n.level for n in found] == sorted(
        (n.level for n in found), key=["error", "warning", "good", "info"].index
    )


def test_a_short_absence_is_not_worth_a_panel() -> None:
    """Nor is a first look."""
    state = told(Story(lambda _: None, lambda _: None))
    assert not away.worth_telling(None, state)
    assert not away.worth_telling(Seen(state.time - 10), state)
    assert away.worth_telling(Seen(state.time - 1_000), state)


async def until(pilot: Pilot[None], true: object) -> None:
    """Wait for a condition."""
    for _ in range(2_000):
        if true():  # type: ignore[operator]
            return
        await pilot.pause(0.02)
    raise AssertionError("it did not come true in time")


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
        await until(pilot, lambda: isinstance(app.screen, AwayScreen))

        def screen() -> str:
            return "".join(strip.text for strip in app.screen._compositor.render_strips())

        await until(pilot, lambda: "prompts were done" in screen())
        await pilot.press("space")
        await until(pilot, lambda: not isinstance(app.screen, AwayScreen))
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, AwayScreen))
        await pilot.press("g")
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
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
        await one.sees("1 server deaths: GPU 3")
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
        prefs.keep(theme="light", seen={"ct300": Seen(now - 5)})
        await until(pilot, lambda: prefs.read().seen.get(JOURNAL, Seen()).time >= now)
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
