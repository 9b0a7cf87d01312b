"""The work folder: candidates and their keys, in chunks that are whole or not there.

A chunk is three files, ``SOURCE-NUMBER`` with ``.lines`` (prompt and its row, a line each),
``.npy`` (one fixed-size record a candidate) and, where near duplicates are judged, ``.sig``
(signatures); and ``.json``, written last: counts, and the sizes of the others. After a kill
whatever lacks a fitting ``.json`` is done again.
"""

from __future__ import annotations

import os
import struct as pystruct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec import Struct

from remote.prepare.convert import Candidate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PERMUTATIONS = 128
"""Slots of a signature: 512 bytes a candidate, on disk."""
SIGNATURE_SEED = 42

# One record a candidate; keys are the first 128 bits of the hashes.
FIELDS = [
    ("key", "<u8", (2,)),
    ("folded", "<u8", (2,)),
    ("rank", "<u8"),
    ("frame", "<u8"),
    ("tokens", "<u4"),
    ("out", "<u4"),
    ("kind", "u1"),
    ("domain", "u1"),
    ("expected", "<u4"),
    ("offset", "<u8"),
    ("line", "<u4"),
    ("meta", "<u4"),
]
_RECORD = pystruct.Struct("<16s16sQQIIBBIQII")
"""The same for :mod:`struct`."""


class Chunk(Struct):
    """What ``.json`` says of a chunk."""

    rows: int = 0
    """Rows read, broken ones included, blank lines not."""
    candidates: int = 0
    dropped: dict[str, int] = {}
    notes: dict[str, int] = {}
    adapters: dict[str, int] = {}
    examples: dict[str, list[list[Any]]] = {}
    """Cause → up to three of [part, row, detail]."""
    renamed: dict[str, str] = {}
    """Tool names as sent → as in the dataset."""
    whys: dict[str, int] = {}
    """``domain: why`` → candidates."""
    sizes: list[int] = []
    state: Any = None
    """Where a stream goes on after this chunk."""
    bytes: int = 0
    """Input behind it, for progress."""


ENDS = (".lines", ".npy", ".sig")


def stem(source: int, number: int) -> str:
    """Name of a chunk's files without their endings."""
    return f"{source:03d}-{number:06d}"


def read_chunk(folder: Path, source: int, number: int) -> Chunk | None:
    """The chunk's account if it is all there, else None."""
    base = folder / stem(source, number)
    try:
        chunk = msgspec.json.decode(base.with_suffix(".json").read_bytes(), type=Chunk)
        sizes = [base.with_suffix(end).stat().st_size for end in ENDS]
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return chunk if sizes == chunk.sizes else None


class Writer:
    """Writes one chunk; nothing of it counts before :meth:`close`."""

    def __init__(self, folder: Path, source: int, number: int) -> None:
        self._base = folder / stem(source, number)
        self._lines: BinaryIO = self._part(".lines").open("wb")
        self._records: list[bytes] = []
        self._signatures: list[Any] = []
        self._offset = 0
        self.chunk = Chunk()

    def add(self, found: list[Candidate], expected: list[int]) -> None:
        """Take candidates, in order; ``expected`` output tokens of each."""
        pieces: list[bytes] = []
        for candidate, output in zip(found, expected, strict=True):
            meta = dict(candidate.meta)
            if candidate.prefixes:
                meta["_prefixes"] = [p[:16].hex() for p in candidate.prefixes]
            encoded = msgspec.json.encode(meta)
            self._records.append(
                _RECORD.pack(
                    candidate.key[:16],
                    candidate.folded[:16],
                    candidate.rank,
                    candidate.frame,
                    candidate.tokens,
                    candidate.out,
                    candidate.kind,
                    candidate.domain,
                    output,
                    self._offset,
                    len(candidate.line),
                    len(encoded),
                )
            )
            pieces += (candidate.line, b"\n", encoded, b"\n")
            self._offset += len(candidate.line) + len(encoded) + 2
        self._lines.write(b"".join(pieces))
        shingled = [c.shingles for c in found if c.frame]
        if shingled:
            self._signatures.append(signatures(shingled))

    def _part(self, end: str) -> Path:
        # The process's own name: a worker that outlives a killed parent harms nobody.
        return self._base.with_suffix(f"{end}.part-{os.getpid()}")

    def close(self) -> Chunk:
        """Make the chunk count."""
        _sync(self._lines)
        with self._part(".npy").open("wb") as out:
            out.write(b"".join(self._records))
            _sync(out)
        with self._part(".sig").open("wb") as out:
            for block in self._signatures:
                out.write(block.tobytes())
            _sync(out)
        chunk = self.chunk
        chunk.candidates = len(self._records)
        chunk.sizes = [self._part(end).stat().st_size for end in ENDS]
        for end in ENDS:
            self._part(end).replace(self._base.with_suffix(end))
        write_atomic(self._base.with_suffix(".json"), msgspec.json.encode(chunk))
        return chunk

    def abandon(self) -> None:
        """Leave nothing of it."""
        self._lines.close()
        for end in ENDS:
            self._part(end).unlink(missing_ok=True)


def _sync(out: BinaryIO) -> None:
    out.flush()
    os.fsync(out.fileno())
    out.close()


def signatures(shingled: list[list[str]]) -> NDArray[np.uint32]:
    """MinHash signatures, one row a set of shingles."""
    import numpy as np

    from remote.prepare.errors import need

    rensa = need("rensa")
    rows = rensa.RMinHash.digests_from_token_sets(shingled, PERMUTATIONS, SIGNATURE_SEED)
    return np.array(rows, dtype="<u4")


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file durably."""
    temporary = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        with temporary.open("wb") as out:
            out.write(data)
            _sync(out)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load_records(folder: Path, chunks: list[int]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The records of all sources in the order of their rows, and each one's source.

    Records have ``chunk`` in front: which of the source's chunks each lies in.
    """
    import numpy as np

    paths = [
        (source, number, folder / f"{stem(source, number)}.npy")
        for source, count in enumerate(chunks)
        for number in range(count)
    ]
    size = np.dtype(FIELDS).itemsize
    total = sum(path.stat().st_size // size for _, _, path in paths)
    records = np.empty(total, dtype=[("chunk", "<u4"), *FIELDS])
    sources = np.empty(total, dtype=np.int64)
    at = 0
    for source, number, path in paths:
        block = np.fromfile(path, dtype=FIELDS)
        part = records[at : at + len(block)]
        for name, *_ in FIELDS:
            part[name] = block[name]
        part["chunk"] = number
        sources[at : at + len(block)] = source
        at += len(block)
    return records, sources


def iter_signatures(folder: Path, source: int, chunks: int) -> Iterator[NDArray[np.uint32]]:
    """The signatures of a source, chunk by chunk."""
    import numpy as np

    for number in range(chunks):
        path = folder / f"{stem(source, number)}.sig"
        yield np.fromfile(path, dtype="<u4").reshape(-1, PERMUTATIONS)


class Reader:
    """Random access to the lines of a source's candidates; keeps few files open."""

    def __init__(self, folder: Path, *, keep: int = 64) -> None:
        self._folder = folder
        self._keep = keep
        self._open: dict[str, int] = {}

    def read(
        self, source: int, chunk: int, offset: int, line: int, meta: int
    ) -> tuple[bytes, bytes]:
        """A candidate's prompt line and its row, both without newline."""
        name = stem(source, chunk)
        handle = self._open.pop(name, None)
        if handle is None:
            handle = os.open(self._folder / f"{name}.lines", os.O_RDONLY)
            if len(self._open) >= self._keep:
                os.close(self._open.pop(next(iter(self._open))))
        self._open[name] = handle
        data = os.pread(handle, line + meta + 1, offset)
        return data[:line], data[line + 1 :]

    def close(self) -> None:
        """Close what is open."""
        for handle in self._open.values():
            os.close(handle)
        self._open = {}
