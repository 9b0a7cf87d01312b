"""What may change while a run goes on, by ``control.json`` alone: its servers, their epochs."""

from __future__ import annotations

from collections.abc import Callable

from remote.generate import control
from remote.generate.control import ServerControl
from tests.remote.generate.conftest import Generation, Served, wait_for
from tests.remote.generate.test_run import check, indices


def test_servers_come_and_go(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """One that is added gets work, one that is taken away gets no more; no restart, no loss.
    The summary tells them apart, and the epochs of one server as well."""
    run = generation(1000)
    one, two = serve(delay=0.3), serve(delay=0.3)
    run.start(one, options=("--concurrency", "4"))
    wait_for(lambda: run.progress().get("completed", 0) > 10)

    def servers(*wanted: ServerControl) -> None:
        control.write(run.folder, control.Control(servers=list(wanted), concurrency=4))

    servers(ServerControl(one.url, epoch=1), ServerControl(two.url, epoch=1))
    wait_for(lambda: len(two.told()["seen"]) > 30, what="the added one works")
    servers(ServerControl(two.url, epoch=2))
    wait_for(lambda: run.progress()["servers"][one.url]["in_flight"] == 0)
    asked = len(one.told()["seen"])
    two.set(delay=0.02)
    assert run.wait() == 0
    assert len(one.told()["seen"]) == asked
    assert indices(run) == list(range(1000))
    epochs = {(record["server"], record["epoch"]) for record in run.records()}
    assert {(two.url, 1), (two.url, 2)} <= epochs
    summary = run.text()[run.text().index("finished: 1,000 of 1,000") :]
    assert f"{one.url}, epoch 1: " in summary
    assert f"{two.url}, epoch 1: " in summary
    assert f"{two.url}, epoch 2: " in summary
    assert "GPU hours so far at one GPU a server, " in summary
    assert "a million output tokens" in summary
    check(run)


def test_what_waits_is_told_by_source(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """What was in flight on a server that dies is sent again; progress.json says whose it is."""
    run = generation(50, source="mine")
    one = serve(delay=30.0)
    run.start(one, options=("--concurrency", "4"))
    wait_for(lambda: run.progress().get("in_flight") == 4)
    one.kill()
    wait_for(lambda: run.progress().get("waiting_by_source") == {"mine": 4})
    assert run.progress()["waiting_retry"] == 4
