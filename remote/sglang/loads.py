"""``/v1/loads`` and ``/server_info`` of SGLang 0.5.12 and 0.5.23 → typed values.

The two releases differ in shape (``dp_rank`` and ``aggregate`` absent or present, graph memory a
number or a mapping) but agree on what is read here (``entrypoints/http_server.py``,
``managers/scheduler.py``). Anything that is missing or of another type is None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Loads:
    """What a server does at this moment, summed over its data-parallel ranks."""

    running: int | None = None
    queued: int | None = None
    max_running: int | None = None
    """Effective: what it really admits at once."""
    kv_usage: float | None = None
    """Share of the KV pool in use, 0..1 (linear-attention state is not in it)."""
    kv_tokens: int | None = None
    gen_tok_s: float | None = None
    """0 at all times unless the server runs with ``enable-metrics``."""
    version: str | None = None


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself; changes only with its process."""

    version: str | None = None
    status: str | None = None
    max_running: int | None = None
    max_mamba: int | None = None
    kv_tokens: int | None = None


def _int(value: Any) -> int | None:
    if _float(value) is None:
        return None
    return int(value)


def _float(value: Any) -> float | None:
    """A number that one can count with: none that is no number, endless or beyond all floats."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _first(value: Any) -> dict[str, Any]:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return value[0]
    return {}


def _sum(ranks: list[dict[str, Any]], key: str) -> int | None:
    values = [n for rank in ranks if (n := _int(rank.get(key))) is not None]
    return sum(values) if values else None


def read_loads(answer: Any) -> Loads | None:
    """An answer of ``/v1/loads``; None where it is not one."""
    if not isinstance(answer, dict) or not isinstance(answer.get("loads"), list):
        return None
    ranks = [rank for rank in answer["loads"] if isinstance(rank, dict)]
    if not ranks:
        return None
    usages = [u for rank in ranks if (u := _float(rank.get("token_usage"))) is not None]
    rates = [r for rank in ranks if (r := _float(rank.get("gen_throughput"))) is not None]
    return Loads(
        running=_sum(ranks, "num_running_reqs"),
        queued=_sum(ranks, "num_waiting_reqs"),
        max_running=_sum(ranks, "max_running_requests"),
        kv_usage=sum(usages) / len(usages) if usages else None,
        kv_tokens=_sum(ranks, "max_total_num_tokens"),
        gen_tok_s=sum(rates) if rates else None,
        version=_text(answer.get("version")),
    )


def read_server_info(answer: Any) -> ServerFacts | None:
    """An answer of ``/server_info``; None where it is not one.

    The top-level ``max_running_requests`` is only what the command line said; what the scheduler
    made of it stands in ``internal_states``.
    """
    if not isinstance(answer, dict):
        return None
    inner = _first(answer.get("internal_states"))
    memory = inner.get("memory_usage")
    capacity = memory.get("token_capacity") if isinstance(memory, dict) else None
    kv_tokens = _int(answer.get("max_total_num_tokens"))
    return ServerFacts(
        version=_text(answer.get("version")),
        status=_text(answer.get("status")),
        max_running=_int(inner.get("effective_max_running_requests_per_dp")),
        max_mamba=_int(inner.get("max_mamba_cache_size")),
        kv_tokens=kv_tokens if kv_tokens is not None else _int(capacity),
    )
