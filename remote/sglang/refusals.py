"""Combinations of flags that are known to fail, told before anything is stopped for them."""

from __future__ import annotations

from remote.protocol import Flags
from remote.sglang.catalogue import whole
from remote.sglang.dialect import STRATEGY, resolved_strategy, strategy

_BLACKWELL_HYBRID = {
    False: ("triton", "trtllm_mha", "fa4", "flashinfer"),
    True: ("triton", "trtllm_mha", "flashinfer"),
}
"""Attention backends for hybrid linear-attention models on Blackwell, older dialect and newer."""

_ATTENTION = ("attention-backend", "prefill-attention-backend", "decode-attention-backend")

_COUNTS = (
    "context-length",
    "max-mamba-cache-size",
    "max-queued-requests",
    "max-running-requests",
    "max-total-tokens",
    "page-size",
)
"""With less than 1 of any nothing could be served."""

_CARDS = (
    "tp-size",
    "tensor-parallel-size",
    "pp-size",
    "pipeline-parallel-size",
    "dp-size",
    "data-parallel-size",
)
"""GPUs that one server would spread over; each server here is shown one (CUDA_VISIBLE_DEVICES)."""

_SILENT = ("warn", "warning", "error", "critical", "fatal")
"""Log levels at which SGLang tells neither of its start nor of its work."""

_USUAL = (0.5, 0.95)
"""A ``mem-fraction-static`` outside of this is mostly a slip."""


def is_blackwell(card: str) -> bool:
    """Whether a card's name (as ``nvidia-smi`` prints it) is of the Blackwell generation."""
    name = card.upper()
    marks = ("RTX PRO 6000", "RTX PRO 5000", "RTX PRO 4", "B200", "B300", "GB200", "GB300")
    return any(mark in name for mark in (*marks, "RTX 50"))


def refusals(
    flags: Flags, new: bool, *, card: str | None = None, hybrid: bool | None = None
) -> list[str]:
    """Why SGLang would not start with these flags, one line each; empty where nothing is known.

    ``card`` is the name that ``nvidia-smi`` prints, ``hybrid`` whether the model has linear
    attention; None where that is not known, and then nothing is refused on its account.
    """
    said: list[str] = []
    wanted, took = strategy(flags), resolved_strategy(flags, new)
    name = STRATEGY[1] if new else STRATEGY[0]
    overlap_off = bool(flags.get("disable-overlap-schedule"))
    page = flags.get("page-size")
    if hybrid is not False:
        if wanted == "no_buffer" and new and not overlap_off:
            said.append(
                f"{name} no_buffer dies at start in this SGLang unless "
                "disable-overlap-schedule is set too"
            )
        if new and took == "no_buffer" and page not in (None, False, 1):
            said.append(f"{name} no_buffer needs page-size 1: remove page-size {page}")
        if wanted.startswith("extra_buffer") and flags.get("disable-radix-cache") and not new:
            said.append(f"{name} {wanted} cannot go with disable-radix-cache: remove one of them")
        if wanted == "extra_buffer_lazy" and not new:
            said.append(f"{name} extra_buffer_lazy came after this SGLang: use extra_buffer")
    for flag in _ATTENTION:
        backend = flags.get(flag)
        if not isinstance(backend, str):
            continue
        if card is None or not is_blackwell(card):
            continue
        if backend == "fa3":
            said.append(f"{flag} fa3 does not run on {card}: use flashinfer or triton")
        elif hybrid:
            allowed = _BLACKWELL_HYBRID[new]
            if backend not in allowed:
                said.append(
                    f"{flag} {backend} does not serve models with linear attention on {card}: "
                    f"use {', '.join(allowed[:-1])} or {allowed[-1]}"
                )
    for flag, value in flags.items():
        if value is False:
            continue
        if flag in _COUNTS and (whole(value) or 0) < 1:
            said.append(f"{flag} is a whole number of at least 1, not {value}")
        if flag in _CARDS and whole(value) != 1:
            said.append(f"{flag} must be 1, not {value}: each server here has one GPU")
    level = flags.get("log-level")
    if isinstance(level, str) and level.lower() in _SILENT:
        said.append(
            f"log-level {level} hides the lines that tell when a server is up: leave it at info"
            " (log-level-http warning quiets the access lines)"
        )
    fraction = _fraction(flags)
    if fraction is not None and not 0 < fraction < 1:
        said.append(f"mem-fraction-static is a share between 0 and 1, not {fraction}")
    return said


def doubts(flags: Flags) -> list[str]:
    """What SGLang may well start with and is still worth a second look, one line each."""
    fraction = _fraction(flags)
    low, high = _USUAL
    if fraction is None or low <= fraction <= high:
        return []
    what = (
        "leaves much of the card unused, and perhaps no room for the caches beside the weights"
        if fraction < low
        else "leaves hardly any memory for graphs and activations: it may run out of it"
    )
    return [f"mem-fraction-static {fraction} {what}"]


def _fraction(flags: Flags) -> float | None:
    value = flags.get("mem-fraction-static")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
