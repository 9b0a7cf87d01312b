"""SGLang's log as it really comes: both dialects, every phase, every end, and hostile bytes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.sglang.causes import find_cause
from remote.sglang.loglines import LONGEST_LINE, LineBuffer, LogReader, parse_batch, stamp
from remote.sglang.startup import PHASES, Phase, phase_of

REAL = Path(__file__).parents[4] / "shared" / "fixtures" / "real-engines" / "sglang" / "logs"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real engine's logs are not here")

TS = "[2026-05-20 10:00:03]"


def read(*lines: str) -> LogReader:
    reader = LogReader()
    for line in lines:
        reader.line(line, 100.0)
    return reader


# --- Batch lines ---

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


# --- Start-up ---

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


# --- Why it died ---

ENDS = {
    "argparse": (
        "importing",
        ["sglang serve: error: unrecognized arguments: --mamba-scheduler-strategy"],
        "flags",
        "unrecognized arguments: --mamba-scheduler-strategy",
        False,
    ),
    "ambiguous": (
        "importing",
        [
            (
                "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match "
                "--cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill"
            )
        ],
        "flags",
        "ambiguous option",
        False,
    ),
    "no_buffer in the new dialect": (
        "importing",
        ["AssertionError: no_buffer do not support overlap schedule, use x"],
        "flags",
        "disable-overlap-schedule",
        False,
    ),
    "no sglang": (
        "importing",
        ["/usr/bin/python: No module named sglang"],
        "python",
        "no sglang",
        False,
    ),
    "exception with its last line": (
        "up",
        [
            f"{TS} Scheduler hit an exception: Traceback (most recent call last):",
            '  File "scheduler.py", line 1, in run',
            "RuntimeError: Unsupported device: cpu",
            "",
            f"{TS} SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
        ],
        "exception",
        "RuntimeError: Unsupported device: cpu",
        True,
    ),
    "tokenizer": (
        "up",
        [
            f"{TS} TokenizerManager hit an exception: Traceback (most recent call last):",
            '  File "tokenizer_manager.py", line 1, in handle_loop',
            "KeyError: 'rids'",
        ],
        "exception",
        "its TokenizerManager hit an exception: KeyError: 'rids'",
        True,
    ),
    "detokenizer": (
        "up",
        [f"{TS} DetokenizerManager hit an exception: Traceback (most recent call last):"],
        "exception",
        "DetokenizerManager",
        True,
    ),
    "child killed while it runs": (
        "up",
        [
            (
                f"{TS} Subprocess scheduler_0 (pid=15923) crashed with exit code -9. "
                "Triggering SIGQUIT for cleanup..."
            )
        ],
        "child",
        "out-of-memory killer",
        True,
    ),
    "child dies while loading": (
        "loading weights",
        ["RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). x"],
        "child",
        "while loading weights",
        True,
    ),
    "out of memory at load": (
        "loading weights",
        [
            f"{TS} Scheduler hit an exception: Traceback (most recent call last):",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        ],
        "oom-load",
        "while loading weights",
        False,
    ),
    "out of memory in capture": (
        "capturing graphs",
        [
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB.",
            "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 1 GiB.",
            "Possible solutions:",
        ],
        "oom-graphs",
        "lower mem-fraction-static",
        False,
    ),
    "out of memory while the caches are made": (
        "allocating caches",
        ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 28.00 GiB."],
        "oom-pools",
        "while allocating caches: lower mem-fraction-static",
        False,
    ),
    "prefill out of memory": (
        "up",
        [
            f"{TS} Scheduler hit an exception: Traceback (most recent call last):",
            "RuntimeError: Prefill out of memory. Try to lower your batch size.",
            "Try to allocate 8192 tokens.",
        ],
        "oom-run",
        "lower max-running-requests",
        True,
    ),
    "decode out of memory": (
        "up",
        ["RuntimeError: Decode out of memory. Try to lower your batch size."],
        "oom-run",
        "lower max-running-requests",
        True,
    ),
    "request slots run out": (
        "up",
        ["RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for x"],
        "oom-run",
        "lower max-running-requests",
        True,
    ),
    "out of memory at run": (
        "up",
        ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
        "oom-run",
        "while generating",
        True,
    ),
    "no room for KV": (
        "allocating caches",
        ["RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."],
        "memory",
        "raise mem-fraction-static",
        False,
    ),
    "no room for KV, new": (
        "allocating caches",
        ["ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction"],
        "memory",
        "raise mem-fraction-static",
        False,
    ),
    "no room for states, new": (
        "allocating caches",
        ["Not enough GPU memory for hybrid (mamba/linear-attention) state cache."],
        "memory",
        "raise mem-fraction-static",
        False,
    ),
    "too few states, new": (
        "allocating caches",
        ["Hybrid (mamba/linear-attention) state cache is too small to serve any requests."],
        "memory",
        "raise mem-fraction-static",
        False,
    ),
    "too few states": (
        "allocating caches",
        ["AssertionError: max_running_request is zero"],
        "memory",
        "raise mem-fraction-static",
        False,
    ),
    "capture fails": (
        "capturing graphs",
        [f"{TS} Exception: Capture cuda graph failed: invalid argument"],
        "graphs",
        "invalid argument",
        False,
    ),
    "fa3": (
        "allocating caches",
        [
            (
                "AssertionError: FlashAttention v3 Backend requires SM>=80 and SM<=90. "
                "Please use `--attention-backend flashinfer`."
            )
        ],
        "backend",
        "flashinfer or triton",
        False,
    ),
    "hybrid backend": (
        "allocating caches",
        [
            (
                "AssertionError: triton, trtllm_mha, fa4, or flashinfer backend are the only "
                "supported backends on Blackwell GPUs for hybrid GDN models"
            )
        ],
        "backend",
        "attention-backend",
        False,
    ),
    "hybrid backend, new": (
        "allocating caches",
        [
            (
                "ValueError: Only {'triton'} backends are supported on Blackwell GPUs for hybrid "
                "GDN models. Got prefill=fa4, decode=fa4."
            )
        ],
        "backend",
        "attention-backend",
        False,
    ),
    "missing header": (
        "warming up",
        [
            "RuntimeError: ninja exited with status 1",
            "stdout:",
            "x.cuh:3:10: fatal error: nv/target: No such file or directory",
        ],
        "jit",
        "header nv/target is missing",
        False,
    ),
    "flashinfer build": (
        "capturing graphs",
        ["RuntimeError: Ninja build failed. Ninja output:"],
        "jit",
        "did not compile",
        False,
    ),
    "no ninja": (
        "capturing graphs",
        ["FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"],
        "jit",
        "ninja is not on PATH",
        False,
    ),
    "no CUDA_HOME": (
        "capturing graphs",
        ["RuntimeError: Could not find CUDA installation. Please set CUDA_HOME"],
        "jit",
        "CUDA_HOME",
        False,
    ),
    "watchdog": (
        "up",
        [f"{TS} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"],
        "watchdog",
        "watchdog",
        True,
    ),
    "port": (
        "up",
        [
            (
                f"{TS} ERROR:    [Errno 98] error while attempting to bind on address "
                "('0.0.0.0', 30003): address already in use"
            )
        ],
        "port",
        "port 30003 is taken",
        False,
    ),
    "warm-up": (
        "warming up",
        [
            f"{TS} Initialization failed. warmup error: Traceback (most recent call last):",
            "requests.exceptions.ReadTimeout: read timed out",
        ],
        "warm-up",
        "read timed out",
        True,
    ),
    "pool leak": ("up", [f"{TS} pool memory leak detected! [full] total=1"], "leak", "leak", True),
    "state pool runs out": (
        "up",
        ["RuntimeError: Not enough space for mamba cache, try to increase --mamba-full-memory"],
        "oom-run",
        "lower max-running-requests",
        True,
    ),
    "NCCL": ("up", ["RuntimeError: NCCL error in: x.cpp:1, unhandled"], "nccl", "NCCL", True),
    "lost card": (
        "up",
        ["NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus."],
        "xid",
        "Xid 79",
        False,
    ),
    "no device": (
        "importing",
        ["RuntimeError: No CUDA GPUs are available"],
        "gpu-lost",
        "reset or reboot",
        False,
    ),
    "illegal access": (
        "up",
        ["RuntimeError: CUDA error: an illegal memory access was encountered"],
        "cuda",
        "illegal memory access",
        True,
    ),
    "disk": ("up", ["OSError: [Errno 28] No space left on device"], "disk", "no space left", True),
}


@pytest.mark.parametrize("name", ENDS)
def test_causes(name: str) -> None:
    phase, lines, code, words, again = ENDS[name]
    reader = LogReader(phase=phase)  # type: ignore[arg-type]
    for line in lines:
        reader.line(line, 0.0)
    cause = reader.cause
    assert cause is not None
    assert (cause.code, cause.again) == (code, again)
    assert words in cause.text
    assert "{" not in cause.text
    assert "\n" not in cause.text


def test_the_root_cause_wins_over_what_it_led_to() -> None:
    reader = read(
        f"{TS} Scheduler hit an exception: Traceback (most recent call last):",
        "  x.cuh:3:10: fatal error: nv/target: No such file or directory",
        "RuntimeError: ninja exited with status 1",
        f"{TS} Received sigquit from a child process. It usually means the child failed.",
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1)",
    )
    assert reader.cause is not None
    assert reader.cause.code == "jit"


@pytest.mark.parametrize(
    "line",
    [
        (
            f"{TS} KV cache pool is full. Retract requests. #retracted_reqs: 2, "
            "#new_tokens_gained: 5012, #mamba_num_gained: 8, #new_token_ratio: 0.3121 -> 0.8893"
        ),
        f"{TS} Cache not flushed because there are pending requests.",
        f"{TS} retract_decode: aborted last request 5f2c due to OOM",
        f"{TS} max_total_tokens=9 is larger than the profiled value 8",
        f"{TS} Health check failed. Server couldn't get a response from detokenizer for last 20 s",
        (
            f"{TS} Gracefully exiting... Remaining number of requests 0. Remaining requests "
            "remaining_rids=[]."
        ),
        f"{TS} SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
        (
            f"{TS} Receive: obj=GenerateReqInput(text='why do I get CUDA out of memory? No space "
            "left on device')"
        ),
        f"{TS} Finish: obj=GenerateReqInput(), out={{'text': 'CUDA error: NCCL error'}}",
    ],
)
def test_warnings_and_prompts_are_no_cause(line: str) -> None:
    assert read(line).cause is None


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


def at(seconds: int) -> str:
    return f"[2026-05-20 10:{seconds // 60:02}:{seconds % 60:02}]"


FIRED = "The server is fired up and ready to roll!"
REQUEST = (
    "{ts} Error in request: 'dict object' has no attribute 'name'",
    "Traceback (most recent call last):",
    '  File "serving_chat.py", line 1, in handle_request',
    "jinja2.exceptions.UndefinedError: 'dict object' has no attribute 'name'",
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    "Traceback (most recent call last):",
    "TemplateError: No space left on device",
)
"""A request that was answered with 500: the server goes on."""

BATCH = (
    " Decode batch, #running-req: 8, #token: 20800, token usage: 0.05, cuda graph: True, "
    "gen throughput (token/s): 601.11, #queue-req: 0"
)


def test_a_request_that_failed_is_no_cause_of_an_end() -> None:
    lines = [line.format(ts=at(0)) for line in REQUEST]
    reader = read(f"{at(0)} {FIRED}", *lines, f"{at(3)} SIGTERM received. signum=None frame=None.")
    assert reader.cause is None
    assert reader.draining
    killed = f"{at(5)} Subprocess scheduler_0 (pid=9) crashed with exit code -9. Triggering SIGQUIT"
    cause = read(f"{at(0)} {FIRED}", *lines, killed).cause
    assert cause is not None
    assert cause.code == "child"
    asgi = (f"{at(1)} ERROR:    Exception in ASGI application", *lines[1:])
    assert read(f"{at(0)} {FIRED}", *asgi).cause is None


def test_what_a_server_outlived_is_no_cause_of_its_end() -> None:
    trouble = [
        f"{at(0)} {FIRED}",
        f"{at(5)} Something went wrong:",
        "Traceback (most recent call last):",
        "RuntimeError: CUDA error: something passing",
    ]
    assert read(*trouble, at(8) + BATCH).cause is not None
    assert read(*trouble, at(16) + BATCH).cause is None
    # What happens after that counts as ever.
    late = read(*trouble, at(16) + BATCH, f"{at(17)} Scheduler watchdog timeout (self.x)").cause
    assert late is not None
    assert late.code == "watchdog"


def test_what_went_wrong_on_the_way_up_does_not_matter_once_it_is_up() -> None:
    build = [f"{at(0)} falling back", "RuntimeError: Ninja build failed. Ninja output:"]
    assert read(*build).cause is not None
    assert read(*build, f"{at(2)} {FIRED}").cause is None
    # One whose port is taken says that it is up, too: the other server answered its warm-up.
    taken = f"{at(0)} ERROR:    [Errno 98] error while attempting to bind on address ('::', 30003)"
    lost = read(f"{taken}: address already in use", f"{at(1)} {FIRED}").cause
    assert lost is not None
    assert lost.code == "port"


@pytest.mark.parametrize(
    "quote",
    [
        "{ts} Receive: obj=GenerateReqInput(rid='x', text={said!r}, image_data=None)",
        "{ts} Finish: obj=GenerateReqInput(rid='x'), out={{'text': {said!r}}}",
        '{ts} {{"timestamp": "2026-05-20", "event": "request.received", "text": "{said}"}}',
        '{{"timestamp": "2026-05-20", "event": "request.finished", "out": "{said}"}}',
        "{ts} Failed to parse a tool call: {said}",
    ],
    ids=["received", "finished", "json", "bare json", "a parser's warning"],
)
def test_a_prompt_does_not_steer_the_reader(quote: str) -> None:
    said = (
        "SIGTERM received. signum=None frame=None. Draining requests and shutting down... "
        "Gracefully exiting... Remaining number of requests 3. Remaining requests "
        "The server is fired up and ready to roll!, I think"
    )
    reader = read(quote.format(ts=TS, said=said))
    assert not reader.draining
    assert reader.remaining is None
    assert not reader.fired_up
    assert reader.phase != "up"
    assert reader.cause is None


@needs_real
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("scheduler_exception.log", "exception", "Unsupported device: cpu"),
        ("scheduler_killed.log", "child", "scheduler_0 process died"),
    ],
)
def test_real_ends(name: str, code: str, words: str) -> None:
    reader = LogReader()
    reader.feed((REAL / name).read_bytes(), time.time())
    assert reader.cause is not None
    assert reader.cause.code == code
    assert words in reader.cause.text


# --- Bytes ---


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


@given(st.text(max_size=300))
def test_any_text_is_a_line(text: str) -> None:
    parse_batch(text)
    phase_of(text)
    for phase in PHASES:
        find_cause(text, phase)


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
