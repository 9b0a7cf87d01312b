"""What calls a person."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from remote.agent import alerts
from remote.agent.diff import Picture
from remote.agent.eta import EtaWatch, over
from remote.protocol import (
    Alert,
    AlertSpec,
    Epoch,
    FleetSpec,
    GpuState,
    HostState,
    Progress,
    RunState,
    ServerInfo,
    ServerState,
    ServerWork,
    Swap,
    TargetSpec,
    Verdict,
)

SPEC = TargetSpec(
    name="t",
    workspace="/w",
    fleet=FleetSpec(gpus=2),
    alerts=AlertSpec(eta_hours_over=48),
)
WELL = Picture(
    target=SPEC,
    servers=[ServerState(gpu=0, state="ready"), ServerState(gpu=1, state="ready")],
    gpus=[GpuState(gpu=0, temperature_c=70.0), GpuState(gpu=1)],
    host=HostState(disk_free=500 << 30, disk_total=900 << 30),
    run=RunState(alive=True, progress=Progress(eta_hours=15.0, rate_per_sec=3.0)),
)


def wrong(now: Picture) -> list[alerts.Wrong]:
    return alerts.wrong(now) + EtaWatch().look(now, (), 1_000.0)


def codes(now: Picture) -> list[str]:
    return [w.code for w in wrong(now)]


def told(hours: float, **more: Any) -> Picture:
    """A run at work that tells this ETA of its own rate."""
    progress = Progress(completed=9000, in_flight=600, rate_per_sec=3.0, eta_hours=hours)
    return replace(WELL, run=RunState(alive=True, progress=replace(progress, **more)))


STANDS = [Alert("eta", "ETA 60 h, over the 48 h allowed", 1.0, "error")]


def test_all_well() -> None:
    assert codes(WELL) == []


def test_each_trouble_is_named() -> None:
    failed = [ServerState(gpu=0, state="failed", cause="out of memory"), WELL.servers[1]]
    assert codes(replace(WELL, servers=failed)) == ["server.failed.0"]
    assert codes(replace(WELL, gpus=[GpuState(gpu=0)])) == ["gpu.missing"]
    assert codes(replace(WELL, gpus=[])) == [], "no driver to ask is not a missing card"
    hot = [GpuState(gpu=0, temperature_c=93.0), GpuState(gpu=1)]
    assert [w.level for w in alerts.wrong(replace(WELL, gpus=hot))] == ["error"]
    full = HostState(disk_free=100 << 20, disk_total=900 << 30)
    assert codes(replace(WELL, host=full)) == ["disk"]
    dead = RunState(alive=False, exit=-9)
    assert codes(replace(WELL, run=dead)) == ["run.failed"]
    assert codes(replace(WELL, run=RunState(alive=False, exit=130))) == []
    ill = Progress(problem="disk full", s3_error="403")
    assert codes(replace(WELL, run=RunState(alive=True, progress=ill))) == ["run.problem", "s3"]
    assert [w.code for w in alerts.wrong(WELL, "journal: full")] == ["journal"]


def test_the_eta_of_the_verdict_until_the_run_has_its_own() -> None:
    early = RunState(alive=True, progress=Progress(completed=3, in_flight=600))
    verdict = Verdict(time=0.0, text="", eta_hours=208.0, bound_by="Mamba state pool")
    (found,) = wrong(replace(WELL, run=early, verdict=verdict))
    assert found.code == "eta"
    assert found.text == "ETA 208 h, over the 48 h allowed: Mamba state pool"
    spec = replace(SPEC, alerts=AlertSpec(eta_hours_over=0.063))
    soon = replace(WELL, target=spec, run=early, verdict=Verdict(time=0.0, text="", eta_hours=0.2))
    assert [w.text for w in wrong(soon)] == ["ETA 12 min, over the 4 min allowed"]
    settled = Progress(completed=9000, in_flight=600, rate_per_sec=3.0, eta_hours=15.0)
    later = replace(WELL, run=RunState(alive=True, progress=settled), verdict=verdict)
    assert codes(later) == []


def test_the_eta_of_a_run_that_goes_on_waits_for_a_rate_of_its_own() -> None:
    """Thousands are done, but not by this process: its first seconds say nothing."""
    work = {"http://127.0.0.1:30000": ServerWork(completed=2)}
    taken_up = Progress(
        completed=9000, in_flight=600, rate_per_sec=0.1, eta_hours=99.0, servers=work
    )
    run = RunState(alive=True, progress=taken_up)
    assert codes(replace(WELL, run=run)) == []
    work = {"http://127.0.0.1:30000": ServerWork(completed=2000)}
    slow = RunState(alive=True, progress=replace(taken_up, servers=work))
    assert codes(replace(WELL, run=slow)) == ["eta"]


def test_no_eta_of_other_flags_and_none_while_they_change() -> None:
    early = RunState(alive=True, progress=Progress(completed=3, in_flight=600))
    verdict = Verdict(time=10.0, text="", eta_hours=208.0)
    now = replace(WELL, run=early, verdict=verdict)
    assert codes(replace(now, epochs=[Epoch(1, 5.0, {})])) == ["eta"]
    assert codes(replace(now, epochs=[Epoch(1, 5.0, {}), Epoch(2, 20.0, {})])) == []
    swap = Swap(1, "rolling", [0], 1, 2, "ops", 9.0)
    assert codes(replace(now, swap=swap)) == []


def test_an_eta_near_its_limit_does_not_come_and_go() -> None:
    watch = EtaWatch()
    assert watch.look(told(47.5), [], 1.0) == []
    (over,) = watch.look(told(50.0), [], 2.0)
    assert over.text == "ETA 50 h, over the 48 h allowed"
    (near,) = watch.look(told(47.0), STANDS, 3.0)
    assert near.text == "ETA 47.0 h, about the 48 h allowed", "it does not contradict itself"
    for second in range(4, 33):  # well below, but not for long
        assert watch.look(told(45.0), STANDS, float(second))
    assert watch.look(told(47.0), STANDS, 33.0)
    assert watch.look(told(45.0), STANDS, 34.0), "from the beginning again"
    assert watch.look(told(45.0), STANDS, 64.0) == []


def test_an_eta_alert_stands_while_a_swap_or_a_pause_takes_servers_away() -> None:
    """What is counted then is of neither the old nor the new; nor is one raised by it."""
    watch = EtaWatch()
    swapping = replace(told(80.0), swap=Swap(1, "rolling", [0], 1, 2, "ops", 9.0))
    words = f"{STANDS[0].text} before the change; it is being measured anew"
    kept = [alerts.Wrong("eta", words, "error")]
    assert watch.look(swapping, STANDS, 10.0) == kept
    assert watch.look(replace(swapping, run=told(3.0).run), STANDS, 11.0) == kept
    assert watch.look(swapping, [], 12.0) == []
    assert watch.look(told(3.0, status="paused"), STANDS, 20.0) == kept
    for second in range(21, 140):  # the moving rate still has the pause in it
        assert watch.look(told(400.0), STANDS, float(second)) == kept
        assert watch.look(told(400.0), [], float(second)) == []
    assert watch.look(told(400.0), [], 141.0)[0].text == "ETA 400 h, over the 48 h allowed"


def test_what_a_person_turned_down_is_named_and_not_what_held_before() -> None:
    """Once the rate is that of the new number."""
    watch = EtaWatch()
    infos = [ServerInfo(gpu=gpu, port=30000 + gpu, max_running=37) for gpu in range(2)]
    verdict = Verdict(time=1.0, text="", eta_hours=50.0, bound_by="Mamba state pool: 37 slots")
    now = replace(told(50.0), infos=infos, verdict=verdict)
    (full,) = watch.look(now, [], 10.0)
    assert full.text.endswith("allowed: Mamba state pool: 37 slots")
    held = replace(now, run=replace(now.run, concurrency=12))
    for standing in ([Alert("eta", full.text, 1.0, "error")], STANDS):
        (kept,) = watch.look(held, standing, 11.0)
        assert kept.text.endswith("48 h allowed before the change; it is being measured anew")
    (few,) = watch.look(held, STANDS, 140.0)
    assert few.text.endswith("allowed: requests: the run is held at 12 of 37 slots a server")


def test_an_eta_alert_does_not_end_while_a_server_comes_up_again() -> None:
    watch = EtaWatch()
    coming = [ServerState(gpu=0, state="starting"), WELL.servers[1]]
    for second in range(100):
        assert watch.look(replace(told(10.0), servers=coming), STANDS, float(second))
    (kept,) = watch.look(replace(told(10.0), servers=coming), STANDS, 100.0)
    assert kept.text == "ETA 10.0 h of the 48 h allowed while a server comes up"
    assert watch.look(told(10.0), STANDS, 101.0) == [], "far below the limit"


def test_an_alert_that_has_ended_says_so_with_the_number_now() -> None:
    (stood,) = STANDS
    assert over(stood, told(45.0)) == "ETA alert ended: 45.0 h, 48 h allowed"
    gone = replace(WELL, run=RunState(alive=False, progress=Progress()))
    assert over(stood, gone) == "ETA alert ended: the run is not at work"
    hot = Alert("hot.0", "GPU 0: 93 °C", 1.0)
    assert over(hot, WELL) == "GPU 0: 70 °C, no longer hot"


def test_an_alert_keeps_its_beginning() -> None:
    wrong = [alerts.Wrong("disk", "disk: 1.0 GB free")]
    first = alerts.since([], wrong, 10.0)
    again = alerts.since(first, [alerts.Wrong("disk", "disk: 0.9 GB free")], 20.0)
    assert again[0].since == 10.0
    assert again[0].text == "disk: 0.9 GB free"


def test_an_alert_knows_its_card() -> None:
    """So that events can be chosen by it."""
    assert alerts.card(Alert("hot.3", "GPU 3: 90 °C", 0.0)) == 3
    assert alerts.card(Alert("server.failed.11", "GPU 11: failed", 0.0)) == 11
    assert alerts.card(Alert("gpu.missing", "GPU 1: not seen by the driver", 0.0)) is None
    assert alerts.card(Alert("run.failed", "x", 0.0)) is None
