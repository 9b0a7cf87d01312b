"""Command lines: a mistake in one is told in one line, and numbers have their bounds."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn

NEAR: Final = 0.7
"""Words at least so alike may be meant for one another: with less, a guess only misleads."""

MEANT: Final = {"--lines": "-n", "--tail": "-n", "--number": "-n", "--regex": "--grep"}
"""What other tools call an option → what it may be here."""

USAGE: Final = 2
"""Exit status for words that cannot be meant."""


class Parser(argparse.ArgumentParser):
    """Where words cannot be meant, one line says what and what to do; the usage is ``--help``'s.

    Options have to be whole: a shortened one would change its meaning with the next version.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """See :class:`argparse.ArgumentParser`."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(f"{rest[0]}: not known here{self._nearest(rest[0])}")
        return found

    def error(self, message: str) -> NoReturn:
        """End with status 2 and one line."""
        text = " ".join(message.removeprefix("argument ").split())
        self.exit(USAGE, f"{self.prog}: {text}; `{self.prog} --help` shows what it takes\n")

    def _nearest(self, word: str) -> str:
        name, options = word.partition("=")[0], list(self._options())
        near = difflib.get_close_matches(name, options, 1, NEAR)
        if MEANT.get(name) in options:
            near = [MEANT[name]]
        return f" (did you mean {near[0]}?)" if near and word.startswith("-") else ""

    def _options(self) -> Iterator[str]:
        for action in self._actions:
            yield from action.option_strings


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number within bounds, both included."""

    def read(word: str) -> int:
        try:
            value = int(word)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{word!r}: a whole number from {least} to {most:,} is needed"
            )
        return value

    return read


def number(least: float, most: float, *, above: bool = False) -> Callable[[str], float]:
    """The type of an argument that is a number within bounds; ``above``: not the least itself."""

    def read(word: str) -> float:
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not least <= value <= most or (above and value == least):
            first = f"above {least:g}" if above else f"from {least:g}"
            raise argparse.ArgumentTypeError(f"{word!r}: a number {first} to {most:g} is needed")
        return value

    return read
