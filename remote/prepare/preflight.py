"""Everything that can be known to go wrong before anything long starts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from remote.prepare import hub, sources
from remote.prepare.adapters import Mapping, detect, nearest, reach
from remote.prepare.budget import Bound
from remote.prepare.convert import Converter
from remote.prepare.decontaminate import Evaluations
from remote.prepare.errors import RecipeError, need
from remote.prepare.recipe import Recipe, Source
from remote.prepare.rows import Drop, Notes
from remote.prepare.sources import Broken, FilePart, Work

Say = Callable[[str], None]


@dataclass
class Opened:
    """A source that was found to be readable."""

    source: Source
    parts: list[FilePart] = field(default_factory=list)
    stream: hub.Stream | None = None
    found: hub.Found | None = None
    weight: int = 0
    """Size of the input, in the unit of :attr:`Work.bytes`; 0 where unknown."""

    @property
    def revision(self) -> str:
        """Commit of a hub's dataset."""
        return self.found.revision if self.found else ""

    def identity(self) -> list[Any]:
        """What makes it the same input: revision, or sizes and times of its files."""
        if self.found is not None:
            return [self.source.hub, self.found.revision, self.stream and self.stream.fingerprint]
        stats = [(part.part, part.path.stat()) for part in self.parts]
        return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]

    def work(self, number: int, resume: tuple[int, Any] | None) -> Iterator[Work]:
        """All its work, in order; a stream goes on at ``resume``."""
        if self.stream is not None:
            name = self.source.hub + (f"/{self.source.config}" if self.source.config else "")
            return self.stream.work(number, f"{name}:{self.source.split}", resume)
        return sources.file_work(number, self.parts, self.source.limit)


def open_sources(recipe: Recipe, base: Path, say: Say) -> list[Opened]:
    """All sources, each looked at: files there, datasets granted, columns known.

    Raises:
        RecipeError: the first thing that is not as the recipe says.
    """
    need("rensa")
    need("py3langid")
    need("pyarrow")
    opened: list[Opened] = []
    # The hub's answers for all sources before the first row of any: a set that is not granted
    # should not show up after an hour.
    offline = False
    for source in recipe.sources:
        one = Opened(source)
        if source.hub:
            one.found = hub.Found(offline=True) if offline else hub.check(source)
            offline = one.found.offline
            if one.found.offline:
                say(f"{source.name}: the hub cannot be reached; using what is cached")
            elif source.revision != one.found.revision:
                say(
                    f"{source.name}: {source.hub} is not pinned to a commit; now at revision"
                    f' = "{one.found.revision}"'
                )
        else:
            one.parts = sources.local_files(source, base)
        opened.append(one)
    for one in opened:
        if one.found is not None:
            if one.source.files:
                one.parts = hub.download(one.source, one.found, base)
            else:
                one.stream = hub.Stream(one.source, one.found)
        rows = (
            one.stream.first_rows()
            if one.stream is not None
            else sources.first_rows(one.source, one.parts)
        )
        _check_rows(one.source, rows)
        one.weight = _weight(one)
    return opened


def _weight(one: Opened) -> int:
    if one.source.limit is not None:
        return 0
    if one.stream is not None:
        return one.stream.rows or 0
    if any(part.compressed or part.kind == "parquet" for part in one.parts):
        return 0
    return sum(part.path.stat().st_size for part in one.parts)


def _check_rows(source: Source, rows: list[Any]) -> None:
    """Look at the first rows.

    Raises:
        RecipeError: nobody knows their columns, or the mapping's are not there.
    """
    where = f"source {source.name}"
    whole = [row for row in rows if isinstance(row, dict)]
    if not rows:
        return  # empty is a shortfall, not a mistake
    if not whole:
        causes = sorted({row.cause if isinstance(row, Broken) else "not_an_object" for row in rows})
        raise RecipeError(f"{where}: none of its first rows can be read ({', '.join(causes)})")
    mapping = source.declared()
    if mapping is not None:
        _check_columns(where, mapping, whole)
    elif all(detect(row) is None for row in whole):
        columns = ", ".join(map(str, list(whole[0])[:12]))
        raise RecipeError(
            f"{where}: no adapter knows the columns {columns}; declare a mapping"
            ' (mapping = { prompt = "COLUMN" } or { messages = "COLUMN" })'
        )


def _check_columns(where: str, mapping: Mapping, rows: list[dict[str, Any]]) -> None:
    for path in (mapping.messages, mapping.prompt):
        if path and all(reach(row, path) is None for row in rows):
            column = path.split(".")[0]
            columns = list(rows[0])
            if column in columns:
                continue  # there, and empty in the first rows
            raise RecipeError(
                f"{where}: there is no column {column!r}{nearest(column, map(str, columns))};"
                f" there are {', '.join(map(str, columns[:12]))}"
            )


def load_evaluations(recipe: Recipe, base: Path) -> Evaluations | None:
    """The prompts of the evaluation sets, None where the recipe names none.

    Raises:
        RecipeError: one is missing, or nothing in it can be read.
    """
    if not recipe.decontaminate.files:
        return None
    found = Evaluations(ngram=recipe.decontaminate.ngram)
    for n, pattern in enumerate(recipe.decontaminate.files):
        source = Source(name=f"decontaminate {n + 1}", path=pattern)
        parts = sources.local_files(source, base)
        _check_rows(source, sources.first_rows(source, parts))
        converter = Converter(recipe, source, Bound())
        prompts = 0
        for work in sources.file_work(0, parts, None):
            for batch in sources.batches(work):
                for place, row in batch:
                    try:
                        made = converter.requests(row, Notes())[0]
                    except Drop:
                        continue
                    for request in made:
                        found.add(request.user_texts(), place.part)
                    prompts += len(made)
        if not prompts:
            raise RecipeError(f"decontaminate: no prompt found in {pattern}")
    return found


def identity(recipe: Recipe, base: Path, opened: list[Opened], evaluations: bytes) -> str:
    """Hash of all that decides what the chunks hold; another one begins anew."""
    digest = hashlib.sha256()
    digest.update(msgspec.json.encode(_without_quotas(recipe), order="sorted"))
    digest.update(msgspec.json.encode([one.identity() for one in opened]))
    digest.update(evaluations)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    if recipe.budget.tokenizer:
        folder = base / Path(recipe.budget.tokenizer).expanduser()
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if (folder / name).is_file():
                digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def _without_quotas(recipe: Recipe) -> Recipe:
    """How much is wanted does not change what a row becomes."""
    plain = [
        msgspec.structs.replace(source, quota=None, share=None, priority=0)
        for source in recipe.sources
    ]
    return msgspec.structs.replace(
        recipe, sources=plain, mix=type(recipe.mix)(), dedup=_only_level(recipe)
    )


def _only_level(recipe: Recipe) -> Any:
    return type(recipe.dedup)(level=recipe.dedup.level)
