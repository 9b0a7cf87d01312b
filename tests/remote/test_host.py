"""What the driver's tool says, however badly; and the host's own numbers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote import host
from tests.waiting import until

NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
LINE = f"3, 00000000:C1:00.0, {NAME}, 97, 84311, 97887, 71, 412.55, 600.00"


def test_a_line_becomes_a_card() -> None:
    card = host.parse(LINE)
    assert card is not None
    assert (card.gpu, card.utilization, card.memory_used_mib) == (3, 0.97, 84311)
    assert (card.temperature_c, card.power_w, card.power_limit_w) == (71.0, 412.55, 600.0)
    assert card.name == "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def test_what_is_not_available_is_unknown() -> None:
    numbers = "[N/A], [Not Supported], 97887, [GPU requires reset], N/A, 600"
    card = host.parse(f"0, 00000000:01:00.0, A, B card, {numbers}")
    assert card is not None
    assert card.name == "A, B card"
    assert card.utilization is None
    assert card.memory_used_mib is None
    assert card.memory_total_mib == 97887
    assert card.power_w is None


NONE = ("[N/A]", "[Unknown Error]", "", "A", "nan", "-inf", "1e400")
FIELDS = st.sampled_from(["0", "17", "97", " 412.55 ", "²", "-1", *NONE])


@given(st.text() | st.lists(FIELDS, max_size=12).map(",".join))
def test_any_text_is_a_card_or_nothing(text: str) -> None:
    """A card only where there are enough fields and the first is its number; the last six count."""
    card = host.parse(text)
    fields = [field.strip() for field in text.split(",")]
    if len(fields) < LINE.count(",") + 1 or not (fields[0].isascii() and fields[0].isdigit()):
        assert card is None
        return
    assert card is not None
    assert card.gpu == int(fields[0])
    told = [
        card.utilization,
        card.memory_used_mib,
        card.memory_total_mib,
        card.temperature_c,
        card.power_w,
        card.power_limit_w,
    ]
    assert [value is None for value in told] == [field in (*NONE, "²") for field in fields[-6:]]


def script(folder: Path, body: str) -> tuple[str, ...]:
    path = folder / "tool.py"
    path.write_text(f"import sys, time\n{body}\n")
    return (sys.executable, "-u", str(path))


@contextlib.asynccontextmanager
async def running(gpus: host.Gpus) -> AsyncIterator[None]:
    task = asyncio.create_task(gpus.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_loop_is_read_and_a_card_that_falls_off_is_forgotten(tmp_path: Path) -> None:
    body = (
        "for n in range(1000):\n"
        f"    print({LINE!r})\n"
        f"    if n < 3: print({LINE.replace('3,', '4,', 1)!r})\n"
        "    time.sleep(0.05)"
    )
    told: list[str] = []
    gpus = host.Gpus(told.append, script(tmp_path, body))
    async with running(gpus):
        await until(lambda: [c.gpu for c in gpus.states()] == [3, 4])
        await until(lambda: [c.gpu for c in gpus.states()] == [3])
        assert gpus.buses == {"0000:c1:00": 3}
    assert told == []


async def test_one_that_dies_is_started_again_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "BACKOFF_S", (0.05,))
    text = "Failed to initialize NVML: Driver/library version mismatch"
    told: list[str] = []
    gpus = host.Gpus(told.append, script(tmp_path, f"print({text!r}); sys.exit(18)"))
    async with running(gpus):
        await until(lambda: told)
        await asyncio.sleep(0.5)
    assert told == [f"nvidia-smi ended: {text}"]
    assert gpus.states() == []


async def test_one_that_goes_silent_makes_the_numbers_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "STALE_S", 0.4)
    told: list[str] = []
    gpus = host.Gpus(told.append, script(tmp_path, f"print({LINE!r}); time.sleep(60)"))
    async with running(gpus):
        await until(lambda: any("silent" in text for text in told))
        (card,) = gpus.states()
        assert (card.gpu, card.temperature_c, card.memory_used_mib) == (3, None, None)


async def test_none_on_the_path() -> None:
    told: list[str] = []
    gpus = host.Gpus(told.append, ("no-such-tool-anywhere",))
    async with running(gpus):
        await until(lambda: told)
    assert "not on the path" in told[0]


def test_the_host(tmp_path: Path) -> None:
    state = host.host(tmp_path, simulated=True)
    assert state.simulated
    assert state.memory_total
    assert state.memory_total > 1 << 20
    assert state.disk_free
    assert host.host(tmp_path / "not there").disk_free is None
    assert state.clock_east_s == time.localtime().tm_gmtoff
