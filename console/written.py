"""Where in a TOML file something stands."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any


def has(data: object, path: Sequence[str]) -> bool:
    """Whether a table has something at this path of keys."""
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return False
        data = data[key]
    return True


def line_of(text: str, path: Sequence[str]) -> int | None:
    """The line, counted from 1, in which the value or table at ``path`` begins; None where the
    file does not have it, or writes its last key in another way.

    TOML's own parser finds it: that line is the first with the key by which the file has it.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if path and path[-1] in line and has(_parsed(lines, number), path):
            return number
    return None


def _parsed(lines: list[str], least: int) -> dict[str, Any]:
    """As many of the first lines as make a document, ``least`` or more: a value may go on."""
    for count in range(least, len(lines) + 1):
        try:
            return tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
    return {}
