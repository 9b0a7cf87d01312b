"""SGLang's ``/metrics`` (Prometheus text format 0.0.4) → the numbers Stoker needs.

Names as of ``observability/metrics_collector.py`` of SGLang 0.5.12 and 0.5.23. 0.5.23 splits some
series by ``is_streaming``; sums over labels are right for both.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TypeAlias

Labels: TypeAlias = dict[str, str]
Samples: TypeAlias = dict[str, list[tuple[Labels, float]]]

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parse(text: str) -> Samples:
    """Every sample of the text by metric name; lines that are none are passed over."""
    samples: Samples = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        found = _SAMPLE.match(line)
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        labels = {
            name: re.sub(r'\\[\\"n]', lambda m: _ESCAPES[m[0]], raw)
            for name, raw in _LABEL.findall(found[2] or "")
        }
        samples.setdefault(found[1], []).append((labels, value))
    return samples


def total(samples: Samples, name: str, **labels: str) -> float | None:
    """Sum of a metric over all label sets that contain ``labels``; None where there is none."""
    values = [
        value
        for having, value in samples.get(name, [])
        if math.isfinite(value) and all(having.get(k) == v for k, v in labels.items())
    ]
    return sum(values) if values else None


@dataclass(frozen=True)
class Metrics:
    """Counters since the server's start, and gauges as of its last batch line."""

    decode_tokens: float | None = None
    """Tokens decoded (``realtime_tokens_total{mode="decode"}``, counted at every step)."""
    work_tokens: float | None = None
    """Tokens decoded and prompt tokens computed: grows while the server works at all."""
    running: int | None = None
    queued: int | None = None
    kv_usage: float | None = None
    mamba_usage: float | None = None
    """None where the model keeps no linear-attention state."""
    retractions: int | None = None
    open_requests: int | None = None
    """Generation requests that HTTP clients wait for, whatever the scheduler knows of them."""


_GENERATION = ("/generate", "/v1/chat/completions", "/v1/completions")


def _open(samples: Samples) -> int | None:
    name = "sglang:http_requests_active"
    counts = [total(samples, name, endpoint=path) for path in _GENERATION]
    known = [count for count in counts if count is not None]
    return int(sum(known)) if known else None


def read(text: str) -> Metrics:
    """The numbers of one answer of ``/metrics``."""
    samples = parse(text)

    def one(name: str, **labels: str) -> float | None:
        return total(samples, f"sglang:{name}", **labels)

    def count(name: str) -> int | None:
        value = one(name)
        return None if value is None else int(value)

    decode = one("realtime_tokens_total", mode="decode")
    prefill = one("realtime_tokens_total", mode="prefill_compute")
    work = None if decode is None and prefill is None else (decode or 0.0) + (prefill or 0.0)
    slots = (one("mamba_used_tokens") or 0) + (one("mamba_available_tokens") or 0)
    full = one("full_token_usage")
    return Metrics(
        decode_tokens=decode,
        work_tokens=work,
        running=count("num_running_reqs"),
        queued=count("num_queue_reqs"),
        kv_usage=full if full is not None else one("token_usage"),
        mamba_usage=one("mamba_usage") if slots else None,
        retractions=count("num_retracted_requests_total"),
        open_requests=_open(samples),
    )
