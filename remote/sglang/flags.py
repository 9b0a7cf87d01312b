"""Flags ↔ command lines, and the difference between two sets of flags."""

from __future__ import annotations

import re

from remote import redact
from remote.protocol import Flags, FlagValue, FleetSpec
from remote.sglang.catalogue import Catalogue, FlagError

SERVER_MODULE = "sglang.launch_server"

OWN = {
    "model-path": "`model` under [fleet]",
    "model": "`model` under [fleet]",
    "port": "`base_port` under [fleet]",
    "base-gpu-id": "the server's number: it sees that one card alone",
}
"""Set for each server from what stands here; as flags they would contradict it."""

SECRET = ("api-key", "admin-api-key")
"""Would stand in the process list. In the log they stand anyway, as SGLang prints its arguments:
that file is private then, and what is shown of it is masked."""

POLLED = ("/health", "/metrics", "/v1/loads", "/server_info")
"""Paths that Stoker polls: their access lines would fill the log."""

_EXCLUDE = "uvicorn-access-log-exclude-prefixes"


def refuse_own(flags: Flags) -> None:
    """Raise :class:`FlagError` for flags that are not the operator's to set here."""
    for name in flags:
        plain = name.lstrip("-").replace("_", "-")
        if name.startswith("-"):
            raise FlagError(f"write {plain} without dashes in front")
        if plain in OWN:
            raise FlagError(f"{plain} follows from {OWN[plain]}; leave it out")
        if plain in SECRET:
            raise FlagError(
                f"{plain} would be readable in the process list: put "
                f"SGLANG_{plain.upper().replace('-', '_')} into credentials_file instead"
            )


def server_argv(
    python: str,
    fleet: FleetSpec,
    gpu: int,
    flags: Flags,
    catalogue: Catalogue | None = None,
    config: str = "",
) -> list[str]:
    """The command of server ``gpu``: full flag names only, each value its own argument.

    ``config`` is a YAML file for what may not be seen on a command line. The pollers' access
    lines are switched off where the catalogue has the flag for it and the operator did not set it.
    """
    argv = [python, "-m", SERVER_MODULE, "--model-path", fleet.model]
    argv += ["--port", str(fleet.base_port + gpu)]
    if config:
        argv += ["--config", config]
    argv += to_argv(flags)
    if catalogue is not None and catalogue.get(_EXCLUDE) and _EXCLUDE not in flags:
        argv += [f"--{_EXCLUDE}", *POLLED]
    return argv


def to_argv(flags: Flags) -> list[str]:
    """``True`` is a bare flag, ``False`` is left out, a list is several values."""
    argv: list[str] = []
    for name, value in flags.items():
        if value is False:
            continue
        argv.append(f"--{name}")
        if value is True:
            continue
        values = value if isinstance(value, list) else [value]
        argv += [text(one) for one in values]
    return argv


def text(value: FlagValue) -> str:
    """A value as it stands on a command line or a screen: ``0.90`` for 0.9 where it helps."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " ".join(text(one) for one in value)
    if isinstance(value, float):
        return f"{value:.2f}" if round(value, 2) == value and abs(value) < 10 else repr(value)
    return str(value)


def from_argv(argv: list[str], catalogue: Catalogue | None = None) -> Flags:
    """The flags of a server's command line (also one that was not started here).

    What stands before the first ``--flag`` is passed over. Without a catalogue a flag followed by
    no value counts as a switch, and numbers are told by their look.
    """
    flags: Flags = {}
    name = ""
    values: list[str | int | float] = []

    def end() -> None:
        if not name:
            return
        many = catalogue is not None and (flag := catalogue.get(name)) is not None and flag.many
        if not values:
            flags[name] = True
        else:
            flags[name] = list(values) if len(values) > 1 or many else values[0]

    for word in argv:
        if word.startswith("--"):
            end()
            name, equals, value = word.removeprefix("--").partition("=")
            name = name.replace("_", "-")
            values = [_guess(value)] if equals else []
        elif name:
            values.append(_guess(word))
    end()
    return flags


def _guess(word: str) -> str | int | float:
    for kind in (int, float):
        try:
            value = kind(word)
        except ValueError:
            continue
        # "1e5", "0x10", "007" and "nan" are words, not numbers that were written as such.
        if str(value) == word or (kind is float and word.replace(".", "", 1).isdecimal()):
            return value
    return word


def masked(argv: list[str]) -> list[str]:
    """A command line with the secrets on it hidden."""
    return redact.argv(argv)


_KEY_IN_TEXT = re.compile(
    r"((?:admin[_-])?api[_-]key['\"]?(?:\s*[=:]\s*|\s+))"
    r"(?!None\b)(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\",)}\]]+)"
)


def without_keys(line: str) -> str:
    """A line of a log with the keys in it hidden: SGLang prints its arguments when it starts."""
    return _KEY_IN_TEXT.sub(r"\1***", line) if "key" in line else line


def given_key(argv: list[str]) -> str:
    """The API key that stands on a command line; empty where none does."""
    for n, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == "--api-key":
            return value if equals else "".join(argv[n + 1 : n + 2])
    return ""


def own_flags(argv: list[str], catalogue: Catalogue | None = None) -> Flags:
    """The flags of a command line as a server of the fleet could take them over: without what
    follows from the fleet (model, port, card), and without keys."""
    flags = from_argv(argv, catalogue)
    return {n: v for n, v in flags.items() if n not in OWN and not redact.is_secret(n)}


def typed(value: FlagValue) -> FlagValue:
    """A value that may have come as text (``"0.90"``, ``"true"``) as what it looks like."""
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower(), _guess(value))
    return value


def model_and_port(argv: list[str]) -> tuple[str | None, int]:
    """Model path and port of a server's command line; SGLang listens on 30000 by default."""
    flags = from_argv(argv)
    model = flags.get("model-path", flags.get("model"))
    port = flags.get("port", 30000)
    return (str(model) if model is not None else None), port if isinstance(port, int) else 30000


def is_server_argv(argv: list[str]) -> bool:
    """Whether this is the command of an SGLang server's main process."""
    if SERVER_MODULE in argv:
        return True
    names = [word.rsplit("/", 1)[-1] for word in argv[:3]]
    return "serve" in argv[1:4] and "sglang" in names


def changed(old: Flags, set_flags: Flags, unset_flags: list[str]) -> Flags:
    """The old flags with some set and some removed.

    Raises :class:`FlagError` for one to remove that is not set.
    """
    result = dict(old)
    for name in unset_flags:
        plain = name.replace("_", "-")
        if result.pop(plain, None) is None and result.pop(name, None) is None:
            raise FlagError(f"{plain} is not set, so it cannot be removed")
    for name, value in set_flags.items():
        result[name.replace("_", "-")] = value
    return result


def difference(old: Flags, new: Flags) -> list[str]:
    """One line a changed flag, by name: ``mem-fraction-static 0.85 → 0.90``."""
    lines: list[str] = []
    for name in sorted({*old, *new}):
        before, after = old.get(name, False), new.get(name, False)
        if before == after and isinstance(before, bool) == isinstance(after, bool):
            continue
        lines.append(f"{name} {_side(before)} → {_side(after)}")
    return lines


_ANSWERS = (
    "dtype",
    "kv-cache-dtype",
    "mamba-ssm-dtype",
    "quantization",
    "revision",
    "tokenizer-path",
)
"""What an answer is computed with: it is not continued under another value of one of these."""


def other_answers(old: Flags, new: Flags) -> str:
    """Why an answer begun under the old flags cannot be continued under the new ones; empty where
    it can."""
    lines = difference(
        {name: value for name, value in old.items() if name in _ANSWERS},
        {name: value for name, value in new.items() if name in _ANSWERS},
    )
    return f"{', '.join(lines)} makes other answers" if lines else ""


def _side(value: FlagValue) -> str:
    if value is False:
        return "unset"
    return "on" if value is True else text(value)
