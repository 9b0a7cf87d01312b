"""The fleet over the real SGLang (see :mod:`tests.real_engine`)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec
import pytest

from remote.fleet import identity, installed
from remote.fleet.fleet import Fleet
from remote.protocol import Flags, FleetSpec, TargetSpec
from remote.sglang import source
from tests import ports, real_engine
from tests.real_engine import ENV, FLAGS, MODEL, PYTHON
from tests.remote.fleet.conftest import FAST, Events, FakeRun, Site
from tests.remote.fleet.servers import pid_of
from tests.remote.fleet.swaps import Journal, begin
from tests.waiting import until

pytestmark = real_engine.needed

REAL = replace(FAST, tick=0.5, loads=1.0, metrics=1.0, term=12.0, stall=30.0)


def real_site(tmp_path: Path) -> tuple[Site, TargetSpec]:
    site = Site(root=tmp_path, base=ports.free(1), gpus=1, run=FakeRun(), events=Events())
    spec = TargetSpec(
        name="real",
        workspace=str(tmp_path),
        python=PYTHON,
        env_script=ENV,
        fleet=FleetSpec(model=MODEL, gpus=1, base_port=site.base, flags=FLAGS, drain_seconds=20.0),
    )
    return site, spec


Answered = tuple[int, dict[str, object]]
"""HTTP status and body."""


async def chat(fleet: Fleet, **more: object) -> Answered:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi there"}], **more}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{fleet.url(0)}/v1/chat/completions", json=body) as answer,
    ):
        return answer.status, await answer.json()


async def test_the_real_engine(tmp_path: Path) -> None:
    """One life of one server: a start of the real thing is too dear for one a test."""
    site, spec = real_site(tmp_path)
    try:
        fleet = site.fleet(spec, REAL)
        await fleet.up(None, epoch=site.epoch(spec), who="ann")
        await flags_are_told_alike_by_parser_and_source(fleet)
        await its_log_tells_phases_until_it_is_ready(fleet)
        asked = await tokens_are_seen_by_its_counters(fleet)
        await a_swap_under_load_loses_no_request(fleet, site, spec, asked)
        await a_killed_scheduler_is_explained_and_started_again(fleet, site)
        await it_stops_in_time_after_a_request_that_it_refused(fleet)
        await flags_that_it_refuses_do_not_start(fleet, site, spec)
    finally:
        await site.end_all()


async def flags_are_told_alike_by_parser_and_source(fleet: Fleet) -> None:
    """They come from its own parser, and the source says the same of all of them."""
    assert fleet.knowledge.catalogue is not None
    assert fleet.knowledge.catalogue.source == "parser"
    which = await installed.find(PYTHON, dict(os.environ))
    assert which is not None
    read = {f.name: f for f in source.read(Path(which.folder), which.version).flags}
    asked = {f.name: f for f in fleet.knowledge.catalogue.flags}
    assert set(read) == set(asked)
    differ = [
        name
        for name, flag in asked.items()
        if (flag.kind, flag.many, set(flag.aliases))
        != (read[name].kind, read[name].many, set(read[name].aliases))
    ]
    assert len(differ) < 6, differ


async def its_log_tells_phases_until_it_is_ready(fleet: Fleet) -> None:
    """At the right moment; and nothing of ours stands in the log."""
    phases: list[str] = []

    def ready() -> bool:
        state = fleet.states()[0]
        assert state.state != "failed", state
        if not phases or phases[-1] != state.phase:
            phases.append(state.phase)
        return state.state == "ready"

    await until(ready, 240)
    assert phases[0] == "importing"
    assert phases[-1] == ""
    status, _ = await chat(fleet, max_tokens=4)
    assert status == 200
    info = fleet.infos()[0]
    assert (info.max_running, info.kv_tokens) == (16, 65536)
    assert len(fleet.server(0).core) == 2
    log = await asyncio.to_thread(Path(info.log).read_text, errors="replace")
    assert "GET /v1/loads" not in log


async def tokens_are_seen_by_its_counters(fleet: Fleet) -> list[asyncio.Task[Answered]]:
    """Eight long requests, which go on."""
    long: dict[str, object] = {"max_tokens": 3000, "ignore_eos": True}
    asked = [asyncio.create_task(chat(fleet, **long)) for _ in range(8)]
    await until(lambda: fleet.states()[0].running == 8)
    await until(lambda: (fleet.states()[0].gen_tok_s or 0) > 1)
    assert fleet.states()[0].lights.tokens
    return asked


async def a_swap_under_load_loses_no_request(
    fleet: Fleet, site: Site, spec: TargetSpec, asked: list[asyncio.Task[Answered]]
) -> None:
    """Of real flags: what runs is aborted after the bound, and answered."""
    changes: Flags = {"max-running-requests": 24}
    planned = await fleet.plan(
        current=site.epoch(spec), set_flags=changes, unset_flags=[], strategy="rolling", gpus=None
    )
    assert planned.diff == ["max-running-requests 16 → 24"]
    new, _ = fleet.new_flags(spec.fleet.flags, changes, [])
    began = time.monotonic()
    ended = await fleet.swap(
        begin(planned),
        old=site.epoch(spec),
        new=msgspec.structs.replace(site.epoch(spec), id=2, flags=new),
        save=Journal(),
    )
    assert ended.state == "done", ended
    assert "16 → 24 slots" in ended.text
    answers = await asyncio.gather(*asked)
    assert {status for status, _ in answers} == {200}
    print(f"swap in {time.monotonic() - began:.1f} s: {ended.text}")


async def a_killed_scheduler_is_explained_and_started_again(fleet: Fleet, site: Site) -> None:
    server = fleet.server(0)
    main = pid_of(fleet, 0)
    child = next(p for p in server.tree if p.pid in server.core)
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: site.events.texts("server.failed"), 15)
    assert "SIGKILL" in site.events.texts("server.failed")[0]
    await until(lambda: fleet.states()[0].state == "ready" and pid_of(fleet, 0) != main, 240)


async def it_stops_in_time_after_a_request_that_it_refused(fleet: Fleet) -> None:
    """Such a request leaks on its books, and its drain would never end."""
    status, _ = await chat(fleet, max_tokens=4, temperature=-3)
    assert status == 400
    tree = list(fleet.server(0).tree)
    began = time.monotonic()
    await fleet.down(None, who="ann")
    took = time.monotonic() - began
    assert took < REAL.term + 10
    assert all(identity.birth(p.pid) != p.birth for p in tree)
    print(f"stopped after a refused request in {took:.1f} s")


async def flags_that_it_refuses_do_not_start(fleet: Fleet, site: Site, spec: TargetSpec) -> None:
    wrong = msgspec.structs.replace(spec.fleet, flags={**FLAGS, "dtype": "float99"})
    fleet.spec = msgspec.structs.replace(spec, fleet=wrong)
    with pytest.raises(Exception, match="dtype cannot be 'float99'"):
        await fleet.up(None, epoch=site.epoch(fleet.spec), who="ann")
