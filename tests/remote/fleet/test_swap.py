"""Hot swaps over real processes: new flags, slots compared, failures put back, deaths survived."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time

import msgspec
import pytest
from msgspec.structs import replace

from remote.fleet import plan
from remote.fleet.fleet import FleetError
from remote.fleet.records import Folder
from remote.paths import Workspace
from remote.protocol import Flags, InFlight, Plan, StepName, Swap, SwapStep
from tests.remote.fleet.conftest import FAST, Site
from tests.remote.fleet.servers import by_hand, chat, pid_of
from tests.remote.fleet.swaps import OLD, Journal, begin, ready_fleet, swap_to
from tests.waiting import until


async def test_rolling_swap_to_more_slots(site: Site) -> None:
    fleet, old = await ready_fleet(site)
    before = [pid_of(fleet, 0), pid_of(fleet, 1)]
    asked = [asyncio.create_task(chat(fleet.url(0), 50)) for _ in range(5)]
    await until(lambda: fleet.states()[0].running == 5)
    swap, new, planned = await swap_to(
        fleet, old, "rolling", mamba_scheduler_strategy="no_buffer", mem_fraction_static=0.9
    )
    assert planned.diff == [
        "mamba-scheduler-strategy extra_buffer → no_buffer",
        "mem-fraction-static 0.85 → 0.90",
    ]
    assert fleet.infos()[0].max_running == 37
    journal = Journal()
    ended = await fleet.swap(swap, old=old, new=new, save=journal)
    assert ended.state == "done", ended
    assert ended == journal.last
    assert "37 → 72 slots" in ended.text
    assert [await one for one in asked] == ["stop"] * 5
    assert [i.max_running for i in fleet.infos()] == [72, 72]
    assert [i.epoch for i in fleet.infos()] == [2, 2]
    assert not {pid_of(fleet, 0), pid_of(fleet, 1)} & set(before)
    assert site.run.servers[-1][:3] == (1, 72, 2)
    assert [t for t in site.run.told if t[0] == 1][-2:] == [(1, "pause"), (1, "run")]
    # One after the other: nothing of GPU 1 began before GPU 0 was through.
    resumed, paused = plan.of(ended, 0, "resume"), plan.of(ended, 1, "pause")
    assert resumed is not None
    assert paused is not None
    assert resumed.ended is not None
    assert paused.began is not None
    assert paused.began >= resumed.ended
    # Each step was durable before it began.
    for name in plan.STEPS:
        states = [
            step.state
            for raw in journal.saved
            if (step := plan.of(msgspec.json.decode(raw, type=Swap), 0, name)) is not None
        ]
        first = next(s for s in states if s != "waiting")
        assert first == "doing", name


async def test_swap_all_at_once_aborts_after_the_bound(site: Site) -> None:
    spec = site.spec(drain=0.5, **OLD)  # type: ignore[arg-type]
    fleet = site.fleet(spec)
    old = site.epoch(spec, 1)
    await fleet.up(None, epoch=old, who="ann")
    await site.all_are(fleet, "ready")
    asked = asyncio.create_task(chat(fleet.url(1), 100_000))
    await until(lambda: fleet.states()[1].running)
    swap, new, _ = await swap_to(fleet, old, "all", mamba_scheduler_strategy="no_buffer")
    ended = await fleet.swap(swap, old=old, new=new, save=Journal())
    assert ended.state == "done", ended
    assert await asked == "abort"
    aborted = plan.of(ended, 1, "abort")
    assert aborted is not None
    assert aborted.text == "1 answers broken off, to be continued"
    assert (1, "abort") in site.run.told
    # At the same time: both were paused before either was through.
    began = [s.began or 0.0 for s in ended.steps if s.name == "pause"]
    ready = [s.ended or 0.0 for s in ended.steps if s.name == "resume"]
    assert max(began) < min(ready)


@pytest.mark.parametrize(("mode", "told"), [("continue", "abort"), ("redo", "redo")])
async def test_nothing_is_waited_for_where_answers_are_broken_off(
    site: Site, mode: InFlight, told: str
) -> None:
    fleet, old = await ready_fleet(site)
    asked = asyncio.create_task(chat(fleet.url(0), 100_000))
    await until(lambda: fleet.states()[0].running)
    site.run.open[0], site.run.counted = 1, (1000, 50)
    swap, new, planned = await swap_to(
        fleet, old, "rolling", mode, mamba_scheduler_strategy="no_buffer"
    )
    assert not any("drained" in text for text in planned.warnings)
    assert [s.name for s in swap.steps if s.gpu == 0] == [n for n in plan.STEPS if n != "drain"]
    journal = Journal()
    going = asyncio.create_task(fleet.swap(swap, old=old, new=new, save=journal))
    await until(lambda: (0, told) in site.run.told)
    site.run.counted = (1234, 57)
    ended = await going
    assert ended.state == "done", ended
    assert await asked == "abort"
    broken = plan.of(ended, 0, "abort")
    assert broken is not None
    how = "continued" if mode == "continue" else "generated again"
    assert broken.text == f"1 answers broken off, to be {how}"
    assert (ended.tokens_kept, ended.tokens_lost) == (234, 7)
    assert "234 tokens of interrupted answers kept, 7 tokens thrown away" in ended.text
    assert (0, "drain") not in [(s.gpu, s.name) for s in ended.steps]
    paused, back = plan.of(ended, 0, "abort"), plan.of(ended, 0, "resume")
    assert paused is not None
    assert back is not None
    assert plan.out_of_service(ended) >= (back.ended or 0) - (paused.began or 0) > 0


async def test_a_run_that_cannot_continue_is_drained(site: Site) -> None:
    """At the plan it could, when its turn comes it cannot any more."""
    fleet, old = await ready_fleet(site)
    asked = asyncio.create_task(chat(fleet.url(0), 60))
    await until(lambda: fleet.states()[0].running)
    swap, new, _ = await swap_to(
        fleet, old, "rolling", "continue", mamba_scheduler_strategy="no_buffer"
    )
    site.run.cannot = "this run does not keep them"
    _, _, again = await swap_to(
        fleet, old, "rolling", "continue", mamba_scheduler_strategy="no_buffer"
    )
    wanted = "answers under way are drained, not continued: this run does not keep them"
    assert wanted in again.warnings
    assert again.swap is not None
    assert plan.of(again.swap, 0, "drain") is not None
    ended = await fleet.swap(swap, old=old, new=new, save=Journal())
    assert ended.state == "done", ended
    assert await asked == "stop"
    paused = plan.of(ended, 0, "pause")
    assert paused is not None
    assert paused.text.endswith("drains first: this run does not keep them")
    names = [s.name for s in ended.steps if s.gpu == 0]
    assert names == list(plan.STEPS)
    assert plan.of(ended, 1, "drain") is None  # nothing was under way there


async def test_other_precision_is_drained_first(site: Site) -> None:
    fleet, old = await ready_fleet(site)
    asked = asyncio.create_task(chat(fleet.url(0), 60))
    await until(lambda: fleet.states()[0].running)
    swap, _, planned = await swap_to(fleet, old, "rolling", "continue", mamba_ssm_dtype="bfloat16")
    wanted = "mamba-ssm-dtype unset → bfloat16 makes other answers"
    assert planned.warnings == [f"answers under way are drained, not continued: {wanted}"]
    assert plan.of(swap, 0, "drain") is not None
    assert await asked == "stop"


async def test_several_at_once(site: Site) -> None:
    site.gpus = 3
    fleet, old = await ready_fleet(site)
    with pytest.raises(FleetError, match="1 server or more, not 0"):
        await swap_to(fleet, old, "rolling", at_once=0, mem_fraction_static=0.9)
    with pytest.raises(FleetError, match="at once: 3 servers at most, not 20"):
        await swap_to(fleet, old, "rolling", at_once=20, mem_fraction_static=0.9)
    swap, new, planned = await swap_to(
        fleet, old, "rolling", at_once=2, mamba_scheduler_strategy="no_buffer"
    )
    assert "2 of 3 servers at a time" in planned.costs[0]
    ended = await fleet.swap(swap, old=old, new=new, save=Journal())
    assert ended.state == "done", ended

    def moment(gpu: int, name: StepName) -> tuple[float, float]:
        step = plan.of(ended, gpu, name)
        assert step is not None
        return step.began or 0.0, step.ended or 0.0

    assert moment(1, "pause")[0] < moment(0, "resume")[1]
    assert moment(2, "pause")[0] >= max(moment(0, "resume")[1], moment(1, "resume")[1])


async def test_what_has_the_flags_already_goes_on(site: Site) -> None:
    """After a swap of some servers only, a restart to its flags takes the others; one that takes
    none in particular, or names them, takes all."""
    site.gpus = 3
    fleet, old = await ready_fleet(site)
    flags: Flags = {"mem-fraction-static": 0.9, "mamba-scheduler-strategy": "no_buffer"}

    async def planned(gpus: list[int] | None, flags: Flags) -> Plan:
        return await fleet.plan(
            current=old, set_flags=flags, unset_flags=[], strategy="rolling", gpus=gpus
        )

    new = replace(old, id=2, flags={**old.flags, **flags})
    ended = await fleet.swap(begin(await planned([1], flags)), old=old, new=new, save=Journal())
    assert ended.state == "done", ended
    had = [pid_of(fleet, gpu) for gpu in range(3)]

    found = await planned(None, flags)
    assert found.goes_on == [1]
    assert found.swap is not None
    assert found.swap.gpus == [0, 2]
    assert {step.gpu for step in found.swap.steps} == {0, 2}
    assert "1 of 2 servers at a time" in found.costs[0]
    assert found.diff[0] == "GPU 0, 2: mamba-scheduler-strategy extra_buffer → no_buffer"
    # Back to what most have: the one that has it not.
    back = await planned(None, {})
    assert (back.goes_on, back.swap and back.swap.gpus) == ([0, 2], [1])
    assert back.diff[0] == "GPU 1: mamba-scheduler-strategy no_buffer → extra_buffer"
    named = await planned([0, 1, 2], flags)
    assert (named.goes_on, named.swap and named.swap.gpus) == ([], [0, 1, 2])
    assert named.diff[-1] == "GPU 1: the same flags"

    ended = await fleet.swap(begin(found, 2), old=old, new=new, save=Journal())
    assert ended.state == "done", ended
    has = [pid_of(fleet, gpu) for gpu in range(3)]
    assert [a == b for a, b in zip(had, has, strict=True)] == [False, True, False]
    assert [i.max_running for i in fleet.infos()] == [72, 72, 72]

    whole = await planned(None, flags)
    assert (whole.goes_on, whole.swap and whole.swap.gpus) == ([], [0, 1, 2])
    # The same flags on another model are no reason to leave a server alone.
    fleet.spec = replace(fleet.spec, fleet=replace(fleet.spec.fleet, model="/models/other"))
    assert (await planned(None, {})).goes_on == []


async def test_a_silent_server_does_not_go_on(site: Site) -> None:
    """It has the flags, and yet it is what a restart is for."""
    site.gpus = 3
    spec = site.spec(**OLD)  # type: ignore[arg-type]
    timing = dataclasses.replace(FAST, answer=0.5, silent=1.0)
    fleet, old = await site.ready(spec, timing=timing), site.epoch(spec)
    await fleet.down([2], who="ann")
    other = replace(old, id=2, flags={**old.flags, "mem-fraction-static": 0.9})
    await fleet.up([2], epoch=other, who="ann")
    await site.all_are(fleet, "ready")

    async def goes_on() -> list[int]:
        plan = await fleet.plan(
            current=old, set_flags={}, unset_flags=[], strategy="all", gpus=None
        )
        return plan.goes_on

    assert await goes_on() == [0, 1]
    pid = pid_of(fleet, 0)
    os.kill(pid, signal.SIGSTOP)
    try:
        await until(lambda: fleet.states()[0].silent_since is not None, 60)
        assert await goes_on() == [1]
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_server_that_does_not_come_up_gets_its_old_flags_back(site: Site) -> None:
    fleet, old = await ready_fleet(site)
    second = pid_of(fleet, 1)
    swap, new, _ = await swap_to(
        fleet, old, "rolling", fake_die="weights", mem_fraction_static=0.97
    )
    ended = await fleet.swap(swap, old=old, new=new, save=Journal())
    assert ended.state == "rolled back"
    assert "out of GPU memory while loading weights" in ended.text
    assert "previous flags were put back" in ended.text
    assert "GPU 1 not touched" in ended.text
    assert pid_of(fleet, 1) == second
    info = fleet.infos()[0]
    assert (info.epoch, info.max_running) == (1, 37)
    assert info.flags["mem-fraction-static"] == 0.85
    assert fleet.states()[0].state == "ready"
    assert site.run.told[-1] == (0, "run")
    assert all(s.state == "skipped" for s in ended.steps if s.gpu == 1)


async def test_flags_that_cannot_be_put_back_leave_a_failed_swap(site: Site) -> None:
    fleet, old = await ready_fleet(site)
    (site.root / "sglang" / "launch_server.py").write_text("raise SystemExit('broken')\n")
    swap, new, _ = await swap_to(fleet, old, "rolling", mem_fraction_static=0.9)
    ended = await fleet.swap(swap, old=old, new=new, save=Journal())
    assert ended.state == "failed"
    assert "GPU 0 could not be put back either" in ended.text
    assert fleet.states()[0].state == "failed"
    assert fleet.states()[1].state == "ready"


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("drain", "doing"),
        ("start", "doing"),
        ("start", "done"),
        ("resume", "doing"),
    ],
)
async def test_a_new_agent_goes_on_with_the_swap(site: Site, name: str, state: str) -> None:
    site.gpus = 1
    fleet, old = await ready_fleet(site, fake_load=0.4)
    swap, new, _ = await swap_to(fleet, old, "rolling", mamba_scheduler_strategy="no_buffer")
    journal = Journal(stop_at=(0, name, state))
    await journal.killed(fleet, swap, old, new)
    await site.close(fleet)

    other = site.fleet(fleet.spec)
    await other.adopt()
    ended = await other.swap(journal.last, old=old, new=new, save=journal)
    assert ended.state == "done", ended
    info = other.infos()[0]
    assert (info.epoch, info.max_running) == (2, 72)
    assert site.run.told[-1] == (0, "run")
    # It was started once, not twice.
    log = (site.root / "sglang_logs" / "sglang_gpu0.log").read_text()
    assert log.count("server_args=") == 2


async def test_a_new_agent_goes_on_putting_back(site: Site) -> None:
    site.gpus = 1
    fleet, old = await ready_fleet(site)
    swap, new, _ = await swap_to(fleet, old, "rolling", fake_die="weights")
    journal = Journal(stop_at=(0, "put back", "doing"))
    await journal.killed(fleet, swap, old, new)
    await site.close(fleet)
    other = site.fleet(fleet.spec)
    await other.adopt()
    ended = await other.swap(journal.last, old=old, new=new, save=journal)
    assert ended.state == "rolled back"
    assert other.infos()[0].epoch == 1
    assert other.states()[0].state == "ready"


async def test_a_foreign_server_is_taken_over_by_a_restart(site: Site) -> None:
    site.gpus = 1
    flags = ("--mamba-scheduler-strategy", "extra_buffer", "--mem-fraction-static", "0.85")
    hand = by_hand(site, site.root / "hand.log", *flags, "--fake-load", "1")
    try:
        spec = site.spec(mamba_scheduler_strategy="no_buffer")
        fleet = site.fleet(spec)
        # It is seen while it loads, before its port is open.
        await until(lambda: fleet.states()[0].state == "foreign")
        assert fleet.infos()[0].pid == hand.pid
        await until(lambda: fleet.infos()[0].max_running == 37)
        planned = await fleet.plan(
            current=None, set_flags={}, unset_flags=[], strategy="all", gpus=None
        )
        wanted = f"pid {hand.pid} was not started by Stoker and will be ended"
        assert any(wanted in line for line in planned.warnings)
        new = site.epoch(spec, 2)
        ended = await fleet.swap(begin(planned), old=None, new=new, save=Journal())
        assert ended.state == "done", ended
        assert "37 → 72 slots" in ended.text
        # 0.5.12 ends a drain by SIGKILL of itself; while it loads, SIGTERM itself ends it.
        assert await asyncio.to_thread(hand.wait) in (-9, -15)
        assert fleet.infos()[0].pid != hand.pid
        assert fleet.infos()[0].epoch == 2
    finally:
        hand.kill()
        await asyncio.to_thread(hand.wait)


async def test_a_foreign_servers_flags_come_back_where_ours_fail(site: Site) -> None:
    site.gpus = 1
    hand = by_hand(site, site.root / "hand.log", "--mem-fraction-static", "0.85", "--api-key", "x")
    try:
        spec = site.spec(fake_die="weights")
        fleet = site.fleet(spec)
        await until(lambda: fleet.infos()[0].max_running == 37)
        assert "x" not in fleet.infos()[0].argv
        assert fleet.infos()[0].flags == {"mem-fraction-static": 0.85}
        planned = await fleet.plan(
            current=None, set_flags={}, unset_flags=[], strategy="all", gpus=None
        )
        new = site.epoch(spec, 2)
        ended = await fleet.swap(begin(planned), old=None, new=new, save=Journal())
        assert ended.state == "rolled back", ended
        assert fleet.infos()[0].flags == {"mem-fraction-static": 0.85}
        assert fleet.states()[0].state == "ready"
    finally:
        hand.kill()
        await asyncio.to_thread(hand.wait)


async def test_a_swap_called_off_in_the_middle(site: Site) -> None:
    fleet, old = await ready_fleet(site)
    second = pid_of(fleet, 1)
    swap, new, _ = await swap_to(fleet, old, "rolling", mamba_scheduler_strategy="no_buffer")
    site.run.open[0] = 1
    going = asyncio.create_task(fleet.swap(swap, old=old, new=new, save=Journal()))
    await until(lambda: fleet.states()[0].state == "draining")
    assert await fleet.decide(keep=False, who="bob") == "the previous flags come back"
    site.run.open[0] = 0
    ended = await going
    assert ended.state == "rolled back", ended
    assert ended.text.startswith("taken back by bob; the previous flags were put back")
    assert "GPU 1 not touched" in ended.text
    assert pid_of(fleet, 1) == second
    assert [i.epoch for i in fleet.infos()] == [1, 1]
    assert [s.state for s in fleet.states()] == ["ready", "ready"]


async def test_a_start_that_never_came_is_made_again(site: Site) -> None:
    """The agent died between writing down the launch and starting its holder."""
    site.gpus = 1
    fleet, old = await ready_fleet(site)
    swap, new, _ = await swap_to(fleet, old, "rolling", mamba_scheduler_strategy="no_buffer")
    journal = Journal(stop_at=(0, "start", "doing"))
    await journal.killed(fleet, swap, old, new)
    await site.close(fleet)
    folder = Folder(Workspace(site.root).server(0))
    launch = folder.launch()
    assert launch is not None
    folder.write_launch(
        replace(launch, launch="never", swap=swap.id, epoch=2, wanted="up", asked=time.time())
    )
    other = site.fleet(fleet.spec, dataclasses.replace(FAST, holder=0.5))
    await other.adopt()
    ended = await other.swap(journal.last, old=old, new=new, save=journal)
    assert ended.state == "done", ended
    assert other.infos()[0].max_running == 72


async def test_a_plan_needs_servers_and_known_flags(site: Site) -> None:
    spec = site.spec(**OLD)  # type: ignore[arg-type]
    fleet = site.fleet(spec)
    with pytest.raises(FleetError, match="no server is up"):
        await swap_to(fleet, site.epoch(spec), "rolling", mem_fraction_static=0.9)
    with pytest.raises(FleetError, match="between 0 and 1"):
        await fleet.plan(
            current=None,
            set_flags={"mem-fraction-static": 1.5},
            unset_flags=[],
            strategy="all",
            gpus=[0],
        )
    with pytest.raises(FleetError, match="port follows from `base_port`"):
        await fleet.plan(
            current=None, set_flags={"port": 1}, unset_flags=[], strategy="all", gpus=[0]
        )
    with pytest.raises(FleetError, match="there is no GPU 9"):
        await fleet.plan(current=None, set_flags={}, unset_flags=[], strategy="all", gpus=[9])
    for minutes in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(FleetError, match="confirm within: minutes"):
            await fleet.plan(
                current=None,
                set_flags={},
                unset_flags=[],
                strategy="all",
                gpus=[0],
                confirm_within_min=minutes,
            )


def test_steps_and_groups() -> None:
    swap = Swap(
        id=1,
        strategy="rolling",
        gpus=[0, 1, 2],
        from_epoch=1,
        to_epoch=2,
        who="",
        began=0.0,
        steps=plan.steps([0, 1, 2]),
    )
    assert plan.groups(swap) == [[0], [1], [2]]
    assert plan.groups(replace(swap, strategy="all")) == [[0, 1, 2]]
    assert plan.groups(replace(swap, strategy="canary")) == [[0], [1], [2]]
    assert plan.groups(replace(swap, at_once=2)) == [[0, 1], [2]]
    assert plan.groups(replace(swap, at_once=9)) == [[0, 1, 2]]
    assert plan.groups(replace(swap, strategy="canary", at_once=2)) == [[0], [1, 2]]
    bare = replace(swap, steps=plan.steps([0, 1, 2], drains=False))
    assert plan.of(bare, 1, "drain") is None
    drained = plan.drain_first(bare, 1)
    assert [s.name for s in drained.steps if s.gpu == 1] == list(plan.STEPS)
    assert plan.drain_first(drained, 1) == drained
    names = [s.name for s in plan.steps([0, 1], "canary")]
    assert names == [*plan.STEPS, "judge", *plan.STEPS]
    changed = plan.put(swap, SwapStep(gpu=1, name="put back", state="doing"))
    assert [s.gpu for s in changed.steps] == [0] * 8 + [1] * 9 + [2] * 8
    assert plan.of(changed, 1, "put back") == SwapStep(gpu=1, name="put back", state="doing")
    assert plan.untouched(changed, 2)
    assert not plan.untouched(changed, 1)
    assert not plan.finished(changed, 1)
    assert plan.finished(plan.mark(changed, 1, "put back", state="done"), 1)
