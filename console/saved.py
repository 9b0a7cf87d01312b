"""Starting points of the user's own: edited flags saved under a name, one TOML file each.

They lie in ``presets/`` of Stoker's configuration folder and may be written by hand: ``name``, and
``[flags]`` as in stoker.toml, where ``false`` takes a flag out.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Final, TypeGuard

from console import flags as flag_rules
from console.prefs import config_folder
from console.presets import Edits, Recipe
from remote.protocol import FlagValue

MAX_NAME: Final = 40
"""Characters of a name."""


class SavedError(Exception):
    """One line: why a preset cannot be read or kept, and what to do."""


def folder() -> Path:
    """Where they lie."""
    return config_folder() / "presets"


def load_all() -> tuple[list[Recipe], list[str]]:
    """Every preset, by name, and a line for each file that is left out."""
    found: dict[str, Recipe] = {}
    problems: list[str] = []
    try:
        paths = sorted(folder().glob("*.toml"))
    except OSError as error:
        return [], [f"{folder()}: {error.strerror}"]
    for path in paths:
        try:
            preset = _read(path)
        except SavedError as error:
            problems.append(str(error))
            continue
        if preset.name in found:
            problems.append(f"{path}: another file holds a preset {preset.name!r}, too")
        else:
            found[preset.name] = preset
    return [found[name] for name in sorted(found, key=str.casefold)], problems


def save(name: str, edits: Edits) -> Path:
    """Keep the edits under a name, in place of what had it. Raises :class:`SavedError`."""
    name = _named(name)
    path = _path(name)
    if path.exists():
        try:
            other = _read(path).name
        except SavedError as error:
            raise SavedError(f"{error}: mend or delete that file, or choose another name") from None
        if other != name:
            raise SavedError(f"{name!r} would be kept in the file of {other!r}: another name")
    lines = [f"name = {_toml(name)}", "", "[flags]"]
    lines += [f"{_toml(flag)} = {_toml(False if v is None else v)}" for flag, v in edits.items()]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise SavedError(f"{path}: {error.strerror}") from None
    return path


def remove(name: str) -> Path:
    """Delete the file of a preset. Raises :class:`SavedError`."""
    for path in sorted(folder().glob("*.toml")):
        try:
            if _read(path).name == name:
                path.unlink()
                return path
        except SavedError:
            continue
        except OSError as error:
            raise SavedError(f"{path}: {error.strerror}") from None
    raise SavedError(f"no file in {folder()} holds a preset {name!r} any more")


def _named(name: str) -> str:
    name = " ".join(name.split())
    if not name or not name.isprintable() or len(name) > MAX_NAME:
        raise SavedError(f"a name is 1 to {MAX_NAME} characters that can be seen")
    return name


def _path(name: str) -> Path:
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return folder() / f"{words or 'preset'}.toml"


def _read(path: Path) -> Recipe:
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SavedError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SavedError(f"{path}: {error}") from None
    if unknown := sorted(set(data) - {"name", "flags"}):
        raise SavedError(f"{path}: unknown key {unknown[0]!r}; there are name and [flags]")
    name, flags = data.get("name", path.stem), data.get("flags")
    if not isinstance(name, str) or not isinstance(flags, dict) or not flags:
        raise SavedError(f"{path}: name = a text, and flags under [flags] are needed")
    edits: dict[str, FlagValue | None] = {}
    for flag, value in flags.items():
        if flag in flag_rules.RESERVED | flag_rules.SECRET:
            raise SavedError(f"{path}: {flag} cannot be set by a preset")
        if not _is_value(value):
            raise SavedError(f"{path}: {flag}: a flag has no such value")
        edits[flag] = None if value is False else value
    try:
        return Recipe(_named(name), "your own", edits)
    except SavedError as error:
        raise SavedError(f"{path}: {error}") from None


def _is_value(value: object) -> TypeGuard[FlagValue]:
    if isinstance(value, list):
        return all(isinstance(v, str | int | float) and not isinstance(v, bool) for v in value)
    return isinstance(value, bool | int | float | str)


def _toml(value: object) -> str:
    """A value as TOML: JSON's texts, numbers and lists are TOML's, but for DEL in a text."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
