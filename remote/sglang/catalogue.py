"""The flags that an installed SGLang takes, and the check of values against them.

The catalogue comes from SGLang's own argument parser (:mod:`remote.sglang.introspect`), so it is
right for the release that is installed, whichever that is.
"""

from __future__ import annotations

import difflib
from typing import Literal

import msgspec
from msgspec import Struct

from remote.protocol import FlagInfo, Flags, FlagValue


class Catalogue(Struct, frozen=True):
    """All flags of one installed SGLang."""

    version: str | None
    flags: list[FlagInfo]
    source: Literal["parser", "source text"] = "parser"
    """Where it comes from: SGLang's parser itself, or its source read without running it."""

    def get(self, name: str) -> FlagInfo | None:
        """The flag of this name or alias; underscores count as dashes."""
        wanted = name.replace("_", "-")
        return next(
            (
                flag
                for flag in self.flags
                if wanted in (flag.name, *flag.aliases) or name in (flag.name, *flag.aliases)
            ),
            None,
        )

    def nearest(self, name: str) -> str | None:
        """The known name that looks most like ``name``; None where none comes near."""
        names = [n for flag in self.flags for n in (flag.name, *flag.aliases)]
        close = difflib.get_close_matches(name.replace("_", "-"), names, n=1, cutoff=0.6)
        return close[0] if close else None


class FlagError(Exception):
    """A flag or value that the server would refuse; one line that says what to write."""


def load(data: bytes) -> Catalogue:
    """The catalogue that ``introspect.py`` printed.

    Raises :class:`FlagError` where the text is none.
    """
    try:
        return msgspec.json.decode(data, type=Catalogue)
    except msgspec.DecodeError as error:
        raise FlagError(f"SGLang's flags could not be read: {error}") from error


def check(catalogue: Catalogue, flags: Flags) -> Flags:
    """The same flags with dashes in their names and values of the right type.

    Raises :class:`FlagError` for an unknown name (with the nearest one), a value of another type
    or one that is not among the choices. Values that are spelled as text are converted. A name
    that is missing in a catalogue read from source text may exist all the same: it is let pass.
    """
    checked: Flags = {}
    seen: dict[str, str] = {}
    for name, value in flags.items():
        plain = name.replace("_", "-")
        flag = catalogue.get(name)
        if flag is None and catalogue.source == "source text":
            checked[plain] = value
            continue
        if flag is None:
            near = catalogue.nearest(name)
            hint = f"; did you mean {near}?" if near else ""
            version = f" {catalogue.version}" if catalogue.version else ""
            raise FlagError(f"SGLang{version} has no flag {name}{hint}")
        if flag.name in seen:
            raise FlagError(f"{plain} and {seen[flag.name]} are one flag: give it once")
        seen[flag.name] = plain
        checked[plain] = _value(flag, value)
    return checked


def _value(flag: FlagInfo, value: FlagValue) -> FlagValue:
    if value is False:
        return False
    if flag.kind == "bool":
        if value is True or (isinstance(value, str) and value.lower() in ("true", "yes", "on")):
            return True
        if isinstance(value, str) and value.lower() in ("false", "no", "off"):
            return False
        raise FlagError(f"{flag.name} is a switch: true or false, not {value!r}")
    if value is True and flag.optional:
        return True
    if value is True:
        raise FlagError(f"{flag.name} needs a value{_allowed(flag)}")
    if flag.many:
        values = value if isinstance(value, list) else str(value).split()
        return [_scalar(flag, one) for one in values]
    if isinstance(value, list):
        raise FlagError(f"{flag.name} takes one value, not {len(value)}")
    return _scalar(flag, value)


def _scalar(flag: FlagInfo, value: str | int | float) -> str | int | float:
    result: str | int | float = value
    try:
        if flag.kind == "int":
            if isinstance(value, float) and not value.is_integer():
                raise ValueError
            result = int(value)
        elif flag.kind == "float":
            result = float(value)
        elif flag.kind == "size":
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            result = value if isinstance(value, int) else str(value)
            parse_size(result)
        elif flag.kind == "json":
            result = str(value)
            msgspec.json.decode(result.encode())
        else:
            result = str(value)
    except (ValueError, msgspec.DecodeError):
        wants = {
            "int": "a whole number",
            "float": "a number",
            "size": "a whole number, also as 32k or 32Ki",
            "json": "JSON",
        }[flag.kind]
        raise FlagError(f"{flag.name} takes {wants}, not {value!r}") from None
    if flag.choices and result not in flag.choices:
        near = difflib.get_close_matches(str(result), [str(c) for c in flag.choices], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise FlagError(f"{flag.name} cannot be {result!r}{hint}{_allowed(flag)}")
    return result


def _allowed(flag: FlagInfo) -> str:
    if not flag.choices:
        return ""
    shown = ", ".join(str(c) for c in flag.choices[:12])
    return f" (one of {shown}{', …' if len(flag.choices) > 12 else ''})"


def whole(value: FlagValue | None) -> int | None:
    """The whole number that a value stands for; None where it stands for none."""
    if value is None or isinstance(value, bool | list):
        return None
    try:
        return parse_size(value)
    except ValueError:
        return None


_SUFFIXES = {
    "k": 1_000,
    "m": 1_000_000,
    "g": 1_000_000_000,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
}


def parse_size(value: str | int | float) -> int:
    """``32768``, ``32k`` (thousands) or ``32Ki`` (1,024s) → a whole number.

    Raises :class:`ValueError` for anything else. Same rule as SGLang's ``human_readable_int``.
    """
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError(value)
        return int(value)
    if isinstance(value, int):
        return value
    text = value.strip().lower().replace("_", "")
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if text.endswith(suffix):
            try:
                return int(float(text.removesuffix(suffix)) * _SUFFIXES[suffix])
            except OverflowError:  # "infk"
                raise ValueError(value) from None
    return int(text)
