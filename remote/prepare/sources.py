"""Reading: files, folders and streams as pieces of work that are the same every time.

The reader cuts a source into blocks by its content alone, never by how many processes there
are; the workers parse. A block is raw lines, a row group of a Parquet file, or a table that
arrived from the hub.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from remote.prepare.convert import Place, relative
from remote.prepare.errors import PrepareError, RecipeError, need
from remote.prepare.recipe import Source

BLOCK = 2 << 20
"""Bytes of lines in one block."""
MAX_LINE = 64 << 20
"""A longer line is dropped as ``line_too_long``."""
BROKEN = b"\0"
"""First byte of a line that stands for a record which the reader itself found broken."""
BATCH = 1024
"""Rows a worker converts at a time."""

_ENDINGS = (".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv")
_COMPRESSED = (".gz", ".zst")


@dataclass
class Work:
    """One piece: ``kind`` says what the rest means."""

    source: int
    number: int
    kind: str
    """``lines``, ``parquet`` or ``arrow``."""
    segments: list[tuple[str, int, bytes]] = field(default_factory=list)
    """Part, first row and lines."""
    path: str = ""
    part: str = ""
    first: int = 0
    group: int = 0
    limit: int | None = None
    state: Any = None
    bytes: int = 0


@dataclass
class FilePart:
    """One file of a source."""

    path: Path
    part: str
    kind: str
    compressed: str = ""


def kind_of(path: Path) -> tuple[str, str] | None:
    """(``jsonl``, ``json``, ``parquet``, ``csv`` or ``tsv``; compression) by name, else None."""
    name = path.name.lower()
    compressed = next((end for end in _COMPRESSED if name.endswith(end)), "")
    name = name.removesuffix(compressed)
    ending = next((end for end in _ENDINGS if name.endswith(end)), "")
    if not ending or (ending == ".parquet" and compressed):
        return None
    kind = "jsonl" if ending == ".ndjson" else ending[1:]
    return kind, compressed


def local_files(source: Source, base: Path) -> list[FilePart]:
    """The files of a local source, in the order of their names.

    Raises:
        RecipeError: there is none, or one is of a kind that is not read.
    """
    given = source.path or source.bodies
    root = base / Path(given).expanduser()
    where = f"source {source.name}"
    if root.is_dir():
        paths = sorted(p for p in root.rglob("*") if p.is_file() and not p.name.startswith("."))
        paths = [p for p in paths if kind_of(p) is not None]
        if not paths:
            raise RecipeError(f"{where}: no JSONL, JSON, Parquet or CSV file below {root}")
    elif root.exists():
        if kind_of(root) is None:
            raise RecipeError(
                f"{where}: {root}: not one of .jsonl, .json, .parquet, .csv (or .gz, .zst of them)"
            )
        paths = [root]
    else:
        pattern = root.relative_to(root.anchor) if root.is_absolute() else root
        matches = sorted(Path(root.anchor or ".").glob(str(pattern)))
        paths = [p for p in matches if p.is_file() and kind_of(p) is not None]
        if not paths:
            raise RecipeError(f"{where}: {root}: no such file")
    return [file_part(path, base) for path in paths]


def file_part(path: Path, base: Path, name: str = "") -> FilePart:
    """One file that is of a known kind."""
    found = kind_of(path)
    if found is None:
        raise RecipeError(
            f"{path}: not one of .jsonl, .json, .parquet, .csv (or .gz, .zst of them)"
        )
    return FilePart(path, name or relative(path, base), *found)


def open_bytes(part: FilePart) -> BinaryIO:
    """The file's bytes, uncompressed."""
    if part.compressed == ".gz":
        return gzip.open(part.path, "rb")  # type: ignore[return-value]
    if part.compressed == ".zst":
        zstandard = need("zstandard")
        raw = part.path.open("rb")
        stream: BinaryIO = zstandard.ZstdDecompressor().stream_reader(
            raw, read_across_frames=True, closefd=True
        )
        return stream
    return part.path.open("rb")


# --- Files into blocks of lines ---


def _line_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Whole lines, about :data:`BLOCK` bytes of them at a time; the last may lack its newline."""
    pending: list[bytes] = []
    size = 0
    first = True
    while True:
        data = stream.read(BLOCK)
        if first:
            data = data.removeprefix(b"\xef\xbb\xbf")
            first = False
        if not data:
            break
        cut = data.rfind(b"\n") + 1
        if cut == 0:
            size += len(data)
            # Of a line beyond all bounds only its beginning is kept, so that it stays one line.
            if size <= MAX_LINE + 2 * BLOCK:
                pending.append(data)
            continue
        yield b"".join([*pending, data[:cut]])
        pending, size = ([data[cut:]], len(data) - cut) if cut < len(data) else ([], 0)
    if pending:
        yield b"".join(pending)


def _joined(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without their newlines as blocks of many."""
    some: list[bytes] = []
    size = 0
    for line in lines:
        some.append(line)
        size += len(line)
        if size >= BLOCK:
            yield b"\n".join(some) + b"\n"
            some, size = [], 0
    if some:
        yield b"\n".join(some) + b"\n"


def _array_lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """The elements of one large JSON array as lines, without ever holding the whole."""
    reader = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="strict", newline="")
    decoder = json.JSONDecoder()
    text = ""
    while "[" not in text:  # it was seen: blanks may stand before it
        text = reader.read(BLOCK)
    at = text.index("[") + 1
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if text.startswith("]", at):
            break
        try:
            _, end = decoder.raw_decode(text, at)
            if end == len(text):
                raise ValueError("it ends within an element")  # or a number goes on
        except ValueError as error:
            more = reader.read(max(BLOCK, len(text) - at))
            if more:
                text, at = text[at:] + more, 0
                continue
            if at == len(text):
                break
            raise PrepareError(f"{name}: broken JSON array: {error}; mend or replace it") from error
        # Newlines inside strings are escaped, so the ones left are only layout.
        yield text[at:end].replace("\r", " ").replace("\n", " ").encode()
        at = end


def _json_blocks(part: FilePart) -> Iterator[bytes]:
    """A ``.json`` file: one array, one object, or (often so named) JSON lines."""
    with open_bytes(part) as stream:
        head = b""
        while not head.strip():
            data = stream.read(BLOCK)
            if not data:
                return
            head = (head + data).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head[:1] == b"[" and not _is_line(head):
        with open_bytes(part) as stream:
            yield from _joined(_array_lines(stream, part.part))
        return
    if head[:1] == b"{" and not _is_line(head):
        with open_bytes(part) as stream:
            whole = stream.read(MAX_LINE + 1)
        if len(whole) <= MAX_LINE:
            # One object over many lines; if it is torn, it is one broken record.
            whole = whole.removeprefix(b"\xef\xbb\xbf").replace(b"\r", b" ").replace(b"\n", b" ")
            yield whole
            return
    with open_bytes(part) as stream:
        yield from _line_blocks(stream)


def _is_line(head: bytes) -> bool:
    """Whether the first line is a JSON object of its own (or the beginning of a very long one)."""
    line, newline, _ = head.partition(b"\n")
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return not newline and len(head) >= BLOCK and head[:1] == b"{"
    return isinstance(value, dict)


def _csv_lines(part: FilePart) -> Iterator[bytes]:
    csv.field_size_limit(MAX_LINE)
    delimiter = "\t" if part.kind == "tsv" else ","
    with open_bytes(part) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
        rows = csv.reader(text, delimiter=delimiter)
        header = next(rows, None)
        if header is None:
            return
        while True:
            try:
                row = next(rows)
            except StopIteration:
                break
            except csv.Error as error:
                yield BROKEN + f"broken_csv {error}".encode()
                continue
            if not row:
                continue
            if len(row) != len(header):
                yield BROKEN + f"broken_csv {len(row)} fields, not {len(header)}".encode()
                continue
            try:
                yield msgspec.json.encode(dict(zip(header, row, strict=True)))
            except UnicodeEncodeError:
                yield BROKEN + b"bad_utf8"


def blocks(part: FilePart) -> Iterator[bytes]:
    """A file that is not Parquet as blocks of lines, one record a line.

    Raises:
        PrepareError: it cannot be read to its end.
    """
    try:
        if part.kind == "jsonl":
            with open_bytes(part) as stream:
                yield from _line_blocks(stream)
        elif part.kind == "json":
            yield from _json_blocks(part)
        else:
            yield from _joined(_csv_lines(part))
    except (EOFError, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise PrepareError(f"{part.part}: {error}; fetch or pack it again") from error
    except OSError as error:
        raise PrepareError(f"{part.part}: {error.strerror or error}") from error
    except Exception as error:
        if type(error).__name__ == "ZstdError":
            raise PrepareError(f"{part.part}: {error}; fetch or pack it again") from error
        raise


def file_work(source: int, parts: list[FilePart], limit: int | None) -> Iterator[Work]:
    """All work of a local source, in order. Small files share a piece."""
    number = 0
    left = limit
    segments: list[tuple[str, int, bytes]] = []
    size = 0

    def flush() -> Work:
        nonlocal segments, size, number
        work = Work(source, number, "lines", segments=segments, bytes=size)
        segments, size, number = [], 0, number + 1
        return work

    for part in parts:
        if left is not None and left <= 0:
            break
        if part.kind == "parquet":
            if segments:
                yield flush()
            for group, rows, weight in _groups(part):
                take = rows if left is None else min(rows, left)
                if take <= 0:
                    break
                yield Work(
                    source,
                    number,
                    "parquet",
                    path=str(part.path),
                    part=part.part,
                    first=group[1],
                    group=group[0],
                    limit=take,
                    bytes=weight,
                )
                number += 1
                left = None if left is None else left - take
            continue
        row = 0
        for block in blocks(part):
            count = block.count(b"\n") + (not block.endswith(b"\n"))
            if left is not None:
                if left <= 0:
                    break
                if count > left:
                    block = b"\n".join(block.split(b"\n", left)[:left]) + b"\n"
                    count = left
                left -= count
            segments.append((part.part, row, block))
            size += len(block)
            row += count
            if size >= BLOCK // 2:
                yield flush()
    if segments:
        yield flush()


def _groups(part: FilePart) -> list[tuple[tuple[int, int], int, int]]:
    parquet = need("pyarrow.parquet")
    try:
        metadata = parquet.ParquetFile(part.path).metadata
    except Exception as error:
        raise PrepareError(
            f"{part.part}: no readable Parquet file: {_first_line(error)}"
        ) from error
    found, first = [], 0
    for n in range(metadata.num_row_groups):
        group = metadata.row_group(n)
        found.append(((n, first), group.num_rows, group.total_byte_size))
        first += group.num_rows
    return found


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# --- Work into rows (in a worker) ---

_surrogate = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\)\\u[dD][c-fC-F]")


@dataclass
class Broken:
    """A record that could not be read; it costs itself and nothing else."""

    cause: str
    detail: str = ""


def parse_line(line: bytes) -> Any:
    """The record of a line, or :class:`Broken` with the cause."""
    if len(line) > MAX_LINE:
        return Broken("line_too_long", f"{len(line)} bytes")
    if line[:1] == BROKEN:
        cause, _, detail = line[1:].decode("utf-8", "replace").partition(" ")
        if cause in ("broken_csv", "bad_utf8"):
            return Broken(cause, detail)
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        try:
            line.decode()
        except UnicodeDecodeError as bad:
            return Broken("bad_utf8", f"byte {bad.start}")
        if _surrogate.search(line):
            return Broken("lone_surrogate", str(error)[:80])
        return Broken("broken_json", str(error)[:80])


def batches(work: Work) -> Iterator[list[tuple[Place, Any]]]:
    """The rows of a piece of work with their places, some at a time."""
    if work.kind == "lines":
        rows: list[tuple[Place, Any]] = []
        for part, first, block in work.segments:
            # Only b"\n" ends a line: U+2028 and its kin may stand inside strings.
            for n, line in enumerate(block.split(b"\n")):
                if line.strip():
                    rows.append((Place(part, first + n), parse_line(line)))
                    if len(rows) >= BATCH:
                        yield rows
                        rows = []
        if rows:
            yield rows
        return
    row, left = work.first, work.limit
    for table in _tables(work):
        records = table.to_pylist()
        if left is not None:
            records = records[:left]
            left -= len(records)
        yield [(Place(work.part, row + n), record) for n, record in enumerate(records)]
        row += len(records)
        if left == 0:
            break


def _tables(work: Work) -> Iterator[Any]:
    if work.kind == "parquet":
        parquet = need("pyarrow.parquet")
        try:
            file = parquet.ParquetFile(work.path)
            yield from file.iter_batches(batch_size=BATCH, row_groups=[work.group])
        except OSError as error:
            raise PrepareError(f"{work.part}: {_first_line(error)}") from error
        return
    ipc = need("pyarrow.ipc")
    for _, _, block in work.segments:
        with ipc.open_stream(block) as reader:
            for batch in reader:
                for start in range(0, batch.num_rows, BATCH):
                    yield batch.slice(start, BATCH)


def first_rows(source: Source, parts: list[FilePart], count: int = 20) -> list[Any]:
    """The first rows of a local source, for checks before anything long."""
    rows: list[Any] = []
    for work in file_work(0, parts, limit=count):
        for batch in batches(work):
            rows += [row for _, row in batch]
        if len(rows) >= count:
            break
    return rows[:count]
