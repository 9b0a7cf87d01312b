"""A start as the log tells it, in both dialects."""

from __future__ import annotations

import time

import pytest

from remote.sglang.loglines import LogReader
from remote.sglang.startup import PHASES, Phase
from tests.remote.sglang.lines import REAL, TS, needs_real, read

STARTUP_12 = """\
{ts} server_args=ServerArgs(model_path='/models/q', port=30003)
{ts} Init torch distributed begin.
{ts} Init torch distributed ends. elapsed=1.02 s, mem usage=0.09 GB
{ts} Load weight begin. avail mem=94.40 GB
{ts} Load weight end. elapsed=41.22 s, type=Qwen3_5ForConditionalGeneration, quant=fp8, fmt=e4m3, \
avail mem=65.50 GB, mem usage=28.90 GB.
{ts} Using KV cache dtype: torch.bfloat16
{ts} Mamba Cache is allocated. max_mamba_cache_size: 185, conv_state size: 0.51GB, \
ssm_state size: 26.16GB\x20
{ts} KV Cache is allocated. #tokens: 483922, K size: 14.77 GB, V size: 14.77 GB
{ts} Memory pool end. avail mem=9.21 GB
{ts} Using hybrid linear attention backend for hybrid GDN models.
{ts} Capture cuda graph begin. This can take up to several minutes. avail mem=9.05 GB
{ts} Capture cuda graph bs [1, 2, 4]
{ts} Capture cuda graph end. Time elapsed: 12.31 s. mem usage=1.02 GB. avail mem=8.03 GB.
{ts} Disable piecewise CUDA graph because --disable-piecewise-cuda-graph is set
{ts} max_total_num_tokens=483922, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=37, context_len=262144, available_gpu_mem=7.95 GB
{ts} INFO:     Started server process [1958]
{ts} INFO:     Waiting for application startup.
{ts} INFO:     Application startup complete.
{ts} INFO:     Uvicorn running on http://0.0.0.0:30003 (Press CTRL+C to quit)
{ts} INFO:     127.0.0.1:48222 - "GET /model_info HTTP/1.1" 200 OK
{ts} The server is fired up and ready to roll!"""

STARTUP_23 = """\
{ts} server_args={{'model_path': '/models/q', 'port': 30003}}
{ts} Load weight begin. avail mem=94.40 GB
{ts} Load weight end. elapsed=41.22 s, type=Qwen3_5ForConditionalGeneration, \
avail mem=65.50 GB, mem usage=28.90 GB.
{ts} max_running_requests is capped to 36 by the mamba state cache (max_mamba_cache_size=183, \
5 state slots per request). To raise it: increase --mem-fraction-static
{ts} Mamba Cache is allocated. max_mamba_cache_size: 183, conv_state size: 0.51GB, \
ssm_state size: 26.00GB\x20
{ts} Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 478000, KV size: 29.20 GB
{ts} Memory pool end. avail mem=9.21 GB
{ts} Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, avail mem=9.05 GB
{ts} Capture target decode CUDA graph end. bs=[1, 2], elapsed=12.31 s, mem usage=1.02 GB, \
avail mem=8.03 GB.
{ts} Capture target prefill CUDA graph begin. backend=breakable, num_tokens=[4], avail mem=8.0 GB
{ts} max_total_num_tokens=478000, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=36, context_len=262144, available_gpu_mem=7.95 GB
{ts} Engine startup timings (s): load_weight=41.2, cuda_graph={{decode=12.31}}, tokenizer_e2e=1.0
{ts} INFO:     Started server process [1958]
{ts} INFO:     Application startup complete.
{ts} INFO:     Uvicorn running on http://0.0.0.0:30003 (Press CTRL+C to quit)
{ts} INFO:     127.0.0.1:48222 - "POST /freeze_gc HTTP/1.1" 200 OK
{ts} The server is fired up and ready to roll!"""


@pytest.mark.parametrize(
    ("text", "slots", "mamba", "tokens"),
    [(STARTUP_12, 37, 185, 483922), (STARTUP_23, 36, 183, 478000)],
    ids=["0.5.12", "0.5.23"],
)
def test_startup_in_both_dialects(text: str, slots: int, mamba: int, tokens: int) -> None:
    reader = LogReader()
    seen: list[Phase] = []
    for n, line in enumerate(text.split("\n")):
        reader.line(line.format(ts=f"[2026-05-20 10:00:{n:02}]"), 0.0)
        if not seen or seen[-1] != reader.phase:
            seen.append(reader.phase)
    assert seen == list(PHASES)
    assert reader.fired_up
    facts = reader.facts
    assert (facts.max_running, facts.max_mamba, facts.kv_tokens) == (slots, mamba, tokens)
    assert (facts.avail_before, facts.avail_after, facts.weights) == (94.40, 65.50, 28.90)
    assert facts.model_type == "Qwen3_5ForConditionalGeneration"
    assert facts.kv_cache == pytest.approx(29.54 if slots == 37 else 29.20)
    assert facts.context_length == 262144
    assert sum(reader.phase_seconds.values()) == len(text.split("\n")) - 1
    assert reader.cause is None


START_LINES: dict[str, tuple[Phase, dict[str, float]]] = {
    "Init torch distributed ends. elapsed=1.02 s, mem usage=0.09 GB": ("importing", {}),
    # With speculative decoding, and with post-capture sizing.
    (
        "Mamba Cache is allocated. max_mamba_cache_size: 60, conv_state size: 0.17GB, "
        "ssm_state size: 8.48GB intermediate_ssm_state_cache size: 4.10GB "
        "intermediate_conv_window_cache size: 0.02GB "
    ): ("allocating caches", {"max_mamba": 60, "conv_state": 0.17, "ssm_state": 8.48}),
    "SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 9000, KV size: 1.50 GB": (
        "allocating caches",
        {"kv_tokens": 9000, "kv_cache": 1.5},
    ),
    (
        "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 478000, K size: 14.60 GB, "
        "V size: 14.60 GB"
    ): ("allocating caches", {"kv_tokens": 478000, "kv_cache": 29.2}),
    "Capture piecewise CUDA graph begin. avail mem=8.03 GB": ("capturing graphs", {}),
    "Capture piecewise CUDA graph end. Time elapsed: 3.10 s. mem usage=0.2 GB.": ("importing", {}),
    (
        "Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4, "
        "avail mem=9.05 GB"
    ): ("capturing graphs", {}),
    "Disable prefill CUDA graph because the model has vision": ("importing", {}),
    "Capturing batches (bs=256 avail_mem=30.12 GB):   0%|          | 0/36": (
        "capturing graphs",
        {},
    ),
    "INFO:     Waiting for application startup.": ("starting HTTP", {}),
}
"""Lines of a start that the two stories above do not have, each read by itself."""


@pytest.mark.parametrize("line", START_LINES, ids=lambda line: " ".join(line.split()[:4]))
def test_other_lines_of_a_start(line: str) -> None:
    phase, facts = START_LINES[line]
    reader = read(f"{TS} {line}")
    assert reader.phase == phase
    assert reader.cause is None
    found = {name: value for name, value in vars(reader.facts).items() if value is not None}
    assert found == pytest.approx(facts)


@needs_real
def test_the_real_start() -> None:
    reader = LogReader()
    reader.feed((REAL / "startup-0.5.12-cpu.log").read_bytes(), time.time())
    assert reader.phase == "up"
    assert reader.fired_up
    assert reader.facts.max_running == 64
    assert reader.facts.kv_tokens == 65536
    assert reader.phase_seconds["importing"] == 5.0
    assert reader.cause is None


def test_every_prefix_of_a_start_is_no_failure() -> None:
    data = STARTUP_12.format(ts=TS).encode()
    for size in range(0, len(data), 7):
        reader = LogReader()
        reader.feed(data[:size], 0.0)
        assert reader.cause is None
        assert not reader.fired_up


def test_progress_bar_over_carriage_returns() -> None:
    reader = LogReader()
    reader.feed(f"{TS} Load weight begin. avail mem=94.40 GB\n".encode(), 0.0)
    bar = "\rMulti-thread loading shards:  {0}% Completed | 1/11 [00:04<00:41]"
    for percent in (0, 27, 64):
        reader.feed(bar.format(percent).encode(), 0.0)
    reader.feed(b"\r", 0.0)
    assert reader.phase == "loading weights"
    assert reader.percent == 64
    reader.feed(b"Capturing batches (bs=256 avail_mem=30.12 GB):  12%|# | 1/36\r", 0.0)
    assert (reader.phase, reader.percent) == ("capturing graphs", 12)


def test_phases_only_go_forward() -> None:
    reader = read(
        f"{TS} INFO:     Uvicorn running on http://0.0.0.0:30003",
        f"{TS} Load weight begin. avail mem=94.40 GB",
    )
    assert reader.phase == "warming up"
