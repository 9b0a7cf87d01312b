"""A recorded run in the same screens."""

from __future__ import annotations

import math
import sqlite3
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from console.app import StokerApp
from console.model import Link, State, reduce
from console.replay import ReplayFeed, snapshot_at, swap_at
from console.trend import Trend
from console.widgets.log_pane import LogPane
from console.widgets.progress import header
from remote.journal import CLOCK, SCHEMA, TARGET, Journal
from remote.protocol import (
    SERIES,
    Epoch,
    FleetSpec,
    Message,
    Progress,
    ReadLog,
    ReadMerged,
    RunState,
    Snapshot,
    Swap,
    SwapStep,
    TargetSpec,
)
from remote.recording import Recording, RecordingError
from remote.samples import Sample
from tests.console.screen.driver import Driven

LENGTH = 1_200
EAST_S = 2 * 3600
"""The container's clock."""


def write_log(path: Path, begin: int) -> None:
    """Four lines a second, one of them without a time."""
    path.parent.mkdir()
    with path.open("w") as out:
        for second in range(LENGTH):
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(begin + second + EAST_S))
            out.write("".join(f"[{at}] second {second} line {n}\n" for n in range(3)))
            out.write(f"  and more of second {second}\n")


EVENTS = (
    (120, "verdict", "warning", "after start: 1.9/s, ETA 208 h; TOO LONG; held by the pool", None),
    (200, "alert", "error", "ETA 208 h, over the 48 h allowed: the pool", None),
    (300, "run.failed", "error", "the run ended (exit status 3) with 7 of 9 prompts done", None),
    (330, "run.started", "info", "started again: 7 done", None),
    (450, "server.stalled", "error", "GPU 1: no token came for 60 s", 1),
    (500, "server.ready", "info", "GPU 1: tokens flow again", 1),
    (800, "alert.over", "info", "over: ETA 49 h, over the 48 h allowed", None),
    (820, "verdict", "info", "after swap: 3.1/s, ETA 16 h; ×1.58 of epoch 1: 660 tok/s", None),
)
"""Seconds after the recording's begin, and what an agent tells."""


def tell(path: Path, begin: int) -> None:
    """Those events, put into a journal."""
    with sqlite3.connect(path) as db:
        db.execute("UPDATE events SET id = 100")
        for number, (at, kind, level, text, gpu) in enumerate(EVENTS, 1):
            row = (number, begin + at, kind, level, text, gpu, "")
            db.execute("INSERT INTO events VALUES (?,?,?,?,?,?,?)", row)
    db.close()


@asynccontextmanager
async def recorded(tmp_path: Path) -> AsyncIterator[Recording]:
    """Twenty minutes of two GPUs with a swap in the middle, written by the agent's journal."""
    path = tmp_path / "journal.db"
    end = int(time.time()) - 5
    begin = end - LENGTH
    journal = Journal(path)
    await journal.open()
    journal.put_epoch(Epoch(1, begin, {"a": 1}, "ops", "", 660.0, 37))
    journal.put_epoch(Epoch(2, begin + 600, {"a": 2}, "ops", "", 1_040.0, 72))
    steps = []
    for gpu in (0, 1):
        at = begin + 600 + gpu * 60
        for index, name in enumerate(("drain", "stop", "start", "ready", "resume")):
            steps.append(
                SwapStep(gpu, name, "done", at + index * 10, at + index * 10 + 10, name)  # type: ignore[arg-type]
            )
    await journal.save_swap(
        Swap(1, "rolling", [0, 1], 1, 2, "ops", begin + 600, "done", begin + 720, steps)
    )
    for second in range(LENGTH + 1):
        fast = second >= 720
        row = {
            "gen_tok_s": 1_040.0 if fast else 660.0,
            "kv_usage": 0.4 if fast else 0.2,
            "mamba_usage": 0.5 if fast else 0.8,
            "running": 72.0 if fast else 37.0,
            "power_w": 400.0,
        }
        data = array("f", [row.get(name, float("nan")) for name in SERIES for _ in range(2)])
        journal.add(Sample(begin + second, 2, data))
        if second % 100 == 0:
            await journal.history(begin, begin + 1, 1)  # what outruns the disk is dropped
    for second in range(0, LENGTH, 10):
        progress = Progress(total=9_000, completed=4 * second, rate_per_sec=4.0, status="running")
        journal.add_run(RunState(alive=True, progress=progress), begin + second)
    journal.note(TARGET, TargetSpec("t", "/w", fleet=FleetSpec(gpus=2, log_dir="logs")))
    journal.note(CLOCK, EAST_S)
    journal.emit("swap.done", "37 → 72 slots", who="ops")
    await journal.close()
    tell(path, begin)
    write_log(tmp_path / "logs" / "sglang_gpu0.log", begin)
    recording = Recording(path)
    yield recording


async def read(app: StokerApp, pilot: Pilot[None]) -> None:
    """Wait until what was at the clock's new time is there."""
    while app.inbox._turning:
        await pilot.pause(0.02)


async def test_a_recording_tells_what_was(tmp_path: Path) -> None:
    """Servers, epochs and a swap's steps at any time of it."""
    async with recorded(tmp_path) as found:
        assert found.end - found.begin >= LENGTH - 1
        begin = found.epochs[0].since
        early = snapshot_at(found, begin + 300, 1)
        assert [s.running for s in early.servers] == [37, 37]  # type: ignore[union-attr]
        assert [i.epoch for i in early.infos] == [1, 1]  # type: ignore[union-attr]
        assert early.swap is None
        during = snapshot_at(found, begin + 625, 2)
        assert [s.state for s in during.servers] == ["starting", "ready"]  # type: ignore[union-attr]
        late = snapshot_at(found, begin + 1_000, 3)
        assert [i.max_running for i in late.infos] == [72, 72]  # type: ignore[union-attr]
        swap = swap_at(found.swaps, begin + 665)
        assert swap is not None
        assert swap.state == "doing"
        assert [s.state for s in swap.steps if s.gpu == 0] == ["done"] * 5
        assert [s.state for s in swap.steps if s.gpu == 1] == ["doing"] + ["waiting"] * 4
        history = found.history(begin, begin + LENGTH, 60)
        speeds = history.series["gen_tok_s"][0]
        assert speeds[5] == pytest.approx(660)
        assert speeds[55] == pytest.approx(1_040)


def player(found: Recording) -> StokerApp:
    """The console on a recording."""
    return StokerApp(
        lambda m, l: ReplayFeed(found, m, l),  # noqa: E741
        name="run.db",
        read_only=True,
        remember=False,
        strict=True,
    )


async def test_a_recording_is_driven_by_keys(tmp_path: Path) -> None:
    """Play, pause, seek, speed; nothing can be changed; charts hold the past."""
    async with recorded(tmp_path) as found:
        app = player(found)
        async with app.run_test(size=(120, 40), notifications=True) as pilot:
            one = Driven(app, pilot)

            await one.sees("▶ replay")
            await one.sees("37/37")
            await one.sees("/ 9,000")
            await pilot.press("z")
            await one.sees("❚❚")
            assert app.replay is not None
            before = app.replay.at
            await pilot.press("full_stop")
            assert app.replay.at == pytest.approx(before + (found.end - found.begin) / 50)
            app.inbox.seek(found.begin + 900)
            await read(app, pilot)
            await one.sees("72/72")
            await one.sees("×1.95")
            await pilot.press("greater_than_sign")
            await one.sees("×60")
            await pilot.press("r")
            await one.sees("read-only")
            app.inbox.seek(found.begin + 325)
            await read(app, pilot)
            await pilot.press("comma")
            await one.sees("37/37")


async def test_what_was_wrong_then_is_told(tmp_path: Path) -> None:
    """Alerts, failures and the verdict of the time, and nothing of later."""
    async with recorded(tmp_path) as found:
        begin = found.epochs[0].since
        app = player(found)
        async with app.run_test(size=(160, 50), notifications=True) as pilot:
            one = Driven(app, pilot)

            await one.sees("▶ replay")
            await pilot.press("z")
            app.inbox.seek(begin + 60)
            await read(app, pilot)
            await one.until(lambda: app.state.time == begin + 60)
            assert "208 h" not in one.screen()
            app.inbox.seek(begin + 130)
            await read(app, pilot)
            await one.sees("TOO LONG")
            assert not app.state.alerts
            app.inbox.seek(begin + 310)
            await read(app, pilot)
            await one.sees("over the 48 h allowed")
            await one.sees("the run ended (exit status 3)")
            app.inbox.seek(begin + 460)
            await read(app, pilot)
            await one.sees("GPU 1 stalled: no token came for 60 s")
            assert [a.code for a in app.state.alerts] == ["eta"]
            app.inbox.seek(begin + 600)
            await read(app, pilot)
            await one.until(lambda: app.state.servers[1].state != "stalled")
            app.inbox.seek(begin + 900)
            await read(app, pilot)
            await one.sees("×1.58")
            assert not app.state.alerts
            assert app.state.verdict is not None
            assert app.state.verdict.good is True


async def test_logs_and_the_runs_numbers_are_those_of_the_time(tmp_path: Path) -> None:
    """Whatever the clock of the container was; all of what came between two times, once."""
    async with recorded(tmp_path) as found:
        begin = found.epochs[0].since
        run = found.run_at(begin + 305)
        assert run is not None
        assert run.progress is not None
        assert run.progress.completed == 1_200
        assert found.run_at(begin - 60) is None
        assert found.run_begin == pytest.approx(begin, abs=1)
        assert Recording(tmp_path / "journal.db").run_begin == found.run_begin
        assert Recording(tmp_path).run_begin == found.run_begin, "its folder is enough"
        part = found.log("gpu0", begin + 300.5, 5)
        assert part is not None
        assert part.lines == [
            "  and more of second 299",
            *(part.lines[1:4]),
            "  and more of second 300",
        ]
        assert "second 300 line 2" in part.lines[3]
        offset, seen = part.next, list[str]()
        for second in range(301, 400):
            more = found.log_between("gpu0", offset, begin + second + 0.5)
            assert more is not None
            offset = more.next
            seen += more.lines
        assert [line for line in seen if "and more" in line] == [
            f"  and more of second {n}" for n in range(301, 400)
        ]
        assert found.log_between("gpu0", offset, begin + 399.9) is None
        assert found.log("gpu1", begin + 300, 5) is None
        merged = found.read_merged(ReadMerged(["gpu0", "gpu1"], lines=-5))
        assert merged.sources == ["gpu0"], "what lies there"
        assert merged.lines == found.read_log(ReadLog("gpu0", lines=5)).lines
        snapshot = snapshot_at(found, begin + 305, 1)
        assert snapshot.run == run


def test_a_log_that_is_played_fast_is_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines and skipped lines together are all that were written."""
    monkeypatch.setattr("remote.agent.logs.BEHIND", 4_000)
    begin = int(time.time()) - LENGTH
    db = sqlite3.connect(tmp_path / "journal.db")
    db.executescript(SCHEMA)
    db.execute("INSERT INTO events VALUES (1, ?, 'x', 'info', '', NULL, '')", (float(begin),))
    db.execute("INSERT INTO notes VALUES (?, ?)", (CLOCK, str(EAST_S)))
    db.commit()
    db.close()
    write_log(tmp_path / "logs" / "x", begin)
    (tmp_path / "logs" / "x").rename(tmp_path / "sglang_gpu0.log")
    found = Recording(tmp_path / "journal.db")
    part = found.log_between("gpu0", 0, begin + 1_000.5)
    assert part is not None
    assert part.lines[-1] == "  and more of second 1000"
    assert part.skipped + len(part.lines) == 4 * 1_001


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_run_and_logs_are_replayed_by_keys(tmp_path: Path, size: tuple[int, int]) -> None:
    """The run's screen, the logs at the clock's time, and again after it was turned back."""
    async with recorded(tmp_path) as found:
        app = player(found)
        async with app.run_test(size=size, notifications=True) as pilot:
            one = Driven(app, pilot)

            def held() -> list[str]:
                return [line for pane in app.screen.query(LogPane) for line in pane.held()]

            await one.sees("▶ replay")
            await pilot.press("z")
            begin = found.epochs[0].since
            app.inbox.seek(begin + 300)
            await read(app, pilot)
            await pilot.press("g")
            await one.sees("1,200 / 9,000")
            assert all(len(line) <= size[0] for line in one.screen().splitlines())
            await pilot.press("l")
            await one.until(lambda: any("and more of second 300" in line for line in held()))
            size_of_none = len(app.screen.query(LogPane)) - 1
            assert not any("second 301 " in line for line in held())
            await pilot.press("full_stop")
            await one.until(lambda: any("and more of second 323" in line for line in held()))
            for _ in range(8):
                await pilot.press("comma")
            at = int(app.replay.at - begin) if app.replay is not None else 0
            await one.until(
                lambda: f"second {at} line" in one.screen() or f"second {at - 1} " in one.screen()
            )
            assert "second 323" not in one.screen()
            assert sum("no log with times" in line for line in held()) == size_of_none
            await pilot.press("f", "z")
            before = app.replay.at if app.replay is not None else 0
            await one.until(lambda: app.replay is not None and app.replay.at > before)


@pytest.mark.parametrize("later", [True, False])
def test_before_the_runs_numbers_it_says_whether_there_are_some(later: bool) -> None:
    """A recording may have them from some time on, or not at all."""
    link = Link("replay", "a recording", run_later=later)
    state = reduce(State(link=link), Snapshot(time=1.0, seq=1, full=True), 1.0)
    said = "".join(text for text, _ in header(state, 1.0, 120)[0])
    assert ("not in it yet" in said) is later
    assert "the run's own counts are not in it" in said


async def test_what_is_no_recording_is_one_line(tmp_path: Path) -> None:
    """Missing, no database, another database, empty."""
    with pytest.raises(RecordingError, match="is not there"):
        Recording(tmp_path / "no.db")
    with pytest.raises(RecordingError, match=r"a folder with no journal\.db in it: name"):
        Recording(tmp_path)
    (tmp_path / "x.db").write_text("no database at all, only text" * 100)
    with pytest.raises(RecordingError, match="no journal"):
        Recording(tmp_path / "x.db")
    journal = Journal(tmp_path / "empty.db")
    await journal.open()
    await journal.close()
    with pytest.raises(RecordingError, match="holds nothing"):
        Recording(tmp_path / "empty.db")


def test_cards_of_a_recording_have_no_holes(tmp_path: Path) -> None:
    """Its samples of ten seconds fill the buckets of two that a card's history has."""
    begin = 1_796_140_000
    path = tmp_path / "journal.db"
    db = sqlite3.connect(path)
    db.executescript(SCHEMA)
    for second in range(0, 600, 10):
        data = array("f", [5.0 if name == "gen_tok_s" else math.nan for name in SERIES])
        sample = Sample(begin + second, 1, data)
        db.execute("INSERT INTO samples VALUES (?,?,?,?)", (10, sample.time, 1, sample.pack()))
    db.commit()
    db.close()
    trend = Trend(300.0, 150)
    until = begin + 600.0
    trend.load(Recording(path).history(until - 300, until, 150))
    assert None not in trend.column("gen_tok_s", 0, until - 1)[1:]


async def test_a_server_is_unknown_before_it_was_started(tmp_path: Path) -> None:
    """Samples of a minute begin before it did."""
    async with recorded(tmp_path) as found:
        begin = found.begin
        with sqlite3.connect(tmp_path / "journal.db") as db:
            row = (50, begin + 400, "server.starting", "info", "GPU 1: starting", 1, "")
            db.execute("INSERT INTO events VALUES (?,?,?,?,?,?,?)", row)
            db.execute("DELETE FROM events WHERE gpu = 1 AND kind != 'server.starting'")
        again = Recording(tmp_path / "journal.db")
        before = snapshot_at(again, begin + 300, 1).servers
        after = snapshot_at(again, begin + 450, 1).servers
        assert isinstance(before, list)
        assert isinstance(after, list)
        assert [s.state for s in before] == ["ready", "stopped"]
        assert before[1].running is None
        assert [s.state for s in after] == ["ready", "ready"]


async def test_of_many_turns_of_the_clock_only_the_last_is_read(tmp_path: Path) -> None:
    """A held key reads the past once or twice, not once a press."""
    async with recorded(tmp_path) as found:
        feeds: list[ReplayFeed] = []

        def connect(on_message: Any, on_link: Any) -> ReplayFeed:
            feed = ReplayFeed(found, on_message, on_link)
            feed.playing, feed.at = False, found.begin + 1_000.0
            feeds.append(feed)
            return feed

        app = StokerApp(connect, name="journal.db", read_only=True, remember=False, strict=True)
        async with app.run_test(size=(120, 40)) as pilot:
            one = Driven(app, pilot)
            await one.until(lambda: app.state.received is not None)
            shown: list[float] = []
            hear = app.front.hear

            def note(message: Message) -> None:
                if isinstance(message, Snapshot):
                    shown.append(message.time)
                hear(message)

            feeds[0]._on_message = note
            one.burst(*["comma"] * 10)
            step = (found.end - found.begin) / 50
            there = found.begin + 1_000 - 10 * step
            await one.until(lambda: shown and abs(shown[-1] - there) < 1)
            moved = {round(at) for at in shown}
            assert len(moved) <= 4
