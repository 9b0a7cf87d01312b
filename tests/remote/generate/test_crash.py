"""Every prefix of the writer's system calls, cut by a power loss, recovers to the laws."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from remote import verify
from remote.generate import layout
from remote.generate import partial as partials
from remote.generate.ledger import Entry, Ledger
from remote.generate.opening import encode_run, open_run
from remote.generate.partial import Segment
from remote.generate.prompts import open_prompts
from remote.generate.records import (
    Completion,
    GivenUp,
    Pending,
    RunFile,
    Seen,
    Usage,
    line,
    undelta,
)
from remote.generate.recovery import DONE, recover, retry_failed
from remote.generate.settings import Settings
from tests.remote.generate.conftest import write_prompts
from tests.remote.generate.crash import Call, Machine, Quick, Recorder, lay_out

TOTAL = 21


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "BATCH", 4)


def record(index: int) -> Entry:
    """A completion of prompt ``index``, of its own length."""
    completion = Completion(
        index=index,
        id=None,
        source="s",
        messages=json.dumps([]).encode(),  # type: ignore[arg-type]
        tools=[],  # type: ignore[arg-type]
        content="é" * (10 + index % 7),
        reasoning_content=None,
        tool_calls=None,
        finish_reason="stop",
        outcome="ok",
        usage=Usage(1, 2, 0),
        model="m",
        server="u",
        epoch=None,
        attempts=1,
        latency_s=0.1,
        finished_at="2026-01-01T00:00:00.000Z",
    )
    completion.messages = []  # type: ignore[assignment]
    return Entry("batch", index, line(completion), Seen(index, "s", "ok", Usage(1, 2, 0)))


def given_up(index: int) -> Entry:
    """Prompt ``index`` given up on."""
    return Entry(
        "failed",
        index,
        line(GivenUp(index, None, "rejected", "why", 400, 1, "u", "2026-01-01T00:00:00Z")),
        Seen(index, outcome="rejected"),
    )


def aside(index: int) -> Entry:
    """The answer of prompt ``index``, set aside."""
    entry = record(index)
    entry.kind = "set_aside"
    return entry


def partial(index: int, size: int) -> Entry:
    """What an interrupted answer to prompt ``index`` had, after so many parts."""
    parts = [list(range(n, n + 40)) for n in range(size)]
    segment = Segment("u", 1, 40, "generate", 1.0, "2026-01-01T00:00:00.000Z")
    kept = partials.grown(None, segment, parts[0], identity="i", prompt_ids=[1, 2, 3])
    for part in parts[1:]:
        kept = partials.grown(kept, segment, part, identity="i", prompt_ids=[1, 2, 3])
    data = partials.encode(kept, [])
    return Entry("pending", index, line(Pending("partial", index, "hash", "u", "1.1", data)))


@dataclass(frozen=True)
class Mark:
    """What holds after so many calls."""

    calls: int
    acked: dict[int, bytes] = field(default_factory=dict)
    """Lines of the prompts that are at an end."""
    kept: dict[int, bytes] = field(default_factory=dict)
    """Lines of interrupted answers."""
    deleted: frozenset[int] = frozenset()
    """Prompts of batches that may be in S3 alone by now."""


def write_all(folder: Path, recorder: Recorder, seed: int) -> list[Mark]:
    """A run's worth of writing, in two lives: with uploads, deletions, and given-up prompts that
    are tried again."""
    dice = random.Random(seed)
    acked: dict[int, bytes] = {}
    kept: dict[int, bytes] = {}
    deleted: set[int] = set()
    marks = [Mark(0)]

    def mark() -> None:
        marks.append(Mark(len(recorder.calls), dict(acked), dict(kept), frozenset(deleted)))

    def begin() -> tuple[Ledger, list[int]]:
        recovered = recover(folder, TOTAL, adopted=False, disk=recorder)
        ledger = Ledger(folder, recovered.books, recorder)
        left = [i for i in range(TOTAL) if not recovered.status[i]]
        dice.shuffle(left)
        return ledger, left

    def upload(ledger: Ledger) -> None:
        uploaded = [replace(batch, state="uploaded") for batch in ledger.sealed]
        ledger.sealed.clear()
        for batch in uploaded:
            ledger.list_batch(batch)
        ledger.flush()
        if uploaded and dice.random() < 0.6:
            gone = replace(uploaded[0], state="local_deleted")
            deleted.update(undelta(gone.indices))
            mark()
            ledger.list_batch(gone)
            ledger.flush()
            ledger.delete_local(gone)

    ledger, left = begin()
    again = len(left) // 2
    while left:
        if len(left) <= again:
            again = 0
            ledger.close()
            revived = {
                index
                for index, (name, _) in states(folder).items()
                if name in (layout.FAILED, layout.SET_ASIDE)
            }
            acked = {i: line for i, line in acked.items() if i not in revived}
            mark()
            retry_failed(folder, set_aside=True, disk=recorder)
            ledger, left = begin()
            assert revived <= set(left)
        group = [left.pop() for _ in range(min(len(left), dice.randrange(1, 5)))]
        for index in dice.sample(left, min(len(left), dice.randrange(3))):
            ledger.add((partial(index, dice.randrange(1, 4)),))
        if dice.random() < 0.2:
            ledger.flush()
            kept |= {entry.index: entry.line for entry in ledger.acked if entry.kind == "pending"}
            ledger.replace_pending([line for index, line in kept.items() if index not in acked])
        for index in group:
            kind = dice.random()
            make = record if kind < 0.7 else given_up if kind < 0.85 else aside
            ledger.add((make(index),))
        ledger.flush()
        acked |= {entry.index: entry.line for entry in ledger.acked if entry.kind != "pending"}
        kept |= {entry.index: entry.line for entry in ledger.acked if entry.kind == "pending"}
        ledger.acked.clear()
        mark()
        upload(ledger)
        mark()
    ledger.seal()
    ledger.flush()
    upload(ledger)
    ledger.close()
    mark()
    return marks


def states(folder: Path) -> dict[int, tuple[str, bytes]]:
    """Where each prompt's line stands; a second line of a prompt is an error."""
    found: dict[int, tuple[str, bytes]] = {}
    names = [*folder.glob("completions_*"), folder / "failed.jsonl", folder / "set_aside.jsonl"]
    for path in names:
        if path.exists():
            for raw in path.read_bytes().splitlines():
                index = json.loads(raw)["index"]
                assert index not in found, f"{index} twice: {path.name}, {found[index][0]}"
                found[index] = (path.name, raw)
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_every_prefix_recovers(seed: int, tmp_path: Path) -> None:
    """What was acknowledged is there, nothing is there twice, the rest can be written."""
    origin = tmp_path / "origin"
    origin.mkdir()
    prompts = write_prompts(tmp_path / "prompts.jsonl", TOTAL)
    opened, entries = open_prompts(prompts, tmp_path / "idx", [])
    opened.close()
    run_file = encode_run(RunFile("r", entries, {}, "2026-01-01T00:00:00Z"))
    recorder = Recorder(origin)
    marks = write_all(origin, recorder, seed)
    truth = states(origin)
    assert set(truth) | marks[-1].deleted == set(range(TOTAL))
    assert {"unlink", "rename"} <= {call.name for call in recorder.calls}
    text = b"".join(call.data for call in recorder.calls if call.path == layout.MANIFEST)
    assert b'"uploaded"' in text and b'"local_deleted"' in text
    assert any(call.target.startswith("failed.1") for call in recorder.calls)

    machine = Machine()
    crashes = 0
    seen: set[tuple[object, ...]] = set()
    for count, call in enumerate([Call("start", "."), *recorder.calls]):
        machine.do(call)
        mark = next(mark for mark in reversed(marks) if mark.calls <= count)
        acked, kept = mark.acked, mark.kept
        for assumption, files in machine.crashes():
            key = (len(acked), len(kept), *sorted(files.items()))
            if key in seen:
                continue
            seen.add(key)
            crashes += 1
            folder = tmp_path / "crashed"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            lay_out(folder, files)
            (folder / layout.RUN).write_bytes(run_file)
            where = f"after call {count} ({call.name} {call.path}), {assumption}"
            recovered = recover(folder, TOTAL, adopted=False, disk=Quick())
            ledger = Ledger(folder, recovered.books, Quick())
            ledger.flush()
            have = states(folder)
            done = {i for i in range(TOTAL) if recovered.status[i] == DONE}
            gone = done - set(have)
            assert gone <= mark.deleted, where
            assert set(acked) <= set(have) | gone, where
            assert all(have[i][1] + b"\n" == acked[i] for i in set(acked) - gone), where
            left = {entry.index: entry for entry in recovered.pending}
            for index in set(kept) - set(have) - gone:  # the same line, or a later one
                assert index in left, where
                saved = msgspec.json.decode(kept[index], type=Pending)
                assert len(left[index].data) and partials.decode(left[index].data), where
                assert left[index].prompt == saved.prompt, where
            assert not set(left) & (set(have) | gone), where
            report = verify.audit(folder, prompts=prompts)
            assert not report.violations, (where, report.violations)
            assert recovered.status.count(0) == TOTAL - len(have) - len(gone), where
            ledger.add([record(i) for i in range(TOTAL) if i not in have and i not in gone])
            ledger.seal()
            ledger.flush()
            ledger.close()
            assert set(states(folder)) | gone == set(range(TOTAL)), where
            report = verify.audit(folder, prompts=prompts)
            assert not report.violations, (where, report.violations)
            assert not list(folder.glob("*.open")), where
    assert crashes > 150


def test_a_crash_during_recovery(tmp_path: Path) -> None:
    """Recovery may itself be cut at any call."""
    folder = tmp_path / "run"
    folder.mkdir()
    recorder = Recorder(folder)
    write_all(folder, recorder, 3)
    machine = Machine()
    dice = random.Random(5)
    for call in recorder.calls:
        machine.do(call)
        for _, files in machine.crashes():
            if dice.random() > 0.05:
                continue
            again = tmp_path / "again"
            shutil.rmtree(again, ignore_errors=True)
            again.mkdir()
            lay_out(again, files)
            second = Recorder(again)
            start = {name: data for name, data in files.items() if "/" not in name}
            recovered = recover(again, TOTAL, adopted=False, disk=second)
            ledger = Ledger(again, recovered.books, second)
            ledger.flush()
            ledger.close()
            settled = states(again)
            inner = Machine()
            for name, data in start.items():
                inner.do(Call("create", name))
                inner.do(Call("write", name, data))
                inner.do(Call("sync", name))
            inner.do(Call("sync_folder", "."))
            for step in second.calls:
                inner.do(step)
                for _, left in inner.crashes():
                    third = tmp_path / "third"
                    shutil.rmtree(third, ignore_errors=True)
                    third.mkdir()
                    lay_out(third, left)
                    books = recover(third, TOTAL, adopted=False, disk=Quick()).books
                    last = Ledger(third, books, Quick())
                    last.flush()
                    last.close()
                    assert states(third) == settled or set(states(third)) == set(settled)


def test_the_name_of_a_new_directory_outlives_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every folder that is made on the way there: else what was acknowledged in it is gone."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    prompts = write_prompts(tmp_path / "p.jsonl", 3)
    opened = open_run(Settings(prompts, tmp_path / "a" / "b" / "out", ("http://127.0.0.1:1",)))
    opened.ledger.close()
    opened.prompts.close()
    opened.lock.release()
    assert [str(tmp_path / "a" / "b"), str(tmp_path / "a"), str(tmp_path)] == sorted(
        {path for path in synced if not path.endswith(("out", ".tmp"))}, reverse=True
    )
