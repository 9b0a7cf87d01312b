"""Verbs that look: ``status``, ``logs``, and what ``advise`` asks for."""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

import msgspec

from console import status as report
from console.config import Target
from console.link.client import LinkError
from console.model import with_events
from console.session import session
from console.verbs.common import VerbError, flags_problem, say, tell_link
from remote.protocol import Batches, Events, LogPart, ReadBatches, ReadEvents, ReadLog, Subscribe

EVENTS = 500
"""Newest events that may tell who stopped the run, or why it is not at work."""

FLAGS_S = 5.0
"""For so long a look waits for what SGLang says of the flags in stoker.toml."""


async def status(target: Target, *, as_json: bool) -> int:
    """``stoker status``: one look, from three sources."""
    try:
        async with session(target) as here:
            await here.follow()
            batches = await here.call(ReadBatches())
            assert isinstance(batches, Batches)
            events = await here.call(ReadEvents(limit=EVENTS))
            assert isinstance(events, Events)
            here.state = with_events(here.state, events.events)
            problem = await flags_problem(here, FLAGS_S)
            document = report.document(target.name, here.state, batches, problem, target.spec)
    except LinkError as error:
        if as_json and error.kind not in ("refused", "usage"):
            print(json.dumps(report.unreachable(target.name, time.time(), str(error))))
            return 3
        raise
    if as_json:
        print(json.dumps(document))
    else:
        for line in report.lines(document, here.state, time.time()):
            say(line)
    return 1 if report.wrong(document, here.state) else 0


async def observed(target: Target) -> dict[str, Any]:
    """What ``stoker advise`` looks at, as its snapshot has it."""
    async with session(target) as here:
        await here.follow()
        return report.observed(here.state)


async def logs(
    target: Target, server: str, *, count: int, grep: str, follow: bool, as_json: bool
) -> int:
    """``stoker logs``: the last lines of a server, of the run or of the agent; or follow them."""
    source = f"gpu{int(server)}" if server.isdecimal() and len(server) < 4 else server
    try:
        wanted = re.compile(grep)
    except re.error as error:
        raise VerbError(f"--grep {grep}: not a regular expression: {error}") from None
    async with session(target) as here:
        part = await here.call(ReadLog(source=source, lines=count, grep=grep))
        assert isinstance(part, LogPart)
        _print_log(part, as_json=as_json)
        if follow:

            def more(part: LogPart) -> None:
                if part.skipped:
                    print(f"... {part.skipped} lines skipped", file=sys.stderr)
                kept = [line for line in part.lines if wanted.search(line)]
                _print_log(msgspec.structs.replace(part, lines=kept), as_json=as_json)

            here.on_log = more
            here.on_link = tell_link
            cursor = (part.inode, part.next)
            await here.client.subscribe(Subscribe(snapshots=False, logs={source: cursor}))
            await here.until(lambda: None)
    return 0


def _print_log(part: LogPart, *, as_json: bool) -> None:
    for line in part.lines:
        if as_json:
            print(json.dumps({"source": part.source, "line": line}), flush=True)
        else:
            say(line)
