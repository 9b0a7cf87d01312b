"""What every verb of the command line needs: to say, to ask, and to follow what happens."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from console.config import Target, user_file
from console.flags import slips
from console.link.client import LinkError, LinkStatus
from console.link.place import Place, reach
from console.session import Session, session
from console.text import clock, visible
from remote.protocol import CheckFlags, Done, Events, Happened, ReadEvents, Request

LINE = 1 << 20
"""Longest line printed, in characters."""


class VerbError(Exception):
    """Bad usage: one line that says what and what to do."""


class NothingDoneError(Exception):
    """Whoever was asked has said no."""


def say(text: str) -> None:
    """A line for people, at once. It may hold what a server or its log said: no control sequence
    of theirs gets through."""
    print(visible(text, limit=LINE), flush=True)


def ask(question: str, *, yes: bool) -> None:
    """Go on only after a yes. Raises VerbError where nobody can be asked,
    NothingDoneError where the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise VerbError(f"{question} Nobody can be asked here: add --yes")
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise NothingDoneError("nothing was done")


@asynccontextmanager
async def at_place(target: Target) -> AsyncIterator[Place]:
    """The container itself, without an agent, to bring something there. Whatever fails makes it
    unreachable. Raises LinkError, and VerbError where nothing may be brought."""
    if target.read_only:
        raise VerbError(f"{target.name} is read-only: nothing is brought there")
    try:
        place = await reach(target)
        try:
            yield place
        finally:
            await place.close()
    except LinkError as error:
        raise LinkError(str(error), "unreachable") from None


async def simple(target: Target, request: Request) -> int:
    async with session(target) as here:
        done = await here.call(request, timeout=60)
        assert isinstance(done, Done)
        say(done.text or "done")
    return 0


async def watched(here: Session) -> None:
    """From now on, print what happens: on the target, and to the link."""

    def tell(message: Happened) -> None:
        say(f"{clock(message.event.time)} {message.event.text}")

    last = await here.call(ReadEvents(limit=1))
    assert isinstance(last, Events)
    await here.follow(events_after=last.events[-1].id if last.events else 0)
    here.on_event = tell
    here.on_link = tell_link


def tell_link(status: LinkStatus) -> None:
    """A lost link comes back by itself: only say it."""
    if status.state != "closed":
        print(f"stoker: {visible(status.text)}", file=sys.stderr, flush=True)


async def flags_problem(here: Session, timeout: float) -> str:
    """What is wrong with the flags of stoker.toml, as the SGLang there says; empty where nothing
    is, or where nobody there can say in time."""
    fleet = here.target.spec.fleet
    try:
        await here.call(CheckFlags(flags=fleet.flags), timeout)
    except LinkError as error:
        if error.kind != "usage":
            return ""
        return f"{here.target.file or user_file()}: fleet.flags: {error}"
    return ""


def warn_of_slips(target: Target) -> None:
    """Tell of flags that look misspelt, where there is no SGLang to ask."""
    for text in slips(target.spec.fleet.flags):
        print(f"stoker: warning: fleet.flags.{text}", file=sys.stderr)
