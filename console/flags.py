"""SGLang's flags as an operator types them: search, completion, and mistakes told at once.

A :class:`Book` is what is known of the flags: the whole catalogue of the SGLang that is installed
on the target, as its own parser declares it, or until that has come :data:`BUILT_IN`. With a
parser's catalogue a name or choice that is not in it is a mistake; else it is asked about once.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from console.model import flag_text
from remote.protocol import FlagCatalogue, FlagInfo, FlagKind, Flags, FlagValue


def _known(
    name: str, kind: FlagKind, help: str, choices: Sequence[str] | None = None, many: bool = False
) -> FlagInfo:
    return FlagInfo(name, kind, None, list(choices) if choices else None, help, many)


BUILT_IN: Final = FlagCatalogue(
    source="source text",
    flags=[
        _known("attention-backend", "str", "attention kernels", ("flashinfer", "triton", "fa3")),
        _known("chunked-prefill-size", "size", "tokens a prefill chunk; -1 turns chunking off"),
        _known("context-length", "size", "longest prompt plus answer, in tokens"),
        _known("cuda-graph-max-bs", "int", "largest batch that gets a CUDA graph (0.5.12)"),
        _known("disable-cuda-graph", "bool", "run without CUDA graphs: slower, less memory"),
        _known("disable-overlap-schedule", "bool", "no overlap of scheduling and compute"),
        _known("disable-radix-cache", "bool", "no prefix cache: one Mamba slot a request"),
        _known("enable-metrics", "bool", "Prometheus metrics: needed for live throughput"),
        _known("kv-cache-dtype", "str", "KV cache precision", ("auto", "bfloat16", "fp8_e4m3")),
        _known(
            "mamba-radix-cache-strategy",
            "str",
            "state slots a request holds (0.5.23)",
            ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"),
        ),
        _known(
            "mamba-scheduler-strategy",
            "str",
            "state slots a request holds (0.5.12)",
            ("auto", "no_buffer", "extra_buffer"),
        ),
        _known("mamba-ssm-dtype", "str", "precision of the Mamba state", ("float32", "bfloat16")),
        _known("max-mamba-cache-size", "int", "Mamba state slots, instead of the ratio"),
        _known("max-running-requests", "int", "most requests decoded at once"),
        _known("max-total-tokens", "int", "cap of the KV cache, in tokens"),
        _known("mem-fraction-static", "float", "share of the card for weights and pools"),
        _known("page-size", "int", "tokens a KV cache page"),
        _known("reasoning-parser", "str", "how reasoning is split off"),
        _known("schedule-conservativeness", "float", "raise it where requests are retracted"),
        _known("served-model-name", "str", "name in the API"),
        _known("tool-call-parser", "str", "how tool calls are read"),
    ],
)
"""Those most used with long batch runs (``sglang/srt/server_args.py`` of 0.5.12 and 0.5.23): for
a target whose own catalogue cannot be read, or has not come yet."""

RESERVED: Final = frozenset(
    {"host", "port", "model-path", "model", "base-gpu-id", "nccl-port", "config"}
)
"""Set by Stoker for each server."""

SECRET: Final = frozenset({"api-key", "admin-api-key"})
"""Would stand in the process list and in the log."""

SHARES: Final = frozenset({"mem-fraction-static"})
"""Fractions, which the parser knows as numbers only."""


_SLIP: Final = 0.9
"""How much alike names are that differ by a slip: `cuda-graph-bs` and `cuda-graph-max-bs`, which
both are flags, are less."""


class FlagError(Exception):
    """One line: what is wrong with what was typed, and what to do."""


@dataclass(frozen=True)
class Edit:
    """One flag as typed; ``value`` None takes it out."""

    name: str
    value: FlagValue | None
    doubt: str = ""
    """Said once where what is typed is not known here and may be right all the same."""


class Book:
    """What is known of the flags, by name."""

    def __init__(self, catalogue: FlagCatalogue = BUILT_IN) -> None:
        self.catalogue = catalogue
        self._by_name: dict[str, FlagInfo] = {}
        told = {info.name: info.help for info in BUILT_IN.flags}
        for declared in catalogue.flags:
            ours = told.get(declared.name, "")
            info = declared if declared.help else replace(declared, help=ours)
            for name in (*info.aliases, info.name):
                self._by_name.setdefault(plain(name), info)
        self.flags = list({info.name: info for info in self._by_name.values()}.values())

    @property
    def certain(self) -> bool:
        """Whether every flag is in it."""
        return self.catalogue.source == "parser"

    @property
    def title(self) -> str:
        """Whose flags these are, in words."""
        if self.catalogue is BUILT_IN:
            return "the most used flags; SGLang's own have not been read yet"
        whose = f"SGLang {self.catalogue.version or ''}".strip()
        way = "" if self.certain else ", read from its source: some may be missing"
        return f"{len(self.catalogue.flags)} flags of {whose}{way}"

    def get(self, name: str) -> FlagInfo | None:
        """The flag of this name or alias."""
        return self._by_name.get(plain(name))

    def nearest(self, name: str, more: Iterable[str] = ()) -> str | None:
        """The known name that looks most like it."""
        near = difflib.get_close_matches(name, [*self._by_name, *more], 1, 0.6)
        return near[0] if near else None


def plain(name: str) -> str:
    """A flag's name as Stoker writes it."""
    return name.lstrip("-").replace("_", "-").lower()


def slips(flags: Flags) -> list[str]:
    """What looks misspelt, a line each, as far as that can be told without the SGLang that is to
    take them: names that are all but one of the most used."""
    book = Book()
    found = []
    for name in flags:
        near = difflib.get_close_matches(plain(name), [i.name for i in book.flags], 1, _SLIP)
        if book.get(name) is None and near:
            found.append(f"{name}: not a flag known here; did you mean {near[0]}?")
    return found


# --- The list ---


@dataclass(frozen=True)
class Row:
    """One flag in a list of them."""

    name: str
    now: FlagValue | None
    edited: bool
    then: FlagValue | None
    """The value after the edits."""
    info: FlagInfo | None


def rows(
    book: Book,
    before: Flags,
    edits: Mapping[str, FlagValue | None],
    search: str = "",
    *,
    every: bool = True,
) -> list[Row]:
    """Flags that are set or edited by name, then (with ``every``) all others in SGLang's order.

    ``search`` keeps those that have it in their name, those that begin with it first, then those
    that have each of its words in name or help.
    """
    mine = sorted({*before, *edits})
    names = mine
    if every:
        shown = {plain(name) for name in mine}
        others = [
            info.name
            for info in book.flags
            if not {plain(n) for n in (info.name, *info.aliases)} & shown
            and not info.deprecated
            and plain(info.name) not in RESERVED | SECRET
        ]
        names = [*mine, *others]
    found = [
        Row(
            name,
            before.get(name),
            name in edits,
            edits[name] if name in edits else before.get(name),
            book.get(name),
        )
        for name in names
    ]
    if not search:
        return found
    words = search.lower().split()
    wanted = plain(search.strip())

    def rank(row: Row) -> int:
        name = plain(row.name)
        if name.startswith(wanted):
            return 0
        if wanted and wanted in name:
            return 1
        text = f"{name} {row.info.help if row.info is not None else ''}".lower()
        return 2 if all(word in text for word in words) else 3

    ranked = sorted(found, key=rank)  # a stable sort: set flags stay in front
    return [row for row in ranked if rank(row) < 3]


def kind_text(info: FlagInfo | None) -> str:
    """What a flag takes, in a word or two."""
    if info is None:
        return ""
    if info.choices:
        return f"one of {len(info.choices)}"
    word = {
        "bool": "switch",
        "int": "whole number",
        "float": "number",
        "str": "text",
        "json": "JSON",
        "size": "number, also 32k",
    }[info.kind]
    return f"{word} …" if info.many else word


def choices_text(info: FlagInfo) -> str:
    """Its choices."""
    return ", ".join(str(choice) for choice in info.choices or ())


def default_text(info: FlagInfo | None) -> str:
    """SGLang's own default; empty where it has none or works it out at start."""
    if info is None or info.default is None:
        return ""
    if isinstance(info.default, bool):
        return "on" if info.default else "off"
    if isinstance(info.default, str | int | float | list):
        return flag_text(info.default)
    return json.dumps(info.default)


# --- What is typed ---


def parse(text: str, current: Flags, book: Book) -> Edit:
    """``name=value``, ``name`` for a bare flag, ``-name`` or ``name=`` to take one out.

    Raises :class:`FlagError`.
    """
    text = text.strip()
    remove = text.startswith("-") and not text.startswith("--")
    body = text.lstrip("-").strip()
    name, mark, raw = body, "", ""
    if found := re.search(r"[=\s]", body):
        name, mark, raw = body[: found.start()], found.group(), body[found.end() :].strip()
    name = plain(name.strip())
    if not name:
        raise FlagError("type a flag as name=value")
    info = book.get(name)
    if info is not None and name not in current:
        name = plain(info.name)  # an alias
    if name in RESERVED:
        raise FlagError(f"{name} is set by Stoker for each server")
    if name in SECRET:
        raise FlagError(f"{name} could be read in the process list: it goes in credentials_file")
    if remove or (raw == "" and mark == "="):
        if name not in current:
            raise FlagError(f"{name} is not set, so it cannot be taken out")
        return Edit(name, None)
    doubt = ""
    if info is None and name not in current:
        near = book.nearest(name, current)
        meant = f"; did you mean {near}?" if near else ""
        if book.certain:
            version = f" {book.catalogue.version}" if book.catalogue.version else ""
            raise FlagError(f"SGLang{version} has no flag {name}{meant}")
        doubt = f"{name} is not a flag known here{meant} Enter it again to keep it"
    return Edit(name, _value(name, raw, info, strict=book.certain), doubt)


def _value(name: str, raw: str, info: FlagInfo | None, *, strict: bool) -> FlagValue | None:
    low = raw.lower()
    if info is None:
        if not raw or low in ("true", "false"):
            return None if low == "false" else True
        number = _number(raw)
        return raw if number is None else number
    if info.kind == "bool":
        if low in ("", "true", "on", "yes", "1"):
            return True
        if low in ("false", "off", "no", "0"):
            return None
        raise FlagError(f"{name} takes no value: type {name} to set it, -{name} to take it out")
    if not raw:
        if info.optional:
            return True
        wants = choices_text(info) or info.help or kind_text(info)
        raise FlagError(f"{name} needs a value ({_cut(wants)})")
    if info.many:
        return [_scalar(name, word, info, strict=strict) for word in raw.split()]
    return _scalar(name, raw, info, strict=strict)


def _scalar(name: str, raw: str, info: FlagInfo, *, strict: bool) -> str | int | float:
    number = _number(raw)
    value: str | int | float = raw
    if info.kind == "int":
        if not isinstance(number, int):
            raise FlagError(f"{name} takes a whole number, not {raw!r}")
        value = number
    elif info.kind == "float":
        if number is None:
            raise FlagError(f"{name} takes a number, not {raw!r}")
        if name in SHARES and not 0 < number < 1:
            raise FlagError(f"{name} is a share between 0 and 1, not {raw}")
        value = number
    elif info.kind == "size":
        if isinstance(number, int):
            value = number
        elif not re.fullmatch(r"\d+(\.\d+)?[kmg]i?", raw.lower()):
            raise FlagError(f"{name} takes a whole number, also as 32k or 32Ki, not {raw!r}")
    elif info.kind == "json":
        try:
            json.loads(raw)
        except ValueError:
            raise FlagError(f"{name} takes JSON, not {raw!r}") from None
    if info.choices and value not in info.choices:
        choices = [str(choice) for choice in info.choices]
        near = difflib.get_close_matches(raw, choices, 1, 0.5)
        if near or strict:
            meant = f"did you mean {near[0]}?" if near else f"not {raw!r}, but one of"
            raise FlagError(f"{name}: {meant} ({_cut(', '.join(choices))})")
    return value


def _cut(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[:most].rpartition(" ")[0] + " …"


def _number(raw: str) -> int | float | None:
    for kind in (int, float):
        try:
            value = kind(raw)
        except ValueError:
            continue
        return value if value == value and abs(value) != float("inf") else None
    return None


def complete(text: str, current: Flags, book: Book) -> str | None:
    """The whole of what is being typed: a name with its value, or a choice of the value."""
    remove = "-" if text.startswith("-") and not text.startswith("--") else ""
    body = text.lstrip("-")
    if not body:
        return None
    name, equals, raw = body.partition("=")
    name = plain(name)
    if equals:
        info = book.get(name)
        for choice in map(str, (info.choices or ()) if info is not None else ()):
            if raw and choice.startswith(raw) and choice != raw:
                return f"{text[: len(text) - len(raw)]}{choice}"
        return None
    names = sorted(current)
    if not remove:
        names += [plain(info.name) for info in book.flags if not info.deprecated]
    for candidate in names:
        if candidate.startswith(name) and candidate not in RESERVED | SECRET:
            return f"{text[: len(text) - len(body)]}{typed(candidate, current, book, remove)}"
    return None


def typed(name: str, current: Flags, book: Book, remove: str = "") -> str:
    """A flag as one would type it to set it to what it is now."""
    info = book.get(name)
    if remove or (info is not None and info.kind == "bool"):
        return name
    shown = flag_text(current.get(name))
    return f"{name}=" if shown in ("–", "on") else f"{name}={shown}"


def apply(current: Flags, edits: Mapping[str, FlagValue | None]) -> Flags:
    """The flags after the edits."""
    changed = {name: value for name, value in current.items() if edits.get(name, value) is not None}
    changed.update({name: value for name, value in edits.items() if value is not None})
    return changed
