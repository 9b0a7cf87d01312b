"""Which events are wanted: by level, kind, GPU and who, beside a pattern. No screen.

``level=warning kind=server gpu=3,5 who=kim out of memory`` — each word with a sign chooses, what is
left is a regular expression (:class:`console.sift.Filter`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from remote.protocol import Event

LEVELS: Final = ("info", "warning", "error")

_WORD = re.compile(r"(?<!\S)(level|kind|gpu|who)=(\S*)(?:\s+|\Z)")
_GPUS = re.compile(r"\bGPU (\d+(?:, \d+)*)")


@dataclass(frozen=True)
class Choice:
    """What was chosen; what is empty leaves all."""

    rest: str = ""
    """The pattern."""
    least: int = 0
    """Index in :data:`LEVELS`; what is worse is kept too."""
    kinds: tuple[str, ...] = ()
    """Beginnings of kinds."""
    gpus: frozenset[int] = frozenset()
    who: str = ""
    problem: str = ""

    def keeps(self, event: Event) -> bool:
        """Whether it is wanted. What is about several GPUs names them in its text."""
        if self.least and _index(event.level) < self.least:
            return False
        if self.kinds and not event.kind.startswith(self.kinds):
            return False
        if self.who and self.who not in event.who.casefold():
            return False
        return not self.gpus or bool(self.gpus & _named(event))


def _index(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)


def _named(event: Event) -> set[int]:
    named = {int(number) for found in _GPUS.findall(event.text) for number in found.split(", ")}
    return named if event.gpu is None else named | {event.gpu}


def choice(text: str) -> Choice:
    """What somebody types; ``problem`` is one line where a word has no sense. A word that is being
    typed (``gpu=``) chooses nothing yet."""
    words: dict[str, str] = dict(_WORD.findall(text))
    rest = _WORD.sub("", text).strip() if words else text
    level, problem = words.get("level", ""), ""
    least = next((n for n, name in enumerate(LEVELS) if level and name.startswith(level)), 0)
    if level and not LEVELS[least].startswith(level):
        problem = f"level={level}: info, warning or error"
    numbers = [number for number in words.get("gpu", "").split(",") if number]
    if not all(number.isdecimal() for number in numbers):
        problem = f"gpu={words['gpu']}: numbers with commas between, as gpu=0,3"
        numbers = []
    kinds = tuple(kind for kind in words.get("kind", "").split(",") if kind)
    gpus = frozenset(map(int, numbers))
    return Choice(rest, least, kinds, gpus, words.get("who", "").casefold(), problem)
