"""The processes of a build: pieces of work to chunks, chosen prompts to lines."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from remote.prepare import worker as process
from remote.prepare.errors import PrepareError
from remote.prepare.sources import Work
from remote.prepare.spool import Chunk
from remote.prepare.worker import Chosen, Finished, Task, Worker

if TYPE_CHECKING:
    from numpy.typing import NDArray

STRETCH = 2000
"""Chosen prompts that one worker finishes at a time."""


class Crew:
    """Does work in order of arrival, in this process or in several.

    Processes start when a second piece of work comes; one piece is not worth them.
    """

    def __init__(self, task: Task, workers: int) -> None:
        self._task = task
        self._workers = workers
        self._inline: Worker | None = None
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def here(self) -> Worker:
        """The worker in this process."""
        if self._inline is None:
            self._inline = Worker(self._task)
        return self._inline

    def pool(self) -> ProcessPoolExecutor:
        """The processes."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._workers,
                # Not fork: Arrow and the hub's client have threads by now.
                mp_context=multiprocessing.get_context("spawn"),
                initializer=process.start,
                initargs=(process.encode_task(self._task),),
            )
        return self._pool

    def convert(self, work: Iterator[Work]) -> Iterator[Chunk]:
        """Chunks as they are done, in any order; at most two pieces wait for each worker.

        Raises:
            PrepareError: reading broke off; what had been read by then is converted first.
        """
        broke: PrepareError | None = None

        def pieces() -> Iterator[Work]:
            nonlocal broke
            try:
                yield from work
            except PrepareError as error:
                broke = error

        reading = pieces()
        first = next(reading, None)
        if first is not None:
            second = next(reading, None)
            every = itertools.chain([first, *([second] if second else [])], reading)
            if second is None or self._workers == 1:
                for piece in every:
                    yield self.here().convert(piece)
            else:
                yield from self._convert_in_pool(every)
        if broke is not None:
            raise broke

    def _convert_in_pool(self, work: Iterator[Work]) -> Iterator[Chunk]:
        pool = self.pool()
        running: set[Future[Chunk]] = set()
        for piece in work:
            while len(running) >= 2 * self._workers:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
            running.add(pool.submit(process.convert, piece))
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)

    def finish(self, chosen: NDArray[Any]) -> Iterator[Finished]:
        """Stretches of the output, in order."""
        starts = range(0, len(chosen), STRETCH)
        if self._workers == 1 or len(starts) < 4:
            for start in starts:
                yield self.here().finish(start, _places(chosen[start : start + STRETCH]))
            return
        pool = self.pool()
        ahead: deque[Future[Finished]] = deque()
        for start in starts:
            places = _places(chosen[start : start + STRETCH])
            ahead.append(pool.submit(process.finish, start, places))
            if len(ahead) >= 2 * self._workers:
                yield ahead.popleft().result()
        for future in ahead:
            yield future.result()


def _places(chosen: NDArray[Any]) -> list[Chosen]:
    columns = [chosen[name].tolist() for name in ("source", "chunk", "offset", "line", "meta")]
    return list(zip(*columns, strict=True))
