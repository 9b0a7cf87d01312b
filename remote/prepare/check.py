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
    tools: int = 0
    mode: str = "last"


class _Usage(Struct):
    prompt_tokens: int | None = None


class _Record(Struct):
    index: int
    usage: _Usage | None = None


@dataclass(frozen=True)
class Spread:
    """Differences, the server's count minus ours, in tokens."""

    compared: int
    least: int
    middle: float
    most: int


@dataclass(frozen=True)
class Check:
    """What the replies say of our counts; prompts with tools apart.

    A tool is counted as the more talkative SGLang writes it (:func:`budget.as_served`), so
    that with tools a few tokens less are as good as none.
    """

    exact: bool
    plain: Spread | None
    tools: Spread | None

    @property
    def good(self) -> bool:
        """Exact counts agree, and no prompt has more tokens than were counted."""
        over = any(s is not None and s.most > 0 for s in (self.plain, self.tools))
        off = self.exact and self.plain is not None and self.plain.least != 0
        return not over and not off

    def line(self) -> str:
        """What it means, in one line."""
        spreads = [s for s in (self.plain, self.tools) if s is not None]
        compared = sum(s.compared for s in spreads)
        least, most = min(s.least for s in spreads), max(s.most for s in spreads)
        head = f"{compared} replies compared: "
        if self.good and not self.exact:
            return head + f"the bound holds, by {-most} to {-least} tokens"
        if self.good:
            text = head + "the server counts as we did"
            if self.tools is not None and self.tools.least < 0:
                text += f" (with tools up to {-self.tools.least} tokens fewer)"
            return text
        if not self.exact:
            return head + (
                f"some prompts have up to {most} tokens more than the bound; give"
                " budget.tokenizer and prepare again"
            )
        worst = self.plain or self.tools
        assert worst is not None
        if worst.least == worst.most != 0:
            return head + (
                f"the server counts {worst.least:+d} tokens on every prompt: its chat template"
                " differs from the folder's (thinking, or a system text of its own)"
            )
        return head + (
            f"the server's counts differ by {least:+d} to {most:+d} tokens: this is not its"
            " tokenizer, or not its template"
        )


def compare(rows: Path, run: Path) -> Check:
    """Compare a rows file with the completion records of a run directory.

    Prompts whose turns are asked one by one are left out: their ``usage`` adds up the turns,
    with the answers between them.

    Raises:
        PrepareError: there is nothing to compare.
    """
    found = _replies(run)
    plain: list[int] = []
    tools: list[int] = []
    exact = True
    try:
        with rows.open("rb") as file:
            for line in file:
                row = msgspec.json.decode(line, type=_Row)
                if row.index in found and row.mode == "last":
                    difference = found[row.index] - row.prompt_tokens
                    (tools if row.tools else plain).append(difference)
                    exact = exact and row.exact
    except FileNotFoundError:
        raise PrepareError(f"{rows}: no such file; prepare writes it beside the prompts") from None
    except msgspec.DecodeError as error:
        raise PrepareError(f"{rows}: {error}") from error
    if not plain and not tools:
        raise PrepareError(f"{run}: none of its replies can be compared with {rows}")
    return Check(exact, _spread(plain), _spread(tools))


def _spread(differences: list[int]) -> Spread | None:
    if not differences:
        return None
    return Spread(len(differences), min(differences), median(differences), max(differences))


def _replies(run: Path) -> dict[int, int]:
    """Index → prompt tokens as the server counted them, of the first replies."""
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
    return found
