"""What was done, as one JSON document: the same bytes for the same recipe and input."""

from __future__ import annotations

import hashlib
import itertools
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from remote.prepare import labels
from remote.prepare.build import Built, SourceCount
from remote.prepare.output import rows_path
from remote.prepare.recipe import Recipe, fingerprint

VERSION = 1
SKEW = 0.6
"""A domain above this share of the expected output is pointed out."""
WISH = 0.05
"""So far may a domain be from the wished share before it is pointed out."""
_LIBRARIES = ("datasets", "jinja2", "pyarrow", "py3langid", "rensa", "tokenizers")
BINS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
"""Upper ends of the histogram's classes, in tokens."""


def manifest_path(output: Path) -> Path:
    """Where the manifest of a prompts file lies."""
    return output.with_name(output.name.removesuffix(".jsonl") + ".manifest.json")


def describe(built: Built, output: Path) -> dict[str, Any]:
    """The manifest of a build."""
    recipe = built.recipe
    return {
        "version": VERSION,
        "recipe": {
            "name": recipe.name,
            "sha256": fingerprint(recipe),
            "content": msgspec.to_builtins(recipe),
        },
        "seed": recipe.seed,
        "output": {
            "path": output.name,
            "sha256": built.prompts_sha256,
            "bytes": built.prompts_bytes,
            "lines": len(built.chosen),
        },
        "rows": {
            "path": rows_path(output).name,
            "sha256": built.rows_sha256,
            "bytes": built.rows_bytes,
        },
        "counted": _counted(recipe),
        "sources": [_source(built, n, count) for n, count in enumerate(built.sources)],
        "mix": mix_of(built),
        "lengths": {
            "prompt_tokens": _histogram(built.chosen["tokens"]),
            "max_tokens": _histogram(built.chosen["out"]),
            "clamped": int((built.chosen["out"] < recipe.budget.max_tokens).sum()),
        },
        "tools": _tools(built),
        "decontaminated_against": built.contaminating,
        "warnings": warnings(built),
        "libraries": _versions(),
    }


def _counted(recipe: Recipe) -> dict[str, Any]:
    if recipe.budget.tokenizer:
        return {
            "by": "tokenizer and chat template",
            "tokenizer": Path(recipe.budget.tokenizer).name,
        }
    return {"by": "upper bound", "tokenizer": None}


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _sorted(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _source(built: Built, number: int, count: SourceCount) -> dict[str, Any]:
    own = built.chosen[built.chosen["source"] == number]
    source, opened = count.opened.source, count.opened
    where: dict[str, Any] = {}
    if source.hub:
        where = {
            "hub": source.hub,
            "config": source.config or None,
            "split": source.split,
            "revision": opened.revision or None,
            "pinned": bool(opened.revision) and source.revision == opened.revision,
            "gated": (opened.found.gated if opened.found else "") or None,
        }
    files = [
        {"name": part.part, "bytes": part.path.stat().st_size, "sha256": _file_hash(part.path)}
        for part in opened.parts
    ]
    return {
        "name": source.name,
        **where,
        "files": files,
        "adapters": _sorted(count.adapters),
        "tail": source.tail,
        "rows": count.rows,
        "candidates": count.candidates,
        "survivors": count.alive,
        "quota": count.quota,
        "kept": len(own),
        "shortfall": shortfall(built, count),
        "dropped": _sorted(count.dropped),
        "duplicates_of": _sorted(count.lost_to),
        "notes": _sorted(count.notes),
        "domain_reasons": _sorted(count.whys),
        "languages": _sorted(count.languages),
        "examples": {
            cause: [{"part": part, "row": row, "detail": detail} for part, row, detail in examples]
            for cause, examples in sorted(count.examples.items())
        },
    }


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shortfall(built: Built, count: SourceCount) -> int:
    """What a source lacks of its quota, in the mix's unit, 0 where it has all.

    With token quotas the last prompt seldom fits exactly; that is no shortfall while the
    source has prompts left.
    """
    if count.quota is None or count.alive > _kept(built, count):
        return 0
    return max(0, count.quota - count.amount)


def _kept(built: Built, count: SourceCount) -> int:
    number = built.sources.index(count)
    return int((built.chosen["source"] == number).sum())


def _amounts(records: Any) -> dict[str, int]:
    return {
        "prompts": len(records),
        "prompt_tokens": int(records["tokens"].sum()),
        "output_tokens": int(records["expected"].sum()),
    }


def mix_of(built: Built) -> dict[str, Any]:
    """Planned and kept by source, domain and language, each by prompts and by tokens."""
    recipe, chosen = built.recipe, built.chosen
    by_source: dict[str, Any] = {}
    for number, count in enumerate(built.sources):
        by_source[count.opened.source.name] = {
            "planned": count.quota,
            **_amounts(chosen[chosen["source"] == number]),
        }
    by_domain: dict[str, Any] = {}
    for number, name in enumerate(labels.DOMAINS):
        part = chosen[chosen["domain"] == number]
        if len(part) or name in recipe.mix.domains:
            by_domain[name] = {"planned_share": recipe.mix.domains.get(name), **_amounts(part)}
    by_language: dict[str, int] = {}
    for count in built.sources:
        for language, amount in count.languages.items():
            by_language[language] = by_language.get(language, 0) + amount
    said: dict[str, str] = {}
    for count in built.sources:
        for number, name in enumerate(labels.DOMAINS):
            if (chosen["domain"] == number).any():
                tokens, who = recipe.expected(count.opened.source, name)
                said[f"{count.opened.source.name}/{name}"] = f"{tokens} ({who})"
    return {
        "unit": recipe.mix.unit,
        "total": _amounts(chosen),
        "sources": by_source,
        "domains": by_domain,
        "languages": _sorted(by_language),
        "expected_output": said,
    }


def _histogram(values: Any) -> dict[str, Any]:
    import numpy as np

    if not len(values):
        return {"bins": [], "mean": None, "p50": None, "p99": None, "max": None}
    edges = [0, *BINS]
    counts = [
        int(((values > low) & (values <= high)).sum()) for low, high in itertools.pairwise(edges)
    ]
    counts.append(int((values > BINS[-1]).sum()))
    filled = [n for n, amount in enumerate(counts) if amount]
    ends: list[int | None] = [*BINS, None]
    bins = [{"up_to": ends[n], "prompts": counts[n]} for n in range(filled[0], filled[-1] + 1)]
    return {
        "bins": bins,
        "mean": round(float(values.mean()), 1),
        "p50": int(np.percentile(values, 50)),
        "p99": int(np.percentile(values, 99)),
        "max": int(values.max()),
    }


def _tools(built: Built) -> dict[str, Any]:
    """How many prompts have tools, and everything about tools that was mapped."""
    types: dict[str, int] = {}
    renamed: dict[str, str] = {}
    for count in built.sources:
        for note, amount in count.notes.items():
            if note.startswith("type:"):
                name = note.removeprefix("type:").replace(">", " → ")
                types[name] = types.get(name, 0) + amount
        renamed.update(count.renamed)
    return {"types": _sorted(types), "renamed": dict(sorted(renamed.items()))}


def warnings(built: Built) -> list[str]:
    """What an operator should look at before the run, a line each."""
    found: list[str] = []
    recipe, chosen = built.recipe, built.chosen
    for count in built.sources:
        name = count.opened.source.name
        lacks = shortfall(built, count)
        if lacks:
            unit = recipe.mix.unit.replace("_", " ")
            found.append(
                f"{name}: {count.amount:,} of {count.quota:,} {unit}, {lacks:,} short; nothing was"
                " taken from another source instead"
            )
        broken = sum(
            amount
            for cause, amount in count.dropped.items()
            if cause in ("broken_json", "bad_utf8", "lone_surrogate", "broken_csv", "line_too_long")
        )
        if broken:
            found.append(f"{name}: {broken:,} broken records were left out")
        if count.rows and not count.candidates:
            found.append(f"{name}: not one of {count.rows:,} rows became a prompt")
    total = _amounts(chosen)
    for number, domain in enumerate(labels.DOMAINS):
        part = _amounts(chosen[chosen["domain"] == number])
        if not total["prompts"] or not total["output_tokens"]:
            continue
        share = part["output_tokens"] / total["output_tokens"]
        prompts = part["prompts"] / total["prompts"]
        wished = recipe.mix.domains.get(domain)
        if wished is not None and abs(share - wished) > WISH:
            found.append(
                f"{domain} is {share:.0%} of the expected output, and {wished:.0%} was wished for"
            )
        elif wished is None and share > SKEW and len(built.sources) > 1:
            found.append(
                f"{domain} is {share:.0%} of the expected output ({prompts:.0%} of the prompts)"
            )
    clamped = int((chosen["out"] < recipe.budget.max_tokens).sum())
    if clamped > 0.05 * max(1, len(chosen)):
        found.append(
            f"{clamped:,} prompts have less than {recipe.budget.max_tokens} tokens for their"
            " answer; expect them to end with finish_reason=length"
        )
    return found
