"""What an action of the registry is: plain data, for :mod:`console.registry`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from remote.protocol import Request, TargetSpec

Group: TypeAlias = Literal["Look", "Fleet", "Run", "Chart", "Logs", "Replay", "Console"]
Danger: TypeAlias = Literal["none", "key", "word"]
"""How an action asks before it is done: not at all, with one key, or with a typed word."""

Build: TypeAlias = Callable[[TargetSpec, "list[int] | None"], Request]


@dataclass(frozen=True)
class Action:
    """Something an operator can do, in one place for everything that offers it."""

    name: str
    title: str
    """Two or three words, for help and palette."""
    help: str
    """One sentence: what it does and what it costs."""
    keys: tuple[str, ...]
    group: Group
    danger: Danger = "none"
    """At its smallest blast radius; :func:`console.actions.danger` raises it with the number of
    servers."""
    changes: bool = False
    """Whether it changes anything on the target: such actions are off in read-only mode."""
    verb: str = ""
    """The command-line verb that does the same, without target and options."""
    word: str = ""
    """What has to be typed where ``danger`` is ``word``."""
    loses: str = ""
    """What is lost or held up by it, for the question."""
    screens: frozenset[str] = frozenset()
    """Screens it works on; empty for everywhere."""
    footer: int = 0
    """Rank in the footer among its like, 1 first; 0 keeps it out."""
    short: str = ""
    """A word for the footer, where the title is too long for it."""
    request: Build | None = None
    """Builds its request from the spec and the chosen GPUs, where that is all it takes."""

    @property
    def label(self) -> str:
        """What the footer says of it."""
        return self.short or self.title.lower()


@dataclass(frozen=True)
class Move:
    """Keys that only move what is shown: bound by the screens themselves, told in the help."""

    keys: tuple[str, ...]
    title: str
    help: str
    screens: frozenset[str]
