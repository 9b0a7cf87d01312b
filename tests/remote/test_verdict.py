"""The verdict says what an operator would work out in the first minute."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remote.protocol import Epoch, Progress, ServerInfo, ServerState
from remote.verdict import Minute, at_ceiling, bound_by, early, expected_tokens, judge


def servers(running: int, tok_s: float, **more: float) -> list[ServerState]:
    return [
        ServerState(
            gpu=g,
            state="ready",
            running=running,
            queued=4,
            gen_tok_s=tok_s,
            kv_usage=more.get("kv", 0.2),
            mamba_usage=more.get("mamba", 0.8),
        )
        for g in range(8)
    ]


def infos(slots: int, **flags: int) -> list[ServerInfo]:
    return [
        ServerInfo(gpu=g, port=30000 + g, max_running=slots, max_mamba=185, flags=dict(flags))
        for g in range(8)
    ]


def test_the_story_two_hundred_hours_seen_in_a_minute() -> None:
    """193,010 prompts at 680 tok/s a GPU and 2,703 expected tokens: over 26 h."""
    minute = Minute(
        states=[servers(37, 680.0)] * 30,
        infos=infos(37),
        progress=Progress(total=193_010, remaining=193_010, in_flight=320),
        max_tokens=4096,
    )
    found = judge(minute, now=1.0, eta_hours_over=20)
    assert found.rate_per_sec == pytest.approx(8 * 680 / (0.66 * 4096))
    assert found.eta_hours == pytest.approx(193_010 / (8 * 680 / (0.66 * 4096)) / 3600)
    assert found.good is False
    assert "TOO LONG" in found.text
    assert found.slots == 37
    assert found.bound_by == "Mamba state pool: 37 slots a server, KV only 20% used"


def test_against_the_epoch_before() -> None:
    before = Epoch(id=3, since=0.0, flags={}, tok_s_per_gpu=680.0, max_running=37)
    progress = Progress(
        total=1000, completed=500, remaining=500, in_flight=10, avg_output_tokens=2000
    )
    better = judge(Minute([servers(72, 1200.0)] * 9, infos(72), progress, 4096, before), now=1.0)
    assert better.good is True
    assert "×1.76 of epoch 3" in better.text
    assert better.rate_per_sec == pytest.approx(8 * 1200 / 2000)
    worse = judge(Minute([servers(30, 500.0)] * 9, infos(37), progress, 4096, before), now=1.0)
    assert worse.good is False
    same = judge(Minute([servers(37, 690.0)] * 9, infos(37), progress, 4096, before), now=1.0)
    assert same.good is True


def test_short_early_answers_do_not_set_the_expectation() -> None:
    early = Progress(completed=20, in_flight=300, avg_output_tokens=400.0)
    tokens, measured = expected_tokens(early, 4096)
    assert (round(tokens), measured) == (2703, False)
    settled = Progress(completed=1000, in_flight=300, avg_output_tokens=1500.0)
    assert expected_tokens(settled, 4096) == (1500.0, True)
    long = Progress(completed=20, in_flight=300, avg_output_tokens=3900.0)
    assert expected_tokens(long, 4096) == (3900.0, False)


@pytest.mark.parametrize(
    ("states", "known", "says"),
    [
        (servers(20, 300.0, kv=0.95), infos(37), "KV cache: 95%"),
        (servers(64, 900.0), infos(64, **{"max-running-requests": 64}), "max-running-requests: 64"),
        ([], infos(37), ""),
    ],
)
def test_what_holds_it_back(states: list[ServerState], known: list[ServerInfo], says: str) -> None:
    assert bound_by(states, known).startswith(says)
    assert bool(bound_by(states, known)) == bool(says)


def test_too_few_requests_are_named() -> None:
    idle = [
        ServerState(gpu=g, state="ready", running=12, queued=0, gen_tok_s=250.0, kv_usage=0.1)
        for g in range(8)
    ]
    assert bound_by(idle, infos(37)) == "requests: the run offers 12 of 37 slots a server"


def test_no_token_no_numbers() -> None:
    found = judge(Minute([], infos(37), None, 4096), now=1.0)
    assert found.text == "no token was produced"
    assert found.good is None
    assert found.rate_per_sec is None


def test_servers_at_their_ceiling_need_no_throughput_to_be_judged() -> None:
    full = servers(37, 0.0)
    assert at_ceiling(full, infos(37))
    assert not at_ceiling(servers(32, 680.0), infos(37))
    assert not at_ceiling([], [])
    for odd in (
        replace(full[3], queued=0, running=30),
        replace(full[3], state="warming", running=None),
        replace(full[3], silent_since=1.0),
    ):
        assert not at_ceiling([*full[:3], odd, *full[4:]], infos(37))
    assert not at_ceiling([replace(s, queued=0) for s in full], infos(37)), "nothing waits"
    assert at_ceiling([*full[:3], replace(full[3], state="stopped"), *full[4:]], infos(37))
    found = early(full, infos(37), now=5.0)
    assert found.text == (
        "every server runs its most at once and more requests wait; "
        "held by Mamba state pool: 37 slots a server, KV only 20% used"
    )
    assert (found.slots, found.good, found.eta_hours) == (37, None, None)


def test_a_throttled_minute_is_not_held_against_another_epoch() -> None:
    """At twelve requests at once a server does less, whatever its flags."""
    few = [replace(s, queued=0) for s in servers(12, 250.0)]
    minute = Minute(
        states=[few] * 30,
        infos=infos(37),
        progress=Progress(total=193_010, remaining=193_010, in_flight=96),
        max_tokens=4096,
        previous=Epoch(1, 0.0, {}, tok_s_per_gpu=680.0),
    )
    found = judge(minute, now=1.0)
    assert found.good is None
    assert "of epoch 1" not in found.text
    assert found.bound_by == "requests: the run offers 12 of 37 slots a server"


def test_a_server_that_is_kept_for_a_suspect_is_left_out_of_the_mean() -> None:
    states = servers(37, 680.0)
    states[0] = replace(states[0], running=1, queued=0, gen_tok_s=40.0, alone=True)
    minute = Minute(states=[states] * 30, infos=infos(37), progress=None, max_tokens=4096)
    assert judge(minute, now=1.0).tok_s_per_gpu == pytest.approx(680.0)


def test_a_pool_that_is_half_empty_and_yet_the_limit_is_explained() -> None:
    """All slots are in use: the pool's size sets how many there are."""
    half = [replace(s, mamba_usage=0.48) for s in servers(37, 680.0)]
    told = bound_by(half, infos(37))
    assert told.startswith("Mamba state pool: 37 slots a server, all in use though")
    assert "48% used: its size sets their number" in told
