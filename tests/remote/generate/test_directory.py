"""A run directory under everything at once, in any order."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from remote.generate import layout
from remote.generate.ledger import Ledger
from remote.generate.mending import RecoveryError
from remote.generate.records import undelta
from remote.generate.recovery import DONE, recover, retry_failed
from tests.remote.generate.crash import Quick
from tests.remote.generate.directories import TOTAL, done_indices
from tests.remote.generate.test_crash import aside, given_up, partial, record, states


class Directory(RuleBasedStateMachine):
    """A run directory under random writing, uploading, killing, tearing and retrying."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.acked: dict[int, bytes] = {}
        """Lines of prompts that are at an end, by prompt."""
        self.kept: set[int] = set()
        """Prompts with an unfinished answer on disk."""
        self.gone: set[int] = set()
        """Prompts whose batch is in S3 alone."""
        self.ledger: Ledger | None = None
        self.free: list[int] = []
        self.adopted = False
        self.before, layout.BATCH = layout.BATCH, 4

    @initialize(old=st.lists(st.integers(0, TOTAL - 1), unique=True, max_size=7), cut=st.booleans())
    def first(self, old: list[int], cut: bool) -> None:
        """A new directory, or one of an earlier tool with a torn end."""
        for number, part in enumerate((old[:3], old[3:]), 1):
            if part:
                lines = [json.dumps({"index": i, "text": "é" * i}) + "\n" for i in part]
                path = self.folder / f"completions_{number:04d}.jsonl"
                path.write_text("".join(lines))
                self.acked.update(zip(part, (line.encode() for line in lines), strict=True))
                self.adopted = True
        if self.adopted:
            if cut:
                last = old[-1]
                whole = path.read_bytes()
                path.write_bytes(whole[: -len(self.acked.pop(last)) // 2])
            (self.folder / layout.DONE).write_text("".join(f"{i}\n" for i in old))
            (self.folder / layout.FAILED).write_text("not even JSON\n")
        self.start()

    def start(self) -> None:
        """Recover."""
        recovered = recover(self.folder, TOTAL, adopted=self.adopted, disk=Quick())
        self.ledger = Ledger(self.folder, recovered.books, Quick())
        self.ledger.flush()
        self.free = [i for i in range(TOTAL) if recovered.status[i] == 0]
        have = states(self.folder)
        for index, line in self.acked.items():
            assert index in self.gone or have[index][1] == line.rstrip(b"\n")
        done = {i for i in range(TOTAL) if recovered.status[i] == DONE}
        assert done == set(done_indices(self.folder))
        assert not self.gone & set(have)
        assert set(have) | self.gone == set(range(TOTAL)) - set(self.free)
        self.kept &= set(self.free)
        assert {entry.index for entry in recovered.pending} == self.kept

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """Some prompts end, and that becomes durable."""
        assert self.ledger is not None
        count = data.draw(st.integers(1, min(6, len(self.free))))
        for _ in range(count):
            index = self.free.pop(data.draw(st.integers(0, len(self.free) - 1)))
            make = data.draw(st.sampled_from([record, record, record, given_up, aside]))
            self.ledger.add([make(index)])
        self.ledger.flush()
        self.acked.update({entry.index: entry.line for entry in self.ledger.acked})
        self.ledger.acked.clear()

    @precondition(lambda self: self.free)
    @rule(data=st.data(), size=st.integers(1, 3))
    def keep(self, data: st.DataObject, size: int) -> None:
        """An answer is interrupted, perhaps not for the first time."""
        assert self.ledger is not None
        index = data.draw(st.sampled_from(self.free))
        self.ledger.add([partial(index, size)])
        self.ledger.flush()
        self.ledger.acked.clear()
        self.kept.add(index)

    @rule()
    def seal(self) -> None:
        """A pass is over."""
        assert self.ledger is not None
        self.ledger.seal()
        self.ledger.flush()

    @rule()
    def upload(self) -> None:
        """Everything sealed goes to S3."""
        assert self.ledger is not None
        for batch in self.ledger.books.batches.values():
            if batch.state == "sealed":
                self.ledger.list_batch(replace(batch, state="uploaded"))
        self.ledger.flush()

    @rule(killed=st.booleans(), by_hand=st.booleans())
    def delete(self, killed: bool, by_hand: bool) -> None:
        """An uploaded batch goes from the disk, or just its line says so, or it just goes."""
        assert self.ledger is not None
        batches = self.ledger.books.batches.values()
        batch = next((b for b in batches if b.state == "uploaded"), None)
        if batch is None:
            return
        self.gone |= set(undelta(batch.indices))
        batch = replace(batch, state="local_deleted")
        if by_hand:
            (self.folder / batch.name).unlink()
        else:
            self.ledger.list_batch(batch)
            self.ledger.flush()
        if killed or by_hand:
            self.restart()
        else:
            self.ledger.delete_local(batch)
        assert not (self.folder / batch.name).exists()

    @rule(set_aside=st.booleans())
    def retry(self, set_aside: bool) -> None:
        """Those given up, or set aside as well, get another life."""
        assert self.ledger is not None
        self.ledger.close()
        have = states(self.folder)
        names = {layout.FAILED, *([layout.SET_ASIDE] if set_aside else [])}
        retry_failed(self.folder, set_aside=set_aside, disk=Quick())
        for index, (name, _) in have.items():
            if name in names:
                del self.acked[index]
        self.start()

    @precondition(lambda self: set(self.acked) - self.gone)
    @rule(data=st.data())
    def double(self, data: st.DataObject) -> None:
        """A prompt that stands somewhere gets a second line: refused, and nothing is touched."""
        assert self.ledger is not None
        self.ledger.close()
        index = data.draw(st.sampled_from(sorted(set(self.acked) - self.gone)))
        opened = [*self.folder.glob("*.open")][:1]
        path = data.draw(st.sampled_from([*opened, self.folder / layout.SET_ASIDE]))
        was = path.read_bytes() if path.exists() else b""
        path.write_bytes(was + aside(index).line)
        with pytest.raises(RecoveryError, match=f"prompt {index} has a record"):
            recover(self.folder, TOTAL, adopted=self.adopted, disk=Quick())
        assert path.read_bytes() == was + aside(index).line
        path.write_bytes(was)
        self.start()

    @rule(data=st.data(), nuls=st.sampled_from([0, 0, 1, 500]))
    def tear(self, data: st.DataObject, nuls: int) -> None:
        """Killed inside a write that was not acknowledged: some of it is there."""
        assert self.ledger is not None
        self.ledger.close()
        names = ["batch", "failed", "set_aside", "done", "manifest", "pending", "index"]
        name = data.draw(st.sampled_from(names))
        if name == "batch":
            opened = list(self.folder.glob("*.open"))
            index = self.free[0] if self.free else None
            if opened and index is not None:
                self._append(opened[0], record(index).line, data, nuls)
        elif name == "done":
            if self.free:
                self._append(self.folder / layout.DONE, b"", data, nuls)
        elif name == "manifest":
            self._append(self.folder / layout.MANIFEST, b'{"name":"completions_', data, nuls)
        elif name == "index":
            self._append(self.folder / ".set_aside.idx", b'[12,"looped",345]\n', data, nuls)
        elif self.free:
            make = partial(self.free[0], 1) if name == "pending" else aside(self.free[0])
            self._append(self.folder / f"{name}.jsonl", make.line, data, nuls)
        self.start()

    def _append(self, path: Path, line: bytes, data: st.DataObject, nuls: int) -> None:
        cut = data.draw(st.integers(0, max(0, len(line) - 1)))
        with path.open("ab") as out:
            out.write(line[:cut] + bytes(nuls))

    @rule(keep=st.integers(0, 30), name=st.sampled_from([".set_aside.idx", ".failed.idx"]))
    def lose_unsynced(self, keep: int, name: str) -> None:
        """``.done_indices`` and the indexes are not synced: their ends may be missing."""
        assert self.ledger is not None
        self.ledger.close()
        for path in (self.folder / layout.DONE, self.folder / name):
            if path.exists():
                path.write_bytes(path.read_bytes()[: keep * 3])
        self.start()

    @rule()
    def restart(self) -> None:
        """Killed between two writes."""
        assert self.ledger is not None
        self.ledger.close()
        self.start()

    @invariant()
    def numbering(self) -> None:
        """At most one open batch, and the numbers have no gap."""
        names = {path.name for path in self.folder.iterdir()}
        if self.ledger is not None:
            names |= set(self.ledger.books.batches)
        numbers = sorted(n for name in names if (n := layout.batch_number(name)) is not None)
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(list(self.folder.glob("*.open"))) <= 1

    def teardown(self) -> None:
        if self.ledger is not None:
            self.ledger.close()
        layout.BATCH = self.before
        shutil.rmtree(self.folder)


TestDirectory = Directory.TestCase
TestDirectory.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
