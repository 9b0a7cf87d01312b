"""What this console remembers between sessions: the theme, and when each target was last seen.

One small JSON file in the user's state folder. A console that cannot read or write it works all
the same.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from remote.since import Seen as Seen


class Prefs(msgspec.Struct):
    """The remembered values; unknown keys of a later version are dropped."""

    theme: str = "dark"
    seen: dict[str, Seen] = {}
    """By target name."""


def config_folder() -> Path:
    """Stoker's folder in the user's configuration."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "stoker"


def state_file() -> Path:
    """Where the preferences lie."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return folder / "stoker" / "console.json"


def read() -> Prefs:
    """The remembered preferences, or the defaults."""
    try:
        return msgspec.json.decode(state_file().read_bytes(), type=Prefs)
    except (OSError, msgspec.DecodeError):
        return Prefs()


def keep(*, theme: str | None = None, seen: Mapping[str, Seen] | None = None) -> None:
    """Remember a theme, and how these targets were seen, beside what other consoles remember
    meanwhile of others. A folder that cannot be written is no reason to stop."""
    prefs = read()
    if theme is not None:
        prefs.theme = theme
    prefs.seen |= seen or {}
    path = state_file()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(msgspec.json.encode(prefs))
        temporary.replace(path)
