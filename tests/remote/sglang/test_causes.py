"""Why a server died, as its log tells it: each end that operators have met."""

from __future__ import annotations

import time

import pytest

from remote.sglang.causes import Cause, flags_mend
from remote.sglang.loglines import LogReader
from tests.remote.sglang.lines import REAL, TS, needs_real, read

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


def test_which_causes_other_flags_mend() -> None:
    """Another start as it is would end the same way, or does so again and again."""
    for name, (phase, lines, code, *_) in ENDS.items():
        reader = LogReader(phase=phase)  # type: ignore[arg-type]
        for line in lines:
            reader.line(line, 0.0)
        assert reader.cause is not None
        named = any(word in reader.cause.text for word in ("mem-fraction-static", "max-running"))
        assert flags_mend(reader.cause) or not named, name
        assert not (flags_mend(reader.cause) and code in ("xid", "gpu-lost", "port", "disk"))
    assert flags_mend(Cause("aside", "no room for the caches: raise mem-fraction-static; left"))
    assert not flags_mend(Cause("aside", "the driver reports Xid 79 for this card"))


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
