"""What a worker process does: a piece of work into a chunk, chosen prompts into lines."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import msgspec
from msgspec import Struct

from remote.prepare import budget, labels
from remote.prepare.convert import Candidate, Converter, Place, Verdict
from remote.prepare.decontaminate import Evaluations
from remote.prepare.recipe import Recipe
from remote.prepare.sources import Broken, Work, batches
from remote.prepare.spool import Chunk, Reader, Writer

EXAMPLES = 3
"""Dropped rows kept as examples, for each cause."""
MAX_RENAMED = 5000


class Task(Struct, frozen=True):
    """What all workers of a build share."""

    recipe: Recipe
    base: str
    """Folder of the recipe: what relative paths are relative to."""
    folder: str
    """The work folder."""
    evaluations: str = ""


Chosen = tuple[int, int, int, int, int]
"""Source, chunk, offset, length of the line and of the row: where a chosen prompt lies."""


class Worker:
    """One process's share of a build."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._folder = Path(task.folder)
        self._counter = budget.counter(task.recipe.budget, Path(task.base))
        self._evaluations: Evaluations | None = None
        if task.evaluations:
            data = Path(task.evaluations).read_bytes()
            self._evaluations = msgspec.msgpack.decode(data, type=Evaluations)
        self._converters: dict[int, Converter] = {}
        self._reader = Reader(self._folder)

    def convert(self, work: Work) -> Chunk:
        """Turn a piece of work into a chunk on disk."""
        recipe = self._task.recipe
        source = recipe.sources[work.source]
        converter = self._converters.get(work.source)
        if converter is None:
            converter = Converter(recipe, source, self._counter, self._evaluations)
            self._converters[work.source] = converter
        writer = Writer(self._folder, work.source, work.number)
        chunk = writer.chunk
        try:
            for batch in batches(work):
                chunk.rows += len(batch)
                whole = [(place, row) for place, row in batch if not isinstance(row, Broken)]
                for place, row in batch:
                    if isinstance(row, Broken):
                        _tally(chunk, place, Verdict(row.cause, row.detail))
                results, notes, adapters = converter.convert(whole)
                _add(chunk.notes, notes)
                _add(chunk.adapters, adapters)
                found: list[Candidate] = []
                expected: list[int] = []
                for place, result in results:
                    if isinstance(result, Verdict):
                        _tally(chunk, place, result)
                        continue
                    found.append(result)
                    domain = labels.DOMAINS[result.domain]
                    expected.append(min(result.out, recipe.expected(source, domain)[0]))
                    why = f"{domain}: {result.meta['domain_why']}"
                    chunk.whys[why] = chunk.whys.get(why, 0) + 1
                    renamed = result.meta.get("renamed_tools")
                    if renamed and len(chunk.renamed) < MAX_RENAMED:
                        chunk.renamed.update(renamed)
                writer.add(found, expected)
            chunk.state = work.state
            chunk.bytes = work.bytes
            return writer.close()
        except BaseException:
            writer.abandon()
            raise

    def finish(self, start: int, chosen: list[Chosen]) -> Finished:
        """Lines of chosen prompts in their order, languages filled in."""
        prompts: list[bytes] = []
        rows: list[bytes] = []
        languages: dict[str, int] = {}
        for n, place in enumerate(chosen):
            line, encoded = self._reader.read(*place)
            meta = msgspec.json.decode(encoded)
            meta.pop("_prefixes", None)
            if meta["language"] is None:
                messages = msgspec.json.decode(line)["messages"]
                meta["language"] = labels.language(
                    [m["content"] for m in messages if m["role"] == "user"]
                )
            key = f"{meta['source']}\0{meta['language']}"
            languages[key] = languages.get(key, 0) + 1
            prompts.append(line)
            rows.append(msgspec.json.encode({"index": start + n, **meta}))
        self._reader.close()
        return Finished(
            b"".join(p + b"\n" for p in prompts), b"".join(r + b"\n" for r in rows), languages
        )


class Finished(Struct):
    """A stretch of the output."""

    prompts: bytes
    rows: bytes
    languages: dict[str, int]
    """``source NUL language`` → prompts."""


def _add(into: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        into[name] = into.get(name, 0) + count


def _tally(chunk: Chunk, place: Place, verdict: Verdict) -> None:
    chunk.dropped[verdict.cause] = chunk.dropped.get(verdict.cause, 0) + 1
    examples = chunk.examples.setdefault(verdict.cause, [])
    if len(examples) < EXAMPLES:
        examples.append([place.part, place.row, verdict.detail])


# --- In a process of its own ---

_worker: Worker | None = None


def start(encoded: bytes) -> None:
    """First call in a new process; ``encoded`` is the :class:`Task`."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _worker = Worker(msgspec.msgpack.decode(encoded, type=Task))


def _leave_with_parent() -> None:
    """The pool's queue does not tell workers that a killed parent is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def convert(work: Work) -> Chunk:
    """:meth:`Worker.convert` of this process."""
    assert _worker is not None
    return _worker.convert(work)


def finish(start_at: int, chosen: list[Chosen]) -> Finished:
    """:meth:`Worker.finish` of this process."""
    assert _worker is not None
    return _worker.finish(start_at, chosen)


def encode_task(task: Task) -> bytes:
    """For :func:`start`."""
    return msgspec.msgpack.encode(task)
