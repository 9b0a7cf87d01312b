"""Datasets on the Hugging Face hub: whether they can be had, which revision, and their rows."""

from __future__ import annotations

import contextlib
import io
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from remote.prepare.errors import PrepareError, RecipeError, need
from remote.prepare.recipe import Source
from remote.prepare.sources import FilePart, Work, file_part, kind_of

ROWS = 4096
"""Rows of a stream in one piece of work."""
TRIES = 4
_T = TypeVar("_T")


class Found(Struct):
    """What the hub says of a dataset before anything is read."""

    revision: str = ""
    """The commit; "" where the hub could not be asked."""
    gated: str = ""
    files: list[str] = []
    sizes: dict[str, int] = {}
    """Bytes of the files that the source names."""
    offline: bool = False


def _kinds(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _unreachable(error: BaseException) -> bool:
    kinds = _kinds(error)
    if kinds & {"OfflineModeIsEnabled", "ConnectError", "TransportError", "ConnectionError"}:
        return True
    cause = error.__cause__ or error.__context__
    return cause is not None and _unreachable(cause)


def _retried(what: Callable[[], _T]) -> _T:
    """Call, and again after a while where the hub is busy (429) or ails (5xx)."""
    for attempt in range(TRIES):
        try:
            return what()
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if attempt + 1 == TRIES or not (status == 429 or status >= 500):
                raise
            time.sleep(0.5 * 2**attempt)
    raise AssertionError


def check(source: Source) -> Found:
    """Ask the hub about a source, before anything long starts.

    Raises:
        RecipeError: the dataset is gated and not granted, missing, or lacks the revision.
        PrepareError: the hub answers with an error.
    """
    hub = need("huggingface_hub")
    api = hub.HfApi()
    where = f"source {source.name}: {source.hub}"
    page = f"{api.endpoint}/datasets/{source.hub}"
    try:
        info = _retried(
            lambda: api.dataset_info(
                source.hub, revision=source.revision or None, files_metadata=True
            )
        )
        # A gated set shows its page to everybody; only this says whether files may be had.
        _retried(lambda: api.auth_check(source.hub, repo_type="dataset"))
    except Exception as error:
        kinds = _kinds(error)
        if "GatedRepoError" in kinds:
            raise RecipeError(
                f"{where} is gated: accept its terms at {page} and set HF_TOKEN to a token of that"
                " account"
            ) from error
        if "RevisionNotFoundError" in kinds:
            raise RecipeError(f"{where} has no revision {source.revision!r}") from error
        if "RepositoryNotFoundError" in kinds:
            raise RecipeError(
                f"{where} is not on the hub, or private: look for it at {page}; for a private"
                " one set HF_TOKEN"
            ) from error
        if "DisabledRepoError" in kinds:
            raise RecipeError(
                f"{where}: the hub disabled it; take it out or name a mirror"
            ) from error
        if _unreachable(error):
            return Found(offline=True)
        raise PrepareError(f"{where}: the hub answers {_line(error)}") from error
    siblings = info.siblings or []
    found = Found(
        revision=info.sha or "",
        gated=str(info.gated) if info.gated else "",
        files=[s.rfilename for s in siblings],
    )
    if source.files:
        sizes = {s.rfilename: s.size or 0 for s in siblings}
        found.sizes = {name: sizes[name] for name in select(source, found.files)}
    return found


def _line(error: BaseException) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return (text or type(error).__name__)[:200]


def select(source: Source, files: list[str]) -> list[str]:
    """The files of the dataset that a source names.

    Raises:
        RecipeError: a name or pattern fits none, or a file is of a kind that is not read.
    """
    chosen: list[str] = []
    for pattern in source.files:
        fitting = sorted(name for name in files if fnmatchcase(name, pattern))
        if not fitting:
            raise RecipeError(f"source {source.name}: {source.hub} has no file {pattern!r}")
        chosen += [name for name in fitting if name not in chosen]
    for name in chosen:
        if kind_of(Path(name)) is None:
            raise RecipeError(
                f"source {source.name}: {name} is no JSONL, JSON, Parquet or CSV file"
            )
    return chosen


def download(source: Source, found: Found, base: Path) -> list[FilePart]:
    """The named files of a dataset, fetched into the hub's cache or found there.

    Raises:
        RecipeError: they are neither to be had nor cached.
        PrepareError: the download fails.
    """
    hub = need("huggingface_hub")
    need("huggingface_hub.utils").disable_progress_bars()
    if found.offline:
        found.revision = _cached_revision(source)
    else:
        _check_room(source, found)
    try:
        folder = Path(
            _retried(
                lambda: hub.snapshot_download(
                    source.hub,
                    repo_type="dataset",
                    revision=found.revision or source.revision or None,
                    allow_patterns=source.files,
                    local_files_only=found.offline,
                )
            )
        )
    except Exception as error:
        if found.offline or "LocalEntryNotFoundError" in _kinds(error):
            raise RecipeError(
                f"source {source.name}: {source.hub}: the hub cannot be reached and the files are"
                " not in its cache; run once with network"
            ) from error
        raise PrepareError(f"source {source.name}: {source.hub}: {_line(error)}") from error
    there = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    return [file_part(folder / name, base, name) for name in select(source, there)]


def _check_room(source: Source, found: Found) -> None:
    hub = need("huggingface_hub")
    cache = Path(need("huggingface_hub.constants").HF_HUB_CACHE)
    missing = sum(
        size
        for name, size in found.sizes.items()
        if not isinstance(
            hub.try_to_load_from_cache(
                source.hub, name, revision=found.revision, repo_type="dataset"
            ),
            str,
        )
    )
    there = next(p for p in [cache, *cache.parents] if p.exists())
    free = shutil.disk_usage(there).free
    if missing > free:
        raise PrepareError(
            f"source {source.name}: {source.hub}: {missing / 1e9:.1f} GB to fetch and"
            f" {free / 1e9:.1f} GB free in {cache}; make room or set HF_HOME to another disk"
        )


def _cached_revision(source: Source) -> str:
    """The commit in the cache that a source means, the newest where it names none; else ""."""
    hub = need("huggingface_hub")
    try:
        cache = hub.scan_cache_dir()
    except hub.CacheNotFound:
        return ""
    for repo in cache.repos:
        if repo.repo_type == "dataset" and repo.repo_id == source.hub:
            fitting = [
                revision
                for revision in repo.revisions
                if not source.revision
                or source.revision in revision.refs
                or revision.commit_hash == source.revision
            ]
            fitting.sort(key=lambda revision: revision.last_modified)
            return str(fitting[-1].commit_hash) if fitting else ""
    return ""


@contextlib.contextmanager
def _asking_nobody() -> Iterator[None]:
    """The libraries' offline mode, which they otherwise read from the environment at import.

    Without it they would knock at the hub for most of a minute before looking into the cache.
    """
    constants = need("huggingface_hub.constants")
    config = need("datasets").config
    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before


def _load(source: Source, found: Found) -> Any:
    datasets = need("datasets")
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    where = f"source {source.name}: {source.hub}"
    streaming = source.streaming and not found.offline

    def load() -> Any:
        return datasets.load_dataset(
            source.hub,
            source.config or None,
            split=source.split,
            revision=found.revision or source.revision or None,
            streaming=streaming,
        )

    try:
        if found.offline:
            with _asking_nobody():
                return load()
        return _retried(load)
    except Exception as error:
        if found.offline:
            raise RecipeError(
                f"{where}: the hub cannot be reached and the dataset is not in the cache; run"
                " once with network and streaming = false"
            ) from error
        kinds = _kinds(error)
        if kinds & {"GatedRepoError", "DatasetNotFoundError"}:
            raise RecipeError(f"{where}: {_line(error)}") from error
        if "ValueError" in kinds or "RuntimeError" in kinds:
            # An unknown config or split, or a dataset that is a script.
            raise RecipeError(f"{where}: {_line(error)}") from error
        raise PrepareError(f"{where}: {_line(error)}") from error


class Stream:
    """The rows of a dataset through ``datasets``, streamed or from its cache.

    Raises:
        RecipeError: no such configuration or split, or offline and not cached.
    """

    def __init__(self, source: Source, found: Found) -> None:
        self._source = source
        self._data = _load(source, found)
        self._streams = not hasattr(self._data, "num_rows")
        self.rows: int | None = self._expected()
        self.fingerprint = found.revision or str(getattr(self._data, "_fingerprint", ""))

    def _expected(self) -> int | None:
        if not self._streams:
            return int(self._data.num_rows)
        splits = getattr(self._data.info, "splits", None) or {}
        split = splits.get(self._source.split) if hasattr(splits, "get") else None
        rows = getattr(split, "num_examples", None)
        return int(rows) if rows else None

    def first_rows(self, count: int = 20) -> list[Any]:
        """The first rows, for checks before anything long."""
        try:
            return list(itertools.islice(self._data, count))
        except Exception as error:
            raise PrepareError(
                f"source {self._source.name}: {self._source.hub}: {_line(error)}"
            ) from error

    def work(self, source: int, part: str, resume: tuple[int, Any] | None) -> Iterator[Work]:
        """Pieces of :data:`ROWS` rows; ``resume`` is (number, state) of the first one wanted.

        A stream that breaks off is taken up again where it was, some times.

        Raises:
            PrepareError: it breaks off again and again.
        """
        tries = 0
        while True:
            number = resume[0] if resume is not None else 0
            try:
                for work in self._pieces(source, part, resume):
                    yield work
                    number = work.number + 1
                    if work.state is not None:
                        resume, tries = (number, work.state), 0
            except Exception as error:
                tries += 1
                if tries == TRIES or not self._streams:
                    raise PrepareError(
                        f"source {self._source.name}: {self._source.hub} breaks off near row"
                        f" {number * ROWS}: {_line(error)}; the same command goes on from there"
                    ) from error
                time.sleep(0.25 * 2**tries)
            else:
                return

    def _pieces(self, source: int, part: str, resume: tuple[int, Any] | None) -> Iterator[Work]:
        pa = need("pyarrow")
        data = self._data.with_format("arrow")
        number = 0
        if resume is not None and self._streams:
            number, state = resume
            data.load_state_dict(state)
        limit = self._source.limit

        def piece(table: Any, state: Any) -> Work:
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            return Work(
                source,
                number,
                "arrow",
                segments=[("", 0, sink.getvalue())],
                part=part,
                first=number * ROWS,
                limit=None if limit is None else max(0, limit - number * ROWS),
                state=state,
                bytes=table.num_rows,
            )

        pending: list[Any] = []
        size = 0
        for table in data.iter(batch_size=ROWS):
            pending.append(table)
            size += table.num_rows
            if size < ROWS:
                continue
            whole = pa.concat_tables(pending)
            # A state says where the stream stands, which is where this piece ends only if
            # nothing is left over.
            state = data.state_dict() if self._streams and size == ROWS else None
            while whole.num_rows >= ROWS:
                yield piece(whole.slice(0, ROWS), state)
                whole = whole.slice(ROWS)
                number += 1
                if limit is not None and number * ROWS >= limit:
                    return
            pending, size = ([whole], whole.num_rows) if whole.num_rows else ([], 0)
        if size:
            yield piece(pa.concat_tables(pending), None)
