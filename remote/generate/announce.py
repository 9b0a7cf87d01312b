"""What a run says at its start: who is well, where it stands, what the machine cannot bear."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from remote.generate import layout, limits, toolcalls
from remote.generate.accounts import Accounts
from remote.generate.opening import Opened
from remote.generate.server import Server
from remote.generate.settings import Settings
from remote.generate.show import port

USUAL_ANSWER = 8000
"""Bytes of a record besides its prompt, until this run has shown its own."""


def first_lines(servers: list[Server]) -> Iterator[str]:
    """The lines that a run's log begins with."""
    for server in servers:
        if not server.breaker.is_open:
            yield f"Port {port(server.url)}: OK"
    yield "Starting generation..."


def standing(opened: Opened, accounts: Accounts, servers: list[Server]) -> str:
    """Where the run stands, in one line."""
    healthy = sum(not server.breaker.is_open for server in servers)
    return (
        f"{accounts.totals.completed} done, {opened.recovered.repaired} repaired, "
        f"{healthy}/{len(servers)} healthy"
    )


def concerns(
    settings: Settings, opened: Opened, accounts: Accounts, servers: list[Server]
) -> Iterator[str]:
    """What was mended, and what people should know before they go away."""
    for note in opened.recovered.notes:
        yield f"mended: {note}"
    for server in servers:
        if server.breaker.is_open and server.dispatch == "run":
            yield f"Port {port(server.url)}: not ready: {server.problem or 'no answer yet'}"
    slots = sum(server.slots for server in servers)
    for short in (
        short_of_disk(settings, opened, accounts),
        limits.short_of_memory(accounts.total, slots),
    ):
        if short:
            yield short
    if toolcalls.no_schemas():
        yield (
            "warning: jsonschema-rs is not installed in this Python: the arguments of tool calls "
            "are not held against their schemas (pip install jsonschema-rs)"
        )
    if all(server.breaker.is_open for server in servers):
        alone = settings.agent is None
        do = "see that they run, and that --server is right" if alone else "start them (stoker up)"
        yield f"no server answers: {do}; waiting for them"


def waiting(servers: list[Server], most: float) -> str:
    """What the run waits for before it begins; ``most``: s that it does."""
    silent = [server.url for server in servers if server.breaker.is_open]
    names = ", ".join(silent[:3]) + (f" and {len(silent) - 3} more" if len(silent) > 3 else "")
    return (
        f"waiting up to {most:.0f} s for a first short answer of {names}: if that is not where "
        "servers run, stop (Ctrl+C) and correct --server"
    )


def short_of_disk(settings: Settings, opened: Opened, accounts: Accounts) -> str:
    """A word before the start where the answers will not fit the disk; empty where they do."""
    if settings.delete_uploaded or not accounts.remaining:
        return ""
    if accounts.sealed.records >= layout.BATCH:
        each = accounts.sealed.bytes / accounts.sealed.records
    else:
        each = opened.prompts.entry.bytes / accounts.total + USUAL_ANSWER
    need, free = each * accounts.remaining, shutil.disk_usage(settings.output).free
    if need <= free:
        return ""
    return (
        f"the disk has {free / 1e9:.1f} GB left, the remaining {accounts.remaining:,} records "
        f"need about {need / 1e9:.1f} GB: make room, or use --delete-uploaded with --s3"
    )
