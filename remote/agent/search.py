"""Searches with a regular expression, each in a process of its own.

A pattern can backtrack for longer than anybody lives, and Python's ``re`` lets no other thread
run meanwhile: in the agent's own process it would end the watching of the servers, and nothing
could stop it. ``python -m remote.agent.search PARENT`` reads one request on its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from remote import answers
from remote.agent import logs, merged
from remote.protocol import Answers, LogPart, MergedPart, ReadAnswers, ReadLog, ReadMerged

SECONDS: Final = 20.0
"""A search over as much as one may look through takes a second or two."""

_SET_PARENT_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG

CODE: Final = Path(__file__).resolve().parents[2]


class SearchError(Exception):
    """One line: why there is nothing; ``code`` as :class:`remote.protocol.Failure` has it."""

    def __init__(self, text: str, code: str = "refused") -> None:
        super().__init__(text)
        self.code = code


class _Failed(Struct, tag="failed"):
    text: str
    code: str = "refused"


Asked: TypeAlias = ReadLog | ReadMerged | ReadAnswers
Paths: TypeAlias = Mapping[str, Path]
"""A log file for each source."""


class _Task(Struct):
    path: str
    paths: dict[str, str]
    request: Asked


_Found: TypeAlias = LogPart | MergedPart | Answers | _Failed


async def search(
    request: Asked, path: Path | Paths, seconds: float = SECONDS
) -> LogPart | MergedPart | Answers:
    """What the request finds in a log file, or in the run directory, at ``path``; or in several
    log files. Raises :class:`SearchError`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "remote.agent.search",
        str(os.getpid()),
        cwd=CODE,
        env={**os.environ, "PYTHONPATH": str(CODE)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        task = msgspec.json.encode(_task(request, path))
        out, _ = await asyncio.wait_for(process.communicate(task), seconds)
    except TimeoutError:
        way = "write it without a repetition inside a repetition, or anchor it"
        text = f"{request.grep!r} takes" if request.grep else "this search takes"
        text += f" over {seconds:.0f} s" + (f": {way}" if request.grep else "")
        raise SearchError(text, "usage" if request.grep else "refused") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        found = msgspec.json.decode(out, type=_Found)
    except msgspec.DecodeError:
        raise SearchError(f"the search ended with status {process.returncode}") from None
    if isinstance(found, _Failed):
        raise SearchError(found.text, found.code)
    return found


def _task(request: Asked, path: Path | Paths) -> _Task:
    if isinstance(path, Path):
        return _Task(str(path), {}, request)
    return _Task("", {source: str(file) for source, file in path.items()}, request)


def _answers(folder: Path, asked: ReadAnswers) -> Answers:
    if asked.index is not None:
        return answers.of_prompt(folder, asked.index, asked.chars)
    return answers.newest(
        folder, asked.kind, asked.limit, asked.grep, asked.outcome, asked.chars, asked.before
    )


def _look(task: _Task) -> _Found:
    request, path = task.request, Path(task.path)
    try:
        if isinstance(request, ReadAnswers):
            return _answers(path, request)
        if isinstance(request, ReadMerged):
            return merged.read({source: Path(at) for source, at in task.paths.items()}, request)
        if request.offset is None:
            return logs.tail(request.source, path, request.lines, request.grep)
        return logs.read(request.source, path, request.offset, request.lines, request.grep)
    except FileNotFoundError:
        return _Failed(f"{path}: not there yet")
    except OSError as error:
        return _Failed(f"{error.filename or path}: {error.strerror}")
    except (re.error, OverflowError, RecursionError) as error:
        return _Failed(f"grep {request.grep!r}: {error}", "usage")


def _end_with_parent() -> None:
    """Die with whoever asked, and in any case soon: nobody else could stop this process, and no
    signal handler runs while a pattern is at work."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS + 5)  # SIGALRM ends a process
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if len(sys.argv) > 1 and str(os.getppid()) != sys.argv[1]:
        sys.exit(1)  # it was gone before


if __name__ == "__main__":
    _end_with_parent()
    sys.stdout.buffer.write(
        msgspec.json.encode(_look(msgspec.json.decode(sys.stdin.buffer.read(), type=_Task)))
    )
