"""``/metrics``, ``/v1/loads`` and ``/server_info`` of both dialects, real answers among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from remote.sglang import metrics
from remote.sglang.loads import Loads, read_loads, read_server_info

REAL = Path(__file__).parents[4] / "shared" / "fixtures" / "real-engines" / "sglang"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real engine's answers are not here")


def body(name: str) -> Any:
    """The JSON after the second blank part of a recorded answer."""
    text = (REAL / name).read_text()
    return json.loads(text[text.index("\n{\n") :] if "\n{\n" in text else text)


@needs_real
def test_real_loads() -> None:
    loads = read_loads(body("under_load_v1_loads.txt"))
    assert loads == Loads(
        running=63,
        queued=134,
        max_running=64,
        kv_usage=0.0224,
        kv_tokens=65536,
        gen_tok_s=54.08,
        version="0.5.12",
    )


@needs_real
def test_real_server_info() -> None:
    info = read_server_info(json.loads((REAL / "server_info_full.json").read_text()))
    assert info is not None
    assert (info.version, info.status) == ("0.5.12", "ready")
    assert (info.max_running, info.max_mamba, info.kv_tokens) == (64, None, 65536)


@needs_real
def test_real_metrics() -> None:
    found = metrics.read((REAL / "metrics_under_load_slim.txt").read_text())
    assert found.decode_tokens == 2058
    assert found.work_tokens == 2058 + 1095
    assert (found.running, found.queued) == (64, 20)
    assert found.kv_usage == pytest.approx(0.0440521240234375)
    assert found.mamba_usage is None
    assert found.open_requests == 84
    full = metrics.read((REAL / "metrics_under_load_full.txt").read_text())
    assert full.decode_tokens is not None


def test_new_dialect() -> None:
    row = {
        "dp_rank": 0,
        "num_running_reqs": 36,
        "num_waiting_reqs": 91,
        "token_usage": 0.3164,
        "max_running_requests": 36,
        "max_total_num_tokens": 478000,
    }
    loads = read_loads({"version": "0.5.23", "accelerator": "x", "loads": [row]})
    assert loads is not None
    assert (loads.running, loads.queued, loads.max_running) == (36, 91, 36)
    info = read_server_info(
        {
            "max_running_requests": None,
            "version": "0.5.23",
            "internal_states": [
                {
                    "max_mamba_cache_size": 183,
                    "effective_max_running_requests_per_dp": 36,
                    "memory_usage": {"token_capacity": 478000, "graph": {"decode": 1.02}},
                }
            ],
        }
    )
    assert info is not None
    assert (info.max_running, info.max_mamba, info.kv_tokens) == (36, 183, 478000)
    text = """
# HELP sglang:num_requests_total x
sglang:num_requests_total{is_streaming="False",model_name="q"} 5.0
sglang:num_requests_total{is_streaming="True",model_name="q"} 2.0
sglang:realtime_tokens_total{mode="decode"} 1.5e+06
sglang:realtime_tokens_total{mode="prefill_cache"} 7
sglang:mamba_usage{model_name="a\\"b\\\\c, d}"} 0.61
sglang:mamba_used_tokens 100
sglang:fwd_occupancy NaN
sglang:num_retracted_requests_total 3.0
"""
    samples = metrics.parse(text)
    assert metrics.total(samples, "sglang:num_requests_total") == 7
    assert metrics.total(samples, "sglang:fwd_occupancy") is None
    assert samples["sglang:mamba_usage"][0][0] == {"model_name": 'a"b\\c, d}'}
    found = metrics.read(text)
    assert (found.decode_tokens, found.work_tokens) == (1_500_000, 1_500_000)
    assert (found.mamba_usage, found.retractions, found.kv_usage) == (0.61, 3, None)


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5)
)
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["loads", "internal_states", "memory_usage", "num_running_reqs", "version"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


RANKS = st.dictionaries(
    st.sampled_from(
        [
            "num_running_reqs",
            "num_waiting_reqs",
            "max_running_requests",
            "max_total_num_tokens",
            "token_usage",
            "gen_throughput",
        ]
    ),
    LEAVES,
)


@given(JSON | st.fixed_dictionaries({"loads": st.lists(RANKS | JSON, max_size=3)}))
def test_any_answer_of_loads_is_read_as_what_it_should_be_or_as_unknown(answer: Any) -> None:
    loads = read_loads(answer)
    if loads is None:
        assert not (isinstance(answer, dict) and any(isinstance(r, dict) for r in _ranks(answer)))
        return
    whole = (loads.running, loads.queued, loads.max_running, loads.kv_tokens)
    assert {type(value) for value in whole} <= {int, type(None)}
    assert {type(value) for value in (loads.kv_usage, loads.gen_tok_s)} <= {float, type(None)}
    assert type(loads.version) in (str, type(None))


def _ranks(answer: dict[str, Any]) -> list[Any]:
    found = answer.get("loads")
    return found if isinstance(found, list) else []


@given(JSON)
def test_any_server_info_is_read_as_what_it_should_be_or_as_unknown(answer: Any) -> None:
    facts = read_server_info(answer)
    assert (facts is None) == (not isinstance(answer, dict))
    if facts is not None:
        numbers = (facts.max_running, facts.max_mamba, facts.kv_tokens)
        assert {type(value) for value in numbers} <= {int, type(None)}
        assert {type(value) for value in (facts.version, facts.status)} <= {str, type(None)}


@given(st.text(max_size=300))
def test_what_is_no_metric_of_its_own_changes_none(text: str) -> None:
    assume("sglang:" not in text)
    page = "sglang:num_running_reqs 5.0\nsglang:num_retracted_requests_total 3"
    found = metrics.read(f"{text}\n{page}\n{text}")
    assert found == metrics.read(page)
    assert (found.running, found.retractions) == (5, 3)


@given(st.lists(st.tuples(st.sampled_from(["True", "False"]), st.integers(0, 10**9)), max_size=6))
def test_sums_over_labels(rows: list[tuple[str, int]]) -> None:
    text = "".join(f'sglang:x{{is_streaming="{flag}"}} {value}\n' for flag, value in rows)
    expected = float(sum(value for _, value in rows)) if rows else None
    assert metrics.total(metrics.parse(text), "sglang:x") == expected
