"""Verbs of the run: ``run start``, ``pause``, ``resume``, ``stop``, ``retry-failed``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from console.config import Target
from console.link.push import push_file
from console.session import session
from console.settling import settle
from console.verbs.common import VerbError, at_place, say, simple, watched
from remote.protocol import Done, RetryFailed, RunControl, RunStart


async def run_start(
    target: Target, prompts: Path | None, *, extend: bool, accept_params: bool
) -> int:
    """``stoker run start``: bring the prompts into the container if asked, then start or resume."""
    if prompts is not None:
        check_prompts(prompts)
        place = str(PurePosixPath(target.spec.workspace) / target.spec.run.prompts)
        async with at_place(target) as there:
            digest = await push_file(there, prompts, place, progress=_pushed(prompts))
        say(f"{prompts} → {place} (sha256 {digest[:12]}…)")
    async with session(target) as here:
        await watched(here)
        request = RunStart(spec=target.spec, extend=extend, accept_params=accept_params)
        done = await here.call(request, timeout=120)
        assert isinstance(done, Done)
        say(done.text or "started")
    return 0


def check_prompts(path: Path) -> None:
    """A first look before gigabytes travel. Raises VerbError with file and line."""
    if not path.is_file():
        raise VerbError(f"{path}: no such prompts file")
    last = b"\n"
    with path.open("rb") as source:
        for number, line in enumerate(source, 1):
            last = line
            try:
                row = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise VerbError(f"{path}:{number}: not JSON: {error}; mend or remove it") from None
            if not isinstance(row, dict) or not isinstance(row.get("messages"), list):
                raise VerbError(f"{path}:{number}: a JSON object with `messages` is needed")
            if not row["messages"]:
                raise VerbError(f"{path}:{number}: `messages` is empty; remove the line")
    if last == b"\n":
        raise VerbError(f"{path}: no prompts in it")
    if not last.endswith(b"\n"):
        raise VerbError(
            f"{path}: the last line has no newline: is the file whole? If so, "
            f"`echo >> {path}` ends it"
        )


def _pushed(path: Path) -> Callable[[int, int], None] | None:
    if not sys.stderr.isatty():
        return None

    def show(sent: int, total: int) -> None:
        share = sent * 100 // (total or 1)
        print(f"\r{path.name}: {share}% ", end="", file=sys.stderr, flush=True)

    return show


async def run_control(target: Target, do: Any, **more: Any) -> int:
    """``stoker run pause|resume|stop``; ``more`` as :class:`RunControl` has it."""
    if do != "resume":
        return await simple(target, RunControl(do=do, **more))
    async with session(target) as here:
        if text := await settle(here):
            say(text)
        done = await here.call(RunControl(do=do, **more), timeout=60)
        assert isinstance(done, Done)
        say(done.text or "done")
    return 0


async def retry_failed(target: Target, *, set_aside: bool) -> int:
    """``stoker run retry-failed``."""
    return await simple(target, RetryFailed(set_aside=set_aside))
