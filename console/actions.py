"""The one registry of what an operator can do.

Key bindings, footer, help, command palette, read-only mode and the verbs of the command line are
all made from :data:`ACTIONS`; nothing here knows of a screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from console.action import Action, Danger
from console.config import command
from console.registry.fleet import FLEET
from console.registry.logs import CHART, LOGS
from console.registry.look import CONSOLE, LOOK, REPLAY
from console.registry.run import RUN
from remote.protocol import Flags, FlagValue

ACTIONS: Final[tuple[Action, ...]] = (*LOOK, *FLEET, *RUN, *CHART, *LOGS, *REPLAY, *CONSOLE)

BY_NAME: Final = {action.name: action for action in ACTIONS}


@cache
def by_key() -> dict[str, list[Action]]:
    """What each key does; several actions only where they are for different screens."""
    keys: dict[str, list[Action]] = {}
    for action in ACTIONS:
        for key in action.keys:
            keys.setdefault(key, []).append(action)
    return keys


def danger(action: Action, gpus: int, total: int) -> Danger:
    """How the action asks when it meets ``gpus`` of ``total`` servers: a typed word for all of
    several."""
    if action.danger == "key" and action.word and gpus >= total > 1:
        return "word"
    return action.danger


def flag_option(name: str, value: FlagValue) -> list[str]:
    """``--set`` options of the command line for one flag; an absent flag is ``--unset``."""
    if value is False:
        return ["--unset", name]
    if value is True:
        return ["--set", f"{name}=true"]
    if isinstance(value, list):
        return ["--set", f"{name}={' '.join(map(str, value))}"]
    return ["--set", f"{name}={value}"]


def command_line(
    action: Action,
    target: str,
    *,
    gpus: Sequence[int] | None = None,
    set_flags: Flags | None = None,
    unset_flags: Sequence[str] = (),
    more: Sequence[str] = (),
    file: Path | None = None,
) -> str:
    """The `stoker` line that does the same; empty where there is none. ``file`` as
    :class:`console.config.Target` has it."""
    if not action.verb:
        return ""
    words: list[str] = []
    for name, value in (set_flags or {}).items():
        words += flag_option(name, value)
    for name in unset_flags:
        words += ["--unset", name]
    words += more
    for gpu in gpus or ():
        words += ["--gpu", str(gpu)]
    return command(target, file, action.verb.split(), words)


def key_name(key: str) -> str:
    """A key as it stands on a keyboard: ``?``, ``space``, ``^p``."""
    return _KEYS.get(key, key.replace("ctrl+", "^"))


_KEYS: Final = {
    "question_mark": "?",
    "slash": "/",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "colon": ":",
    "comma": ",",
    "full_stop": ".",
    "greater_than_sign": ">",
    "less_than_sign": "<",
    "exclamation_mark": "!",
    "enter": "⏎",
    "backspace": "⌫",
    "escape": "esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "shift+tab": "⇧tab",
}
