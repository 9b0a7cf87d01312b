"""Runs :mod:`console.link.far` in a container, through any hop."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import Any

from console.link.errors import LinkError
from console.link.place import Completed, Place

# The source's length comes first, then the source, then its order and data: nothing but this
# short, fixed text is ever on a command line.
_LOADER = (
    "import sys;i=sys.stdin.buffer;s=i.read(int(i.readline()));"
    "exec(compile(s,'far.py','exec'),{'__name__':'far','STOKER_INPUT':i})"
)
_SOURCE = Path(__file__).with_name("far.py")


async def far(
    place: Place,
    order: dict[str, Any],
    data: AsyncIterable[bytes] | bytes = b"",
    *,
    timeout: float = 60,
) -> dict[str, Any]:
    """Have ``order`` done there; returns its answer. Raises LinkError with one line."""
    python = place.target.agent_python
    if not python:
        raise LinkError(
            f"agent_python is not set for {place.target.name}: name an interpreter in the "
            "container that has msgspec, httpx, httpx-aiohttp, aiohttp and psutil"
        )
    done = await place.run(
        ["env", "LC_ALL=C.UTF-8", "PYTHONSAFEPATH=1", python, "-c", _LOADER],
        _input(order, data),
        timeout=timeout,
    )
    if done.status != 0:
        raise await place.explain(done, f"{python}")
    answer = _answer(done)
    if "error" in answer:
        raise LinkError(f"{place.name}: {answer['error']}")
    ok: dict[str, Any] = answer["ok"]
    return ok


def _answer(done: Completed) -> dict[str, Any]:
    lines = done.out.strip().splitlines()
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise LinkError(f"no answer came from the container: {done.errors[-300:]}") from None
    return answer


async def _input(order: dict[str, Any], data: AsyncIterable[bytes] | bytes) -> AsyncIterator[bytes]:
    source = _SOURCE.read_bytes()
    yield b"%d\n%s%s\n" % (len(source), source, json.dumps(order).encode())
    if isinstance(data, bytes):
        if data:
            yield data
        return
    async for block in data:
        yield block
