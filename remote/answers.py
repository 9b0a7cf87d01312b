"""A look at what the run has written: newest records first, those that match, or one prompt's."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import msgspec

from remote import batchfiles
from remote.generate import layout, sides
from remote.generate.mending import split
from remote.generate.records import coded
from remote.protocol import Answer, Answers

_FILES: Final = {"failed": layout.FAILED, "set_aside": layout.SET_ASIDE}

BLOCK: Final = 1 << 20
SCAN: Final = 256 << 20
"""Bytes that one search looks through, newest first."""

TEXT: Final = 8_000
"""Characters of one text that travel at most; how many there are is told."""


def newest(
    folder: Path,
    kind: Literal["done", "failed", "set_aside"],
    limit: int,
    grep: str = "",
    outcome: str = "",
    chars: int = TEXT,
    before: str = "",
) -> Answers:
    """At most ``limit`` records, newest first, of each text ``chars`` characters; with ``before``
    those older than where an earlier answer ended (its ``next``). Blocking; raises re.error on a
    bad pattern.

    The open batch is looked at, too; its last line may be on its way and is left out then.
    """
    wanted = re.compile(grep.encode()) if grep else None
    start = _place(before)
    found: list[Answer] = []
    looked = 0
    for number, path in _files(folder, kind):
        if start is not None and number > start[0]:
            continue
        end = start[1] if start is not None and number == start[0] else None
        for at, line in _backwards(path, end):
            looked += len(line) + 1
            if wanted is not None and not wanted.search(line):
                pass
            elif (answer := _answer(line, chars)) is not None and outcome in ("", answer.outcome):
                found.append(answer)
            if len(found) >= limit or looked > SCAN:
                return Answers(found, complete=False, next=f"{number}:{at}", looked=looked)
    return Answers(found, looked=looked)


def of_prompt(folder: Path, index: int, chars: int = TEXT) -> Answers:
    """What there is of one prompt, of every kind. The manifest tells which sealed batch has it, and
    an index where it stands among the failed and those set aside, so that nothing else is read.
    Batches without a line in the manifest (of another tool, and the open one) are looked through
    from where ``.done_indices`` points to. ``note`` says where the record is if it is not here, or
    how far was looked. Blocking."""
    listed = _batches_with(folder / layout.MANIFEST, index)
    paths = [path for _, path in _files(folder, "done")]
    search = _Search(index, chars)
    for path in paths:
        if listed.get(path.name):
            search.batch(path)
    for name in _FILES.values():
        search.side(folder / name)
    if search.found:
        return Answers(search.found, looked=search.looked)
    for name, has in listed.items():
        if has and not (folder / name).exists():
            note = f"prompt {index:,}: its record is in {name}, which is only in S3"
            return Answers([], looked=search.looked, note=note)
    unlisted = [path for path in paths if path.name not in listed]
    for number, path in enumerate(nearest(unlisted, _share(folder / layout.DONE, index))):
        if search.looked > SCAN:
            note = (
                f"looked through {number:,} of {len(unlisted):,} batches that {layout.MANIFEST} "
                f"does not list ({search.looked / 1e6:,.0f} MB), nearest first to where "
                f"{layout.DONE} points; resume the run once, and all are listed"
            )
            return Answers([], complete=False, looked=search.looked, note=note)
        search.batch(path)
        if search.found:
            break
    return Answers(search.found, looked=search.looked)


class _Search:
    """Looks for one prompt's records."""

    def __init__(self, index: int, chars: int) -> None:
        self._index, self._chars = index, chars
        self._begins = re.compile(rb'\s*\{\s*"index"\s*:\s*%d\b' % index)
        self.found: list[Answer] = []
        self.looked = 0
        """Bytes that were read."""

    def batch(self, path: Path) -> None:
        """A whole file, up to the record."""
        any(self._take(line) for _, line in _backwards(path))

    def side(self, path: Path) -> None:
        """``failed.jsonl`` or ``set_aside.jsonl``: where its index says, else behind that."""
        known = sides.read(path)
        begin = 0
        for index, _, end in known.entries():
            if index == self._index:
                with path.open("rb") as file:
                    self._take(os.pread(file.fileno(), end - begin, begin))
                return
            begin = end
        any(self._take(line) for _, _, line in split(path, known.end) if line[-1:] == b"\n")

    def _take(self, line: bytes) -> bool:
        self.looked += len(line) + 1
        answer = _answer(line, self._chars) if self._begins.match(line) else None
        if answer is not None:
            self.found.append(answer)
        return answer is not None


def nearest(paths: list[Path], share: float) -> list[Path]:
    """Batches, newest first as they are given, by how far they are from the one that holds the
    record behind that share of all their bytes."""
    sizes = [path.stat().st_size if path.exists() else 0 for path in paths]
    behind = list(accumulate(reversed(sizes)))[::-1]
    place = share * sum(sizes)
    away = [
        max(end - size - place, place - end, 0) for end, size in zip(behind, sizes, strict=True)
    ]
    return [path for _, path in sorted(zip(away, paths, strict=True), key=lambda pair: pair[0])]


def _share(done: Path, index: int) -> float:
    """How far down in ``.done_indices`` the prompt stands: its lines come in the order of the
    records. 1 where it does not stand there: it may be the newest."""
    try:
        data = done.read_bytes()
    except OSError:
        return 1.0
    if data.startswith(b"%d\n" % index):
        return 0.0
    at = data.find(b"\n%d\n" % index)
    return 1.0 if at < 0 else data.count(b"\n", 0, at + 1) / max(1, data.count(b"\n"))


class _Listed(msgspec.Struct):
    """The keys of a manifest line that count here."""

    name: str
    indices: msgspec.Raw = msgspec.Raw(b"[]")


def _batches_with(manifest: Path, index: int) -> dict[str, bool]:
    """Every batch of the manifest, and whether it has the prompt; the last line of a name wins."""
    listed: dict[str, bool] = {}
    try:
        lines = manifest.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return {}
    for line in lines:
        try:
            entry = msgspec.json.decode(line, type=_Listed)
            steps = coded(entry.indices)
            within = bool(steps) and steps[0] <= index <= sum(steps)
            listed[entry.name] = within and index in accumulate(steps)
        except msgspec.DecodeError:
            continue
    return listed


def _place(text: str) -> tuple[int, int] | None:
    """Number of a file and an offset in it, as ``next`` tells them; None for anything else."""
    number, _, offset = text.partition(":")
    return (int(number), int(offset)) if number.isdecimal() and offset.isdecimal() else None


def _files(folder: Path, kind: str) -> list[tuple[int, Path]]:
    """The files of a kind with their numbers, newest first. A batch keeps its number when it is
    sealed, so that a place in it stays good."""
    if kind != "done":
        return [(0, path)] if (path := folder / _FILES[kind]).is_file() else []
    if not folder.is_dir():
        return []
    sealed, opened = batchfiles.listed(folder)
    numbered = [
        (number, folder / name)
        for name in (*sealed, *opened)
        if (number := layout.batch_number(name.removesuffix(layout.OPEN))) is not None
    ]
    return sorted(numbered, reverse=True)


def _opened(path: Path) -> BinaryIO:
    """The file, under the name that it has now: an open batch may have been sealed."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        return path.with_name(path.name.removesuffix(layout.OPEN)).open("rb")


def _backwards(path: Path, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Whole lines from the last one (that ends at ``end``) to the first, each with its offset;
    nothing where the file went away meanwhile."""
    try:
        with _opened(path) as file:
            at = os.fstat(file.fileno()).st_size
            at = at if end is None else min(at, end)
            rest = b""
            torn = True  # what stands behind the last newline is no line yet
            while at > 0:
                begin = max(0, at - BLOCK)
                block = os.pread(file.fileno(), at - begin, begin) + rest
                at = begin
                lines = block.split(b"\n")
                rest = lines.pop(0)
                behind = begin + len(block)
                if torn and lines:
                    behind -= len(lines.pop()) + 1
                    torn = False
                for line in reversed(lines):
                    behind -= len(line)
                    yield behind, line
                    behind -= 1
            if rest and not torn:
                yield 0, rest
    except FileNotFoundError:
        return


def _answer(line: bytes, chars: int) -> Answer | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("index"), int):
        return None
    usage = record.get("usage") if isinstance(record.get("usage"), dict) else {}
    return Answer(
        index=record["index"],
        outcome=str(record.get("outcome") or "ok"),
        source=str(record.get("source") or ""),
        prompt=_cut(_prompt(record.get("messages")), chars),
        reasoning=_cut(record.get("reasoning_content"), chars),
        content=_cut(record.get("content"), chars),
        tool_calls=_cut(_calls(record.get("tool_calls")), chars),
        finish_reason=str(record.get("finish_reason") or ""),
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        reasoning_tokens=_count(usage, "reasoning_tokens"),
        server=str(record.get("server") or ""),
        epoch=_count(record, "epoch"),
        attempts=_count(record, "attempts") or 0,
        segments=_length(record.get("segments")),
        latency_s=_seconds(record.get("latency_s")),
        finished_at=str(record.get("finished_at") or record.get("time") or ""),
        reason=_cut(
            " ".join(str(record.get(k) or "") for k in ("reason", "detail")).strip(), chars
        ),
    )


def _count(record: Any, name: str) -> int | None:
    value = record.get(name)
    return value if isinstance(value, int) else None


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _seconds(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _prompt(messages: Any) -> str:
    """The messages as one text, roles in front; parts that are not text are named."""
    if not isinstance(messages, list):
        return ""
    texts = []
    for message in messages:
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        if isinstance(content, list):
            content = " ".join(
                str(part.get("text") or f"[{part.get('type')}]")
                for part in content
                if isinstance(part, dict)
            )
        texts.append(f"{message.get('role', '?')}: {content or ''}")
    return "\n".join(texts)


def _calls(calls: Any) -> str:
    if not isinstance(calls, list):
        return ""
    lines = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            lines.append(f"{function.get('name')}({function.get('arguments')})")
    return "\n".join(lines)


def _cut(text: Any, most: int) -> str:
    if not isinstance(text, str):
        return ""
    rest = len(text) - most
    return text if rest <= 0 else f"{text[:most]} … {rest:,} more characters"
