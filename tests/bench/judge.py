"""Numbers against what must hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

Bar: TypeAlias = tuple[str, str, float]
"""A number by its place (``client.stoker.cpu``), on which side of the bar it has to be, the bar."""


def judged(found: dict[str, Any], bars: Iterable[Bar]) -> list[str]:
    """A line for each bar; one whose number was not measured does not hold."""
    lines = []
    for place, side, bar in bars:
        value: Any = found
        for word in place.split("."):
            value = value.get(word) if isinstance(value, dict) else None
        if value is None:
            lines.append(f"not measured: {place} {side} {bar:g}")
        else:
            good = value < bar if side == "<" else value > bar
            lines.append(f"{'holds ' if good else 'MISSED'} {place} = {value} {side} {bar:g}")
    return lines
