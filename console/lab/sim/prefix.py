"""The prefix cache: blocks of prompts and answers, the one used longest ago goes first."""

from __future__ import annotations

from collections.abc import Sequence

BLOCK = 64
"""Granularity of the prefix cache, in tokens."""


class PrefixCache:
    """Blocks of tokens by their hash; one that is not ``on`` keeps nothing."""

    def __init__(self, *, on: bool) -> None:
        self._on = on
        self._blocks: dict[int, None] = {}

    @property
    def tokens(self) -> int:
        """Tokens of all that is kept."""
        return len(self._blocks) * BLOCK

    def hit(self, prefix: Sequence[int]) -> int:
        """Tokens of this prefix that need not be computed again."""
        hits = 0
        for block in prefix:
            if block not in self._blocks:
                break
            hits += 1
        return hits * BLOCK

    def keep(self, prefix: Sequence[int], most: int) -> int:
        """Keep a prefix where there is room for ``most`` tokens; returns the tokens evicted."""
        if not self._on:
            return 0
        kept = self._blocks
        for block in prefix:
            kept.pop(block, None)
            kept[block] = None
        gone = max(len(kept) - most // BLOCK, 0)
        for _ in range(gone):
            del kept[next(iter(kept))]
        return gone * BLOCK

    def clear(self) -> None:
        """Forget all of it."""
        self._blocks.clear()


def blocks(ids: Sequence[int]) -> list[int]:
    """Chained hashes of the whole blocks of a token sequence."""
    hashes, last = [], 0
    for at in range(0, len(ids) - BLOCK + 1, BLOCK):
        last = hash((last, *ids[at : at + BLOCK]))
        hashes.append(last)
    return hashes
