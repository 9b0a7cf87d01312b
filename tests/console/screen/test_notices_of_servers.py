"""What is said of servers, host and link that are not well, with the key that helps."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from console import ram, reckon
from console.model import Link, State, reduce
from console.notices import notices
from console.text import moment
from console.widgets.notices import notice_lines
from remote.protocol import (
    Alert,
    HostState,
    Snapshot,
)
from tests.console.screen.told import NOW, codes, plain, told


def with_third(**changes: object) -> State:
    """The state with one server told otherwise."""
    state = told()[1]
    servers = dict(state.servers)
    servers[3] = msgspec.structs.replace(servers[3], **changes)
    return replace(state, servers=servers)


def quiet(state: State, seconds: float, *gpus: int) -> State:
    """These servers have given no sign of life for so long."""
    servers = dict(state.servers)
    for gpu in gpus:
        servers[gpu] = msgspec.structs.replace(
            servers[gpu],
            gen_tok_s=None,
            silent_since=state.time - seconds,
            restart_at=state.time - seconds + 210,
        )
    return replace(state, servers=servers)


def leak(each: int, seconds: float = 3_600.0) -> State:
    """An hour on a host that loses so many bytes each second."""
    state = State(link=Link("connected"))
    for at in range(0, int(seconds), 10):
        used = (400 << 30) + each * at
        host = HostState(memory_used=used, memory_total=512 << 30)
        full = at == 1_000  # a reconnect forgets nothing
        state = reduce(state, Snapshot(time=1e6 + at, seq=at, full=full, host=host), NOW)
    return state


def test_what_is_wrong_comes_first_with_the_key_that_helps() -> None:
    """Errors, warnings, then what is worth knowing."""
    story, state = told()
    assert codes(state) == ["verdict"]
    assert notices(state, NOW)[0].action == "", "it proposes nothing"
    story.servers[3].state, story.servers[3].cause = "failed", "CUDA out of memory"
    story.alerts = [Alert("eta", "208 h", 0, "error")]
    story.servers[5].speed = 0.5
    state = reduce(state, story.snapshot(), NOW)
    found = notices(state, NOW)
    assert [n.code for n in found] == [
        "server.failed",
        "eta",
        "outlier.gen_tok_s",
        "verdict",
    ]
    assert (found[0].gpu, found[0].action) == (3, "up")
    assert "CUDA out of memory" in found[0].text


def test_a_server_that_dies_again_and_again_is_told_though_it_is_up() -> None:
    died = {"died": 4, "died_at": NOW - 60.0, "died_of": "CUDA error: launch failure"}
    assert "server.dies" not in codes(with_third(**died, died_lately=2))
    found = notices(with_third(**died, died_lately=3), NOW)[0]
    assert (found.code, found.action, found.gpu) == ("server.dies", "logs", 3)
    at = moment(NOW - 60.0, NOW)
    assert found.text == (
        f"GPU 3 died 3 times in the last hour, last at {at}: CUDA error: launch failure"
    )


def test_a_server_that_was_given_up_names_the_key_that_helps_against_its_cause() -> None:
    cause = "the weights leave no room for the caches: raise mem-fraction-static"
    gone = {"state": "failed", "cause": cause, "given_up": True, "died_lately": 6}
    flags = notices(with_third(**gone, mended_by="flags"), NOW)[0]
    assert flags.text == f"GPU 3 failed and is not started again by itself: {cause}"
    assert flags.action == "restart"
    assert notices(with_third(**gone, mended_by="start"), NOW)[0].action == "up"


def test_what_is_started_again_by_itself_needs_no_key() -> None:
    gone = {"state": "failed", "cause": "killed (signal 9)"}
    found = notices(with_third(**gone, restart_at=told()[1].time + 5, mended_by="start"), NOW)[0]
    assert (found.text, found.action) == ("GPU 3 failed: killed (signal 9); restarted in 5s", "")
    assert notices(with_third(**gone, mended_by="start"), NOW)[0].action == "up"
    state = told()[1]
    run = msgspec.structs.replace(state.run, alive=False, exit=-9)
    (none,) = [n for n in notices(replace(state, run=run), NOW) if n.code == "run.none"]
    assert none.action == "run.go"
    run = msgspec.structs.replace(run, again_at=state.time + 10)
    (none,) = [n for n in notices(replace(state, run=run), NOW) if n.code == "run.none"]
    assert none.text == "No run is generating (it ended with -9): started again in 10s"
    assert none.action == ""


def test_one_server_in_trouble_is_meant_by_its_digit_and_the_key() -> None:
    """The key alone would mean the whole fleet; of several servers there is no one digit."""
    story, state = told()
    story.servers[3].state, story.servers[3].cause = "stalled", "no token is produced"
    one = notices(reduce(state, story.snapshot(), NOW), NOW)
    assert "3 r restart" in plain(notice_lines(one, 120, 8))
    story.servers[4].state, story.servers[4].cause = "stalled", "no token is produced"
    two = notices(reduce(state, story.snapshot(), NOW), NOW)
    assert two[0].gpu is None
    assert "3 r restart" not in plain(notice_lines(two, 120, 8))


def test_servers_that_stay_out_for_long_are_told() -> None:
    """A start is nothing to tell, one that takes twice as long as the last time is."""
    story, state = told()
    began = reduce(state, story.snapshot(), NOW)
    servers = dict(began.servers)
    for gpu in (2, 6):
        servers[gpu] = msgspec.structs.replace(
            servers[gpu],
            state="warming",
            phase="proving itself",
            phase_since=began.time,
            phase_usual_s=50.0,
        )

    def after(seconds: float) -> list[str]:
        later = replace(began, servers=servers, time=began.time + seconds, received=NOW + seconds)
        return [n.text for n in notices(later, NOW + seconds) if n.code == "fleet.away"]

    assert after(90) == []
    assert after(120) == ["2 of 8 servers give nothing: GPU 2, 6 proving itself for 2m00s"]


def test_a_server_without_a_sign_of_life_is_none_of_the_ready() -> None:
    """Its card says since when at once, a line comes when it lasts."""
    story, state = told()
    state = replace(reduce(state, story.snapshot(), NOW), received=NOW)
    assert reckon.fleet(quiet(state, 12, 3)).ready == 7
    assert "server.silent" not in codes(quiet(state, 12, 3))
    (one,) = [n for n in notices(quiet(state, 15, 3), NOW) if n.code == "server.silent"]
    assert one.text == "GPU 3 gives no sign of life for 15s; it is restarted after 3m30s of it"
    assert (one.level, one.gpu) == ("warning", 3)
    (two,) = [n for n in notices(quiet(state, 20, 3, 5), NOW) if n.code == "server.silent"]
    assert two.text.startswith("GPU 3, 5 give no sign of life for 20s; they are restarted")


def test_memory_that_runs_out_overnight_is_told_in_time() -> None:
    """At the pace of the last while; a load that stays is none, nor is a short one."""
    found = [n for n in notices(leak(5 << 20), NOW) if n.code == "ram"]
    assert len(found) == 1
    assert found[0].text.startswith("RAM runs out in 5h22m")
    assert "17.6 GiB more each hour" in found[0].text
    assert len(leak(5 << 20).ram) <= ram.KEPT_S / ram.EVERY_S + 2
    for calm in (leak(0), leak(1 << 20), leak(5 << 20, 600)):
        assert "ram" not in codes(calm)
    steps: ram.Samples = ()
    for at in range(0, 3_600, 20):  # servers took their memory at the start, and keep it
        steps = ram.sampled(steps, float(at), min(300, at) << 30)
    assert ram.full_in(steps, 400 << 30) is None
    assert ram.sampled(steps, 10.0, 5) == ((10.0, 5),)


def test_a_lost_link_is_said_with_the_age_of_what_is_shown() -> None:
    """Before everything else."""
    _, state = told()
    lost = replace(state, link=Link("reconnecting", "no answer from 10.1.2.6"))
    first = notices(lost, NOW + 90)[0]
    assert first.level == "error"
    assert "no answer from 10.1.2.6" in first.text
    assert "1m30s old" in first.text


def test_before_the_first_look_nothing_is_said_to_be_well() -> None:
    """An empty list reads as "nothing stands out"."""
    for link, text in (
        (Link("connecting"), "connecting …"),
        (Link("connecting", "connecting to 10.1.2.6"), "connecting to 10.1.2.6 …"),
        (Link("connected", "root@10.1.2.6 → pct 200"), "connected …"),
    ):
        found = notices(State(link=link), NOW)
        assert [(n.level, n.text) for n in found] == [("info", text)]


def test_nothing_up_and_nothing_running_are_said_with_a_key() -> None:
    """What to press first on a fresh target."""
    story, _ = told()
    story.alive = False
    story.verdict = None
    for server in story.servers:
        server.state = "stopped"
    state = reduce(State(), story.snapshot(), NOW)
    assert [(n.code, n.action) for n in notices(state, NOW)] == [("fleet.down", "up")]
    for server in story.servers:
        server.state = "ready"
    state = reduce(State(), story.snapshot(), NOW)
    assert [(n.code, n.action) for n in notices(state, NOW)] == [("run.none", "run.go")]
