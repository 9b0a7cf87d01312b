"""A start of SGLang by its log: the phases it goes through, and the numbers it prints on the way.

Lines are those of SGLang 0.5.12 and 0.5.23 (``model_executor/*``, ``entrypoints/engine.py``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Phase: TypeAlias = Literal[
    "importing",
    "loading weights",
    "allocating caches",
    "capturing graphs",
    "starting HTTP",
    "warming up",
    "up",
]

PHASES: tuple[Phase, ...] = (
    "importing",
    "loading weights",
    "allocating caches",
    "capturing graphs",
    "starting HTTP",
    "warming up",
    "up",
)
"""In the order in which a start goes through them."""

FIRED_UP = "The server is fired up and ready to roll!"

_PHASE_SIGNS: tuple[tuple[str, Phase], ...] = (
    ("server_args=", "importing"),
    ("Init torch distributed begin", "importing"),
    ("Load weight begin", "loading weights"),
    ("Loading safetensors checkpoint shards", "loading weights"),
    ("Multi-thread loading shards", "loading weights"),
    ("Load weight end", "allocating caches"),
    ("Using KV cache dtype", "allocating caches"),
    ("max_running_requests is capped to", "allocating caches"),
    ("Mamba Cache is allocated", "allocating caches"),
    ("KV Cache is allocated", "allocating caches"),
    ("KV Cache VA upper bound", "allocating caches"),
    ("Memory pool end", "capturing graphs"),
    ("Capture cuda graph begin", "capturing graphs"),
    ("Capture piecewise CUDA graph begin", "capturing graphs"),
    ("Capture target decode CUDA graph begin", "capturing graphs"),
    ("Capture target verify CUDA graph begin", "capturing graphs"),
    ("Capture target prefill CUDA graph begin", "capturing graphs"),
    ("Capturing batches", "capturing graphs"),
    ("max_total_num_tokens=", "starting HTTP"),
    ("Engine startup timings", "starting HTTP"),
    ("Started server process", "starting HTTP"),
    ("Waiting for application startup", "starting HTTP"),
    ("Application startup complete", "warming up"),
    ("Uvicorn running on", "warming up"),
    (FIRED_UP, "up"),
)

PERCENT = re.compile(
    r"(?:Multi-thread loading shards|Loading safetensors checkpoint shards|Capturing batches)"
    r"[^|]*?\s(\d{1,3})%"
)


def phase_of(line: str) -> Phase | None:
    """The phase that begins (or goes on) with this line; None where it says nothing of it."""
    return next((phase for sign, phase in _PHASE_SIGNS if sign in line), None)


_NUMBER = r"(-?\d+(?:\.\d+)?)"
_LOAD_BEGIN = re.compile(rf"Load weight begin\. avail mem={_NUMBER} GB")
_LOAD_END = re.compile(
    rf"Load weight end\..*?type=([\w.]+)(?:, quant=([\w.-]+))?"
    rf".*?avail mem={_NUMBER} GB, mem usage={_NUMBER} GB"
)
_MAMBA = re.compile(
    rf"Mamba Cache is allocated\. max_mamba_cache_size: (\d+), "
    rf"conv_state size: {_NUMBER} ?GB, ssm_state size: {_NUMBER} ?GB"
)
_KV = re.compile(
    rf"KV Cache (?:is allocated|VA upper bound)\b.*?#tokens: (\d+), "
    rf"(?:K size: {_NUMBER} GB, V size: {_NUMBER} GB|KV size: {_NUMBER} GB)"
)
_LIMITS = re.compile(r"max_total_num_tokens=(\d+),.*?max_running_requests=(\d+), context_len=(\d+)")


@dataclass
class StartFacts:
    """Numbers a start prints; sizes in GiB (the log's ``GB``), None until their line came."""

    avail_before: float | None = None
    avail_after: float | None = None
    weights: float | None = None
    model_type: str | None = None
    quantization: str | None = None
    max_mamba: int | None = None
    conv_state: float | None = None
    ssm_state: float | None = None
    kv_tokens: int | None = None
    kv_cache: float | None = None
    max_running: int | None = None
    context_length: int | None = None

    def read(self, line: str) -> None:
        """Take in what one more line says."""
        if found := _LOAD_BEGIN.search(line):
            self.avail_before = float(found[1])
        elif found := _LOAD_END.search(line):
            self.model_type, self.quantization = found[1], found[2]
            self.avail_after, self.weights = float(found[3]), float(found[4])
        elif found := _MAMBA.search(line):
            self.max_mamba = int(found[1])
            self.conv_state, self.ssm_state = float(found[2]), float(found[3])
        elif found := _KV.search(line):
            self.kv_tokens = int(found[1])
            self.kv_cache = sum(float(size) for size in found.groups()[1:] if size is not None)
        elif found := _LIMITS.search(line):
            self.kv_tokens = int(found[1])
            self.max_running, self.context_length = int(found[2]), int(found[3])
