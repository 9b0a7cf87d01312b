"""Patterns that people type, and what of a log passes them. No screen."""

from __future__ import annotations

import re
from collections.abc import Iterable

from console.patience import TooLongError, at_most
from console.text import plain

LIMIT = 2000
"""Characters of a line that are looked at and painted; the rest is counted."""

SIFT_S = 0.4
"""So long may a filter keep the screen waiting; five thousand lines take a fiftieth of it."""


def last_state(line: str) -> str:
    """What a terminal would show of a line that a progress bar rewrote with carriage returns."""
    if "\r" not in line:
        return line
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


def compiled(text: str) -> re.Pattern[str]:
    """A pattern as people type it: letters of either case unless there is a capital one. Raises
    ValueError with one line for people."""
    try:
        return re.compile(text, re.IGNORECASE if text.islower() else 0)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    except OverflowError:
        raise ValueError("not a regular expression: a number in it is too large") from None
    except RecursionError:
        raise ValueError("not a regular expression: nested too deep") from None


_FLAGS = re.compile(r"\A(?:\(\?[aimsux]+\))+")


def far(pattern: re.Pattern[str]) -> str:
    """The same for a search on the other side, its flags bound to it: it may become a part of
    another pattern."""
    letters = (("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL), ("x", re.VERBOSE))
    flags = "".join(letter for letter, flag in letters if pattern.flags & flag)
    end = "\n" if "x" in flags else ""  # behind a comment
    return f"(?{flags}:{_FLAGS.sub('', pattern.pattern)}{end})"


class Filter:
    """What of a log is shown: lines that match, or do not (``!`` in front), without noise."""

    def __init__(self, text: str = "", *, hide: re.Pattern[str] | None = None) -> None:
        self.text = text
        self.inverted = text.startswith("!")
        self.hide = hide
        self.problem = ""
        self.pattern: re.Pattern[str] | None = None
        self.hid = 0
        """Lines of the last sifting that were left out as noise."""
        wanted = text[1:] if self.inverted else text
        if wanted:
            try:
                self.pattern = compiled(wanted)
            except ValueError as error:
                self.problem = str(error)

    def _keeps(self, line: str) -> bool:
        line = plain(last_state(line)[:LIMIT])
        if self.hide is not None and self.hide.search(line):
            self.hid += 1
            return False
        if self.pattern is None:
            return True
        return (self.pattern.search(line) is not None) != self.inverted

    def sift(self, lines: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
        """Those that are shown; none where looking takes too long, and then ``problem`` says so."""
        self.hid = 0
        if self.problem:
            return []
        if self.pattern is None:
            return [one for one in lines if self._keeps(one[1])]
        try:
            with at_most(SIFT_S):
                return [one for one in lines if self._keeps(one[1])]
        except TooLongError:
            self.problem = f"{self.text} takes too long: no repetition inside a repetition"
            return []
