"""Prompts of our own writing: general, maths, code and tools, and as many as wanted from them.

The data files are prompts as a run takes them (``messages``, optional ``tools``, ``id``,
``source``), but that a number in braces, ``{45}``, may vary.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

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
        self._random = random.Random(f"{name} {turn}")
        self._first = True

    def __call__(self, match: re.Match[str]) -> str:
        base = int(match[1])
        if self._turn == 0:
            return str(base)
        if self._first:
            self._first = False
            return str(base + self._turn)
        return str(self._random.randint(max(1, base - base // 3), base + base // 3 + 1))


def write(path: Path, prompts: Iterable[dict[str, Any]]) -> int:
    """Stream prompts into a JSONL file, whole or not at all; how many there were."""
    part = path.with_name(path.name + ".part")
    count = 0
    with part.open("w", encoding="utf-8") as out:
        for prompt in prompts:
            count += 1
            out.write(json.dumps(prompt, ensure_ascii=False, separators=(",", ":")) + "\n")
    part.replace(path)
    return count
