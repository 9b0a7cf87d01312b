"""What this console remembers between sessions: the theme, and when each target was last seen.

One small JSON file in the user's state folder. A console that cannot read or write it works all
the same.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from remote.seen import Seen as Seen

MOST_SEEN = 200
"""Looks that are remembered, the newest."""

_one = threading.Lock()
"""Held while the file is written: by the loop, or by a thread beside it."""


class Prefs(msgspec.Struct):
    """The remembered values; unknown keys of a later version are dropped."""

    theme: str = "dark"
    seen: dict[str, Seen] = {}
    """By the journal that was looked at: what has another one under the same name was never seen.
    By the target's name where an older agent does not tell which it is."""


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
    with _one, contextlib.suppress(OSError):
        prefs = read()
        if theme is not None:
            prefs.theme = theme
        prefs.seen |= seen or {}
        newest = sorted(prefs.seen.items(), key=lambda one: one[1].time)[-MOST_SEEN:]
        prefs.seen = dict(newest)
        path = state_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(msgspec.json.encode(prefs))
        temporary.replace(path)
