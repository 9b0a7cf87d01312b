"""The flags that the made-up servers know."""

from __future__ import annotations

from console.lab.sim import flags as sim_flags
from console.lab.sim.flag_help import HELP
from remote.protocol import FlagCatalogue, FlagInfo, FlagKind


def catalogue() -> FlagCatalogue:
    """Every flag of SGLang 0.5.12, as an agent tells them: those of the lab's stand-in."""
    kinds: dict[str, FlagKind] = {"int": "int", "float": "float", "json": "json", "human": "size"}
    flags: list[FlagInfo] = []
    for options, dest, kind, type_, nargs, choices, default in sim_flags.table("0.5.12"):
        names = [option.removeprefix("--") for option in options if option.startswith("--")]
        switch = kind in ("true", "boolean", "deprecated")
        flags.append(
            FlagInfo(
                names[0],
                "bool" if switch else kinds.get(type_, "str"),
                False if switch else default,
                choices,
                HELP.get(dest, ""),
                many=nargs in ("+", "*"),
                optional=nargs == "?",
                aliases=names[1:],
                deprecated=kind == "deprecated",
            )
        )
    return FlagCatalogue(flags, "0.5.12")
