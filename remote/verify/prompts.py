"""The prompts file against what the run began with."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from remote.verify.reading import is_count
from remote.verify.report import CannotVerifyError, Report


def count_prompts(run: dict[str, Any] | None, given: Path | None, report: Report) -> int | None:
    """Check the prompts file against what the run began with; the number of prompts."""
    recorded = (run or {}).get("prompts") or []
    if not isinstance(recorded, list) or not all(map(_is_prompts_entry, recorded)):
        report.violation("bad file", "run.json: prompts is no list of path, sha256, bytes, lines")
        recorded = []
    last = recorded[-1] if recorded else {}
    path = given or (Path(last["path"]) if "path" in last else None)
    if path is None:
        report.notes.append("no prompts file known (an old directory): give it with --prompts")
        return None
    if not path.is_file():
        if given:
            raise CannotVerifyError(f"{path}: no such prompts file")
        report.notes.append(f"{path}: prompts file not here; its bytes were not checked")
        return last.get("lines")
    hashes, lines = _hash_prefixes(path, [entry["bytes"] for entry in recorded])
    changed = [entry for entry in recorded if hashes[entry["bytes"]] != entry["sha256"]]
    for _ in changed:
        report.violation(
            "prompts changed", f"{path}: not the prompts that this run began with (sha256)"
        )
    return lines if changed else last.get("lines", lines)


def _is_prompts_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("path"), str)
        and isinstance(entry.get("sha256"), str)
        and is_count(entry.get("bytes"))
        and is_count(entry.get("lines"))
    )


def _hash_prefixes(path: Path, sizes: list[int]) -> tuple[dict[int, str], int]:
    """sha256 of the first so many bytes, for each size; and the number of lines of the file."""
    wanted = sorted(set(sizes))
    digest, position, lines = hashlib.sha256(), 0, 0
    found: dict[int, str] = dict.fromkeys(sizes, "")
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            lines += block.count(b"\n")
            start = 0
            while wanted and wanted[0] <= position + len(block):
                cut = wanted.pop(0) - position
                digest.update(block[start:cut])
                found[position + cut] = digest.hexdigest()
                start = cut
            digest.update(block[start:])
            position += len(block)
    return found, lines
