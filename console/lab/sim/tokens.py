"""A small reversible tokenizer, the same one that the lab's ``tokenizer.json`` describes.

Text is split into words, numbers, runs of signs and line breaks; each part, as bytes, is cut
greedily into the longest pieces of the vocabulary, which holds every single byte. So any text
comes back as it was, and the ids are those of Hugging Face's ``tokenizers`` with the same file
(model WordPiece without a continuation mark, pre-tokenizer and decoder ByteLevel).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import resources

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""Marks that are one token each; only the first three vanish from decoded text."""
HIDDEN = 3

PATTERN = r" ?[A-Za-z]+| ?[0-9]{1,3}| ?[^ \t\n\rA-Za-z0-9]+|\n+|[ \t\r]"
"""How text falls into parts before it is cut into pieces."""

_LONGEST_PART = 64
_split = re.compile(PATTERN).findall
_marks = re.compile("(" + "|".join(re.escape(mark) for mark in SPECIAL) + ")").split


def byte_letters() -> list[str]:
    """A visible letter for each byte, as ByteLevel has them (GPT-2's ``bytes_to_unicode``)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    rest = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(256 + n) for n, byte in enumerate(rest)})
    return [letters[byte] for byte in range(256)]


def pieces() -> list[str]:
    """The vocabulary behind the marks and the single bytes, as text."""
    return resources.files(__package__).joinpath("vocab.txt").read_text("utf-8").split("\n")[:-1]


class Tokenizer:
    """Text ↔ ids."""

    def __init__(self) -> None:
        bytes_ = [bytes([n]) for n in range(256)]
        words = [word.replace("_", " ").encode() for word in pieces()]
        self.table: list[bytes] = [mark.encode() for mark in SPECIAL] + bytes_ + words
        first = len(SPECIAL)
        self._ids = {piece: n for n, piece in enumerate(self.table) if n >= first}
        self._marks = {mark: n for n, mark in enumerate(SPECIAL)}
        self._longest = max(map(len, self.table[first:]))
        self.eos = self._marks["<|im_end|>"]
        self.start = self._marks["<|im_start|>"]
        self.end_think = self._marks["</think>"]
        self._part = lru_cache(maxsize=65_536)(self._cut)

    def __len__(self) -> int:
        return len(self.table)

    def _cut(self, part: str) -> tuple[int, ...]:
        data = part.encode("utf-8", "surrogatepass")
        whole = self._ids.get(data)
        if whole is not None:
            return (whole,)
        ids, at, end = [], 0, len(data)
        while at < end:
            stop = min(end, at + self._longest)
            while (found := self._ids.get(data[at:stop])) is None:
                stop -= 1
            ids.append(found)
            at = stop
        return tuple(ids)

    def encode(self, text: str) -> list[int]:
        """The ids of a text; marks in it become their single tokens."""
        ids: list[int] = []
        for n, stretch in enumerate(_marks(text)):
            if n % 2:
                ids.append(self._marks[stretch])
                continue
            for part in _split(stretch):
                ids.extend(self._part(part) if len(part) < _LONGEST_PART else self._cut(part))
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of ids; those beyond the vocabulary have none, below 0 is an OverflowError."""
        hidden = HIDDEN if skip_special else 0
        table, size = self.table, len(self.table)
        if (ids := list(ids)) and min(ids) < 0:
            raise OverflowError("out of range integral type conversion attempted")
        data = b"".join([table[n] for n in ids if hidden <= n < size])
        return data.decode("utf-8", "replace")

    def valid(self, ids: Sequence[object]) -> bool:
        """True where every member is an id of the vocabulary."""
        size = len(self.table)
        return all(isinstance(n, int) and 0 <= n < size for n in ids)


@lru_cache(maxsize=1)
def tokenizer() -> Tokenizer:
    """The one tokenizer of this process."""
    return Tokenizer()
