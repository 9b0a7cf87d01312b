"""The prompts file, read by index: line N of the file is prompt N.

The offsets of all lines are found once, in one pass that also hashes the file and checks every
line, and are kept beside the run (eight bytes a line, mapped, not loaded). A later start hashes
again only when the file's size, modification time or inode changed.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
from array import array
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from remote.generate import linesums
from remote.generate.records import PromptsEntry

_CHUNK = 4 << 20
_HEAD = 512
LONGEST = 64 << 20
"""Bytes of one line that are read before the file is called broken."""


class PromptsError(Exception):
    """What is wrong with the prompts file and what to do, in one line."""


class Prompt(Struct):
    """One line of the prompts file; ``messages`` and ``tools`` stay as they stand there."""

    messages: Raw
    raw_tools: Raw | UnsetType = field(default=UNSET, name="tools")
    """msgspec takes no array for ``Raw | None``; :attr:`tools` is what it says."""
    id: Any = None
    source: str | None = None
    max_tokens: int | None = None
    params: dict[str, Any] | None = None
    mode: Literal["last", "each"] = "last"

    @property
    def tools(self) -> Raw | None:
        """Tool definitions; None where there are none, or they are null."""
        raw = self.raw_tools
        return None if raw is UNSET or bytes(raw) == b"null" else raw


class _Message(Struct, gc=False):
    role: str


class _Checked(Struct, gc=False):
    """The same line, looked at closely enough to tell a broken one."""

    messages: list[_Message]
    tools: list[dict[str, Any]] | None = None
    source: str | None = None
    max_tokens: int | None = None
    params: dict[str, Any] | None = None
    mode: Literal["last", "each"] = "last"


decode = msgspec.json.Decoder(Prompt).decode
_check = msgspec.json.Decoder(_Checked).decode
_check_lines = msgspec.json.Decoder(_Checked).decode_lines


class _Head(Struct):
    sha256: str
    bytes: int
    lines: int
    mtime_ns: int
    inode: int


def prompt_hash(line: bytes) -> str:
    """Identity of one prompt: 16 hex digits of its line's sha256."""
    return hashlib.sha256(line).hexdigest()[:16]


class Prompts:
    """An indexed prompts file, open."""

    def __init__(self, path: Path, entry: PromptsEntry, index: Path) -> None:
        self.path = path
        self.entry = entry
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with index.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._offsets = memoryview(self._map)[_HEAD:].cast("Q")

    def __len__(self) -> int:
        return self.entry.lines

    def line(self, index: int) -> bytes:
        """The bytes of line ``index``, newline included."""
        start, end = self._offsets[index], self._offsets[index + 1]
        data = os.pread(self._fd, end - start, start)
        if len(data) != end - start or data[-1:] != b"\n":
            raise PromptsError(f"{self.path}: changed while it was read; put the old file back")
        return data

    def lines(self, indices: Iterable[int]) -> list[tuple[int, bytes]]:
        """Several lines, for a reader in a thread."""
        return [(index, self.line(index)) for index in indices]

    def close(self) -> None:
        """Let go of the file and the map."""
        self._offsets.release()
        self._map.close()
        os.close(self._fd)


def open_prompts(
    path: Path,
    index: Path,
    known: list[PromptsEntry],
    *,
    extend: bool = False,
    tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> tuple[Prompts, list[PromptsEntry]]:
    """Open the prompts of a run, making or renewing the index where needed.

    ``known`` are the run's entries so far (empty for a new run). Returned with the open file
    are the entries as they are now; where they differ from ``known`` the caller commits them
    before it uses a new index.

    :raises PromptsError: no such file, a broken line, or not the file that the run began with.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise PromptsError(
            f"{path}: {(error.strerror or 'cannot be read').lower()}; name the prompts file "
            "with --prompts"
        ) from None
    last = known[-1] if known else None
    if last is not None:
        same = (last.bytes, last.mtime_ns, last.inode) == (
            stat.st_size,
            stat.st_mtime_ns,
            stat.st_ino,
        )
        head = _read_head(index)
        if same and head is not None and (head.sha256, head.lines) == (last.sha256, last.lines):
            return Prompts(path, last, index), known
    with _Build(path, index, last, tell) as made:
        return _take(made, known, extend=extend)


def _take(
    made: _Build, known: list[PromptsEntry], *, extend: bool
) -> tuple[Prompts, list[PromptsEntry]]:
    """The file that was just indexed, where it is the run's; else the old index stays.

    :raises PromptsError: it is not, or has grown.
    """
    path, head = made.path, made.head
    last = known[-1] if known else None
    entry = PromptsEntry(
        path=str(path),
        sha256=head.sha256,
        bytes=head.bytes,
        lines=head.lines,
        mtime_ns=head.mtime_ns,
        inode=head.inode,
    )
    if last is None:
        entries = [entry]
    elif entry.sha256 == last.sha256:
        entries = [*known[:-1], entry]
    elif made.shorter != last.sha256:
        raise PromptsError(
            f"{path}: not the prompts that this run began with ({_what_differs(made, last)}); put "
            "the old file back or choose another --output"
        )
    elif not extend:
        raise PromptsError(
            f"{path}: has grown from {last.lines} to {entry.lines} lines since this run began; "
            "add --extend to generate the new ones too"
        )
    else:
        entries = [*known, entry]
    made.keep()
    return Prompts(path, entry, made.index), entries


def _what_differs(made: _Build, last: PromptsEntry) -> str:
    """Between the file as it is now and as it was, in a few words."""
    found = linesums.difference(linesums.path_of(made.index), last.sha256, made.sums)
    if found is None:
        return f"something in its first {last.lines:,} lines differs"
    first, count = found
    if not count:
        return f"it ends after line {first:,} of {last.lines:,}"
    if count == 1:
        return f"line {first + 1:,} differs, and no other"
    return f"line {first + 1:,} is the first that differs"


def _read_head(index: Path) -> _Head | None:
    try:
        with index.open("rb") as file:
            raw = file.read(_HEAD)
            size = os.fstat(file.fileno()).st_size
        head = msgspec.json.decode(raw.rstrip(b"\0"), type=_Head)
    except (OSError, msgspec.DecodeError):
        return None
    return head if size == _HEAD + 8 * (head.lines + 1) else None


class _Build:
    """The index and the lines' checksums of a file, made beside those of before; a context, at
    whose end they are gone unless they are to :meth:`keep`.

    :raises PromptsError: what is wrong with the file.
    """

    def __init__(
        self, path: Path, index: Path, last: PromptsEntry | None, tell: Callable[[str], None]
    ) -> None:
        self.path, self.index = path, index
        self._offsets = index.with_name(index.name + ".tmp")
        self.sums = index.with_name(linesums.path_of(index).name + ".tmp")
        """Where the new checksums are."""
        try:
            with (
                path.open("rb") as file,
                self._offsets.open("wb") as out,
                self.sums.open("wb") as sums,
            ):
                boundary = last.bytes if last else -1
                self.head, self.shorter = _pass(path, file, out, sums, boundary, tell)
                sums.seek(0)
                sums.write(bytes.fromhex(self.head.sha256))
                out.seek(0)
                out.write(msgspec.json.encode(self.head).ljust(_HEAD, b"\0"))
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            self._drop()
            raise PromptsError(f"{error.filename or path}: {error.strerror}") from None
        except BaseException:
            self._drop()
            raise

    def keep(self) -> None:
        """Have them take the place of those of before."""
        try:
            self.sums.replace(linesums.path_of(self.index))
            self._offsets.replace(self.index)
        except OSError as error:
            raise PromptsError(f"{error.filename or self.path}: {error.strerror}") from None

    def _drop(self) -> None:
        self._offsets.unlink(missing_ok=True)
        self.sums.unlink(missing_ok=True)

    def __enter__(self) -> _Build:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()


def _pass(
    path: Path, file: Any, out: Any, sums: Any, boundary: int, tell: Callable[[str], None]
) -> tuple[_Head, str]:
    """Write the file's offsets and checksums.

    :returns: what it is, and the sha256 of its first ``boundary`` bytes, empty where it is shorter.
    """
    digest = hashlib.sha256()
    shorter = ""
    out.write(bytes(_HEAD))
    sums.write(bytes(linesums.HEAD))
    stat = os.fstat(file.fileno())
    offset = lines = told = 0
    rest = b""
    while block := file.read(_CHUNK):
        at = offset + len(rest)
        if at <= boundary <= at + len(block):
            early = digest.copy()
            early.update(block[: boundary - at])
            shorter = early.hexdigest()
        digest.update(block)
        data = rest + block
        cut = data.rfind(b"\n") + 1
        if cut == 0 and len(data) > LONGEST:
            raise PromptsError(f"{path}: line {lines + 1} is over {LONGEST >> 20} MiB long")
        whole, rest = data[:cut], data[cut:]
        pieces = whole.splitlines(keepends=True)
        if not _all_good(whole, len(pieces)):
            _name_the_broken(path, pieces, lines)
        starts = array("Q", accumulate(map(len, pieces), initial=offset))
        offset = starts.pop()
        lines += len(starts)
        if sys.byteorder == "big":
            starts.byteswap()
        starts.tofile(out)
        linesums.encode(pieces).tofile(sums)
        if offset - told > 1 << 30:
            told = offset
            tell(f"indexing {path.name}: {lines:,} lines, {offset * 100 // stat.st_size}%")
    if rest:
        raise PromptsError(
            f"{path}: line {lines + 1} has no newline at its end; the file may be cut off, or "
            "still being written: complete it, or add the newline"
        )
    if not lines:
        raise PromptsError(f"{path}: no prompts in it")
    end = array("Q", [offset])
    if sys.byteorder == "big":
        end.byteswap()
    end.tofile(out)
    head = _Head(
        sha256=digest.hexdigest(),
        bytes=offset,
        lines=lines,
        mtime_ns=stat.st_mtime_ns,
        inode=stat.st_ino,
    )
    return head, shorter


def _all_good(whole: bytes, count: int) -> bool:
    """Whether each of ``count`` lines is a prompt, as fast as it can be told."""
    try:
        whole.decode()
        checked = _check_lines(whole)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return len(checked) == count and all(row.messages for row in checked)


def _name_the_broken(path: Path, pieces: list[bytes], before: int) -> None:
    """Find the line that :func:`_all_good` did not like.

    :raises PromptsError: which one and why.
    """
    for number, line in enumerate(pieces, before + 1):
        try:
            # bytes.splitlines also splits at a lone carriage return, which JSON text cannot
            # hold inside a line that ends with a newline: such a piece is broken.
            if line[-1:] != b"\n":
                raise PromptsError(f"{path}: line {number} holds a bare carriage return")
            line.decode()
            checked = _check(line)
        except UnicodeDecodeError:
            raise PromptsError(_broken(path, number, b"x", "not UTF-8")) from None
        except msgspec.DecodeError as error:
            raise PromptsError(_broken(path, number, line, str(error))) from None
        except RecursionError:
            raise PromptsError(_broken(path, number, line, "nested too deeply")) from None
        if not checked.messages:
            raise PromptsError(_broken(path, number, line, "`messages` is empty"))


def _broken(path: Path, number: int, line: bytes, why: str) -> str:
    if not line.strip():
        why = "blank"
    return f'{path}: line {number}: {why}; every line is one JSON object with a "messages" list'
