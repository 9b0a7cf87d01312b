"""Searches with a regular expression, each in a process of its own.

A pattern can backtrack for longer than anybody lives, and Python's ``re`` lets no other thread
run meanwhile: in the agent's own process it would end the watching of the servers, and nothing
could stop it. ``python -m remote.agent.search`` reads one request on its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from remote import answers
from remote.agent import logs
from remote.protocol import Answers, LogPart, ReadAnswers, ReadLog

SECONDS: Final = 20.0
"""A search over as much as one may look through takes a second or two."""

CODE: Final = Path(__file__).resolve().parents[2]


class SearchError(Exception):
    """One line: why there is nothing."""


class _Failed(Struct, tag="failed"):
    text: str


class _Task(Struct):
    path: str
    request: ReadLog | ReadAnswers


_Found: TypeAlias = LogPart | Answers | _Failed


async def search(
    request: ReadLog | ReadAnswers, path: Path, seconds: float = SECONDS
) -> LogPart | Answers:
    """What the request finds in a log file, or in the run directory, at ``path``. Raises
    :class:`SearchError`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "remote.agent.search",
        cwd=CODE,
        env={**os.environ, "PYTHONPATH": str(CODE)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        task = msgspec.json.encode(_Task(str(path), request))
        out, _ = await asyncio.wait_for(process.communicate(task), seconds)
    except TimeoutError:
        raise SearchError(
            f"{request.grep!r} takes over {seconds:.0f} s: write it without a repetition "
            "inside a repetition, or anchor it"
        ) from None
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
        raise SearchError(found.text)
    return found


def _look(task: _Task) -> _Found:
    request, path = task.request, Path(task.path)
    try:
        if isinstance(request, ReadAnswers):
            return answers.newest(
                path, request.kind, request.limit, request.grep, request.outcome, request.chars
            )
        if request.offset is None:
            return logs.tail(request.source, path, request.lines, request.grep)
        return logs.read(request.source, path, request.offset, request.lines, request.grep)
    except FileNotFoundError:
        return _Failed(f"{path}: not there yet")
    except OSError as error:
        return _Failed(f"{path}: {error.strerror}")
    except (re.error, OverflowError, RecursionError) as error:
        return _Failed(f"grep {request.grep!r}: {error}")


if __name__ == "__main__":
    sys.stdout.buffer.write(
        msgspec.json.encode(_look(msgspec.json.decode(sys.stdin.buffer.read(), type=_Task)))
    )
