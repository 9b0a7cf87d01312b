"""A whole build: open, convert, judge, choose, write."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from remote.prepare import dedup, mix, preflight, spool
from remote.prepare import worker as process
from remote.prepare.budget import counter
from remote.prepare.crew import Crew
from remote.prepare.errors import PrepareError
from remote.prepare.output import Whole, earlier_ids, in_front, rows_path
from remote.prepare.preflight import Opened
from remote.prepare.recipe import Recipe
from remote.prepare.sources import Work
from remote.prepare.spool import Chunk
from remote.prepare.worker import Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Watcher(Protocol):
    """Whoever shows how far a build is."""

    def say(self, text: str) -> None:
        """A line for people."""

    def begin(self, name: str, total: int) -> None:
        """A step begins; ``total`` 0 where its size is unknown."""

    def advance(self, amount: int, rows: int = 0) -> None:
        """The step is further by ``amount``, and so many rows were read."""

    def end(self) -> None:
        """The step is over."""


@dataclass
class SourceCount:
    """What became of one source."""

    opened: Opened
    quota: int | None = None
    chunks: int = 0
    rows: int = 0
    candidates: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    adapters: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[list[Any]]] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    whys: dict[str, int] = field(default_factory=dict)
    lost_to: dict[str, int] = field(default_factory=dict)
    """Source that kept the prompt → duplicates dropped here."""
    alive: int = 0
    """Survivors of deduplication."""
    amount: int = 0
    """What the chosen ones come to, in the mix's unit."""
    languages: dict[str, int] = field(default_factory=dict)

    def take(self, chunk: Chunk) -> None:
        """Add a chunk's account."""
        self.rows += chunk.rows
        self.candidates += chunk.candidates
        for name in ("dropped", "notes", "adapters", "whys"):
            into: dict[str, int] = getattr(self, name)
            for key, count in getattr(chunk, name).items():
                into[key] = into.get(key, 0) + count
        for cause, examples in chunk.examples.items():
            kept = self.examples.setdefault(cause, [])
            kept += examples[: process.EXAMPLES - len(kept)]
        if len(self.renamed) < process.MAX_RENAMED:
            self.renamed.update(chunk.renamed)


@dataclass
class Built:
    """The outcome: counts, and the chosen prompts' records in the order of the output."""

    recipe: Recipe
    sources: list[SourceCount]
    chosen: NDArray[Any]
    """Records of the chosen ones, with ``source`` (its number)."""
    prompts_sha256: str = ""
    prompts_bytes: int = 0
    rows_sha256: str = ""
    rows_bytes: int = 0
    contaminating: int = 0
    """Evaluation prompts that were looked out for."""


def default_workers() -> int:
    """As many as there are cores, eight at most: beyond that the reader is what limits."""
    return max(1, min(8, os.cpu_count() or 1))


def build(
    recipe: Recipe,
    base: Path,
    output: Path,
    watcher: Watcher,
    *,
    workers: int | None = None,
    after: Path | None = None,
) -> Built:
    """Work a recipe through; the same command after an interruption goes on where it was.

    Args:
        recipe: what to do.
        base: folder that its relative paths are relative to.
        output: ``prompts.jsonl``; its rows file and work folder lie beside it.
        watcher: is told how far it is.
        workers: processes; 1 does all in this one. The result is the same.
        after: an earlier output; the new one begins with its bytes, so that a run of it can be
            extended.

    Raises:
        RecipeError: something is not as the recipe says; nothing was begun.
        PrepareError: reading, a worker or the disk failed; what is done is kept.
    """
    folder = output.with_name(output.name + ".work")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            workers = workers or default_workers()
            return _build(recipe, base, output, folder, watcher, workers, after)
    except OSError as error:
        raise PrepareError(_disk_line(error, folder)) from error
    except BrokenProcessPool as error:
        raise PrepareError(
            "a worker process died (out of memory?); run the same command again, with fewer"
            " --workers if it repeats"
        ) from error


def _disk_line(error: OSError, folder: Path) -> str:
    where = error.filename or folder
    text = f"{where}: {error.strerror or error}"
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        text += "; make room and run the same command again, it goes on where it was"
    return text


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("a+b") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PrepareError(f"{folder}: another prepare is at work there") from None
        yield


def _build(
    recipe: Recipe,
    base: Path,
    output: Path,
    folder: Path,
    watcher: Watcher,
    workers: int,
    after: Path | None,
) -> Built:
    earlier = earlier_ids(after) if after is not None else []
    counter(recipe.budget, base)  # a folder that does not serve is known at once
    opened = preflight.open_sources(recipe, base, watcher.say)
    evaluations = preflight.load_evaluations(recipe, base)
    encoded = msgspec.msgpack.encode(evaluations) if evaluations is not None else b""
    _check_room(opened, folder)
    _reset_unless(folder, preflight.identity(recipe, base, opened, encoded), watcher)
    path = folder / "evaluations"
    if encoded:
        spool.write_atomic(path, encoded)
    task = Task(recipe, str(base), str(folder), str(path) if encoded else "")
    counts = [
        SourceCount(one, quota) for one, quota in zip(opened, mix.quotas(recipe), strict=True)
    ]
    with Crew(task, workers) as crew:
        _convert(counts, folder, crew, watcher)
        built = _choose(recipe, counts, folder, watcher)
        if after is not None:
            built.chosen = in_front(built.chosen, earlier, after)
        built.contaminating = len(evaluations.whole) if evaluations is not None else 0
        _write(built, output, crew, watcher, after)
    return built


def remove_work(output: Path) -> None:
    """Forget what was kept for going on."""
    shutil.rmtree(output.with_name(output.name + ".work"), ignore_errors=True)


def _check_room(opened: list[Opened], folder: Path) -> None:
    """A disk that cannot hold the candidates is told before they are written."""
    need = sum(
        part.path.stat().st_size for one in opened if one.source.limit is None for part in one.parts
    )
    free = shutil.disk_usage(folder).free
    if need > free:
        raise PrepareError(
            f"{folder}: {free / 1e9:.1f} GB free, and the work on {need / 1e9:.1f} GB of input"
            " needs at least as much; write to another disk with -o"
        )


def _reset_unless(folder: Path, identity: str, watcher: Watcher) -> None:
    """Keep earlier work only where it is of the very same build."""
    stamp = folder / "identity"
    same = stamp.exists() and stamp.read_text() == identity
    stale = [p for p in folder.iterdir() if (p.name != ".lock" and not same) or ".part-" in p.name]
    if not same and any(p.suffix == ".json" for p in stale):
        watcher.say("earlier work here is of another recipe, input or version: beginning anew")
    for path in stale:
        path.unlink(missing_ok=True)
    if not same:
        spool.write_atomic(stamp, identity.encode())


# --- Conversion ---


def _convert(counts: list[SourceCount], folder: Path, crew: Crew, watcher: Watcher) -> None:
    """Every source into chunks; those that are there already are not made again."""
    for number, count in enumerate(counts):
        watcher.begin(count.opened.source.name, count.opened.weight)
        start, state, resumed = _resume(folder, number, count)
        for n in range(start):
            watcher.advance(_there(folder, number, n).bytes)
        count.chunks = start

        def todo(
            number: int = number,
            count: SourceCount = count,
            resume: tuple[int, Any] | None = (start, state) if start else None,
        ) -> Iterator[Work]:
            nonlocal resumed
            for piece in count.opened.work(number, resume):
                count.chunks = max(count.chunks, piece.number + 1)
                chunk = spool.read_chunk(folder, number, piece.number)
                if chunk is None:
                    yield piece
                else:
                    resumed += chunk.rows
                    watcher.advance(chunk.bytes)

        for chunk in crew.convert(todo()):
            watcher.advance(chunk.bytes, chunk.rows)
        watcher.end()
        if resumed:
            watcher.say(f"{count.opened.source.name}: {resumed:,} rows were done already")
        # In the order of the input, whichever worker was first.
        for n in range(count.chunks):
            count.take(_there(folder, number, n))


def _there(folder: Path, number: int, n: int) -> Chunk:
    chunk = spool.read_chunk(folder, number, n)
    if chunk is None:
        raise PrepareError(f"{folder}: chunk {spool.stem(number, n)} vanished; run again")
    return chunk


def _resume(folder: Path, number: int, count: SourceCount) -> tuple[int, Any, int]:
    """From where a stream needs to be read: (number, state, rows before it).

    That is behind the last chunk with a state in the unbroken run of those that are there;
    files are read from their beginning, which costs little where nothing is converted.
    """
    best: tuple[int, Any, int] = (0, None, 0)
    if count.opened.stream is None:
        return best
    n, rows = 0, 0
    while (chunk := spool.read_chunk(folder, number, n)) is not None:
        n, rows = n + 1, rows + chunk.rows
        if chunk.state is not None:
            best = (n, chunk.state, rows)
    return best


# --- Choice ---


def _choose(recipe: Recipe, counts: list[SourceCount], folder: Path, watcher: Watcher) -> Built:
    import numpy as np

    watcher.begin("duplicates", 0)
    chunks = [count.chunks for count in counts]
    records, numbers = spool.load_records(folder, chunks)
    order = sorted(range(len(counts)), key=lambda n: (recipe.sources[n].priority, n))
    place_of = np.empty(len(counts), dtype=np.int64)
    place_of[order] = np.arange(len(order))
    signatures = None
    if recipe.dedup.level == "near" and records["frame"].any():
        rules = recipe.dedup
        lowest = min(rules.near, rules.near_code, rules.near_math)
        signatures = dedup.Signatures(folder, chunks, lowest)
    judged = dedup.judge(records, place_of[numbers], recipe.dedup, signatures)
    if signatures is not None:
        signatures.close()
    verdict = judged.verdict
    for number, count in enumerate(counts):
        own = numbers == number
        if recipe.sources[number].sessions == "longest":
            _drop_steps(records, own, verdict, number, count, folder)
        for code, cause in dedup.CAUSES.items():
            lost = np.flatnonzero(own & (verdict == code))
            if not len(lost):
                continue
            count.dropped[cause] = len(lost)
            winners, amounts = np.unique(numbers[judged.winner[lost]], return_counts=True)
            for winner, amount in zip(winners.tolist(), amounts.tolist(), strict=True):
                name = recipe.sources[winner].name
                count.lost_to[name] = count.lost_to.get(name, 0) + amount
    watcher.end()
    picks = []
    for number, count in enumerate(counts):
        alive = np.flatnonzero((numbers == number) & (verdict == dedup.KEPT))
        count.alive = len(alive)
        chosen = mix.choose(records, alive, count.quota, recipe.mix.unit)
        count.amount = int(mix.amounts(records, chosen, recipe.mix.unit).sum())
        if len(alive) > len(chosen):
            count.dropped["over_quota"] = len(alive) - len(chosen)
        picks.append(chosen)
    every = np.concatenate(picks) if picks else np.empty(0, dtype=np.int64)
    every = every[_shuffled(records["key"][every], recipe.seed)]
    final = np.empty(len(every), dtype=[("source", "<u4"), *records.dtype.descr])
    for name in records.dtype.names or ():
        final[name] = records[name][every]
    final["source"] = numbers[every]
    return Built(recipe, counts, final)


def _shuffled(keys: NDArray[Any], seed: int) -> NDArray[np.int64]:
    """The order of the output: by a hash of seed and key, so it mixes sources evenly."""
    import numpy as np

    start = f"{seed}|order|".encode()
    data = np.ascontiguousarray(keys).tobytes()
    hashed = np.fromiter(
        (
            int.from_bytes(hashlib.sha256(start + data[at : at + 16]).digest()[:8], "big")
            for at in range(0, len(data), 16)
        ),
        dtype=np.uint64,
        count=len(keys),
    )
    return np.lexsort((keys[:, 1], keys[:, 0], hashed))


_STEP = 9


def _drop_steps(
    records: NDArray[Any],
    own: NDArray[np.bool_],
    verdict: NDArray[np.uint8],
    number: int,
    count: SourceCount,
    folder: Path,
) -> None:
    import numpy as np

    prefixes: list[str] = []
    for n in range(count.chunks):
        lines = (folder / f"{spool.stem(number, n)}.lines").read_bytes().split(b"\n")
        for encoded in lines[1::2]:
            prefixes += msgspec.json.decode(encoded).get("_prefixes", [])
    at = np.flatnonzero(own & (verdict == dedup.KEPT))
    steps = at[dedup.shorter_sessions(records["key"][at], prefixes)]
    verdict[steps] = _STEP
    if len(steps):
        count.dropped["session_step"] = len(steps)


# --- Output ---


def _write(built: Built, output: Path, crew: Crew, watcher: Watcher, after: Path | None) -> None:
    chosen = built.chosen
    watcher.begin("writing", len(chosen))
    prompts = Whole(output)
    rows = Whole(rows_path(output))
    try:
        for finished in crew.finish(chosen):
            prompts.write(finished.prompts)
            rows.write(finished.rows)
            for key, amount in finished.languages.items():
                name, _, language = key.partition("\0")
                count = next(c for c in built.sources if c.opened.source.name == name)
                count.languages[language] = count.languages.get(language, 0) + amount
            watcher.advance(finished.prompts.count(b"\n"))
        if after is not None and not prompts.begins_with(after):
            raise PrepareError(
                f"{after}: the same prompts would now be written differently (another recipe or"
                " version); prepare anew without it"
            )
        built.rows_sha256, built.rows_bytes = rows.close()
        built.prompts_sha256, built.prompts_bytes = prompts.close()
    except BaseException:
        prompts.abandon()
        rows.abandon()
        raise
    watcher.end()
