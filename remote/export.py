"""A run directory as one Parquet file, for ``datasets`` and every other reader of Parquet.

Records are read batch by batch and written in row groups, so that memory does not depend on the
run's size. What has no fixed form (tool definitions, tool calls, contents that are no text) is
written as JSON text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from remote.generate import layout

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

GROUP = 1000
"""Records of a row group."""

_TEXTS = ("id", "source", "content", "reasoning_content", "finish_reason", "outcome", "model")
_TEXTS_AFTER = ("server", "finished_at")
_JSON = ("tools", "tool_calls", "segments", "turns")
_TOKENS = ("prompt_tokens", "completion_tokens", "reasoning_tokens")
_MESSAGE = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")
_KNOWN = {
    *("index", "messages", "usage", "epoch", "attempts", "latency_s"),
    *_TEXTS,
    *_TEXTS_AFTER,
    *_JSON,
}


class ExportError(Exception):
    """One line: what is wrong and what to do."""


class UsageError(ExportError):
    """There is no such run, or nowhere to write to."""


@dataclass
class Exported:
    """What was written, and what could not be."""

    records: int = 0
    elsewhere: list[str] = field(default_factory=list)
    """Batches that were deleted here after their upload."""
    torn: int = 0
    """Lines at the end of the open batch that are not whole yet."""


def export(folder: Path, out: Path, *, set_aside: bool = False) -> Exported:
    """Write every completion record of a run to ``out``; it appears when it is complete.

    With ``set_aside`` the answers that the policy did not accept come after the others.

    :raises ExportError: no run, no pyarrow, or a record that cannot be read.
    """
    try:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise UsageError("pyarrow is not installed in this Python: pip install pyarrow") from None
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such run directory")
    report = Exported(elsewhere=_elsewhere(folder))
    files = _files(folder, set_aside=set_aside)
    if not files:
        raise UsageError(f"{folder}: no completion records here")
    if out.is_dir() or not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise UsageError(f"{out}: no file can be written there; name another one")
    schema = _schema()
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            rows: list[dict[str, Any]] = []
            for row in _rows(files, report):
                rows.append(row)
                if len(rows) >= GROUP:
                    writer.write_table(_table(rows, schema))
                    rows = []
            if rows:
                writer.write_table(_table(rows, schema))
        temporary.replace(out)
    except OSError as error:
        raise ExportError(f"{error.filename or out}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return report


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=schema)


def _schema() -> pa.Schema:
    import pyarrow as pa

    text = pa.string()
    message = pa.struct([(name, text) for name in _MESSAGE])
    return pa.schema(
        [
            ("index", pa.int64()),
            *((name, text) for name in _TEXTS[:2]),
            ("messages", pa.list_(message)),
            *((name, text) for name in _TEXTS[2:]),
            *((name, text) for name in _JSON),
            *((name, pa.int64()) for name in _TOKENS),
            ("epoch", pa.int64()),
            ("attempts", pa.int64()),
            ("latency_s", pa.float64()),
            *((name, text) for name in _TEXTS_AFTER),
            ("extra", text),
        ]
    )


def _files(folder: Path, *, set_aside: bool) -> list[Path]:
    names = [path.name for path in folder.iterdir()]
    numbered = {name: n for name in names if (n := layout.batch_number(name)) is not None}
    files = [folder / name for name in sorted(numbered, key=lambda name: numbered[name])]
    growing = [name for name in names if layout.open_number(name) is not None]
    files += [folder / name for name in growing if name.removesuffix(layout.OPEN) not in numbered]
    if set_aside and layout.SET_ASIDE in names:
        files.append(folder / layout.SET_ASIDE)
    return files


def _elsewhere(folder: Path) -> list[str]:
    class Line(msgspec.Struct):
        name: str
        state: str

    states: dict[str, str] = {}
    path = folder / layout.MANIFEST
    if path.exists():
        with path.open("rb") as file:
            for raw in file:
                try:
                    line = msgspec.json.decode(raw, type=Line)
                except msgspec.DecodeError:
                    continue
                states[line.name] = line.state
    return [name for name in states if not (folder / name).exists()]


def _rows(files: list[Path], report: Exported) -> Iterator[dict[str, Any]]:
    for path in files:
        grows = path.name.endswith(layout.OPEN)
        with _opened(path) as file:
            for number, raw in enumerate(file, 1):
                try:
                    record = json.loads(raw) if raw.endswith(b"\n") else None
                except ValueError:
                    record = None
                if not isinstance(record, dict) or not isinstance(record.get("index"), int):
                    if grows:
                        report.torn += 1
                        continue
                    raise ExportError(f"{path}: line {number}: not a record; see stoker verify")
                report.records += 1
                yield _row(record)


def _opened(path: Path) -> BinaryIO:
    """A batch, under its final name where a live run has sealed it meanwhile."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        return path.with_name(path.name.removesuffix(layout.OPEN)).open("rb")


def _row(record: dict[str, Any]) -> dict[str, Any]:
    usage = record.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    row: dict[str, Any] = {"index": record["index"]}
    row.update({name: _text(record.get(name)) for name in (*_TEXTS, *_TEXTS_AFTER)})
    row.update({name: _json(record.get(name)) for name in _JSON})
    row.update({name: _whole(usage.get(name)) for name in _TOKENS})
    row["epoch"] = _whole(record.get("epoch"))
    row["attempts"] = _whole(record.get("attempts"))
    latency = record.get("latency_s")
    row["latency_s"] = float(latency) if isinstance(latency, int | float) else None
    messages = record.get("messages")
    if isinstance(messages, list):
        row["messages"] = [
            {name: _text(message.get(name)) for name in _MESSAGE}
            for message in messages
            if isinstance(message, dict)
        ]
    extra = {name: value for name, value in record.items() if name not in _KNOWN}
    row["extra"] = _json(extra or None)
    return row


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else _json(value)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
