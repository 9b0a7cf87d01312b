"""The capacity model against the published worked numbers, and against what a log says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remote.protocol import Flags
from remote.sglang import capacity
from remote.sglang.capacity import GIB, QWEN3_6_27B, Card
from remote.sglang.startup import StartFacts

CARD_GIB = 97_887 / 1024
FREE = 94.4

ROWS = [
    # weights, fraction, ssm: M, no_buffer, extra_buffer [0.5.12]; M, no, extra, lazy [0.5.23]
    (28.9, 0.90, "float32", (185, 61, 37), (183, 61, 36, 45)),
    (28.9, 0.90, "bfloat16", (363, 121, 72), (361, 120, 72, 90)),
    (28.9, 0.85, "float32", (169, 56, 33), (168, 56, 33, 42)),
    (51.5, 0.85, "bfloat16", (186, 62, 37), (184, 61, 36, 46)),
    (51.5, 0.90, "bfloat16", (216, 72, 43), (215, 71, 43, 53)),
    (28.9, None, "float32", (151, 50, 30), None),
]


def predicted(
    new: bool, weights: float, fraction: float | None, strategy: str, dtype: str
) -> tuple[int, int]:
    name = "mamba-radix-cache-strategy" if new else "mamba-scheduler-strategy"
    given: Flags = {name: strategy, "mamba-ssm-dtype": dtype}
    if fraction is not None:
        given["mem-fraction-static"] = fraction
    found = capacity.predict(given, new, Card(CARD_GIB, FREE, FREE - weights), QWEN3_6_27B)
    assert found is not None
    assert found.max_mamba is not None
    assert found.bound_by == "state slots"
    return found.max_mamba, found.max_running


@pytest.mark.parametrize(("weights", "fraction", "dtype", "old", "new"), ROWS)
def test_worked_table(
    weights: float,
    fraction: float | None,
    dtype: str,
    old: tuple[int, int, int],
    new: tuple[int, int, int, int] | None,
) -> None:
    slots, *expected = old
    for strategy, running in zip(("no_buffer", "extra_buffer"), expected, strict=True):
        got = predicted(False, weights, fraction, strategy, dtype)
        assert got == (slots, running)
    if new is None:
        return
    slots, *more = new
    names = ("no_buffer", "extra_buffer", "extra_buffer_lazy")
    for strategy, running in zip(names, more, strict=True):
        got = predicted(True, weights, fraction, strategy, dtype)
        assert got == (slots, running)


def test_sizes_of_the_model() -> None:
    assert QWEN3_6_27B.slot({}) == 153_944_064
    assert QWEN3_6_27B.slot({"mamba-ssm-dtype": "bfloat16"}) == 78_446_592
    assert QWEN3_6_27B.kv_cell({}) == 65_536
    assert QWEN3_6_27B.kv_cell({"kv-cache-dtype": "fp8_e4m3"}) == 32_768


def test_computed_fraction() -> None:
    assert capacity.mem_fraction({}, CARD_GIB, None) == 0.858
    assert capacity.mem_fraction({}, CARD_GIB, QWEN3_6_27B.vision) == 0.793


CARD = Card(CARD_GIB, FREE, FREE - 51.5)
BASE: Flags = {"mem-fraction-static": 0.9, "mamba-ssm-dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("flags", "new", "running", "slots"),
    [
        ({"max-mamba-cache-size": 90, "mamba-scheduler-strategy": "no_buffer"}, False, 30, 90),
        ({"disable-radix-cache": True, "max-running-requests": 100}, False, 100, 100),
        ({"disable-radix-cache": True}, False, 216, 216),
        ({"max-running-requests": 20}, False, 20, 216),
        (
            {"mamba-scheduler-strategy": "extra_buffer", "disable-overlap-schedule": True},
            False,
            54,
            216,
        ),
        ({}, False, 72, 216),
        ({}, True, 43, 215),
        ({"mamba-full-memory-ratio": 2.0}, False, 101, 305),
    ],
)
def test_other_flags(flags: Flags, new: bool, running: int, slots: int) -> None:
    found = capacity.predict({**BASE, **flags}, new, CARD, QWEN3_6_27B)
    assert found is not None
    assert (found.max_running, found.max_mamba) == (running, slots)


def test_tokens_bound_and_memory_adds_up() -> None:
    found = capacity.predict({**BASE, "max-total-tokens": "100"}, False, CARD, QWEN3_6_27B)
    assert found is not None
    assert (found.max_running, found.bound_by, found.kv_tokens) == (50, "KV tokens", 100)
    found = capacity.predict(BASE, False, CARD, QWEN3_6_27B)
    assert found is not None
    assert found.pools + found.left == pytest.approx(CARD.after)
    assert found.left == pytest.approx(FREE * 0.1, abs=0.01)


def test_no_room_is_no_prediction_but_a_line_with_the_numbers() -> None:
    for fraction in (0.5, 0.3):
        flags: Flags = {**BASE, "mem-fraction-static": fraction}
        assert capacity.predict(flags, False, CARD, QWEN3_6_27B) is None
        text = capacity.shortage(flags, False, CARD, QWEN3_6_27B)
        assert text.startswith(f"mem-fraction-static {fraction} leaves no room for the pools: of")
        assert "Please try to increase --mem-fraction-static" in text
        least = float(text.split("set ")[1].split()[0])
        assert 0.5 < least < 0.6
        enough = capacity.predict({**flags, "mem-fraction-static": least}, False, CARD, QWEN3_6_27B)
        assert enough is not None
        assert enough.max_running >= 1
    assert capacity.shortage(BASE, False, CARD, QWEN3_6_27B) == ""


CONFIG: dict[str, Any] = {
    "text_config": {
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 262144,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
        "linear_num_value_heads": 48,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
    },
    "vision_config": {"depth": 27, "hidden_size": 1152},
}


def test_model_from_its_config() -> None:
    assert capacity.read_config(CONFIG) == QWEN3_6_27B
    by_interval: dict[str, Any] = {**CONFIG["text_config"], "full_attention_interval": 4}
    del by_interval["layer_types"]
    model = capacity.read_config(by_interval)
    assert model is not None
    assert model.slot({}) == QWEN3_6_27B.slot({})
    dense = capacity.read_config(
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 4096,
        }
    )
    assert dense is not None
    assert not dense.hybrid
    assert dense.cell == 2 * 2 * 64 * 2
    assert capacity.read_config({"num_hidden_layers": "many"}) is None
    assert capacity.read_config({}) is None


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("Qwen/Qwen3.6-27B", 51.5),
        ("/models/Qwen3.6-27B-FP8", 28.9),
        ("qwen3.5-27b-nvfp4", 19.5),
    ],
)
def test_known_models(name: str, weights: float) -> None:
    assert capacity.known_model(name) == (QWEN3_6_27B, weights)
    assert capacity.known_model("meta/Other-7B") is None


def told(truth: capacity.Prediction, model: capacity.Model) -> StartFacts:
    """What the log of such a start says, with a bfloat16 state."""
    assert truth.max_mamba is not None
    return StartFacts(
        avail_before=FREE,
        avail_after=CARD.after,
        max_mamba=truth.max_mamba,
        conv_state=round(truth.max_mamba * model.conv / GIB, 2),
        ssm_state=round(truth.max_mamba * model.ssm_elements * 2 / GIB, 2),
        kv_tokens=truth.kv_tokens,
        kv_cache=round(truth.kv_tokens * model.cell / GIB, 2),
    )


def test_constants_are_learned_from_the_log_of_an_unknown_model() -> None:
    """Another model's start is enough to predict other flags for it."""
    model = capacity.Model(conv=3_000_000, ssm_elements=20_000_000, cell=40_000, context=32_768)
    flags: Flags = {"mem-fraction-static": 0.85, "mamba-ssm-dtype": "bfloat16"}
    truth = capacity.predict(flags, False, CARD, model)
    assert truth is not None
    facts = replace(told(truth, model), context_length=32_768)
    learned = capacity.learn(facts, flags, False, None)
    assert learned is not None
    other: Flags = {
        "mem-fraction-static": 0.9,
        "mamba-ssm-dtype": "float32",
        "mamba-scheduler-strategy": "extra_buffer",
        "kv-cache-dtype": "fp8_e4m3",
    }
    wanted = capacity.predict(other, False, CARD, model)
    got = capacity.predict(other, False, CARD, learned)
    assert wanted is not None
    assert got is not None
    assert abs(got.max_running - wanted.max_running) <= 1
    assert got.kv_tokens == pytest.approx(wanted.kv_tokens, rel=0.01)
    # A wrong belief gives way to the log; a right one is kept as it is.
    assert capacity.learn(facts, flags, False, QWEN3_6_27B) != QWEN3_6_27B
    assert capacity.learn(StartFacts(), flags, False, QWEN3_6_27B) == QWEN3_6_27B
    assert capacity.learn(StartFacts(), flags, False, None) is None


def test_memory_that_nobody_foresees_is_learned_from_a_start() -> None:
    """The fraction is not set, and this SGLang computes another one than is known here."""
    flags: Flags = {"mamba-ssm-dtype": "bfloat16"}
    other: Flags = {**flags, "mamba-scheduler-strategy": "extra_buffer"}
    really = replace(CARD, slack=-3.0)
    truth = capacity.predict(flags, False, really, QWEN3_6_27B)
    assert truth is not None
    facts = told(truth, QWEN3_6_27B)
    card = capacity.learn_slack(facts, flags, False, CARD, QWEN3_6_27B)
    assert card.slack == pytest.approx(-3.0, abs=0.05)
    wanted = capacity.predict(other, False, really, QWEN3_6_27B)
    got = capacity.predict(other, False, card, QWEN3_6_27B)
    naive = capacity.predict(other, False, CARD, QWEN3_6_27B)
    assert wanted is not None
    assert got is not None
    assert naive is not None
    assert abs(got.max_running - wanted.max_running) <= 1 < naive.max_running - wanted.max_running
    # A prediction that was right stays as it is, and so does one that a count had bounded.
    right = capacity.learn_slack(facts, flags, False, card, QWEN3_6_27B)
    assert right == card
    bounded: Flags = {**flags, "max-total-tokens": 1000}
    assert capacity.learn_slack(facts, bounded, False, CARD, QWEN3_6_27B) == CARD
    assert capacity.learn_slack(StartFacts(), flags, False, CARD, QWEN3_6_27B) == CARD
