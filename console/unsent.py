"""Settings of stoker.toml that an agent has not got: edited since, or sent from elsewhere.

What the console asks for, it asks with the settings that the agent has; hence they are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from console.config import Target, load, user_file
from remote.protocol import Differing, TargetSpec, differing


def reread(target: Target) -> Target:
    """The target, on the way that was taken to it, with the settings that its file has now.

    One that stands in no file stays as it is. Raises ConfigError. Blocking.
    """
    path = target.file or user_file()
    if target.file is None and not path.is_file():
        return target
    return replace(target, spec=load(path).targets.get(target.name, target).spec)


def unsent(target: Target, known: TargetSpec) -> list[Differing]:
    """What the file has and the agent, which has the settings ``known``, has not. Raises
    ConfigError. Blocking."""
    return differing(known, reread(target).spec)


def in_words(found: Sequence[Differing], deploy: str) -> str:
    """One line on them, each with what applies it: ``deploy`` is the key of that; empty where
    there are none."""
    by: dict[str, list[str]] = {}
    for one in found:
        by.setdefault(f"`{one.by}`" if one.by else f"{deploy} sends", []).append(one.name)
    parts = [f"{', '.join(names)} ({how})" for how, names in by.items()]
    return f"stoker.toml has other settings than the agent: {'; '.join(parts)}" if parts else ""
