"""Canary and confirmation over real processes under load: promoted, taken back, timed out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import aiohttp
import pytest
from msgspec.structs import replace

from remote.fleet import plan
from remote.fleet.fleet import Fleet, FleetError
from remote.fleet.plan import Load, cost, cost_lines
from remote.protocol import Epoch, Swap
from tests.remote.fleet.conftest import Site
from tests.remote.fleet.servers import chat, pid_of
from tests.remote.fleet.swaps import OLD, Journal, swap_to
from tests.waiting import until

LOADED = {**OLD, "enable_metrics": True, "fake_old_slots": 3, "fake_slots": 3}


@contextlib.asynccontextmanager
async def busy(site: Site, fleet: Fleet) -> AsyncIterator[None]:
    """Every server full, as far as the fleet lets the run send; aborted requests sent again."""

    async def keep(gpu: int) -> None:
        while True:
            if site.run.may.get(gpu) == "run":
                with contextlib.suppress(aiohttp.ClientError, OSError, KeyError):
                    await chat(fleet.url(gpu), 100_000)
            await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(keep(gpu)) for gpu in range(site.gpus) for _ in range(4)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def confirming(journal: Journal) -> bool:
    """Whether the swap waits to be confirmed."""
    step = plan.of(journal.last, 0, "confirm") if journal.saved else None
    return step is not None and step.state == "doing"


async def loaded_fleet(site: Site) -> tuple[Fleet, Epoch]:
    site.gpus = 3
    spec = site.spec(drain=0.2, fake_rate=700.0, **LOADED)  # type: ignore[arg-type]
    fleet = site.fleet(spec)
    epoch = replace(site.epoch(spec, 1), tok_s_per_gpu=700.0)
    await fleet.up(None, epoch=epoch, who="ann")
    await site.all_are(fleet, "ready", 40)
    return fleet, epoch


async def test_a_better_canary_is_promoted(site: Site) -> None:
    fleet, old = await loaded_fleet(site)
    async with busy(site, fleet):
        swap, new, planned = await swap_to(fleet, old, "canary", fake_rate=1400.0)
        assert "GPU-seconds without tokens, 1 of 3 servers at a time for" in planned.costs[0]
        shown: list[Swap] = []
        ended = await fleet.swap(swap, old=old, new=new, save=Journal(), show=shown.append)
    assert ended.state == "done", ended
    judged = plan.of(ended, 0, "judge")
    assert judged is not None
    assert judged.text.startswith("better: ")
    assert "of 2 others" in judged.text
    assert [i.epoch for i in fleet.infos()] == [2, 2, 2]
    assert any("too early" in swap.text for swap in shown)
    # The others went on until the canary was through.
    paused = plan.of(ended, 1, "pause")
    assert paused is not None
    assert paused.began is not None
    assert judged.ended is not None
    assert paused.began >= judged.ended
    assert "GPU-seconds out of service" in ended.text


async def test_a_worse_canary_is_taken_back(site: Site) -> None:
    fleet, old = await loaded_fleet(site)
    others = [pid_of(fleet, 1), pid_of(fleet, 2)]
    async with busy(site, fleet):
        swap, new, _ = await swap_to(fleet, old, "canary", fake_rate=350.0)
        ended = await fleet.swap(swap, old=old, new=new, save=Journal())
    assert ended.state == "rolled back", ended
    assert "GPU 0 as the canary: worse: " in ended.text
    assert "GPUs 1, 2 not touched" in ended.text
    assert [i.epoch for i in fleet.infos()] == [1, 1, 1]
    assert [pid_of(fleet, 1), pid_of(fleet, 2)] == others
    assert fleet.infos()[0].flags["fake-rate"] == 700.0


async def test_a_canary_that_crashes_is_taken_back(site: Site) -> None:
    fleet, old = await loaded_fleet(site)
    async with busy(site, fleet):
        swap, new, _ = await swap_to(fleet, old, "canary", fake_rate=1400.0)
        going = asyncio.create_task(fleet.swap(swap, old=old, new=new, save=Journal()))
        await until(lambda: fleet.infos()[0].epoch == 2 and fleet.states()[0].state == "ready")
        os.kill(pid_of(fleet, 0), signal.SIGKILL)
        ended = await going
    assert ended.state == "rolled back", ended
    assert "SIGKILL" in ended.text
    assert [i.epoch for i in fleet.infos()] == [1, 1, 1]


async def test_the_operator_decides_on_a_canary_without_load(site: Site) -> None:
    fleet, old = await loaded_fleet(site)
    with pytest.raises(FleetError, match="no swap is under way"):
        await fleet.decide(keep=True, who="ann")
    swap, new, _ = await swap_to(fleet, old, "canary", fake_rate=1400.0)
    journal = Journal()
    going = asyncio.create_task(fleet.swap(swap, old=old, new=new, save=journal))

    def judging() -> bool:
        step = plan.of(journal.last, 0, "judge") if journal.saved else None
        return step is not None and step.state == "doing"

    await until(lambda: journal.saved)
    with pytest.raises(FleetError, match="nothing waits"):
        await fleet.decide(keep=True, who="ann")
    await until(judging)
    await fleet.decide(keep=False, who="ann")
    ended = await going
    assert ended.state == "rolled back"
    assert "taken back by ann" in ended.text
    assert fleet.infos()[0].epoch == 1


@pytest.mark.parametrize("keep", [True, None])
async def test_confirmation(site: Site, keep: bool | None) -> None:
    """Confirmed, taken back, or nobody says a word in time."""
    spec = site.spec(**OLD)  # type: ignore[arg-type]
    fleet = site.fleet(spec)
    old = site.epoch(spec, 1)
    await fleet.up(None, epoch=old, who="ann")
    await site.all_are(fleet, "ready")
    swap, new, _ = await swap_to(fleet, old, "all", mamba_scheduler_strategy="no_buffer")
    swap = replace(swap, confirm_s=1.0 if keep is None else 60.0)
    journal = Journal()
    going = asyncio.create_task(fleet.swap(swap, old=old, new=new, save=journal))
    await until(lambda: [i.epoch for i in fleet.infos()] == [2, 2])
    if keep is not None:
        await until(lambda: confirming(journal))
        await fleet.decide(keep=keep, who="ann")
    ended = await going
    if keep:
        assert ended.state == "done"
        assert "confirmed by ann" in ended.text
        assert [i.epoch for i in fleet.infos()] == [2, 2]
        return
    assert ended.state == "rolled back", ended
    assert ("taken back by ann" if keep is False else "not confirmed within") in ended.text
    assert [i.epoch for i in fleet.infos()] == [1, 1]
    assert [i.max_running for i in fleet.infos()] == [37, 37]
    assert all(s.state == "ready" for s in fleet.states())


def test_costs_of_a_plan() -> None:
    eight = [Load(in_flight=37, tok_s=700.0, reload_s=150.0)] * 8
    abort = cost(eight, 0.0, 2711.0)
    drain = cost(eight, 120.0, 2711.0)
    long = cost(eight, 600.0, 2711.0)
    assert abort.broken_off == 8 * 37
    assert abort.tokens == pytest.approx(8 * 37 * 2711 / 2)
    assert 0 < drain.broken_off < abort.broken_off
    assert long.broken_off == long.tokens == 0
    assert long.waits == pytest.approx(8 * 2711 / (700 / 37))
    idle = cost([Load(0, None, None)], 120.0, 2711.0)
    assert (idle.broken_off, idle.tokens) == (0, 0)


def test_costs_in_words() -> None:
    eight = [Load(in_flight=37, tok_s=700.0, reload_s=150.0)] * 8
    lines = cost_lines(eight, 120.0, 2711.0, together=1, continues=True)
    kept = "about 296 answers with 401,228 tokens are broken off and continued"
    assert lines == [
        "1,248 GPU-seconds without tokens, 1 of 8 servers at a time for 1,248 s",
        f"continue: {kept}; nothing is thrown away",
        "drain: waits up to 120 s a server; about 48 answers are broken off and continued",
        "redo: about 296 answers are broken off, 401,228 tokens thrown away",
    ]
    assert plan.reloads(eight, 3).endswith("3 of 8 servers at a time for 468 s")
    assert plan.reloads(eight, 8).endswith("all 8 servers for 156 s")
    cannot = cost_lines(eight, 120.0, 2711.0, together=1, continues=False)
    assert cannot[1].startswith("continue: not possible here: as drain: waits up to 120 s")
    assert cannot[2].endswith("tokens thrown away")
    assert len(cost_lines(eight, 120.0, 0.0, together=1, continues=True)) == 1
