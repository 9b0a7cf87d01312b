"""Prints the flags of the installed SGLang as JSON (:class:`remote.sglang.catalogue.Catalogue`).

Its text is run by the servers' own Python (3.8 or newer), not imported here, with no GPU in
sight: it walks the argparse parser that ``ServerArgs.add_cli_args`` fills. Whatever SGLang prints
while it is imported goes elsewhere; the JSON is the last line of standard output.
"""

import argparse
import json
import os
from importlib import metadata
from typing import Any


def _kind(action: Any) -> str:
    named = getattr(action.type, "__name__", "")
    if action.nargs == 0:
        return "bool"
    if action.type is int:
        return "int"
    if action.type is float:
        return "float"
    if "human_readable" in named:
        return "size"
    if action.type is json.loads or "json" in named:
        return "json"
    return "str"


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value)


def _choices(action: Any) -> Any:
    if action.choices is None:
        return None
    plain = [c if isinstance(c, (int, float, str)) else str(c) for c in action.choices]
    return sorted(plain, key=str) if isinstance(action.choices, (set, frozenset)) else plain


def _help(parser: Any, action: Any) -> str:
    """As ``--help`` shows it: defaults filled in, ``%%`` as one sign."""
    if not action.help or action.help == argparse.SUPPRESS:
        return ""
    try:
        text = parser._get_formatter()._expand_help(action)
    except (KeyError, TypeError, ValueError):  # a stray sign in a text that nobody has printed yet
        text = action.help
    return " ".join(text.split())


def _flags(parser: Any, action: Any) -> Any:
    names = [name[2:] for name in action.option_strings if name.startswith("--")]
    if not names or names[0] == "help":
        return
    kind = type(action).__name__
    opposite = [n for n in names if kind == "BooleanOptionalAction" and n.startswith("no-")]
    yield {
        "name": names[0].replace("_", "-"),
        "kind": _kind(action),
        "choices": _choices(action),
        "default": None if action.default is argparse.SUPPRESS else _plain(action.default),
        "help": _help(parser, action),
        "many": action.nargs in ("*", "+") or (isinstance(action.nargs, int) and action.nargs > 1),
        "optional": action.nargs == "?",
        "aliases": [name for name in names[1:] if name not in opposite],
        "deprecated": "Deprecated" in kind,
    }
    for name in opposite:
        about = f"Opposite of {names[0]}."
        yield {"name": name, "kind": "bool", "default": False, "help": about}


def catalogue(parser: Any, version: Any) -> dict:  # type: ignore[type-arg]
    """The parser's long options; ``--help`` is left out."""
    flags = [flag for action in parser._actions for flag in _flags(parser, action)]
    return {"version": version, "flags": flags, "source": "parser"}


def main() -> None:
    """Import, walk, print."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the import prints must not mix with the answer
    try:
        version = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        version = None
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    out.write("\n" + json.dumps(catalogue(parser, version)) + "\n")
    out.flush()
    # Threads and atexit handlers of what was imported have nothing to add.
    os._exit(0)


if __name__ == "__main__":
    main()
