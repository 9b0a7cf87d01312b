"""The story that Stoker was built for, through the real link."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import play

COUNT = 1700


@pytest.mark.timeout(600)
async def test_a_fleet_held_at_37_slots_is_freed_and_nothing_is_lost(tmp_path: Path) -> None:
    """``extra_buffer`` at 0.85 holds two servers at 37; ``no_buffer`` at 0.90 gives 72."""
    async with (
        play.lab(tmp_path, count=COUNT, speed=20) as here,
        play.watched(here) as watch,
    ):
        await watch.until(
            lambda s: all(s.infos[g].max_running == 37 for g in range(2)), 30, "37 slots"
        )
        await watch.until(
            lambda s: s.verdict is not None and s.verdict.slots is not None,
            90,
            "the first-minute verdict",
        )
        verdict = watch.state.verdict
        assert verdict is not None
        assert verdict.slots == 37
        assert "Mamba" in verdict.bound_by, verdict
        assert "KV only" in verdict.bound_by, verdict
        await watch.completed(100)
        assert watch.progress.in_flight > 60

        before = watch.progress.completed
        swap = await watch.restart(
            {"mamba-scheduler-strategy": "no_buffer", "mem-fraction-static": 0.90}
        )
        assert swap.state == "done", swap
        await watch.until(
            lambda s: all(s.infos[g].max_running == 72 for g in range(2)), 30, "72 slots"
        )
        assert watch.progress.completed >= before

        def measured() -> tuple[float, float] | None:
            epochs = {epoch.id: epoch for epoch in watch.state.epochs}
            old, new = epochs.get(swap.from_epoch or 0), epochs.get(swap.to_epoch)
            if old is None or new is None or new.seconds < 10:
                return None
            return old.tok_s_per_gpu or 0.0, new.tok_s_per_gpu or 0.0

        await watch.until(lambda s: measured() is not None, 120, "both epochs measured")
        rates = measured()
        assert rates is not None
        assert rates[1] >= 1.6 * rates[0], rates
        end = await watch.done()
        play.all_ended(here, end, COUNT)
        assert watch.fell == []
        report = play.clean(here)
        play.all_ended(here, report, COUNT)
