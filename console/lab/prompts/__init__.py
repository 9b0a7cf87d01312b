"""Prompts of our own writing: general, maths, code and tools, and as many as wanted from them.

The data files are prompts as a run takes them (``messages``, optional ``tools``, ``id``,
``source``), but that a number in braces, ``{45}``, may vary.
"""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

SETS = ("general", "maths", "code", "tools")
_NUMBER = re.compile(r"\{(\d+)\}")


def shipped() -> list[dict[str, Any]]:
    """The prompts as they are shipped, the four kinds in turn."""
    folder = resources.files(__name__)
    texts = [folder.joinpath(f"{name}.jsonl").read_text(encoding="utf-8") for name in SETS]
    kinds = [[json.loads(line) for line in text.splitlines()] for text in texts]
    turns = itertools.zip_longest(*kinds)
    return [prompt for turn in turns for prompt in turn if prompt is not None]


def expand(prompts: list[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """``count`` prompts from these, over and over with other numbers; no two are alike.

    The first number of a prompt grows by one a round, so that no round repeats an earlier one;
    the others are drawn near what they were, the same for the same round. The first round has
    the numbers as they stand.
    """
    for index in range(count):
        turn, which = divmod(index, len(prompts))
        prompt = prompts[which]
        name = str(prompt["id"])
        numbers = _Numbers(turn, name)
        messages = [
            {**message, "content": _NUMBER.sub(numbers, message["content"])}
            for message in prompt["messages"]
        ]
        yield {**prompt, "id": f"{name}-{turn:04d}", "messages": messages}


class _Numbers:
    """The numbers of one prompt in one round."""

    def __init__(self, turn: int, name: str) -> None:
        self._turn = turn
        self._name = name
        self._place = 0

    def __call__(self, match: re.Match[str]) -> str:
        base, place = int(match[1]), self._place
        self._place += 1
        if self._turn == 0 or place == 0:
            return str(base + self._turn)
        low, high = max(1, base - base // 3), base + base // 3 + 1
        drawn = zlib.crc32(f"{self._name} {self._turn} {place}".encode())
        return str(low + drawn % (high - low + 1))


def write(path: Path, prompts: Iterable[dict[str, Any]]) -> int:
    """Stream prompts into a JSONL file, whole or not at all; how many there were."""
    part = path.with_name(path.name + ".part")
    count = 0
    with part.open("wb") as out:
        for prompt in prompts:
            count += 1
            out.write(msgspec.json.encode(prompt) + b"\n")
    part.replace(path)
    return count
