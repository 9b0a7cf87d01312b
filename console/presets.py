"""Starting points for a restart: earlier epochs, stoker.toml, the user's own, known recipes.

Pure data and functions. A recipe's flags are those of the dialect that the target's SGLang speaks
(``sglang/srt/server_args.py`` of 0.5.12 and 0.5.23).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from console import model
from console.flags import Book
from console.model import State
from remote.protocol import Epoch, Flags, FlagValue

Edits = Mapping[str, FlagValue | None]


@dataclass(frozen=True)
class Recipe:
    """Some flags set or taken out (None), for a purpose; the rest stays as it is."""

    name: str
    purpose: str
    edits: Edits


_STRATEGY: Final = "mamba-scheduler-strategy"
_NEWER: Final = "mamba-radix-cache-strategy"
"""What 0.5.23 calls it."""

RECIPES: Final = (
    Recipe(
        "more slots",
        "long answers, no shared prompts: 3 state slots a request instead of 5",
        {_STRATEGY: "no_buffer", "mem-fraction-static": 0.9},
    ),
    Recipe(
        "most slots",
        "as that, without the prefix cache: 1 state slot a request",
        {_STRATEGY: None, "disable-radix-cache": True, "mem-fraction-static": 0.9},
    ),
    Recipe(
        "shared prefixes",
        "prompts that begin alike: prefix cache and overlap on, fewer slots",
        {
            _STRATEGY: "extra_buffer",
            "disable-radix-cache": None,
            "disable-overlap-schedule": None,
        },
    ),
    Recipe(
        "half the state",
        "recurrent states in 16 bits: twice the slots, a little less exact",
        {"mamba-ssm-dtype": "bfloat16"},
    ),
    Recipe(
        "room to spare",
        "after running out of memory: smaller pools and prefill chunks",
        {"mem-fraction-static": 0.8, "chunked-prefill-size": 4096},
    ),
)


@dataclass(frozen=True)
class Start:
    """One starting point: what a restart would change to get there."""

    name: str
    text: str
    edits: dict[str, FlagValue | None]
    epoch: Epoch | None = None
    own: bool = False
    """Whether the user saved it."""
    problem: str = ""
    """Why it cannot be taken here."""


def starts(state: State, book: Book, own: Sequence[Recipe] = ()) -> list[Start]:
    """Epochs, newest first, then stoker.toml, then the user's ``own``, then the recipes.

    A recipe that this SGLang has not the flags for is left out; one of the user's own is there all
    the same and says so.
    """
    now = model.current_flags(state)
    found = [
        Start(f"{epoch.id}", epoch.why, edits_to(now, epoch.flags), epoch)
        for epoch in reversed(state.epochs)
    ]
    if state.target is not None and state.target.fleet.flags:
        flags = state.target.fleet.flags
        found.append(Start("stoker.toml", "[fleet.flags]", edits_to(now, flags)))
    for recipe in own:
        edits = translated(recipe.edits, now, book)
        problem = "" if edits is not None else _lacking(recipe.edits, book)
        found.append(Start(recipe.name, recipe.purpose, edits or {}, own=True, problem=problem))
    for recipe in RECIPES:
        edits = translated(recipe.edits, now, book)
        if edits is not None:
            found.append(Start(recipe.name, recipe.purpose, edits))
    return found


def _lacking(edits: Edits, book: Book) -> str:
    missing = [name for name in edits if book.get(name) is None]
    return f"this SGLang has no {', '.join(missing)}"


def edits_to(now: Flags, then: Flags) -> dict[str, FlagValue | None]:
    """What has to be edited to come from one set of flags to another."""
    changes = model.flag_changes(now, then)
    return {c.name: None if c.after is False else c.after for c in changes}


def translated(edits: Edits, now: Flags, book: Book) -> dict[str, FlagValue | None] | None:
    """A recipe's edits as the target's SGLang calls them, without those that change nothing; None
    where it lacks one of the flags."""
    newer = _NEWER in now or (book.get(_NEWER) is not None and book.get(_STRATEGY) is None)
    named = {(_NEWER if newer and n == _STRATEGY else n): v for n, v in edits.items()}
    if newer and named.get(_NEWER) == "no_buffer":
        named["disable-overlap-schedule"] = True  # 0.5.23 does not start without it
    if book.certain and any(book.get(name) is None for name in named):
        return None
    return {
        name: value
        for name, value in named.items()
        if model.flag_text(now.get(name)) != model.flag_text(value)
    }
