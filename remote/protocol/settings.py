"""Where two accounts of one target differ, and what brings the one to the other. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from remote.protocol.target import TargetSpec

_SOON = ("alerts", "credentials_file", "env_script", "python")
_SOON_FLEET = ("drain_seconds", "start_seconds")
"""What an agent can take over at any time: it acts on it at once, or at the next start."""


class Differing(Struct, frozen=True):
    """A setting that differs, by its name in stoker.toml. Its values may be secrets."""

    name: str
    by: str = ""
    """The verb that applies it; empty where the agent can take it over as it is."""


def differing(old: TargetSpec, new: TargetSpec) -> list[Differing]:
    """Settings of ``new`` that are not those of ``old``; the target's name and place are no
    settings."""
    found = [
        Differing(name)
        for name in ("credentials_file", "env_script", "python")
        if getattr(old, name) != getattr(new, name)
    ]
    for section in ("alerts", "fleet", "run"):
        mine, theirs = getattr(old, section), getattr(new, section)
        found += [
            Differing(f"{section}.{name}", _verb(section, name))
            for name in theirs.__struct_fields__
            if getattr(mine, name) != getattr(theirs, name)
        ]
    return found


def _verb(section: str, name: str) -> str:
    if section in _SOON or (section == "fleet" and name in _SOON_FLEET):
        return ""
    if section == "fleet":
        return "stoker restart --set …" if name == "flags" else "stoker down, then stoker up"
    if name == "concurrency":
        return "stoker run resume --concurrency N"
    return "stoker run stop, then stoker run start"


def taken(old: TargetSpec, new: TargetSpec) -> TargetSpec:
    """``old`` with what an agent can take over of ``new`` at any time."""
    fields: dict[str, Any] = {name: getattr(new, name) for name in _SOON}
    fleet = replace(old.fleet, **{name: getattr(new.fleet, name) for name in _SOON_FLEET})
    return replace(old, fleet=fleet, **fields)


def in_words(found: list[Differing]) -> str:
    """What was sent and what is still to be applied, in one line; empty where nothing differs."""
    sent = [one.name for one in found if not one.by]
    left: dict[str, list[str]] = {}
    for one in found:
        if one.by:
            left.setdefault(one.by, []).append(one.name)
    parts = [f"settings sent: {', '.join(sent)}"] if sent else []
    parts += [
        f"{', '.join(names)} differ: `{verb}` applies them"
        if len(names) > 1
        else f"{names[0]} differs: `{verb}` applies it"
        for verb, names in left.items()
    ]
    return "; ".join(parts)
