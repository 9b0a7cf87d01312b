"""Counted prompt tokens against what the server says of the first replies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct

from remote.prepare.errors import PrepareError

ENOUGH = 200
"""Replies that are compared; more tell nothing new."""


class _Row(Struct):
    index: int
    prompt_tokens: int
    exact: bool = False


class _Usage(Struct):
    prompt_tokens: int | None = None


class _Record(Struct):
    index: int
    usage: _Usage | None = None


@dataclass(frozen=True)
class Check:
    """Differences, server's count minus ours, in tokens."""

    compared: int
    exact: bool
    least: int
    middle: float
    most: int

    @property
    def good(self) -> bool:
        """Exact counts agree; bounds are never exceeded."""
        return self.least == self.most == 0 if self.exact else self.most <= 0

    def line(self) -> str:
        """What it means, in one line."""
        head = f"{self.compared} replies compared: "
        if self.good:
            if self.exact:
                return head + "every prompt has exactly the tokens that were counted"
            return head + f"the bound holds, by {-self.most} to {-self.least} tokens"
        if self.exact and self.least == self.most:
            return head + (
                f"the server counts {self.least:+d} tokens on every prompt: its chat template"
                " differs from the folder's (thinking, tools or a system text of its own)"
            )
        if self.exact:
            return head + (
                f"the server's counts differ by {self.least:+d} to {self.most:+d} tokens:"
                " this is not its tokenizer"
            )
        return head + (
            f"some prompts have up to {self.most} tokens more than the bound; give"
            " budget.tokenizer and prepare again"
        )


def compare(rows: Path, run: Path) -> Check:
    """Compare a rows file with the completion records of a run directory.

    Raises:
        PrepareError: there is nothing to compare.
    """
    found: dict[int, int] = {}
    decoder = msgspec.json.Decoder(_Record)
    for path in sorted([*run.glob("completions_*.jsonl"), *run.glob("completions_*.jsonl.open")]):
        for line in path.read_bytes().split(b"\n"):
            try:
                record = decoder.decode(line) if line else None
            except msgspec.DecodeError:
                continue  # a torn last line
            if record is not None and record.usage and record.usage.prompt_tokens is not None:
                found.setdefault(record.index, record.usage.prompt_tokens)
        if len(found) >= ENOUGH:
            break
    if not found:
        raise PrepareError(f"{run}: no completion with usage there yet")
    differences: list[int] = []
    exact = True
    try:
        with rows.open("rb") as file:
            for line in file:
                row = msgspec.json.decode(line, type=_Row)
                if row.index in found:
                    differences.append(found[row.index] - row.prompt_tokens)
                    exact = exact and row.exact
    except FileNotFoundError:
        raise PrepareError(f"{rows}: no such file; prepare writes it beside the prompts") from None
    except msgspec.DecodeError as error:
        raise PrepareError(f"{rows}: {error}") from error
    if not differences:
        raise PrepareError(f"{run}: none of its prompts is in {rows}")
    return Check(len(differences), exact, min(differences), median(differences), max(differences))
