"""Colour themes and the stylesheet, as data files.

They lie in the installed package's ``_themes``, in a source tree in ``themes/`` beside the
packages; the user's own are ``themes/*.toml`` in the configuration folder. A file holds the
fields of :class:`textual.theme.Theme` (Textual 8.2), extra colours under ``[variables]``.
"""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

from textual.color import Color, ColorParseError
from textual.theme import Theme

from console.prefs import config_folder

_FIELDS = {f.name for f in fields(Theme)}
_COLOURS = (
    "primary secondary warning error success accent foreground background surface panel boost"
).split()


def folder() -> Path:
    """Where the shipped themes and the stylesheet lie."""
    here = Path(__file__).parent
    installed = here / "_themes"
    return installed if installed.is_dir() else here.parent / "themes"


def load(path: Path) -> Theme:
    """One theme file. Raises ValueError with one line that says what is wrong."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    data.setdefault("name", path.stem)
    if unknown := sorted(set(data) - _FIELDS):
        raise ValueError(f"{path.name}: unknown key {unknown[0]!r}")
    if "primary" not in data:
        raise ValueError(f"{path.name}: a theme needs at least `primary`")
    variables = data.get("variables", {})
    for name, value in [(n, data[n]) for n in _COLOURS if n in data] + list(variables.items()):
        if not isinstance(value, str):
            raise ValueError(f"{path.name}: {name} must be a text, not {value!r}")  # noqa: TRY004
        if value.startswith("#"):
            try:
                Color.parse(value.split()[0])
            except ColorParseError:
                raise ValueError(f"{path.name}: {name}: {value!r} is no colour") from None
    try:
        theme = Theme(**data)
        theme.to_color_system().generate()
    except Exception as error:  # whatever a colour system objects to, it is this file's fault
        raise ValueError(f"{path.name}: {error}") from error
    return theme


FIRST = "dark"
"""Worn where no other is wished for."""


def find(name: str) -> Theme | None:
    """The theme of a name, the user's own before a shipped one; None where there is none that can
    be used. Quick where its file has the same name."""
    for place in (config_folder() / "themes", folder()):
        try:
            theme = load(place / f"{name}.toml")
        except ValueError:
            continue
        if theme.name == name:
            return theme
    return next((theme for theme in load_all()[0] if theme.name == name), None)


def load_all() -> tuple[list[Theme], list[str]]:
    """Every theme, shipped ones first, a user's file of the same name instead; and what failed."""
    found: dict[str, Theme] = {}
    problems: list[str] = []
    for place in (folder(), config_folder() / "themes"):
        for path in sorted(place.glob("*.toml")) if place.is_dir() else ():
            try:
                theme = load(path)
            except ValueError as error:
                problems.append(str(error))
            else:
                found[theme.name] = theme
    order = [FIRST, "light", "high-contrast", "colour-blind"]
    names = [n for n in order if n in found] + [n for n in found if n not in order]
    return [found[n] for n in names], problems
