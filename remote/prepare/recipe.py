"""The recipe: a TOML file that says where prompts come from and how many of each.

Every key has a meaning that is checked before anything is read; an unknown one is an error
that names the nearest known one.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from remote.prepare.adapters import BY_NAME, Mapping, nearest
from remote.prepare.budget import Budget
from remote.prepare.conversation import Rules, Tail
from remote.prepare.errors import RecipeError
from remote.prepare.labels import DOMAINS, Domain

Level = Literal["off", "exact", "normalised", "near"]
Unit = Literal["prompts", "prompt_tokens", "output_tokens"]

EXPECTED_OUTPUT: dict[Domain, int] = {
    "code": 3000,
    "math": 2600,
    "general": 1800,
    "tools": 800,
    "agent": 1200,
}
"""Output tokens expected of an answer with thinking, where the recipe gives no figures: rough,
for comparing shares before a run; a finished run's own means belong in the recipe."""


class Source(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One ``[[sources]]``: where rows come from, what they mean, and how many are wanted."""

    name: str
    # Where: one of path, bodies and hub.
    path: str = ""
    """A file, a folder or a pattern: JSONL, JSON, Parquet, CSV; also ``.gz`` and ``.zst``."""
    bodies: str = ""
    """A folder of captured HTTP bodies, one request a file or a line."""
    hub: str = ""
    """A dataset on the Hugging Face hub, ``owner/name``."""
    config: str = ""
    split: str = "train"
    revision: str = ""
    """Commit, tag or branch; a commit is what makes a recipe reproducible."""
    files: list[str] = []
    """Files of the hub's dataset to be read as they are, by name or pattern, instead of what
    ``datasets`` makes of the configuration."""
    streaming: bool = True
    """Read a hub's dataset as it arrives; false downloads and converts it first."""
    limit: int | None = None
    """At most so many rows are read, from the top: for trying a recipe out."""
    # What.
    adapter: str = ""
    mapping: Mapping | None = None
    tail: Tail = "last"
    fan_out: bool = False
    domain: str = ""
    languages: list[str] = []
    """Only these human languages (ISO 639-1, ``und`` for too short to tell)."""
    domains: list[str] = []
    """Only these domains."""
    sessions: Literal["steps", "longest"] = "steps"
    """Captured requests of one session begin alike: keep every step, or only the longest."""
    near: bool = True
    """Whether near duplicates are looked for among these rows."""
    redact: bool | None = None
    """Remove what looks like a credential; by default only from captured requests."""
    late_system: Literal["hoist", "drop"] = "hoist"
    consecutive_user: Literal["merge", "drop"] = "merge"
    markers: Literal["escape", "drop"] = "escape"
    json_schema: Literal["prompt", "response_format"] = "prompt"
    # How many.
    quota: int | None = None
    """In the mix's unit; all that there is where neither quota nor share is given."""
    share: float | None = None
    """Of the mix's total; shares are relative to their sum."""
    priority: int = 0
    """Of a prompt that several sources have, the lowest one keeps it; then the earlier source."""
    expected_output: int | None = None
    """Mean output tokens expected of an answer."""

    def declared(self) -> Mapping | None:
        """What its columns mean, where the recipe says so; None: told row by row."""
        if self.mapping is not None:
            return self.mapping
        if self.adapter:
            return BY_NAME[self.adapter].mapping
        return Mapping(form="body") if self.bodies else None

    def rules(self, mapping: Mapping) -> Rules:
        """What is done with its turns."""
        return Rules(
            tail=self.tail,
            fan_out=self.fan_out,
            late_system=self.late_system,
            consecutive_user=self.consecutive_user,
            markers=self.markers,
            redact=bool(self.redact),
            json_schema=self.json_schema,
            strip_system=tuple(mapping.strip_system),
            roles=mapping.roles,
        )


class Dedup(Struct, frozen=True, forbid_unknown_fields=True):
    """``[dedup]``: what counts as a duplicate, within and across sources."""

    level: Level = "near"
    near: float = 0.8
    """Jaccard similarity of five-word pieces from which prompts are near duplicates."""
    near_code: float = 0.9
    near_math: float = 0.95


class Decontaminate(Struct, frozen=True, forbid_unknown_fields=True):
    """``[decontaminate]``: prompts that must not be in the set."""

    files: list[str] = []
    """Evaluation sets, in any form a source may have."""
    ngram: int = 13
    """A shared run of so many words counts as contaminated (GPT-3's figure)."""


class Mix(Struct, frozen=True, forbid_unknown_fields=True):
    """``[mix]``: what quotas count."""

    unit: Unit = "prompts"
    total: int | None = None
    """What shares are shares of."""
    domains: dict[str, float] = {}
    """Shares of the domains that are wished for. They are compared with what comes out, and
    never enforced: quotas of sources are what decides."""


class Recipe(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A whole recipe."""

    sources: list[Source]
    name: str = ""
    seed: int = 0
    thinking: bool | float | None = None
    """Whether answers may think: sent as a template argument; a number is the share of prompts
    that may, the same in every source; unset leaves it to the run."""
    budget: Budget = Budget()
    dedup: Dedup = Dedup()
    decontaminate: Decontaminate = Decontaminate()
    mix: Mix = Mix()
    expected_output: dict[str, int] = {}
    """Mean output tokens by domain."""

    def expected(self, source: Source, domain: str) -> tuple[int, str]:
        """Output tokens expected of an answer, and who says so."""
        if source.expected_output is not None:
            return source.expected_output, "recipe, by source"
        if domain in self.expected_output:
            return self.expected_output[domain], "recipe, by domain"
        return EXPECTED_OUTPUT.get(domain, EXPECTED_OUTPUT["general"]), "assumed"  # type: ignore[call-overload]

    def thinks(self) -> bool:
        """Whether answers think as a rule (the floor of the budget hangs on it)."""
        return self.thinking is not None and float(self.thinking) > 0


def load(path: Path) -> Recipe:
    """The recipe in a file; the name of a shipped one works too.

    Raises:
        RecipeError: it is not there, does not parse, or says something impossible.
    """
    if not path.exists() and path.parent == Path() and path.name.removesuffix(".toml") in shipped():
        path = shipped()[path.name.removesuffix(".toml")]
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = nearest(path.stem, shipped()) if path.parent == Path() else ""
        raise RecipeError(f"{path}: no such recipe{hint}") from None
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8: {error.reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: {error}") from error
    return parse(data, str(path))


def shipped() -> dict[str, Path]:
    """Name → file of the recipes that come with Stoker."""
    folder = Path(__file__).parent / "recipes"
    return {p.stem: p for p in sorted(folder.glob("*.toml"))}


def parse(data: dict[str, Any], where: str = "recipe") -> Recipe:
    """A recipe from its parsed TOML.

    Raises:
        RecipeError: see :func:`load`.
    """
    try:
        _check_keys(data, Recipe, where)
        recipe = msgspec.convert(data, Recipe)
        _check(recipe)
    except msgspec.ValidationError as error:
        text = str(error).replace("$.", "").replace("`", "")
        raise RecipeError(f"{where}: {text[0].lower()}{text[1:]}") from error
    except _Wrong as error:
        raise RecipeError(f"{where}: {error}") from None
    return recipe


def fingerprint(recipe: Recipe) -> str:
    """Hash of everything the recipe says."""
    return hashlib.sha256(msgspec.json.encode(recipe, order="sorted")).hexdigest()


class _Wrong(Exception):  # noqa: N818
    pass


_NESTED: dict[str, type[Struct]] = {
    "budget": Budget,
    "dedup": Dedup,
    "decontaminate": Decontaminate,
    "mix": Mix,
    "mapping": Mapping,
}


def _check_keys(data: Any, kind: type[Struct], where: str) -> None:
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for key, value in data.items():
        if key not in known:
            raise RecipeError(f"{where}: unknown key {key!r}{nearest(key, known)}")
        if key == "sources" and isinstance(value, list):
            for n, item in enumerate(value):
                if isinstance(item, dict):
                    name = item.get("name") or f"number {n + 1}"
                    _check_keys(item, Source, f"{where}: source {name}")
        elif key in _NESTED and isinstance(value, dict):
            _check_keys(value, _NESTED[key], f"{where}: {key}")


def _check(recipe: Recipe) -> None:
    if not recipe.sources:
        raise _Wrong("no [[sources]]: nothing to read")
    names = [source.name for source in recipe.sources]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise _Wrong(f"two sources are called {double!r}")
    budget = recipe.budget
    if not 0 < budget.max_tokens < budget.context:
        raise _Wrong("budget.max_tokens must be above 0 and below budget.context")
    if budget.floor is not None and not 0 < budget.floor <= budget.max_tokens:
        raise _Wrong("budget.floor must be above 0 and at most budget.max_tokens")
    if budget.margin < 0:
        raise _Wrong("budget.margin must not be negative")
    for name in ("near", "near_code", "near_math"):
        if not 0.5 <= getattr(recipe.dedup, name) <= 1:
            raise _Wrong(f"dedup.{name} must be from 0.5 to 1")
    if recipe.decontaminate.ngram < 5:
        raise _Wrong("decontaminate.ngram must be at least 5")
    if recipe.thinking is not None and not 0 <= float(recipe.thinking) <= 1:
        raise _Wrong("thinking must be true, false or a share from 0 to 1")
    if recipe.mix.total is not None and all(s.share is None for s in recipe.sources):
        raise _Wrong("mix.total is what shares are shares of, and no source has a share")
    for domain in recipe.mix.domains:
        if domain not in DOMAINS:
            raise _Wrong(f"mix.domains: unknown domain {domain!r}{nearest(domain, DOMAINS)}")
    for domain in recipe.expected_output:
        if domain not in DOMAINS:
            raise _Wrong(f"expected_output: unknown domain {domain!r}{nearest(domain, DOMAINS)}")
    for source in recipe.sources:
        _check_source(source, recipe)


def _check_source(source: Source, recipe: Recipe) -> None:
    where = f"source {source.name}"
    if not source.name.strip():
        raise _Wrong("a source has an empty name")
    if sum(map(bool, (source.path, source.bodies, source.hub))) != 1:
        raise _Wrong(f"{where}: give one of path, bodies and hub")
    if source.adapter and source.adapter not in BY_NAME:
        raise _Wrong(
            f"{where}: unknown adapter {source.adapter!r}{nearest(source.adapter, BY_NAME)}"
        )
    if source.adapter and source.mapping is not None:
        raise _Wrong(f"{where}: give an adapter or a mapping, not both")
    if source.mapping is not None:
        _check_mapping(source.mapping, where)
    for domain in [*source.domains, *([source.domain] if source.domain else [])]:
        if domain not in DOMAINS:
            raise _Wrong(f"{where}: unknown domain {domain!r}{nearest(domain, DOMAINS)}")
    if source.quota is not None and source.share is not None:
        raise _Wrong(f"{where}: give quota or share, not both")
    if source.quota is not None and source.quota < 0:
        raise _Wrong(f"{where}: quota must not be negative")
    if source.share is not None:
        if source.share <= 0:
            raise _Wrong(f"{where}: share must be above 0")
        if recipe.mix.total is None:
            raise _Wrong(f"{where}: share needs mix.total, what it is a share of")
    if source.hub and source.hub.count("/") != 1:
        raise _Wrong(f"{where}: hub must be owner/name, not {source.hub!r}")
    if not source.hub:
        given = [k for k in ("config", "revision", "files") if getattr(source, k)]
        if given:
            raise _Wrong(f"{where}: {given[0]} belongs to a hub's dataset")
    if source.limit is not None and source.limit < 1:
        raise _Wrong(f"{where}: limit must be at least 1")


def _check_mapping(mapping: Mapping, where: str) -> None:
    import re

    given = [k for k in ("messages", "prompt", "template") if getattr(mapping, k)]
    if mapping.form == "columns" and len(given) != 1:
        raise _Wrong(f"{where}: its mapping needs one of messages, prompt and template")
    for own, role in mapping.roles.items():
        if role not in ("system", "user", "assistant", "tool", "call"):
            raise _Wrong(f"{where}: role {own!r} must map to system, user, assistant, tool or call")
    if mapping.domain and mapping.domain not in DOMAINS:
        raise _Wrong(
            f"{where}: unknown domain {mapping.domain!r}{nearest(mapping.domain, DOMAINS)}"
        )
    for pattern in mapping.strip_system:
        try:
            re.compile(pattern)
        except re.error as error:
            raise _Wrong(f"{where}: strip_system: {pattern!r}: {error}") from None
