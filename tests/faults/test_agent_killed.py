"""The agent killed again and again, at any moment: nothing else notices."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote.protocol import RunControl, RunStart, Up
from tests.remote.agent import conftest, test_whole
from tests.remote.agent.conftest import Agent
from tests.remote.agent.test_whole import Site, completed, ready

KILLS = int(os.environ.get("STOKER_KILLS", "50"))

agent = conftest.agent
workspace = conftest.workspace


@pytest.fixture
async def site(agent: Agent, tmp_path: Path) -> AsyncIterator[Site]:
    async for made in test_whole.site_of(agent, tmp_path, gpus=2, count=1000 + 200 * KILLS):
        yield made


@pytest.mark.timeout(900)
async def test_no_server_and_no_run_restarts_because_of_it(site: Site) -> None:
    """As often as a bad night would."""
    await site.done(Up(spec=site.spec))
    await site.until(ready, 90)
    await site.done(RunStart(spec=site.spec))
    shown = await site.until(lambda s: completed(s) >= 5)
    servers = [info.pid for info in shown.infos]
    run = shown.run.pid
    highest = 0
    for _ in range(KILLS):
        # Also before it listens, while it looks for what runs, and in the middle of writing.
        await asyncio.sleep(random.uniform(0.0, 0.8))
        site.agent.processes[-1].kill()
        site.agent.processes[-1].wait()
        site.agent.start()
        if random.random() < 0.5:
            site.link = await conftest.Link.open(await site.agent.ready())
            shown = await site.until(lambda s: len(s.infos) == 2)
            assert [info.pid for info in shown.infos] == servers
            if shown.run.alive:
                assert shown.run.pid == run
            last = max(e.id for e in await site.events())
            assert last > highest
            highest = last
    site.link = await conftest.Link.open(await site.agent.ready())
    shown = await site.until(lambda s: len(s.infos) == 2 and ready(s))
    assert [info.pid for info in shown.infos] == servers
    assert shown.run.pid == run
    done = completed(shown)
    await site.until(lambda s: completed(s) > done)
    await site.done(RunControl(do="stop"))
    shown = await site.until(lambda s: not s.run.alive)
    found = test_whole.indices(site)
    assert len(found) == len(set(found)) == completed(shown) > done
    texts = await site.texts()
    assert sum(text.startswith("server.starting") for text in texts) == 2
    assert not [text for text in texts if text.startswith(("server.failed", "run.failed"))]
