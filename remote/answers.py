"""A look at what the run has written: newest records first, or those that match."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from remote.generate import layout
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
) -> Answers:
    """At most ``limit`` records, newest first, of each text ``chars`` characters. Blocking;
    raises re.error on a bad pattern.

    The open batch is looked at, too; its last line may be on its way and is left out then.
    """
    wanted = re.compile(grep.encode()) if grep else None
    found: list[Answer] = []
    looked = 0
    for path in _paths(folder, kind):
        for line in _backwards(path):
            looked += len(line) + 1
            if wanted is not None and not wanted.search(line):
                pass
            elif (answer := _answer(line, chars)) is not None and outcome in ("", answer.outcome):
                found.append(answer)
                if len(found) >= limit:
                    return Answers(found, complete=False)
            if looked > SCAN:
                return Answers(found, complete=False)
    return Answers(found)


def _paths(folder: Path, kind: str) -> list[Path]:
    if kind != "done":
        return [path] if (path := folder / _FILES[kind]).is_file() else []
    numbered = [
        (number, path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (number := layout.batch_number(path.name.removesuffix(layout.OPEN))) is not None
    ]
    return [path for _, path in sorted(numbered, reverse=True)]


def _backwards(path: Path) -> Iterator[bytes]:
    """Whole lines from the last to the first; nothing where the file went away meanwhile."""
    try:
        with path.open("rb") as file:
            at = os.fstat(file.fileno()).st_size
            rest = b""
            torn = True  # what stands behind the last newline is no line yet
            while at > 0:
                begin = max(0, at - BLOCK)
                block = os.pread(file.fileno(), at - begin, begin) + rest
                at = begin
                lines = block.split(b"\n")
                rest = lines.pop(0)
                if torn and lines:
                    lines.pop()
                    torn = False
                yield from reversed(lines)
            if rest and not torn:
                yield rest
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
