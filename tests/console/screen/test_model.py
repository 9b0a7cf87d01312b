"""Messages in, state out; and what follows from a state."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from console import model, ram, reckon
from console.model import Link, State, reduce
from console.notices import Notice, notices, proposed
from console.text import moment
from console.trend import Trend, nice_top, shrink, steps_of
from console.widgets.notices import notice_lines
from console.widgets.paint import Line
from remote.protocol import (
    Alert,
    Epoch,
    Event,
    GpuState,
    Happened,
    Heartbeat,
    History,
    HostState,
    LogPart,
    Progress,
    RunState,
    ServerInfo,
    ServerState,
    Skipped,
    Snapshot,
    Verdict,
)
from tests.console.screen.story import BAD, BEGAN, Story

NOW = BEGAN + 1


def told(**options: object) -> tuple[Story, State]:
    """A story and the state after its first full snapshot."""
    story = Story(lambda _: None, lambda _: None, **options)  # type: ignore[arg-type]
    return story, reduce(State(link=Link("connected")), story.snapshot(), NOW)


def test_a_full_snapshot_is_the_whole_truth() -> None:
    """What is not in it is gone."""
    _, state = told()
    only = Snapshot(time=BEGAN + 5, seq=9, full=True, servers=[ServerState(0, "ready")])
    after = reduce(state, only, NOW)
    assert list(after.servers) == [0]
    assert after.infos == {}
    assert after.progress is None
    assert after.link == state.link


def test_a_partial_snapshot_changes_only_what_it_carries() -> None:
    """Lists by GPU are merged member by member, other sections whole."""
    _, state = told()
    part = Snapshot(
        time=BEGAN + 2,
        seq=2,
        servers=[ServerState(3, "failed", cause="out of memory")],
        swap=None,
        alerts=[Alert("a", "b", 0)],
    )
    after = reduce(state, part, NOW)
    assert after.servers[3].state == "failed"
    assert after.servers[2] is state.servers[2]
    assert after.gpus == state.gpus
    assert after.run is state.run
    assert [a.code for a in after.alerts] == ["a"]
    assert state.servers[3].state == "ready"  # the old state is untouched


def test_snapshots_survive_the_wire() -> None:
    """A section that is left out stays what it was, after JSON too."""
    _, state = told()
    wire = msgspec.json.decode(msgspec.json.encode(Snapshot(time=1.0, seq=3)), type=Snapshot)
    after = reduce(state, wire, NOW)
    assert after.servers == state.servers
    assert after.verdict == state.verdict
    assert after.seq == 3


def test_events_come_once_in_order_and_bounded() -> None:
    """Pushed again after a reconnect, they are not shown twice."""
    state = State()
    for number in (1, 2, 2, 5, 3):
        state = reduce(state, Happened(Event(number, 0, "k")), NOW)
    assert [e.id for e in state.events] == [1, 2, 3, 5]
    many = [Event(n, 0, "k") for n in range(10, 10 + 2 * model.MAX_EVENTS)]
    state = model.with_events(state, many)
    assert len(state.events) == model.MAX_EVENTS
    assert state.events[-1].id == many[-1].id


def test_what_says_nothing_changes_nothing() -> None:
    """A heartbeat is no news."""
    state = State()
    assert reduce(state, Heartbeat(1.0), NOW) is state


def test_skipped_messages_are_counted() -> None:
    """And kept over snapshots."""
    story, state = told()
    state = reduce(state, Skipped("log", 12), NOW)
    state = reduce(state, Skipped("log", 3), NOW)
    state = reduce(state, story.snapshot(), NOW)
    assert state.skipped == {"log": 15}


def part(*lines: str, skipped: int = 0, inode: int = 1, offset: int = 0) -> LogPart:
    """A log part."""
    return LogPart("gpu0", inode, offset, offset + 10, list(lines), skipped)


def test_logs_are_rings_with_lasting_numbers() -> None:
    """Old lines fall out, numbers stay, cursors move."""
    state = reduce(State(), part("a", "b"), NOW)
    ring = state.logs["gpu0"]
    assert ring.since(0) == (0, ["a", "b"])
    assert (ring.inode, ring.next) == (1, 10)
    state = reduce(state, part(*map(str, range(model.MAX_LINES)), offset=10), NOW)
    assert ring.first == 2
    assert ring.end == model.MAX_LINES + 2
    start, lines = ring.since(0)
    assert start == 2
    assert lines[0] == "0"
    assert ring.since(ring.end - 2) == (ring.end - 2, ["4998", "4999"])
    assert ring.since(ring.end) == (ring.end, [])


def test_rings_are_bounded_in_characters_too() -> None:
    """Five thousand lines of a megabyte would be the end of a laptop."""
    ring = model.LogRing()
    for number in range(100):
        ring.append(str(number) * 200_000)
    assert ring.end == 100
    assert sum(map(len, ring.since(0)[1])) <= model.MAX_CHARS
    assert ring.since(0)[1][-1].startswith("99")


def test_gaps_and_rotation_are_said() -> None:
    """Nothing is dropped in silence."""
    state = reduce(State(), part("a"), NOW)
    state = reduce(state, part("b", skipped=1_200), NOW)
    state = reduce(state, part("c", inode=2), NOW)
    lines = state.logs["gpu0"].since(0)[1]
    assert [line for line in lines if "1,200 lines skipped" in line]
    assert [line for line in lines if "rotated" in line]
    assert state.logs["gpu0"].skipped == 1_200


def test_age_is_judged_on_one_clock() -> None:
    """The other side's clock may be a year off."""
    story, state = told(now=BEGAN - 31_536_000)
    assert not model.stale(state, NOW + 3)
    assert model.stale(state, NOW + 6)
    assert model.age(state, NOW + 6) == pytest.approx(6)
    assert model.agent_now(state, NOW + 6) == pytest.approx(story.now + 6)
    assert model.age(State(), NOW) is None


def test_fleet_sums() -> None:
    """Over servers that told a value; what nobody told is unknown, not 0."""
    story, state = told()
    sums = reckon.fleet(state)
    assert (sums.servers, sums.ready) == (8, 8)
    assert sums.max_running == 8 * 37
    assert sums.gen_tok_s == pytest.approx(sum(story.tok_s(s) for s in story.servers))
    empty = reckon.fleet(State())
    assert empty.gen_tok_s is None
    assert empty.power_w is None


def test_the_odd_one_out_is_named() -> None:
    """A slow server and a hot card; none when all are alike."""
    story, state = told()
    assert reckon.outliers(state) == []
    story.servers[5].speed = 0.5
    story.servers[2].heat = 30
    odd = reckon.outliers(reduce(state, story.snapshot(), NOW))
    assert {(o.gpu, o.metric) for o in odd} == {(5, "gen_tok_s"), (2, "temperature_c")}
    assert "GPU 5 is" in odd[0].text


def test_eta_has_a_range_from_independent_rates() -> None:
    """Prompts a second and tokens a second bound it."""
    progress = Progress(
        total=1000, completed=100, rate_per_sec=0.1, eta_hours=2.5, remaining=900,
        tok_s=200.0, avg_output_tokens=1000.0, elapsed_hours=0.2,
    )  # fmt: skip
    state = State(run=RunState(alive=True, progress=progress))
    found = reckon.eta(state)
    assert found.hours == 2.5
    assert found.low == pytest.approx(900 * 1000 / 200 / 3600)
    assert found.high == pytest.approx(2.5)
    assert found.at == 9000
    assert reckon.eta(State()).hours is None


def test_overall_rate_counts_all_sessions() -> None:
    """Resumed work over all elapsed time."""
    assert reckon.overall_rate(Progress(completed=7200, elapsed_hours=2)) == pytest.approx(1.0)
    assert reckon.overall_rate(Progress(completed=7200)) is None


def codes(state: State, now: float = NOW) -> list[str]:
    """Codes of the notices, in order."""
    return [n.code for n in notices(state, now)]


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


def with_third(**changes: object) -> State:
    """The state with one server told otherwise."""
    state = told()[1]
    servers = dict(state.servers)
    servers[3] = msgspec.structs.replace(servers[3], **changes)
    return replace(state, servers=servers)


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


def test_a_verdict_without_anything_to_propose_has_no_key() -> None:
    full = Verdict(NOW, "all slots are in use", None, bound_by="Mamba state pool: 37 slots")
    (one,) = [n for n in notices(replace(told()[1], verdict=full), NOW) if n.code == "verdict"]
    assert one.action == ""


def test_one_server_in_trouble_is_meant_by_its_digit_and_the_key() -> None:
    """The key alone would mean the whole fleet; of several servers there is no one digit."""
    story, state = told()
    story.servers[3].state, story.servers[3].cause = "stalled", "no token is produced"
    one = notices(reduce(state, story.snapshot(), NOW), NOW)
    assert "3 r restart" in plain_text(notice_lines(one, 120, 8))
    story.servers[4].state, story.servers[4].cause = "stalled", "no token is produced"
    two = notices(reduce(state, story.snapshot(), NOW), NOW)
    assert two[0].gpu is None
    assert "3 r restart" not in plain_text(notice_lines(two, 120, 8))


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


def test_a_server_that_came_back_just_now_is_no_outlier() -> None:
    """It fills its slots first; what is slow after that is slow."""
    story, state = told()
    story.servers[5].speed = 0.5
    state = reduce(state, story.snapshot(), NOW)

    def odd(seconds: float) -> list[int]:
        servers = dict(state.servers)
        since = state.time - seconds
        servers[5] = msgspec.structs.replace(servers[5], steady_since=since)
        found = reckon.outliers(replace(state, servers=servers))
        return [o.gpu for o in found if o.metric == "gen_tok_s"]

    assert odd(2) == []
    assert odd(29) == []
    assert odd(31) == [5]


def slow_fifth(**progress: object) -> list[int]:
    """The outliers by throughput where one of eight is at half speed and the run is like that."""
    story, state = told()
    story.servers[5].speed = 0.5
    state = reduce(state, story.snapshot(), NOW)
    assert state.progress is not None
    told_so = msgspec.structs.replace(state.progress, **progress)
    run = msgspec.structs.replace(state.run, progress=told_so)
    found = reckon.outliers(replace(state, run=run))
    return [o.gpu for o in found if o.metric == "gen_tok_s"]


def test_no_outliers_where_the_run_does_not_fill_the_slots() -> None:
    """It leaves, pauses, or has hardly anything left: what each server still has is chance."""
    assert slow_fifth() == [5]
    assert slow_fifth(status="draining") == []
    assert slow_fifth(status="paused") == []
    assert slow_fifth(remaining=40) == []


def test_a_server_that_tries_a_suspect_alone_is_no_outlier() -> None:
    story, state = told()
    story.servers[5].speed = 0.5
    state = reduce(state, story.snapshot(), NOW)
    servers = dict(state.servers)
    servers[5] = msgspec.structs.replace(servers[5], alone=True)
    assert [o.gpu for o in reckon.outliers(replace(state, servers=servers))] == []


def plain_text(lines: list[Line]) -> str:
    """What is read of painted lines."""
    return "\n".join("".join(text for text, _ in line) for line in lines)


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


def test_until_the_verdict_it_is_said_what_is_waited_for() -> None:
    """And what is known already stands, with the flags that would help."""
    state = replace(told()[1], verdict=Verdict(NOW, "", waits="the first tokens"))
    found = [n.text for n in notices(state, NOW)]
    assert found == ["Waiting for the first tokens: a verdict comes within a minute of them"]
    early = Verdict(
        NOW, "full", bound_by="KV cache", remedy="a=1: 72 slots", waits="measuring",
        due=state.time + 40,
    )  # fmt: skip
    found = [n.text for n in notices(replace(state, verdict=early), NOW)]
    assert sorted(found) == [
        "Measuring: verdict in about 40 s",
        f"at {moment(NOW, NOW)}: full. Held back by KV cache. Better: a=1: 72 slots",
    ]


def test_the_verdict_names_what_holds_the_run_back() -> None:
    """Once, also where its own sentence does not."""
    state = replace(told()[1], verdict=Verdict(NOW, "1.9 prompts/s", bound_by="KV cache"))
    texts = [n.text for n in notices(state, NOW)]
    assert texts == [f"at {moment(NOW, NOW)}: 1.9 prompts/s. Held back by KV cache"]


def test_a_verdict_is_dated_and_says_nothing_of_a_run_that_pauses() -> None:
    verdict = Verdict(NOW - 600, "ETA 35 min", False, after="swap")
    state = replace(told()[1], verdict=verdict)
    (only,) = notices(state, NOW)
    assert only.text == f"at {moment(NOW - 600, NOW)}, after the restart: ETA 35 min"
    assert state.progress is not None
    paused = msgspec.structs.replace(state.progress, status="paused")
    run = msgspec.structs.replace(state.run, progress=paused)
    assert [n.code for n in notices(replace(state, run=run), NOW)] == ["run.paused"]


def test_the_key_at_an_eta_is_the_one_that_helps() -> None:
    """Flags where the servers are full, requests where too few are sent."""
    eta = Alert("eta", "ETA 208 h, over the 48 h allowed", NOW - 9, "error")
    state = replace(told()[1], alerts=(eta,), verdict=None)
    assert notices(state, NOW)[0].action == "restart"
    few = Verdict(NOW, "slow", False, bound_by="requests: the run offers 12 of 37 slots a server")
    assert notices(replace(state, verdict=few), NOW)[0].action == "run.concurrency"
    full = Verdict(NOW, "slow", False, bound_by="KV cache: 97% used", remedy="a=1: 72 slots")
    assert notices(replace(state, verdict=full), NOW)[0].action == "restart"
    held = replace(state, verdict=full, run=msgspec.structs.replace(state.run, concurrency=5))
    assert notices(held, NOW)[0].action == "run.concurrency", "turned down since"


def test_what_mends_it_is_said_with_its_key_where_the_eye_falls_first() -> None:
    """With the alert of the ETA, else with the verdict; once."""
    verdict = Verdict(
        NOW, "1.9 prompts/s", False, bound_by="1.9", remedy="kv-limit=3: 72 slots",
        remedy_flags={"kv-limit": 3, "cap": False},
    )  # fmt: skip
    state = replace(told()[1], verdict=verdict)
    assert proposed(state) == verdict.remedy_flags
    (only,) = notices(state, NOW)
    words = "Better: kv-limit=3: 72 slots"
    at = f"at {moment(NOW, NOW)}"
    assert (only.text, only.action) == (f"{at}: 1.9 prompts/s. {words}", "restart")
    eta = Alert("eta", "ETA 208 h, over the 48 h allowed", NOW - 9, "error")
    first, second = notices(replace(state, alerts=(eta,)), NOW)
    assert (first.text, first.action) == (f"{eta.text}. {words}", "restart")
    assert (second.text, second.action) == (f"{at}: {verdict.text}", "")
    other = replace(state, epochs=(*state.epochs, Epoch(9, NOW + 1, {})), alerts=(eta,))
    assert [n.text for n in notices(other, NOW)] == [eta.text]
    assert proposed(other) == {}


def test_a_flag_is_not_broken_at_its_hyphens() -> None:
    """It is to be read, and typed."""
    text = "ETA 38 min, over the 31 min allowed: 37 slots. Better: mamba-scheduler-strategy=no"
    for width in range(50, 100):
        lines = plain_text(notice_lines([Notice("error", text, "restart")], width, 9))
        assert "mamba-scheduler-strategy=no" in lines, width


def test_flag_changes_tell_absent_from_set() -> None:
    """``False`` and absent are the same, ``1`` and ``True`` are not."""
    found = model.flag_changes({"a": 1, "b": True, "c": False}, {"a": 2, "c": "x", "d": ["p", "q"]})
    assert [c.text for c in found] == ["a 1 → 2", "b on → –", "c – → x", "d – → p q"]
    assert model.flag_changes({"a": False}, {}) == []
    assert len(model.flag_changes({"a": 1}, {"a": True})) == 1


def test_flags_start_from_what_runs() -> None:
    """A server's own, else the newest epoch's, else the file's."""
    _, state = told()
    assert model.current_flags(state) == BAD
    own = replace(state, infos={3: ServerInfo(3, 30003, flags={"x": 1})})
    assert model.current_flags(own, 3) == {"x": 1}
    assert model.current_flags(replace(state, epochs=())) == BAD
    assert model.current_flags(State()) == {}


def test_the_best_epoch_needs_time_to_count() -> None:
    """Ten seconds prove nothing, and one epoch is no contest."""
    one = Epoch(1, 0, {}, tok_s_per_gpu=600, seconds=900)
    two = Epoch(2, 0, {}, tok_s_per_gpu=900, seconds=100)
    three = Epoch(3, 0, {}, tok_s_per_gpu=800, seconds=900)
    assert model.winner([one]) is None
    assert model.winner([one, two]) is None
    assert model.winner([one, two, three]) is three


def test_a_trend_is_the_same_watched_or_loaded() -> None:
    """History and live samples land in the same buckets; a hole stays a hole."""
    trend = Trend(100, 10)
    trend.load(
        History([1000, 1010, 1020], {"gen_tok_s": [[1.0, None, 3.0]], "unknown": [[1.0, 1.0, 1.0]]})
    )
    state = State(
        time=1035, servers={0: ServerState(0, "ready", gen_tok_s=5.0), 1: ServerState(1, "stopped")}
    )
    trend.add(state)
    assert trend.column("gen_tok_s", 0, 1035, 4) == [1.0, None, 3.0, 5.0]
    assert trend.gpus("gen_tok_s") == [0]
    trend.add(replace(state, time=1036, servers={0: ServerState(0, "ready", gen_tok_s=7.0)}))
    assert trend.column("gen_tok_s", 0, 1036, 1) == [6.0]
    assert trend.top("gen_tok_s") == 6.0


def test_a_trend_is_bounded() -> None:
    """A day of seconds takes no more room than its points."""
    trend = Trend(100, 10)
    for second in range(5_000):
        trend.add(State(time=float(second), gpus={0: GpuState(0, power_w=1.0)}))
    assert len(trend._sums["power_w"][0]) <= 12


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (640, 800), (1043, 1500), (37, 50), (0.61, 0.8), (100, 100)]
)
def test_scales_are_round(value: float, top: float) -> None:
    """And never below the value."""
    assert nice_top(value) == pytest.approx(top)
    assert (nice_top(value) / steps_of(nice_top(value))) > 0


def test_shrinking_keeps_means_and_holes() -> None:
    """No more values than can be drawn."""
    assert shrink([1.0, 3.0, None, None], 2) == [2.0, None]
    assert shrink([1.0], 5) == [1.0]


def test_the_cost_of_a_restart_is_said() -> None:
    """What is in flight, what pauses, what stays."""
    _, state = told()
    text = reckon.swap_cost(state, range(8))
    assert "in flight" in text
    assert "finished prompts stay" in text
    assert reckon.swap_cost(State(), [0]) == "nothing is in flight"


def test_what_is_old_stands_still() -> None:
    """Three hours without a word: the end does not move, and no start goes on."""
    story, state = told()
    first = reckon.eta(state).at
    assert first is not None
    lost = reduce(state, Link("reconnecting", "no answer"), NOW + 10_800)
    assert reckon.eta(lost).at == first
    assert model.told_now(lost, NOW + 3) == pytest.approx(story.now + 3)
    assert model.told_now(lost, NOW + 10_800) == pytest.approx(story.now + model.STALE_S)
    assert model.told_at(lost) == NOW


def test_the_end_of_a_recording_is_on_its_own_clock() -> None:
    """Not counted from when somebody looks at it."""
    _, state = told()
    hours = reckon.eta(state).hours
    assert hours is not None
    played = replace(state, link=Link("replay"), received=NOW + 90_000)
    assert reckon.eta(played).at == pytest.approx(state.time + hours * 3600)


def leak(each: int, seconds: float = 3_600.0) -> State:
    """An hour on a host that loses so many bytes each second."""
    state = State(link=Link("connected"))
    for at in range(0, int(seconds), 10):
        used = (400 << 30) + each * at
        host = HostState(memory_used=used, memory_total=512 << 30)
        full = at == 1_000  # a reconnect forgets nothing
        state = reduce(state, Snapshot(time=1e6 + at, seq=at, full=full, host=host), NOW)
    return state


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


def test_a_verdict_says_nothing_of_a_run_that_is_gone() -> None:
    """It would promise an end."""
    story, state = told()
    assert "verdict" in codes(state)
    story.alive = False
    assert "verdict" not in codes(reduce(state, story.snapshot(), NOW))


def test_what_ending_the_run_costs_is_said() -> None:
    """What is in flight, who idles, what is left."""
    _, state = told()
    text = reckon.stop_cost(state)
    assert "requests in flight end first" in text
    assert "then 8 servers idle" in text
    assert "183,139 prompts are left" in text
    assert reckon.stop_cost(State()) == "no run is generating"


@pytest.mark.parametrize(("step", "span"), [(10.0, 300.0), (60.0, 900.0), (2.5, 300.0)])
def test_coarse_samples_leave_no_holes(step: float, span: float) -> None:
    """Ten seconds' means in buckets of two: each fills the time that it stands for."""
    trend = Trend(span, 150)
    times = [1_000.0 + n * step for n in range(int(span / step))]
    trend.load(History(times, {"gen_tok_s": [[5.0] * len(times)]}))
    held = trend.column("gen_tok_s", 0, 1_000.0 + span - 0.01)
    assert None not in held[1:]
    gone = [None if 3 <= n < 6 else 5.0 for n in range(len(times))]
    trend.clear()
    trend.load(History(times, {"gen_tok_s": [gone]}))
    assert None in trend.column("gen_tok_s", 0, 1_000.0 + span - 0.01)[1:]
