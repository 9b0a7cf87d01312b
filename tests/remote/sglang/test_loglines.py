"""SGLang's log as it really comes: batch lines in both dialects, and hostile bytes."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.sglang.causes import find_cause
from remote.sglang.loglines import LONGEST_LINE, LineBuffer, LogReader, parse_batch, stamp
from remote.sglang.startup import PHASES, phase_of
from tests.remote.sglang.lines import REAL, TS, needs_real, read
from tests.remote.sglang.test_causes import ENDS
from tests.remote.sglang.test_startup import STARTUP_12

DECODE = {
    "hybrid": (
        (
            f"{TS} Decode batch, #running-req: 37, #full token: 151230, full token usage: 0.31, "
            "mamba num: 148, mamba usage: 0.80, cuda graph: True, "
            "gen throughput (token/s): 1411.87, #queue-req: 91"
        ),
        (37, 91, 1411.87, 0.31, 0.80),
    ),
    "plain": (
        (
            f"{TS} Decode batch, #running-req: 8, #token: 20800, token usage: 0.05, "
            "cuda graph: True, gen throughput (token/s): 601.11, #queue-req: 0"
        ),
        (8, 0, 601.11, 0.05, None),
    ),
    "ranks and sliding window": (
        (
            "[2026-05-20 10:00:05 DP1 TP4 EP4] Decode batch, #running-req: 5, #full token: 9000, "
            "full token usage: 0.02, #swa token: 4100, swa token usage: 0.03, cuda graph: True, "
            "gen throughput (token/s): 144.95, #queue-req: 0"
        ),
        (5, 0, 144.95, 0.02, None),
    ),
    "speculative": (
        (
            f"{TS} Decode batch, #running-req: 16, #full token: 40210, full token usage: 0.09, "
            "mamba num: 64, mamba usage: 0.80, accept len: 2.71, accept rate: 0.57, cap len: 4.00, "
            "cuda graph: True, gen throughput (token/s): 933.20, #queue-req: 3"
        ),
        (16, 3, 933.2, 0.09, 0.80),
    ),
    "milliseconds, iteration, estimates, nan": (
        (
            "[2026-05-20 10:32:00.417] Decode batch [88121], #running-req: 64, #full token: 31, "
            "full token usage: 0.64, mamba num: 181, mamba usage: 0.98, cuda graph: False, "
            "gen throughput (token/s): 702.31, #queue-req: 0, est. x TFLOPS/s (per GPU): 41.20, "
            "est. read BW (GB/s per GPU): 1203.44, fwd occupancy: nan%"
        ),
        (64, 0, 702.31, 0.64, 0.98),
    ),
    "negative zero and inf": (
        (
            f"{TS} Decode batch, #running-req: 1, #token: 1, token usage: -0.00, cuda graph: True, "
            "gen throughput (token/s): inf, #queue-req: 0"
        ),
        (1, 0, None, 0.0, None),
    ),
}


@pytest.mark.parametrize("name", DECODE)
def test_decode_lines(name: str) -> None:
    line, expected = DECODE[name]
    batch = parse_batch(line)
    assert batch is not None
    assert batch.kind == "decode"
    got = (batch.running, batch.queued, batch.gen_tok_s, batch.kv_usage, batch.mamba_usage)
    assert got == expected


def test_prefill_line_and_its_probe() -> None:
    real = parse_batch(
        f"{TS} Prefill batch, #new-seq: 2, #new-token: 640, #cached-token: 7552, "
        "full token usage: 0.11, mamba usage: 0.30, #running-req: 14, #queue-req: 0, "
        "#pending-token: 0, #replay-token: 128, cuda graph: True, "
        "input throughput (token/s): 5120.44"
    )
    assert real is not None
    assert (real.kind, real.new_tokens, real.running, real.is_probe) == ("prefill", 640, 14, False)
    assert real.values["#replay-token"] == "128"
    probe = parse_batch(
        "[2026-05-20 10:31:20] Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, "
        "full token usage: 0.00, mamba usage: 0.00, #running-req: 0, #queue-req: 0, "
        "#pending-token: 0, cuda graph: False, input throughput (token/s): 0.20"
    )
    assert probe is not None
    assert probe.is_probe


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Decode batch, #running-req: 1",
        f"{TS} Decode batch",
        f"{TS} Decode batch, ",
        f"{TS} INFO: Decode batch, #running-req: 1",
    ],
)
def test_other_and_torn_lines_are_no_batch(line: str) -> None:
    assert parse_batch(line) is None


def test_torn_batch_line_gives_what_it_has() -> None:
    batch = parse_batch(f"{TS} Decode batch, #running-req: 37, #full token: 15")
    assert batch is not None
    assert batch.running == 37
    assert batch.gen_tok_s is None
    assert batch.kv_usage is None


@needs_real
def test_every_real_batch_line_parses() -> None:
    lines = (REAL / "batch_lines.log").read_text().splitlines()
    assert len(lines) > 40
    for line in lines:
        batch = parse_batch(line)
        assert batch is not None, line
        assert batch.running is not None
        assert batch.kv_usage is not None


def test_retractions_are_counted_and_the_drain_is_followed() -> None:
    reader = read(
        f"{TS} KV cache pool is full. Retract requests. #retracted_reqs: 2, #x: 1",
        f"{TS} KV cache pool is full. Retract requests. #retracted_reqs: 3, #x: 1",
    )
    assert reader.retractions == 5
    assert reader.draining is False
    reader = read(f"{TS} SIGTERM received. signum=None frame=None. Draining requests")
    assert reader.draining is True
    reader.line(f"{TS} Gracefully exiting... Remaining number of requests 4. Remaining x", 0.0)
    assert reader.remaining == 4


def test_lines_out_of_any_pieces() -> None:
    data = "a\r\nbé\x1b[1;33mwarn\x1b[0m\rthird\n\n".encode()
    whole = LineBuffer().feed(data)
    assert whole == ["a", "béwarn", "third"]
    for size in (1, 2, 3, 5):
        buffer = LineBuffer()
        lines = [x for i in range(0, len(data), size) for x in buffer.feed(data[i : i + size])]
        assert lines == whole


def test_endless_and_undecodable_lines() -> None:
    buffer = LineBuffer()
    assert buffer.feed(b"x" * (1 << 20)) == []
    (line,) = buffer.feed(b"\n")
    assert line.startswith("xxx")
    assert line.endswith(f"({(1 << 20) - LONGEST_LINE} bytes cut)")
    assert buffer.feed(b"\xff\xfe ok \xc3\n") == ["\ufffd\ufffd ok \ufffd"]


def test_stamp_is_the_containers_time() -> None:
    now = time.time()
    line = time.strftime("[%Y-%m-%d %H:%M:%S] x", time.localtime(now))
    assert stamp(line) == int(now)
    assert stamp("[2026-99-99 10:00:00] x") is None
    assert stamp("no time") is None


PIECES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([line.encode() for line, _ in DECODE.values()]),
    st.sampled_from([line.encode() for _, lines, *_ in ENDS.values() for line in lines]),
    st.sampled_from([b"\r", b"\n", b"\x1b[0m", b"\x00", "é".encode()]),
    st.sampled_from(STARTUP_12.format(ts=TS).encode().splitlines(keepends=True)),
)


def test_the_cause_is_found_behind_many_lesser_ones() -> None:
    noise = [f"{TS} CUDA error: something passing"] * 150
    found = read(*noise, f"{TS} RuntimeError: NVRM: Xid (PCI:0000:01:00): 79, GPU has left").cause
    assert found is not None
    assert found.code == "xid"


@given(st.lists(PIECES, max_size=30), st.integers(1, 50))
def test_any_bytes_are_read_without_harm(pieces: list[bytes], size: int) -> None:
    """Whatever stands in a log, in whatever pieces it comes, the reader says the same of it."""
    data = b"".join(pieces)
    whole, parts = LogReader(), LogReader()
    whole.feed(data, 1.0)
    buffer, lines = LineBuffer(), list[str]()
    for i in range(0, len(data), size):
        parts.feed(data[i : i + size], 1.0)
        lines += buffer.feed(data[i : i + size])
    assert (whole.phase, whole.fired_up, whole.cause) == (parts.phase, parts.fired_up, parts.cause)
    assert LineBuffer().feed(data) == lines
    assert whole.work == parts.work


FRAGMENTS = st.sampled_from(
    [
        *(line for line, _ in DECODE.values()),
        *(line for _, lines, *_ in ENDS.values() for line in lines),
        f"{TS} Decode batch, ",
        "#running-req: ",
        ", ",
        ": ",
        "{0}",
        "7",
    ]
)


@given(st.lists(st.text(max_size=40) | FRAGMENTS, max_size=12).map("".join))
def test_any_text_is_a_line(text: str) -> None:
    """Of which only what is there is told."""
    batch = parse_batch(text)
    assert batch is None or all(f"{key}: {value}" in text for key, value in batch.values.items())
    assert phase_of(text) in (None, *PHASES)
    for phase in PHASES:
        found = find_cause(text, phase)
        if found is not None:
            _, cause = found
            assert cause.code
            assert 0 < len(cause.text) <= 400


@given(
    running=st.integers(0, 9999),
    usage=st.floats(0, 1),
    rate=st.floats(0, 1e6),
    extra=st.dictionaries(
        st.text(st.characters(categories=["L"]), min_size=1, max_size=10),
        st.integers(),
        max_size=3,
    ),
)
def test_a_batch_line_comes_back_as_it_was_printed(
    running: int, usage: float, rate: float, extra: dict[str, int]
) -> None:
    more = "".join(f", {key}: {value}" for key, value in extra.items())
    batch = parse_batch(
        f"{TS} Decode batch, #running-req: {running}, #token: 5, token usage: {usage:.2f}{more}, "
        f"gen throughput (token/s): {rate:.2f}, #queue-req: 7"
    )
    assert batch is not None
    assert (batch.running, batch.queued) == (running, 7)
    assert batch.kv_usage == pytest.approx(usage, abs=0.006)
    assert batch.gen_tok_s == pytest.approx(rate, abs=0.006)
    assert all(batch.values[key] == str(value) for key, value in extra.items())
