"""Why a server died, by what its log says of it.

Texts are those of SGLang 0.5.12 and 0.5.23 and of what it stands on: argparse, PyTorch, CUDA and
its driver, the kernel compilers, uvicorn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from remote.sglang.startup import Phase


@dataclass(frozen=True)
class Cause:
    """Why a server failed: a stable code, and one line for people."""

    code: str
    text: str
    again: bool = True
    """Whether another start with the same flags may go better."""


_OF_FLAGS = frozenset(
    {"flags", "backend", "oom-pools", "oom-graphs", "oom-run", "memory", "graphs"}
)
"""Causes that come back with the same flags."""
_FLAG_NAMED = re.compile(r"\b(?:lower|raise|set|unset) [a-z]+(?:-[a-z]+)+\b")


def flags_mend(cause: Cause) -> bool:
    """Whether other flags are what helps; where an earlier agent judged it, its words tell."""
    return cause.code in _OF_FLAGS or (
        cause.code == "aside" and _FLAG_NAMED.search(cause.text) is not None
    )


@dataclass(frozen=True)
class _Sign:
    pattern: re.Pattern[str]
    code: str
    text: str
    """``{0}``, ``{1}`` … are the pattern's groups, ``{phase}`` the phase it happened in, ``{hint}``
    what the last group says where that is the exit code of a killed process."""
    rank: int = 5
    """The highest of all that were seen wins; among equals the earliest."""
    again: bool = True
    phases: tuple[Phase, ...] = ()
    """Only in these phases; empty: in any."""


def _sign(
    pattern: str,
    code: str,
    text: str,
    rank: int = 5,
    again: bool = True,
    phases: tuple[Phase, ...] = (),
) -> _Sign:
    return _Sign(re.compile(pattern), code, text, rank, again, phases)


_LOADING: tuple[Phase, ...] = ("importing", "loading weights")
_POOLS: tuple[Phase, ...] = ("allocating caches",)
_GRAPHS: tuple[Phase, ...] = ("capturing graphs",)
_OOM = r"(?:torch\.(?:cuda\.)?OutOfMemoryError: )?CUDA out of memory"

_SIGNS: tuple[_Sign, ...] = (
    # The command line and what it asks for
    _sign(
        r"^(?:[\w.]+(?: serve)?): error: (.+)",
        "flags",
        "SGLang refuses its command line: {0}",
        9,
        False,
    ),
    _sign(
        r"no_buffer do not support overlap schedule",
        "flags",
        "an explicit no_buffer needs disable-overlap-schedule in this SGLang",
        9,
        False,
    ),
    _sign(
        r"FlashAttention v3 Backend requires SM>=80 and SM<=90",
        "backend",
        "attention-backend fa3 does not run on this card: set flashinfer or triton",
        9,
        False,
    ),
    _sign(
        r"(?:only supported backends on Blackwell|backends are supported on Blackwell)(.*)",
        "backend",
        "this attention-backend does not serve hybrid models on Blackwell:"
        " set flashinfer, triton or trtllm_mha",
        9,
        False,
    ),
    _sign(
        r"[Uu]ser-specified context_length \((\d+)\) is greater than the derived",
        "flags",
        "context-length {0} is longer than the model's: lower it",
        9,
        False,
    ),
    _sign(
        r"No module named '?(sglang[\w.]*)'?",
        "python",
        "this Python has no {0}: set `python` to the interpreter that has SGLang",
        9,
        False,
    ),
    _sign(
        r"(?:is not a local folder and is not a valid model identifier"
        r"|does not appear to have a file named config\.json"
        r"|Repository Not Found|GatedRepoError|LocalEntryNotFoundError"
        r"|Cannot find any model weights)",
        "model",
        "the model cannot be read: check `model`, and HF_TOKEN where it is gated",
        8,
        False,
    ),
    # Memory, by phase: at load and at run the cures are opposite
    _sign(
        _OOM,
        "oom-load",
        "out of GPU memory while {phase}: something else holds memory of this card,"
        " or the weights do not fit",
        8,
        False,
        _LOADING,
    ),
    _sign(
        _OOM,
        "oom-pools",
        "out of GPU memory while {phase}: lower mem-fraction-static",
        8,
        False,
        _POOLS,
    ),
    _sign(
        _OOM,
        "oom-graphs",
        "out of GPU memory while {phase}: lower mem-fraction-static or the largest graph batch",
        8,
        False,
        _GRAPHS,
    ),
    _sign(
        _OOM,
        "oom-run",
        "out of GPU memory while generating: lower mem-fraction-static",
        8,
    ),
    _sign(
        r"Not enough memory\. Please try to increase --mem-fraction-static"
        r"|Loaded weights leave no GPU memory for the KV cache"
        r"|Not enough GPU memory for hybrid"
        r"|state cache is too small to serve any requests"
        r"|max_running_request is zero",
        "memory",
        "the weights leave no room for the caches: raise mem-fraction-static,"
        " or use a smaller model or cache dtype",
        9,
        False,
    ),
    _sign(
        r"Not enough space for mamba cache|alloc_req_slots runs out of memory"
        r"|(?:Prefill|Decode) out of memory",
        "oom-run",
        "a cache pool ran out while generating: lower max-running-requests",
        7,
    ),
    _sign(r"pool memory leak detected!", "leak", "SGLang found its own memory pool leaking", 7),
    _sign(
        r"Capture cuda graph failed: (.*)",
        "graphs",
        "capturing the CUDA graphs failed: {0}",
        7,
        False,
    ),
    # Compilers
    _sign(
        r"fatal error: (\S+): No such file or directory",
        "jit",
        "a kernel did not compile: header {0} is missing (install the CUDA toolkit's headers,"
        " or add their folder to CPATH in the env script)",
        9,
        False,
    ),
    _sign(
        r"No such file or directory: '(ninja|nvcc)'",
        "jit",
        "a kernel could not be compiled: {0} is not on PATH",
        9,
        False,
    ),
    _sign(
        r"Could not find CUDA installation",
        "jit",
        "a kernel could not be compiled: set CUDA_HOME in the env script",
        9,
        False,
    ),
    _sign(
        r"Ninja build failed|ninja exited with status",
        "jit",
        "a kernel did not compile: see the compiler's lines in the log",
        7,
        False,
    ),
    # Hardware and driver
    _sign(
        r"NVRM: Xid \([^)]*\): (\d+)|\bXid (\d+)\b",
        "xid",
        "the driver reports Xid {0}{1} for this card",
        10,
        False,
    ),
    _sign(
        r"GPU is lost|fallen off the bus|no CUDA-capable device is detected"
        r"|No CUDA GPUs are available|device not ready|invalid device ordinal",
        "gpu-lost",
        "the card does not answer any more: the host must look at it (reset or reboot)",
        10,
        False,
    ),
    _sign(
        r"uncorrectable ECC error",
        "gpu-lost",
        "the card reports an uncorrectable memory error",
        10,
        False,
    ),
    _sign(
        r"no kernel image is available for execution on the device",
        "arch",
        "a library was not built for this card: install the builds for its compute capability",
        9,
        False,
    ),
    _sign(
        r"CUDA driver version is insufficient",
        "driver",
        "the driver is too old for this CUDA runtime",
        9,
        False,
    ),
    _sign(
        r"illegal memory access was encountered",
        "cuda",
        "a kernel read memory that is not its own (illegal memory access)",
        8,
    ),
    _sign(r"CUDA error: (.+)", "cuda", "CUDA error: {0}", 6),
    _sign(r"NCCL (?:error|WARN)|ncclUnhandled\w*|ncclSystemError", "nccl", "NCCL failed", 7),
    # The supervisor's own findings
    _sign(
        r"Scheduler watchdog timeout",
        "watchdog",
        "the scheduler made no step within its watchdog time and was ended",
        8,
    ),
    _sign(
        r"\[Errno (?:98|48)\].*?(\d+)\)?: (?:\[errno \d+\] )?address already in use",
        "port",
        "port {0} is taken by another process",
        10,
        False,
    ),
    _sign(r"address already in use", "port", "its port is taken by another process", 9, False),
    _sign(
        r"No space left on device",
        "disk",
        "no space left on a disk of the container",
        9,
    ),
    _sign(r"Too many open files", "files", "too many open files: raise `ulimit -n`", 7),
    _sign(
        r"Initialization failed\. warmup error",
        "warm-up",
        "the warm-up request failed",
        4,
    ),
    _sign(
        r"Rank \d+ scheduler died during initialization \(exit code: (-?\d+)\)",
        "child",
        "the scheduler died while {phase} (exit code {0}{hint})",
        4,
    ),
    _sign(
        r"Subprocess (\w+) \(pid=\d+\) crashed with exit code (-?\d+)",
        "child",
        "its {0} process died (exit code {1}{hint})",
        4,
    ),
    _sign(
        r"(Scheduler|DetokenizerManager|TokenizerManager) hit an exception",
        "exception",
        "its {0} hit an exception",
        3,
    ),
)

_WORDS = (
    "rror",
    "emory",
    "died",
    "crashed",
    "exception",
    "Exception",
    "Xid",
    "NCCL",
    "nccl",
    "GPU",
    "CUDA",
    "device",
    "ninja",
    "Ninja",
    "No such file",
    "watchdog",
    "FlashAttention",
    "Blackwell",
    "overlap schedule",
    "in use",
    "No space",
    "open files",
    "mamba",
    "is zero",
    "leak",
    "model identifier",
    "config.json",
    "model weights",
    "Repository",
    "No module",
    "context_length",
    "alloc_req_slots",
    "Capture cuda graph failed",
    "Initialization failed",
)
"""Each sign has one of these in it: nearly every line of a log is passed over by them alone."""

_SIGNAL_HINT = {
    "-9": " by SIGKILL: the kernel's out-of-memory killer, or someone's hand",
    "-6": " by an abort() in native code",
    "-11": " by a segmentation fault",
    "-7": " by a bus error: /dev/shm may be full",
}


def find_cause(line: str, phase: Phase) -> tuple[int, Cause] | None:
    """What this line says of a failure, with the rank of that evidence; None for other lines."""
    if not any(word in line for word in _WORDS):
        return None
    for sign in _SIGNS:
        if sign.phases and phase not in sign.phases:
            continue
        if found := sign.pattern.search(line):
            groups = [group or "" for group in found.groups()]
            words = "generating" if phase == "up" else phase
            hint = _SIGNAL_HINT.get(groups[-1], "") if groups else ""
            text = sign.text.format(*groups, phase=words, hint=hint)
            return sign.rank, Cause(sign.code, text[:400], sign.again)
    return None
