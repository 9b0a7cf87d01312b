"""Taking servers down while they answer."""

from __future__ import annotations

import asyncio
import time

from remote.fleet import identity
from tests.remote.fleet.conftest import Site
from tests.remote.fleet.servers import chat, pid_of
from tests.waiting import until


async def test_down_waits_for_what_runs_where_it_cannot_be_continued(site: Site) -> None:
    site.run.cannot = "this run does not keep them"
    spec = site.spec()
    fleet = await site.ready(spec, [0])
    asked = asyncio.create_task(chat(fleet.url(0), 100))
    await until(lambda: fleet.states()[0].running)
    await fleet.down([0], who="ann")
    assert await asked == "stop"
    assert site.run.told[-1] == (0, "pause")


async def test_down_breaks_off_what_can_be_continued(site: Site) -> None:
    spec = site.spec(drain=60.0)
    fleet = await site.ready(spec, [0])
    site.run.open[0] = 1
    asked = asyncio.create_task(chat(fleet.url(0), 100_000))
    await until(lambda: fleet.states()[0].running)
    began = time.monotonic()
    await fleet.down([0], who="ann")
    assert time.monotonic() - began < 20
    assert await asked == "abort"
    assert (0, "abort") in site.run.told
    (told,) = site.events.texts("server.aborted")
    assert told == "GPU 0: 1 answers broken off, to be continued"


async def test_down_aborts_after_the_bound_and_kills_a_drain_without_end(site: Site) -> None:
    site.run.cannot = "this run does not keep them"
    spec = site.spec(drain=0.5, fake_leak=True)
    fleet = await site.ready(spec, [0])
    main = pid_of(fleet, 0)
    asked = asyncio.create_task(chat(fleet.url(0), 100_000))
    await until(lambda: fleet.states()[0].running)
    began = time.monotonic()
    await fleet.down([0], who="ann")
    assert await asked == "abort"
    assert (0, "abort") in site.run.told
    assert time.monotonic() - began < 12
    assert identity.birth(main) is None
    assert fleet.states()[0].state == "stopped"
