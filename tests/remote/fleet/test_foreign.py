"""Servers that somebody started in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import msgspec
import pytest

from remote.fleet import processes
from remote.fleet.fleet import Fleet, FleetError
from tests.remote.fleet.conftest import Site
from tests.remote.fleet.servers import by_hand, chat, pid_of
from tests.waiting import until


async def test_a_foreign_server_is_shown_and_not_touched(site: Site) -> None:
    log = site.root / "hand.log"
    model = ("--model-path", "/models/line\nbreak\x1b[2J")
    hand = by_hand(site, log, "--mem-fraction-static", "0.85", *model)
    try:
        spec = site.spec()
        fleet = site.fleet(spec)
        await until(lambda: fleet.states()[0].state == "foreign", 10)
        info = fleet.infos()[0]
        assert info.pid == hand.pid
        assert info.flags["mem-fraction-static"] == 0.85
        assert info.log == str(log)
        await until(lambda: fleet.infos()[0].max_running == 37)
        # A run may use it: it is told of it, once.
        await until(lambda: site.run.servers)
        assert [(gpu, slots, epoch) for gpu, slots, epoch, _ in site.run.servers] == [(0, 37, None)]
        with pytest.raises(FleetError, match="not started by Stoker"):
            await fleet.up([0], epoch=site.epoch(spec), who="ann")
        with pytest.raises(FleetError, match="not started by Stoker"):
            await fleet.down([0], who="ann")
        # There is a line break in its model's path, but none in what is told of it.
        planned = await fleet.plan(
            current=None, set_flags={}, unset_flags=[], strategy="all", gpus=[0]
        )
        told = site.events.texts("server.foreign") + planned.warnings
        named = [text for text in told if "/models/line break [2J" in text]
        assert len(named) == 2, told
        assert all(text.isprintable() for text in told), told
        assert hand.poll() is None
    finally:
        main = processes.identify(hand.pid)
        assert main is not None
        # Reaped first: a zombie of ours keeps its pid.
        os.killpg(hand.pid, signal.SIGKILL)
        await asyncio.to_thread(hand.wait)


@contextlib.asynccontextmanager
async def found_by_hand(site: Site, *flags: str) -> AsyncIterator[Fleet]:
    """A fleet that has found a server which was started in a terminal."""
    hand = by_hand(site, site.root / "hand.log", *flags)
    fleet = site.fleet(site.spec())
    try:
        await until(lambda: fleet.states()[0].state == "foreign", 10)
        yield fleet
    finally:
        await site.close(fleet)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(hand.pid, signal.SIGKILL)
        await asyncio.to_thread(hand.wait)


async def test_a_foreign_server_is_asked_with_its_own_key(site: Site) -> None:
    async with found_by_hand(site, "--api-key", "theirs") as fleet:
        await until(lambda: fleet.states()[0].lights.http)
        assert "theirs" not in str(fleet.infos()[0])
        assert "theirs" not in str(fleet.server(0).foreign)


async def test_a_foreign_server_whose_key_cannot_be_read_says_so(site: Site) -> None:
    (site.root / "key").write_text("hidden")
    async with found_by_hand(site) as fleet:
        await until(lambda: "needs its API key" in fleet.states()[0].phase)
        assert fleet.states()[0].lights.http is not True
        credentials = site.root / "credentials"
        credentials.write_text("SGLANG_API_KEY=hidden\n")
        credentials.chmod(0o600)
        fleet.spec = msgspec.structs.replace(fleet.spec, credentials_file=str(credentials))
        await until(lambda: fleet.states()[0].lights.http)
        assert fleet.states()[0].phase == ""
    (told,) = site.events.texts("server.key")
    assert "SGLANG_API_KEY into credentials_file" in told


async def test_a_sigterm_to_a_foreign_server_ends_it_too_and_the_next_one_is_used(
    site: Site,
) -> None:
    async with found_by_hand(site) as fleet:
        await until(lambda: (0, "run") in site.run.told)
        asked = asyncio.create_task(chat(fleet.url(0), 150))
        await until(lambda: fleet.states()[0].running)
        os.kill(pid_of(fleet, 0), signal.SIGTERM)
        await until(lambda: site.run.told[-1] == (0, "pause"))
        assert fleet.states()[0].state == "foreign"
        assert await asked == "stop"
        await until(lambda: fleet.states()[0].state == "stopped")
    async with found_by_hand(site):
        await until(lambda: site.run.told[-1] == (0, "run"))
