"""What is seen before a swap touches a server: starts that would fail, servers of others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from remote.fleet import finding, launcher, processes
from remote.fleet.fleet import FleetError
from remote.fleet.foreign import Foreign
from remote.fleet.planning import refuse_take_over
from remote.protocol import Epoch, TargetSpec
from tests.remote.fleet.conftest import Site
from tests.remote.fleet.servers import by_hand, pid_of
from tests.remote.fleet.swaps import OLD, Journal, begin, ready_fleet, swap_to
from tests.waiting import until


def with_script(site: Site, spec: TargetSpec, text: str) -> TargetSpec:
    script = site.root / "env.sh"
    script.write_text(text)
    return msgspec.structs.replace(spec, env_script=str(script))


async def test_nothing_is_stopped_that_could_not_be_started_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, old = await ready_fleet(site)
    pids = [pid_of(fleet, 0), pid_of(fleet, 1)]
    good = fleet.spec
    secrets = site.root / "secrets.env"
    secrets.touch(mode=0o644)
    logs = site.root / "logs"
    logs.touch()
    for spec, words in (
        (with_script(site, good, "return 5\n"), "env_script .* failed"),
        (replace(good, credentials_file=str(secrets)), "may be read by others"),
        (replace(good, python="/nowhere/python"), "python /nowhere/python is not there"),
        (replace(good, fleet=replace(good.fleet, log_dir="logs/x")), "cannot be written"),
    ):
        fleet.spec = spec
        with pytest.raises(FleetError, match=words):
            await swap_to(fleet, old, "rolling", mamba_scheduler_strategy="no_buffer")
    fleet.spec = good
    with monkeypatch.context() as patch:
        patch.setattr(launcher, "LEAST_DISK", 1 << 60)
        with pytest.raises(FleetError, match="MiB free in"):
            await swap_to(fleet, old, "rolling", mamba_scheduler_strategy="no_buffer")
    # It was all right when it was planned, and is not when its turn comes.
    fleet.spec = with_script(site, good, "true\n")
    swap, new, _ = await swap_to(fleet, old, "rolling", mamba_scheduler_strategy="no_buffer")
    fleet.spec = with_script(site, good, "return 6\n")
    ended = await fleet.swap(swap, old=old, new=new, save=Journal())
    assert ended.state == "rolled back", ended
    assert ended.text.startswith("GPU 0 could not be swapped: env_script ")
    assert "; GPU 0 left as before; GPU 1 not touched" in ended.text
    assert [pid_of(fleet, 0), pid_of(fleet, 1)] == pids
    assert [s.state for s in fleet.states()] == ["ready", "ready"]
    assert "pause" not in site.run.may.values()


@pytest.fixture
def anothers() -> Iterator[int]:
    """A process that may not be signalled from here."""
    if os.geteuid() != 0:
        yield 1
        return
    child = subprocess.Popen(["sleep", "600"], user=65534)
    os.seteuid(65533)
    try:
        yield child.pid
    finally:
        os.seteuid(0)
        child.kill()
        child.wait()


async def test_anothers_server_is_not_taken_over(site: Site, anothers: int) -> None:
    main = processes.identify(anothers)
    assert main is not None
    assert not processes.may_end(anothers)
    assert processes.may_end(os.getpid())
    fleet = site.fleet(site.spec())
    server = fleet.server(0)
    server.begin_foreign(
        main, Foreign(argv=[], owner="carol", flags={}, model=None, log=None, is_sglang=True)
    )
    with pytest.raises(FleetError, match=f"pid {anothers} of .*: carol must end it"):
        refuse_take_over(server)
    with pytest.raises(FleetError, match="carol must end it"):
        await fleet.plan(current=None, set_flags={}, unset_flags=[], strategy="all", gpus=[0])


def test_who_has_a_port() -> None:
    """Another user's listener is not seen, though its command line names the port."""
    assert finding.merged({1: 10, 2: 20}, {1: None, 2: 21, 3: None}) == {1: 10, 2: 21, 3: None}


@contextlib.contextmanager
def hand(site: Site, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    process = by_hand(site, site.root / "hand.log", *flags)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def test_the_plan_tells_what_a_server_by_hand_loses(site: Site) -> None:
    with hand(site, "--mem-fraction-static", "0.85", "--fake-slots", "9") as process:
        spec = site.spec(mem_fraction_static=0.9)
        fleet = site.fleet(spec)
        await until(lambda: site.run.tried)
        assert site.run.tried == {0: False}, "the run tries it by itself: nobody else has"
        planned = await fleet.plan(
            current=site.epoch(spec), set_flags={}, unset_flags=[], strategy="all", gpus=[0]
        )
        assert planned.diff == [
            "GPU 0: fake-slots 9 → unset",
            "GPU 0: mem-fraction-static 0.85 → 0.90",
        ]
        (warning,) = (w for w in planned.warnings if "not started by Stoker" in w)
        assert warning.endswith("; it goes on without fake-slots")
        assert planned.take_over == [process.pid]
        assert planned.swap is not None
        assert planned.swap.take_over == [process.pid]
        # Its answers are another model's.
        site.run.open[0] = 1
        planned = await fleet.plan(
            current=site.epoch(spec), set_flags={}, unset_flags=[], strategy="all", gpus=[0]
        )
        wanted = "answers under way are drained, not continued: GPU 0 serves another model"
        assert wanted in planned.warnings
        site.run.open[0] = 0


async def test_a_server_by_hand_that_came_after_the_plan_is_not_ended(site: Site) -> None:
    spec = site.spec(**OLD)  # type: ignore[arg-type]
    fleet = site.fleet(spec)
    old = site.epoch(spec)
    await fleet.up([1], epoch=old, who="ann")
    await until(lambda: fleet.states()[1].state == "ready")
    planned = await fleet.plan(
        current=old,
        set_flags={"mamba-scheduler-strategy": "no_buffer"},
        unset_flags=[],
        strategy="rolling",
        gpus=[0, 1],
    )
    with hand(site) as process:
        await until(lambda: fleet.states()[0].state == "foreign")
        flags, _ = fleet.new_flags(spec.fleet.flags, {"mamba-scheduler-strategy": "no_buffer"}, [])
        new = replace(old, id=2, flags=flags)
        ended = await fleet.swap(begin(planned), old=old, new=new, save=Journal())
        assert ended.state == "rolled back", ended
        assert f"pid {process.pid} was not started by Stoker and the plan did not" in ended.text
        assert process.poll() is None
        assert fleet.states()[0].state == "foreign"
        assert site.run.may.get(0) != "pause"


async def test_a_fault_in_a_swap_leaves_no_server_idle(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, old = await ready_fleet(site)
    swap, new, _ = await swap_to(fleet, old, "rolling", mamba_scheduler_strategy="no_buffer")

    async def broken(*_: object) -> bool:
        raise ValueError("a fault")

    monkeypatch.setattr(fleet.operations, "drain", broken)
    with pytest.raises(ValueError, match="a fault"):
        await fleet.swap(swap, old=old, new=new, save=Journal())
    await until(lambda: site.events.texts("swap.lost"))
    assert site.run.may[0] == "run"
    assert [s.state for s in fleet.states()] == ["ready", "ready"]
    launch = fleet.server(0).folder.launch()
    assert launch is not None
    assert launch.wanted == "up"


async def test_a_plan_names_the_servers_of_a_mixed_fleet_whose_flags_change(site: Site) -> None:
    """As a swap leaves it that stopped half-way: to no server is "no flag changes" told."""
    fleet, old = await ready_fleet(site)
    planned = await fleet.plan(
        current=old,
        set_flags={"mem-fraction-static": 0.9},
        unset_flags=[],
        strategy="rolling",
        gpus=[0],
    )
    flags, _ = fleet.new_flags(old.flags, {"mem-fraction-static": 0.9}, [])
    new = Epoch(id=2, since=time.time(), flags=flags, who="ann")
    ended = await fleet.swap(begin(planned), old=old, new=new, save=Journal())
    assert ended.state == "done", ended
    again = await fleet.plan(
        current=new, set_flags={}, unset_flags=[], strategy="rolling", gpus=None
    )
    assert again.diff == ["GPU 1: mem-fraction-static 0.85 → 0.90"]
