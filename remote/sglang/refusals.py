"""Combinations of flags that are known to fail, told before anything is stopped for them."""

from __future__ import annotations

from remote.protocol import Flags
from remote.sglang.dialect import STRATEGY, resolved_strategy, strategy

_BLACKWELL_HYBRID = {
    False: ("triton", "trtllm_mha", "fa4", "flashinfer"),
    True: ("triton", "trtllm_mha", "flashinfer"),
}
"""Attention backends for hybrid linear-attention models on Blackwell, older dialect and newer."""

_ATTENTION = ("attention-backend", "prefill-attention-backend", "decode-attention-backend")


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
    fraction = flags.get("mem-fraction-static")
    is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if is_number and not 0 < float(str(fraction)) < 1:
        said.append(f"mem-fraction-static is a share between 0 and 1, not {fraction}")
    return said
