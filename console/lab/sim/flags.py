"""The command line of SGLang, one dialect or the other.

The tables beside this module (``flags-<version>.jsonl``) hold every option of
``ServerArgs.add_cli_args`` in ``srt/server_args.py`` (0.5.12) and ``srt/arg_groups/fields``
(0.5.23): names, destination, kind, type, nargs, choices, default.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any

from console.lab.sim.flag_help import HELP
from console.lab.sim.settings import Version

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def human_readable_int(text: str) -> int:
    """``32k`` → 32000, ``32Ki`` → 32768; plain integers as they are."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*([kKmMgG]?i?)", text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise argparse.ArgumentTypeError(f"invalid integer value: {text!r}")
    return int(float(match[1]) * _UNITS[match[2].lower()])


_TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "json": json.loads,
    "human": human_readable_int,
}


class DeprecatedAction(argparse.Action):
    """Accepted, says that it is old, and sets what it always set."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Set the flag; the server prints the warning once it logs."""
        setattr(namespace, self.dest, True)
        old = getattr(namespace, "_deprecated", None) or []
        namespace._deprecated = [*old, option_string]


def table(version: Version) -> Iterator[list[Any]]:
    """Rows of the flag table: options, destination, kind, type, nargs, choices, default."""
    text = resources.files(__package__).joinpath(f"flags-{version}.jsonl").read_text("utf-8")
    for line in text.splitlines():
        row = json.loads(line)
        yield row + [None] * (7 - len(row))


def add(parser: argparse.ArgumentParser, version: Version) -> None:
    """Every option of this dialect's server, added to a parser."""
    for options, dest, kind, type_, nargs, choices, default in table(version):
        extra: dict[str, Any] = {"dest": dest, "default": default, "help": HELP.get(dest)}
        if kind == "true":
            parser.add_argument(*options, action="store_true", **extra)
        elif kind == "boolean":
            parser.add_argument(*options, action=argparse.BooleanOptionalAction, **extra)
        elif kind == "deprecated":
            parser.add_argument(*options, action=DeprecatedAction, **extra)
        else:
            if nargs is not None:
                extra["nargs"] = nargs
            if choices is not None:
                extra["choices"] = choices
            parser.add_argument(
                *options, type=_TYPES[type_], required=dest == "model_path", **extra
            )


def parse(argv: Sequence[str], version: Version) -> argparse.Namespace:
    """The command line as the real parser takes it: wrong use ends the process with status 2."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    add(parser, version)
    return parser.parse_args(argv)
