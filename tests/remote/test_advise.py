"""Advice for the fleets that operators have met."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from remote.advise import EpochNumbers, Observed, ServerNumbers, advise, lines, remedy
from remote.protocol import Flags, ServerInfo, ServerState
from remote.sglang import capacity
from remote.verdict import bound_by

BAD: Flags = {
    "mamba-scheduler-strategy": "extra_buffer",
    "mem-fraction-static": 0.85,
    "mamba-ssm-dtype": "bfloat16",
}


def observed(server: ServerNumbers, flags: Flags = BAD, **more: object) -> Observed:
    known: dict[str, object] = {
        "sglang": "0.5.12",
        "card": "NVIDIA RTX PRO 6000 Blackwell",
        "memory_mib": 97_887,
        "model": "Qwen/Qwen3.6-27B",
    }
    return Observed(flags=flags, servers=[server] * 8, **{**known, **more})  # type: ignore[arg-type]


FULL = ServerNumbers(
    running=37, max_running=37, queued=4, kv_usage=0.20, mamba_usage=0.75, gen_tok_s=730
)


def test_the_state_pool_holds_the_fleet_and_both_changes_together_are_best() -> None:
    advice = advise(observed(FULL))
    assert advice.diagnosis[0].bound_by == "state slots"
    best = advice.proposals[0]
    assert best.set == {"mamba-scheduler-strategy": "no_buffer", "mem-fraction-static": 0.9}
    assert best.predicted_max_running == 72
    assert best.predicted_gain is not None
    assert 1.5 < best.predicted_gain < 2
    gains = [one.predicted_gain or 0 for one in advice.proposals]
    assert all(a >= b for a, b in pairwise(gains))
    assert "72 slots" in "\n".join(lines(advice))


def test_the_newer_dialect_has_its_own_names_and_needs_overlap_off() -> None:
    flags: Flags = {"mem-fraction-static": 0.9, "mamba-ssm-dtype": "bfloat16"}
    best = advise(observed(FULL, flags, sglang="0.5.23")).proposals[0]
    assert best.set == {
        "mamba-radix-cache-strategy": "no_buffer",
        "disable-overlap-schedule": True,
    }


def test_a_client_that_offers_too_little() -> None:
    server = ServerNumbers(running=32, max_running=72, queued=0, kv_usage=0.2, mamba_usage=0.3)
    advice = advise(observed(server, offered_concurrency=256))
    assert advice.diagnosis[0].bound_by == "requests"
    assert "32 requests offered" in advice.diagnosis[0].evidence
    assert advice.proposals == []


def test_a_full_kv_cache() -> None:
    server = ServerNumbers(running=70, max_running=72, queued=3, kv_usage=0.97, retractions=5)
    advice = advise(observed(server))
    assert advice.diagnosis[0].bound_by == "kv cache"
    assert "40 requests retracted" in advice.diagnosis[0].evidence


def test_a_cap_of_the_operators_own_is_to_be_lifted() -> None:
    flags: Flags = {
        "mamba-scheduler-strategy": "no_buffer",
        "mem-fraction-static": 0.9,
        "mamba-ssm-dtype": "bfloat16",
        "max-running-requests": 32,
    }
    server = ServerNumbers(
        running=32, max_running=32, queued=4, kv_usage=0.2, mamba_usage=0.4, gen_tok_s=650
    )
    advice = advise(observed(server, flags))
    assert advice.diagnosis[0].bound_by == "slots"
    (best,) = advice.proposals
    assert (best.set, best.unset) == ({}, ["max-running-requests"])
    assert best.predicted_max_running == 72
    assert "1. --unset max-running-requests  (72 slots" in "\n".join(lines(advice))


def test_what_queues_is_held_by_slots_also_where_they_are_not_all_taken() -> None:
    server = ServerNumbers(running=20, max_running=37, queued=4)
    advice = advise(Observed(servers=[server] * 4))
    assert (advice.diagnosis[0].bound_by, advice.diagnosis[0].confidence) == ("slots", 0.6)


@pytest.mark.parametrize(
    ("server", "flags", "word"),
    [
        (FULL, BAD, "Mamba state pool"),
        (FULL, {**BAD, "max-running-requests": 37}, "max-running-requests"),
        (ServerNumbers(running=12, max_running=37, queued=0, kv_usage=0.1), BAD, "requests: "),
        (ServerNumbers(running=32, max_running=37, queued=0, kv_usage=0.1), BAD, "requests: "),
        (ServerNumbers(running=20, max_running=37, queued=4, kv_usage=0.95), BAD, "KV cache"),
        (ServerNumbers(running=20, max_running=37, queued=0, kv_usage=0.95), BAD, "KV cache"),
    ],
)
def test_advice_and_the_first_minute_verdict_agree(
    server: ServerNumbers, flags: Flags, word: str
) -> None:
    names = {
        "state slots": "Mamba state pool",
        "slots": "max-running-requests",
        "requests": "requests: ",
        "kv cache": "KV cache",
    }
    assert names[advise(observed(server, flags)).diagnosis[0].bound_by] == word
    states = [
        ServerState(
            gpu=gpu,
            state="ready",
            running=server.running,  # type: ignore[arg-type]
            queued=server.queued,  # type: ignore[arg-type]
            kv_usage=server.kv_usage,
            mamba_usage=server.mamba_usage,
        )
        for gpu in range(8)
    ]
    infos = [
        ServerInfo(gpu=gpu, port=30000 + gpu, max_running=server.max_running, flags=flags)
        for gpu in range(8)
    ]
    assert bound_by(states, infos).startswith(word)


def test_one_slow_server_is_named() -> None:
    slow = ServerNumbers(running=37, max_running=37, queued=4, gen_tok_s=200, mamba_usage=0.7)
    seen = Observed(servers=[FULL, FULL, slow, FULL])
    assert any("server 2 gives 200" in one.evidence for one in advise(seen).diagnosis)


def test_a_measured_epoch_beats_the_prediction() -> None:
    wanted: Flags = {**BAD, "mamba-scheduler-strategy": "no_buffer"}
    epochs = [EpochNumbers(flags=wanted, tok_s_per_gpu=365.0)]
    advice = advise(observed(FULL, epochs=epochs))
    one = next(p for p in advice.proposals if p.set == {"mamba-scheduler-strategy": "no_buffer"})
    assert one.predicted_gain == 0.5
    assert "measured" in one.risk


@pytest.mark.parametrize("seen", [Observed(), Observed(servers=[ServerNumbers()])])
def test_too_little_is_said(seen: Observed) -> None:
    advice = advise(seen)
    assert advice.diagnosis[0].bound_by == "unknown"
    assert advice.proposals == []


def test_an_unknown_model_gets_proposals_without_numbers() -> None:
    advice = advise(observed(FULL, model="someone/else"))
    assert advice.proposals
    assert all(one.predicted_gain is None for one in advice.proposals)
    assert any("gain not known" in line for line in lines(advice))


SIZES = capacity.sizes(capacity.Card(95.6, 94.4, 42.9), capacity.QWEN3_6_27B)
"""As a start prints them."""


def test_a_model_in_a_folder_is_known_by_what_its_start_has_printed() -> None:
    """Its name says nothing, and before the first throughput is measured the slots are known."""
    full = replace(FULL, gen_tok_s=None)
    blind = advise(observed(full, model="/workspace/model"))
    assert "gain not known" in lines(blind)[1]
    seen = observed(full, model="/workspace/model", sizes=SIZES, waits="Measuring: 40 s")
    advice = advise(seen)
    best = advice.proposals[0]
    assert best.set == {"mamba-scheduler-strategy": "no_buffer", "mem-fraction-static": 0.9}
    assert best.predicted_max_running == 72
    assert "(72 slots, about ×1.77 expected)" in lines(advice)[1]
    assert lines(advice)[-1] == "Measuring: 40 s"
    assert remedy(advice) == (
        "mamba-scheduler-strategy=no_buffer mem-fraction-static=0.90: "
        "72 slots, about ×1.77 expected"
    )


def test_what_was_measured_is_said_to_be() -> None:
    flags: Flags = {**BAD, "mamba-scheduler-strategy": "no_buffer", "mem-fraction-static": 0.9}
    seen = observed(FULL, sizes=SIZES, epochs=[EpochNumbers(flags, 1314.0)])
    assert "×1.80 measured" in remedy(advise(seen))


def test_a_server_that_has_just_come_is_not_called_slow() -> None:
    usual = replace(FULL, steady_s=600.0)

    def slow(seconds: float) -> bool:
        young = replace(FULL, gen_tok_s=200.0, steady_s=seconds)
        seen = Observed(flags=BAD, servers=[usual, usual, young, usual])
        return any(one.bound_by == "imbalance" for one in advise(seen).diagnosis)

    assert not slow(2)
    assert slow(31)


def test_servers_with_different_flags_are_said_first_and_compared_among_themselves() -> None:
    """No mean of two kinds, and none is slow beside those of other flags."""
    new = replace(FULL, max_running=72, running=72, gen_tok_s=1_300.0, epoch=4)
    old = replace(FULL, max_running=37, running=37, gen_tok_s=600.0, epoch=3)
    servers = [new, new, new, new, old, old, old]
    found = advise(Observed(flags=BAD, servers=servers, offered_concurrency=399)).diagnosis
    assert all(one.bound_by != "requests" for one in found)
    assert found[0].bound_by == "mixed flags"
    assert found[0].evidence == (
        "servers 0, 1, 2, 3 run epoch 4 (1,300 tok/s each); "
        "servers 4, 5, 6 run epoch 3 (600 tok/s each)"
    )
    assert "72 of 72 slots" in found[1].evidence
    assert all(one.bound_by != "imbalance" for one in found)
    slow = replace(old, gen_tok_s=200.0)
    found = advise(Observed(flags=BAD, servers=[new, new, new, old, old, slow, old])).diagnosis
    assert "server 5 gives 200 tok/s, the others 600" in [one.evidence for one in found]
