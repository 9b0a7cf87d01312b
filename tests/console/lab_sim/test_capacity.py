import pytest

from console.lab.sim.capacity import (
    QWEN36_27B,
    NotEnoughMemoryError,
    Request,
    default_fraction,
    size,
)
from console.lab.sim.settings import Version

# weights, fraction, ssm dtype, then (slots, no_buffer, extra_buffer[, extra_buffer_lazy])
OLD = [
    ("fp8", 0.90, "float32", 185, 61, 37),
    ("fp8", 0.90, "bfloat16", 363, 121, 72),
    ("fp8", 0.85, "float32", 169, 56, 33),
    ("bf16", 0.85, "bfloat16", 186, 62, 37),
    ("bf16", 0.90, "bfloat16", 216, 72, 43),
    ("fp8", 0.793, "float32", 151, 50, 30),
]
NEW = [
    ("fp8", 0.90, "float32", 183, 61, 36, 45),
    ("fp8", 0.90, "bfloat16", 361, 120, 72, 90),
    ("fp8", 0.85, "float32", 168, 56, 33, 42),
    ("bf16", 0.85, "bfloat16", 184, 61, 36, 46),
    ("bf16", 0.90, "bfloat16", 215, 71, 43, 53),
]


@pytest.mark.parametrize(("weights", "fraction", "ssm", "slots", "plain", "extra"), OLD)
def test_every_row_of_the_worked_table_in_the_old_release(
    weights: str, fraction: float, ssm: str, slots: int, plain: int, extra: int
) -> None:
    request = Request("0.5.12", weights, fraction, ssm, "no_buffer")
    assert (size(request).slots, size(request).max_running) == (slots, plain)
    assert size(Request("0.5.12", weights, fraction, ssm, "extra_buffer")).max_running == extra


@pytest.mark.parametrize(("weights", "fraction", "ssm", "slots", "plain", "extra", "lazy"), NEW)
def test_every_row_of_the_worked_table_in_the_new_release(
    weights: str, fraction: float, ssm: str, slots: int, plain: int, extra: int, lazy: int
) -> None:
    pools = [
        size(Request("0.5.23", weights, fraction, ssm, strategy))
        for strategy in ("no_buffer", "extra_buffer", "extra_buffer_lazy")
    ]
    assert {pool.slots for pool in pools} == {slots}
    assert [pool.max_running for pool in pools] == [plain, extra, lazy]


def test_the_constants_of_the_model() -> None:
    assert QWEN36_27B.slot_bytes("float32") == 153_944_064
    assert QWEN36_27B.slot_bytes("bfloat16") == 78_446_592
    assert QWEN36_27B.cell_bytes(2) == 65_536
    assert default_fraction("0.5.12", 97_887) == pytest.approx(0.793)


def test_the_example_of_a_startup_log() -> None:
    pools = size(Request("0.5.12", "fp8", 0.9, "float32", "extra_buffer"))
    assert (round(pools.conv_gib, 2), round(pools.ssm_gib, 2)) == (0.51, 26.02)
    assert pools.tokens == pytest.approx(483_922, rel=1e-4)


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
def test_what_a_user_sets_counts(version: Version) -> None:
    base = Request(version, "fp8", 0.9, "float32", "no_buffer")
    few = Request(version, "fp8", 0.9, "float32", "no_buffer", max_running=16)
    assert size(few).max_running == 16
    slots = Request(version, "fp8", 0.9, "float32", "no_buffer", max_mamba=90)
    assert (size(slots).slots, size(slots).max_running) == (90, 30)
    assert size(slots).tokens > size(base).tokens
    no_radix = Request(version, "fp8", 0.9, "float32", "no_buffer", radix_cache=False)
    assert size(no_radix).max_running == size(no_radix).slots
    assert size(Request(version, "fp8", 0.9, kv_bytes=1)).tokens == pytest.approx(
        2 * size(Request(version, "fp8", 0.9)).tokens, abs=2
    )
    serial = Request(version, "fp8", 0.9, "float32", "extra_buffer", overlap=False)
    assert serial.version == version
    assert size(serial).max_running == size(serial).slots // 4


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        ({"weights": "bf16", "mem_fraction": 0.5}, "kv"),
        ({"weights": "bf16", "mem_fraction": 0.548}, "mamba"),
        ({"weights": "bf16", "mem_fraction": 0.9, "max_mamba": 2}, "zero"),
    ],
)
def test_what_does_not_fit_is_said(
    version: Version, request_: dict[str, object], kind: str
) -> None:
    with pytest.raises(NotEnoughMemoryError) as caught:
        size(Request(version, **request_))  # type: ignore[arg-type]
    assert caught.value.kind == kind
