"""What is slow: a disk, a server. Neither is a failure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import psutil

from remote.generate.floor import BACKLOG
from tests.remote.generate.conftest import Generation, Served, wait_for
from tests.remote.generate.test_run import check, indices

SIZE = 1_000_000


def test_a_slow_disk_stops_what_is_sent_and_nothing_else(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Answers of a megabyte, a sync of three seconds: what waits in memory is bounded."""
    run = generation(160)
    server = serve(delay=0.0, size=SIZE)
    run.fault(slow=3.0)
    run.start(server, options=("--concurrency", "16"))
    wait_for(run.done, 60)
    assert run.process is not None
    process = psutil.Process(run.process.pid)
    most = paused = 0
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        answered = len(server.told()["seen"])
        most = max(most, answered - run.done())
        paused += not server.told()["running"]
        if answered >= 160:
            break
        time.sleep(0.05)
    assert most * SIZE < 1.5 * BACKLOG + 16 * SIZE
    assert paused, "the servers had to wait"
    run.fault()
    assert run.wait(120) == 0, run.text()
    assert indices(run) == list(range(160))
    assert run.progress()["retries"] == {}
    check(run)


def test_a_server_that_slows_down_keeps_what_it_has_and_the_others_do_the_rest(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Nothing is taken from it, nothing counts as a failure, nobody waits for it but its own."""
    run = generation(900)
    good, bad = serve(delay=0.1), serve(delay=0.1)
    run.start(good, bad, options=("--concurrency", "8"))
    wait_for(lambda: run.progress().get("completed", 0) > 100)
    bad.set(delay=4.0)
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(900))
    by = Counter(record["server"] for record in run.records())
    assert by[good.url] > 2 * by[bad.url]
    assert run.progress()["retries"] == {}
    assert sum(len(server.told()["seen"]) for server in (good, bad)) == 900
    assert good.told()["peak"] <= 8 + 1
    check(run)
