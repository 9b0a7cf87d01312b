"""Rows of many schemas, as many as wanted, the same for the same number."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NOUNS = (
    "harbour lantern bridge garden river market engine letter violin orchard window compass"
    " ladder kettle mirror tunnel castle meadow anchor basket candle desert fountain glacier"
).split()
_VERBS = "explain describe compare design repair paint measure sketch build plan test map".split()
_PLACES = "Saltmere Quillport Brindle Orrin Tessaly Vantry Holm Carrow Eastwick Maren".split()
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_tide_table",
        "description": "High and low water of a harbour.",
        "parameters": {"type": "object", "properties": {"harbour": {"type": "string"}}},
    },
}


def _sentence(rng: random.Random, words: int = 14) -> str:
    parts = [rng.choice(_VERBS), "the", rng.choice(_NOUNS), "of", rng.choice(_PLACES)]
    while len(parts) < words:
        parts += [rng.choice(("near", "with", "before", "under")), "the", rng.choice(_NOUNS)]
    return " ".join(parts).capitalize() + "."


def row(number: int) -> dict[str, Any]:
    """Row ``number`` of the endless set: six schemas in turn, a few repeats and bad ones."""
    rng = random.Random(number if number % 50 else number // 100)  # each 50th repeats another
    text = " ".join(_sentence(rng, rng.randint(8, 20)) for _ in range(rng.randint(1, 4)))
    answer = _sentence(rng, 30)
    kind = number % 6
    if kind == 0:
        return {
            "conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": answer}]
        }
    if kind == 1:
        total = rng.randint(3, 99)
        text = (
            f"A crate holds {total} lamps and {rng.randint(2, 40)} break. How many are left? {text}"
        )
        return {"type": "GSM_AnsAug", "query": text, "original_question": text, "response": "1"}
    if kind == 2:
        text = f"Write a Python function that can {text[:60].lower()}"
        return {"query": text, "answer": "pass", "resource": "evol_instruct", "lang": "python"}
    if kind == 3:
        system = "You are a harbour master's assistant."
        return {
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": text},
                {"role": "assistant", "content": answer},
                {"role": "user", "content": _sentence(rng)},
                {"role": "assistant", "content": answer},
            ]
        }
    if kind == 4:
        return {"query": text, "answers": "[]", "tools": json.dumps([_TOOL["function"]])}
    # Each sixth of these has nothing to ask.
    return {"messages": [{"role": "user", "content": text if rng.random() > 0.15 else " "}]}


def write(path: Path, count: int, start: int = 0) -> Path:
    """So many rows as JSON lines."""
    with path.open("w", encoding="utf-8") as out:
        for line in lines(count, start):
            out.write(line)
    return path


def lines(count: int, start: int = 0) -> Iterator[str]:
    """So many rows, a line each."""
    for number in range(start, start + count):
        yield json.dumps(row(number)) + "\n"
