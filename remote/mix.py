"""The run by source: what was planned, and what has come of it. Blocking; for a thread.

Planned is what the manifest beside the prompts file says (``stoker prepare`` writes one), else
what the prompts name as their sources, counted once. Finished is what the run directory's own
files say: the manifest's lines, the open batch, and what was given up or set aside.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from remote import batchfiles
from remote.appended import Appended
from remote.generate import layout
from remote.protocol import Mix, SourceMix

_MANIFEST: Final = ".manifest.json"
_SIZE: Final = 64 << 20
"""A larger manifest is none of ours."""
_SINCE: Final = 4
"""Batches that may be sealed between two looks at the folder and are read one by one."""


class _Sums(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    outcomes: dict[str, int] = {}


class _Batch(Struct):
    name: str
    records: int = 0
    sources: dict[str, int] = {}
    by_source: dict[str, _Sums] = {}


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Record(Struct):
    source: str | None = None
    outcome: str = "ok"
    usage: _Usage | None = None


class _Planned(Struct):
    prompts: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class _PlannedMix(Struct):
    sources: dict[str, _Planned] = {}


class _Output(Struct):
    bytes: int = -1
    lines: int = -1


class _PrepareManifest(Struct):
    output: _Output
    mix: _PlannedMix


class _Source(Struct):
    source: str | None = None


_batch = msgspec.json.Decoder(_Batch).decode
_record = msgspec.json.Decoder(_Record).decode
_source = msgspec.json.Decoder(_Source).decode


@dataclass
class _Amounts:
    """Records of one source."""

    done: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    told: int = 0
    """Records whose tokens are in the sums."""

    def take(self, record: _Record) -> None:
        """One whole record."""
        self.done += 1
        self.told += 1
        self.outcomes[record.outcome] += 1
        if record.usage is not None:
            self.prompt_tokens += record.usage.prompt_tokens
            self.output_tokens += record.usage.completion_tokens

    def add(self, more: _Amounts) -> None:
        """Those of another file."""
        self.done += more.done
        self.told += more.told
        self.prompt_tokens += more.prompt_tokens
        self.output_tokens += more.output_tokens
        self.outcomes.update(more.outcomes)


class Finished:
    """What a run directory holds by source; each :meth:`look` reads on from the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifest = Appended(folder / layout.MANIFEST)
        self._batches: dict[str, _Batch] = {}
        self._failed = _Side(folder / layout.FAILED)
        self._aside = _Side(folder / layout.SET_ASIDE)
        self._growing: dict[str, tuple[Appended, dict[str, _Amounts]]] = {}

    def look(self) -> dict[str, SourceMix]:
        """Everything by source, as it is now."""
        if self._manifest.fresh():
            self._batches.clear()
        for line in self._manifest.lines():
            with contextlib.suppress(msgspec.DecodeError):
                batch = _batch(line)
                self._batches[batch.name] = batch
        amounts: dict[str, _Amounts] = {}
        for batch in self._batches.values():
            for name, count in batch.sources.items():
                one = amounts.setdefault(name, _Amounts())
                one.done += count
                if (sums := batch.by_source.get(name)) is not None:
                    one.told += count
                    one.prompt_tokens += sums.prompt_tokens
                    one.output_tokens += sums.completion_tokens
                    one.outcomes.update(sums.outcomes)
        for growing in self._unlisted():
            for name, more in growing.items():
                amounts.setdefault(name, _Amounts()).add(more)
        failed, aside = self._failed.look(), self._aside.look()
        names = {*amounts, *failed, *aside}
        return {name: _row(name, amounts.get(name), failed, aside) for name in names}

    def _unlisted(self) -> Iterator[dict[str, _Amounts]]:
        """The batches that have no manifest line yet, which was read before: the one that still
        grows, and those that were sealed since."""
        paths = self._newest()
        self._growing = {
            name: self._growing.get(name) or (Appended(path), {}) for name, path in paths.items()
        }
        for name, (reader, found) in self._growing.items():
            # Sealing renames the file, which keeps its inode: the same one is read on.
            for reader.path in (paths[name], self.folder / name):
                if not reader.path.exists():
                    continue
                if reader.fresh():
                    found.clear()
                for line in reader.lines():
                    with contextlib.suppress(msgspec.DecodeError):
                        record = _record(line)
                        found.setdefault(record.source or "", _Amounts()).take(record)
                if reader.path.exists():
                    break
            yield found

    def _newest(self) -> dict[str, Path]:
        """The newest batches beyond the manifest, by the names that they have once sealed."""
        if not self.folder.is_dir():
            return {}
        sealed, opened = batchfiles.listed(self.folder)
        paths = {name.removesuffix(layout.OPEN): self.folder / name for name in sealed + opened}
        last = max(self._batches, default="")
        beyond = sorted(name for name in paths if name > last)
        return {name: paths[name] for name in beyond[-_SINCE:]}


class _Side:
    """``failed.jsonl`` or ``set_aside.jsonl``, by source and outcome."""

    def __init__(self, path: Path) -> None:
        self._file = Appended(path)
        self._found: dict[str, Counter[str]] = {}

    def look(self) -> dict[str, Counter[str]]:
        """Everything in it."""
        if self._file.fresh():
            self._found.clear()
        for line in self._file.lines():
            with contextlib.suppress(msgspec.DecodeError):
                record = _record(line)
                self._found.setdefault(record.source or "", Counter())[record.outcome] += 1
        return self._found


def _row(
    name: str,
    amounts: _Amounts | None,
    failed: dict[str, Counter[str]],
    aside: dict[str, Counter[str]],
) -> SourceMix:
    one = amounts or _Amounts()
    lost, kept = failed.get(name, Counter()), aside.get(name, Counter())
    whole = one.told == one.done
    outcomes = one.outcomes + lost + kept
    if not whole:
        outcomes["?"] = one.done - one.told
    return SourceMix(
        source=name,
        done=one.done,
        prompt_tokens=one.prompt_tokens if whole else None,
        output_tokens=one.output_tokens if whole else None,
        outcomes=dict(outcomes),
        failed=lost.total(),
        set_aside=kept.total(),
    )


# --- the plan ---


def manifest_of(prompts: Path) -> Path:
    """Where ``stoker prepare`` puts the manifest of a prompts file."""
    return prompts.with_name(prompts.name.removesuffix(".jsonl") + _MANIFEST)


def told(prompts: Path) -> dict[str, _Planned] | None:
    """The plan of the manifest beside the prompts; None where there is none, or it is that of
    another file."""
    path = manifest_of(prompts)
    try:
        if path.stat().st_size > _SIZE:
            return None
        found = msgspec.json.decode(path.read_bytes(), type=_PrepareManifest)
        same = found.output.bytes == prompts.stat().st_size
    except (OSError, msgspec.DecodeError):
        return None
    return found.mix.sources if same else None


def counted(prompts: Path) -> dict[str, _Planned]:
    """Prompts by the source that each names. Reads the whole file, in small pieces: the caller's
    other threads go on meanwhile. Raises OSError."""
    prompts.stat()
    counts: Counter[str] = Counter()
    reader = Appended(prompts)
    reader.fresh()
    for line in reader.lines():
        with contextlib.suppress(msgspec.DecodeError):
            counts[_source(line).source or ""] += 1
    return {name: _Planned(prompts=count) for name, count in counts.items()}


class Planned:
    """The plan of one prompts file at a time, counted beside where nobody has told it."""

    def __init__(self) -> None:
        self._key: Any = None
        self._plan: dict[str, _Planned] = {}
        self._by = ""
        self._counting = False
        self._lock = threading.Lock()

    def look(self, prompts: Path) -> tuple[dict[str, _Planned], str, bool]:
        """Plan, the file that it is from, and whether it is still being counted."""
        with self._lock:
            try:
                state = prompts.stat()
            except OSError:
                self._key, self._plan, self._by = None, {}, ""
                return {}, "", False
            key = (str(prompts), state.st_size, state.st_mtime_ns, state.st_ino)
            if key != self._key and not self._counting:
                self._key, self._plan, self._by = key, {}, ""
                plan = told(prompts)
                if plan is not None:
                    self._plan, self._by = plan, manifest_of(prompts).name
                else:
                    self._counting = True
                    threading.Thread(
                        target=self._count, args=(prompts,), name="mix", daemon=True
                    ).start()
            return self._plan, self._by, self._counting

    def _count(self, prompts: Path) -> None:
        try:
            plan = counted(prompts)
        except OSError:
            plan = {}
        with self._lock:
            self._plan, self._by, self._counting = plan, prompts.name if plan else "", False


class Mixer:
    """The mix of one workspace's run. One caller at a time."""

    def __init__(self) -> None:
        self._planned = Planned()
        self._finished: Finished | None = None
        self._lock = threading.Lock()

    def look(self, folder: Path, prompts: Path) -> Mix:
        """Planned against finished, largest plan first. Blocking."""
        with self._lock:
            if self._finished is None or self._finished.folder != folder:
                self._finished = Finished(folder)
            rows = self._finished.look()
        plan, by, counting = self._planned.look(prompts)
        found = []
        for name in {*plan, *rows}:
            row = rows.get(name) or SourceMix(name)
            wanted = plan.get(name)
            if wanted is not None:
                row = msgspec.structs.replace(
                    row,
                    planned=wanted.prompts,
                    planned_prompt_tokens=wanted.prompt_tokens,
                    planned_output_tokens=wanted.output_tokens,
                )
            elif plan:
                row = msgspec.structs.replace(row, planned=0)
            found.append(row)
        found.sort(key=lambda row: (-(row.planned or 0), -row.done, row.source))
        return Mix(found, by, counting)
