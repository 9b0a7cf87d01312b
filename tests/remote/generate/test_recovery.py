"""Recovery of directories that a crash, an earlier tool or an accident left."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import threading
import time
from pathlib import Path

import msgspec
import pytest

from remote.generate import layout
from remote.generate.ledger import Ledger
from remote.generate.lock import RunLock, held
from remote.generate.mending import RecoveryError
from remote.generate.opening import encode_run
from remote.generate.records import SCHEMA, Batch, RunFile, deltas, undelta
from remote.generate.recovery import read_run_file, recover
from remote.generate.writer import Writer
from tests.remote.generate.crash import Quick, Recorder
from tests.remote.generate.directories import TOTAL, done_indices, settle, write
from tests.remote.generate.test_crash import record, states


@pytest.mark.parametrize("nuls", [0, 1, 4096])
def test_torn_at_every_byte(nuls: int, tmp_path: Path) -> None:
    """Inside a string, inside a multi-byte character, before the newline; zeros may follow."""
    origin = tmp_path / "origin"
    origin.mkdir()
    write(origin, 3, 1)
    (origin / layout.DONE).write_text("3\n")  # the second line was on its way
    name = "completions_000001.jsonl.open"
    whole = (origin / name).read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        folder = tmp_path / "cut"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(origin, folder)
        (folder / name).write_bytes(whole[:cut] + bytes(nuls))
        settle(folder)
        assert (folder / name).read_bytes() == whole[:first]
        torn = list((folder / layout.TORN).iterdir()) if cut > first or nuls else []
        assert [p.read_bytes() for p in torn] == ([whole[first:cut] + bytes(nuls)] if torn else [])
        assert bool(torn) == (cut > first or nuls > 0)
        write(folder, 1)
        assert set(states(folder)) == {1, 3}
        assert done_indices(folder) == [3, 1]


def test_damage_is_not_a_torn_end(tmp_path: Path) -> None:
    """A broken line whose index is acknowledged: refused, and nothing is touched."""
    write(tmp_path, 3, 1, 2)
    path = tmp_path / "completions_000001.jsonl.open"
    lines = path.read_bytes().splitlines(keepends=True)
    broken = lines[0] + lines[1][:-9] + b"\n" + lines[2]
    path.write_bytes(broken)
    with pytest.raises(RecoveryError, match=r"open: line 2: broken, though \.done_indices has"):
        settle(tmp_path)
    assert path.read_bytes() == broken
    assert not (tmp_path / layout.TORN).exists()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: (f / "completions_000001.jsonl").unlink(), "not here, and never uploaded"),
        (lambda f: (f / "completions_000001.jsonl").write_text("{}"), "bytes, but manifest"),
        (lambda f: (f / "completions_000007.jsonl.open").write_text(""), "two open batches"),
        (lambda f: (f / "failed.jsonl").write_text('{"index":3}\n'), "has a record elsewhere"),
        (lambda f: (f / "failed.jsonl").write_text('{"index":99}\n'), "ends at 39"),
        (
            lambda f: (f / "manifest.jsonl").write_text(
                "junk\n" + (f / "manifest.jsonl").read_text()
            ),
            "line 1: broken, with good ones after",
        ),
    ],
)
def test_what_no_crash_explains_is_refused(spoil, says: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """One line, with the file and where it can be told the line."""
    recovered = recover(tmp_path, TOTAL, adopted=False, disk=Quick())
    ledger = Ledger(tmp_path, recovered.books, Quick())
    ledger.add(record(i) for i in range(5))
    ledger.flush()
    ledger.seal()
    ledger.add([record(7)])
    ledger.flush()
    ledger.add([record(8)])
    ledger.flush()
    ledger.close()
    spoil(tmp_path)
    with pytest.raises(RecoveryError, match=says) as caught:
        settle(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_same_prompt_in_two_batches_is_refused(tmp_path: Path) -> None:
    """Which prompt, and where."""
    for number in (1, 2):
        lines = [record(i).line for i in range(number, number + 3)]
        (tmp_path / f"completions_{number:06d}.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(RecoveryError) as caught:
        settle(tmp_path)
    second = tmp_path / "completions_000002.jsonl"
    assert str(caught.value) == (
        f"{second}: line 1: prompt 2 has a record already; "
        f"{second}: line 2: prompt 3 has a record already; remove one of each two"
    )


def test_of_many_doubles_the_first_are_named(tmp_path: Path) -> None:
    """One line, however bad it is."""
    for number in (1, 2):
        lines = [record(i).line for i in range(30)]
        (tmp_path / f"completions_{number:04d}.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(RecoveryError, match="prompt 19 has a record already; and 10 more such"):
        settle(tmp_path, adopted=True)


@pytest.mark.parametrize("content", [b"", b'{"index": 7, "tex', bytes(40), b"\n", b"nothing\n"])
def test_the_newest_file_of_an_earlier_tool_without_a_whole_record(
    content: bytes, tmp_path: Path
) -> None:
    """It is put away, its number is taken again, and the next start finds nothing to mend."""
    lines = record(4).line + record(5).line
    (tmp_path / "completions_0001.jsonl").write_bytes(lines)
    newest = tmp_path / "completions_0002.jsonl"
    newest.write_bytes(content)
    (tmp_path / layout.DONE).write_text("4\n5\n7\n")
    assert "completions_0002.jsonl had no whole record: removed" in settle(tmp_path, adopted=True)
    assert not newest.exists()
    torn = tmp_path / layout.TORN / "completions_0002.jsonl.0"
    assert (torn.read_bytes() if torn.exists() else b"") == content
    assert settle(tmp_path, adopted=True) == []
    write(tmp_path, 7)
    assert newest.with_name("completions_0002.jsonl.open").exists()
    assert sorted(done_indices(tmp_path)) == [4, 5, 7]


def test_done_indices_are_only_a_copy(tmp_path: Path) -> None:
    """Lost, torn, doubled or filled with junk: made again from the batches."""
    write(tmp_path, *range(9))
    path = tmp_path / layout.DONE
    for content in (None, b"", b"0\n1\n2", b"0\n0\n5\n", b"\0\0\0\0", b"x\n77\n3\n39\n"):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        assert settle(tmp_path)
        assert sorted(done_indices(tmp_path)) == list(range(9))
        assert not settle(tmp_path)


def test_an_earlier_tools_records(tmp_path: Path) -> None:
    """Four digits go on; any object with an integer index will do, nothing else."""
    rows = [{"index": 4, "usage": [1]}, {"text": "é", "index": 5, "epoch": "x"}]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (tmp_path / "completions_0007.jsonl").write_text(text)
    (tmp_path / "failed.jsonl").write_text('{"index": 4}\nwhatever\n')
    settle(tmp_path, adopted=True)
    assert done_indices(tmp_path) == [4, 5]
    assert (tmp_path / "failed.1.jsonl").exists()
    write(tmp_path, 6)
    assert (tmp_path / "completions_0008.jsonl.open").exists()
    (tmp_path / "completions_0003.jsonl").write_text('{"index": true}\n')
    with pytest.raises(RecoveryError, match=r"completions_0003\.jsonl: line 1: not a record"):
        settle(tmp_path)


def test_damage_in_a_directory_that_was_taken_over(tmp_path: Path) -> None:
    """The earlier tool kept no order; from the first start on its directory is as any other."""
    (tmp_path / "completions_0001.jsonl").write_text('{"index": 4}\n{"index": 5, "tex')
    (tmp_path / layout.DONE).write_text("4\n5\n")
    settle(tmp_path, adopted=True)
    assert done_indices(tmp_path) == [4]
    write(tmp_path, 3, 1, 2)
    path = tmp_path / "completions_0002.jsonl.open"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:-9] + b"\n" + lines[2])
    with pytest.raises(RecoveryError, match=r"open: line 2: broken, though \.done_indices has"):
        settle(tmp_path, adopted=True)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """Better than to write into what is not understood."""
    run = RunFile("r", [], {}, "2026-01-01T00:00:00Z", schema=SCHEMA + 1)
    (tmp_path / layout.RUN).write_bytes(encode_run(run))
    with pytest.raises(RecoveryError, match="written by a newer Stoker"):
        read_run_file(tmp_path)


def test_an_open_batch_that_a_killed_process_had_just_made(tmp_path: Path) -> None:
    """Its folder entry may not be durable: it is before anything in it is acknowledged."""
    (tmp_path / "completions_000001.jsonl.open").touch()
    recorder = Recorder(tmp_path)
    recovered = recover(tmp_path, TOTAL, adopted=False, disk=recorder)
    ledger = Ledger(tmp_path, recovered.books, recorder)
    ledger.add([record(1)])
    ledger.flush()
    ledger.close()
    names = [call.name for call in recorder.calls]
    assert "sync_folder" in names[: names.index("write")]


class Full(Quick):
    """A disk without space until it is told, for writing or for what creates, renames, removes."""

    full = False
    calls = frozenset({"write"})

    def _have(self, call: str) -> None:
        if self.full and call in self.calls:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    def write(self, fd: int, path: Path, data: bytes | memoryview) -> int:
        self._have("write")
        return super().write(fd, path, data)

    def open(self, path: Path) -> int:
        self._have("open")
        return super().open(path)

    def rename(self, old: Path, new: Path) -> None:
        self._have("rename")
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._have("unlink")
        super().unlink(path)

    def created(self, path: Path) -> None:
        self._have("open")


@pytest.mark.parametrize("call", ["write", "open", "rename", "unlink"])
def test_what_waits_while_the_disk_is_full_is_done_afterwards(call: str, tmp_path: Path) -> None:
    """Records, and what was to follow them: seal, the new pending.jsonl, a deletion."""
    disk = Full()
    disk.calls = frozenset({call})
    recovered = recover(tmp_path, TOTAL, adopted=False, disk=disk)
    problems: list[str] = []
    acked: list[int] = []
    gone = Batch("completions_000009.jsonl", "local_deleted", 0, 0, "", deltas([]))
    writer = Writer(
        Ledger(tmp_path, recovered.books, disk),
        on_durable=lambda entries, _: acked.extend(entry.index for entry in entries),
        on_problem=problems.append,
        on_broken=problems.append,
    )
    (tmp_path / layout.PENDING).write_text("{}\n")
    disk.full = True
    writer.put(record(1))
    writer.replace_pending([])
    writer.seal()
    if call == "unlink":
        writer.delete_local(gone)
    end = time.monotonic() + 10
    while not problems and time.monotonic() < end:
        time.sleep(0.01)
    assert "disk full" in problems[0]
    assert call in ("rename", "unlink") or not acked
    disk.full = False
    assert writer.flush(10.0)
    assert writer.close(10.0)
    assert acked == [1]
    assert problems[1:] == [""]
    assert not (tmp_path / gone.name).exists()
    assert (tmp_path / layout.PENDING).read_bytes() == b""
    assert (tmp_path / "completions_000001.jsonl").exists()


def test_a_file_is_written_after_the_lines_that_it_tells_of(tmp_path: Path) -> None:
    """Also where both are handed over while the writer is at work."""
    there: list[bool] = []
    late = Batch("completions_000009.jsonl", "uploaded", 0, 0, "", deltas([]))

    def durable(*_: object) -> None:
        writer.list_batch(late)
        writer.file("told", b"it is uploaded")

    writer = Writer(
        Ledger(tmp_path, recover(tmp_path, TOTAL, adopted=False).books),
        on_durable=durable,
        on_problem=lambda _: None,
        on_broken=lambda _: None,
    )
    writer.put(record(1))
    end = time.monotonic() + 10
    while not there and time.monotonic() < end:
        if (tmp_path / "told").exists():
            there.append(late.name in (tmp_path / layout.MANIFEST).read_text())
        time.sleep(0.001)
    assert there == [True]
    assert writer.close(10.0)


def test_the_lock_bears_a_look_at_it(tmp_path: Path) -> None:
    """Whoever asks whether it is held has it for an instant; a start then waits that long."""
    RunLock(tmp_path).release()
    fd = os.open(tmp_path / layout.LOCK, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    looked = threading.Timer(0.03, os.close, (fd,))
    looked.start()
    lock = RunLock(tmp_path)
    assert held(tmp_path)
    lock.release()
    assert not held(tmp_path)


def test_indices_are_coded_shortly() -> None:
    """Ascending differences."""
    assert deltas([9, 4, 5]) == msgspec.Raw(b"[4,1,4]")
    assert list(undelta(msgspec.Raw(b"[4,1,4]"))) == [4, 5, 9]
    assert deltas([]) == msgspec.Raw(b"[]")
