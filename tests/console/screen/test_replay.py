"""A recorded run in the same screens."""

from __future__ import annotations

import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from console.app import StokerApp
from console.replay import ReplayFeed, snapshot_at, swap_at
from remote.journal import Journal
from remote.protocol import Epoch, Swap, SwapStep
from remote.recording import Recording, RecordingError
from remote.samples import SERIES, Sample

LENGTH = 1_200


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
    journal.emit("swap.done", "37 → 72 slots", who="ops")
    await journal.close()
    recording = Recording(path)
    yield recording
    recording.close()


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


async def test_a_recording_is_driven_by_keys(tmp_path: Path) -> None:
    """Play, pause, seek, speed; nothing can be changed; charts hold the past."""
    async with recorded(tmp_path) as found:
        app = StokerApp(
            lambda m, l: ReplayFeed(found, m, l),  # noqa: E741
            name="run.db",
            read_only=True,
            remember=False,
            strict=True,
        )
        async with app.run_test(size=(120, 40), notifications=True) as pilot:

            def screen() -> str:
                strips = app.screen._compositor.render_strips()
                return "\n".join(strip.text for strip in strips)

            async def until(text: str) -> None:
                for _ in range(2_000):
                    if text in screen():
                        return
                    await pilot.pause(0.02)
                raise AssertionError(f"{text!r} is not on the screen:\n{screen()}")

            await until("▶ replay")
            await until("37/37")
            await pilot.press("z")
            await until("❚❚")
            assert app.replay is not None
            before = app.replay.at
            await pilot.press("full_stop")
            assert app.replay.at == pytest.approx(before + (found.end - found.begin) / 50)
            await app.seek(found.begin + 900)
            await until("72/72")
            await until("×1.95")
            await pilot.press("greater_than_sign")
            await until("×60")
            await pilot.press("r")
            await until("read-only")
            await app.seek(found.begin + 325)
            await pilot.press("comma")
            await until("37/37")


async def test_what_is_no_recording_is_one_line(tmp_path: Path) -> None:
    """Missing, no database, another database, empty."""
    with pytest.raises(RecordingError, match="is not there"):
        Recording(tmp_path / "no.db")
    (tmp_path / "x.db").write_text("no database at all, only text" * 100)
    with pytest.raises(RecordingError, match="no journal"):
        Recording(tmp_path / "x.db")
    journal = Journal(tmp_path / "empty.db")
    await journal.open()
    await journal.close()
    with pytest.raises(RecordingError, match="holds nothing"):
        Recording(tmp_path / "empty.db")
