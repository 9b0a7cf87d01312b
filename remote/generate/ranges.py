"""Sampling values that no server takes, seen before the first prompt is read.

Only what SGLang (``sampling/sampling_params.py``, 0.5.12) and vLLM (``sampling_params.py``, 0.32)
both refuse is refused here; where one of them is wider, the wider range counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Range:
    low: float
    high: float = math.inf
    whole: bool = False
    above: bool = False
    """``low`` itself is out of it."""

    def holds(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return math.isfinite(value) and self.low <= value <= self.high and self._over(value)

    def _over(self, value: float) -> bool:
        return value > self.low or not self.above

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.high == math.inf:
            return f"{kind}, {self.low:g} or more"
        low = f"above {self.low:g}" if self.above else f"from {self.low:g}"
        return f"{kind} {low} to {self.high:g}"


_RANGES: Mapping[str, _Range] = {
    "temperature": _Range(0),
    "top_p": _Range(0, 1, above=True),
    "top_k": _Range(-1, whole=True),
    "min_p": _Range(0, 1),
    "frequency_penalty": _Range(-2, 2),
    "presence_penalty": _Range(-2, 2),
    "repetition_penalty": _Range(0),
    "max_tokens": _Range(1, whole=True),
    "max_completion_tokens": _Range(1, whole=True),
    "min_tokens": _Range(0, whole=True),
}


def out_of_range(fields: Mapping[str, Any]) -> str:
    """Which field of a request no server would take, and what it may be; empty where none is."""
    for name, allowed in _RANGES.items():
        value = fields.get(name)
        if value is not None and not allowed.holds(value):
            return f"{name} = {value!r}: {allowed}"
    return ""
