"""How a server drains, is killed, hangs and ends, in both dialects, as its supervisor sees it."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from console.lab.sim.settings import Fault, set_fault
from tests.console.lab_sim.servers import (
    CONT,
    KILL,
    STOP,
    TERM,
    Lab,
    gone,
    is_new,
    lab,
    long_chat,
    wait_for,
)


def test_a_drain_finishes_what_runs_takes_more_and_ends_as_its_release_does(each: Lab) -> None:
    server, idle = each.start(gpu=0), each.start(gpu=1)
    forced = each.start(gpu=2, environ={"SGL_FORCE_SHUTDOWN": "1"})
    for one in (server, idle, forced):
        one.ready()
    family = [child for one in (server, idle, forced) for child in one.children().values()]
    with ThreadPoolExecutor() as pool:
        running = [
            pool.submit(server.chat, max_tokens=12_000, ignore_eos=True, text=f"{n}")
            for n in range(3)
        ]
        torn = pool.submit(long_chat, forced)
        server.running(3)
        forced.running()
        for one in (server, idle, forced):
            one.process.send_signal(TERM)
        server.logged(r"SIGTERM received\. signum=None frame=None\. Draining requests and shutting")
        assert server.client.get("/health").status_code == 503
        assert server.chat(max_tokens=4)["usage"]["completion_tokens"] == 4
        for run in running:
            assert run.result()["choices"][0]["finish_reason"] == "length"
        with pytest.raises(httpx.TransportError):
            torn.result()
    assert [one.exit(15) for one in (idle, forced, server)] == [0 if is_new(each) else -9] * 3
    assert "Health check request received during shutdown. Returning 503." in server.log
    assert server.lines(r"Gracefully exiting\.\.\. Remaining number of requests 0\. ")
    assert forced.lines("force shutdown flag set. Force exiting.")
    assert ("Finished server process" in server.log) == is_new(each)
    wait_for(lambda: gone(family), 5, "children gone")


def test_drains_that_never_end(tmp_path: Path) -> None:
    with lab(tmp_path, "0.5.12", faults={"2": Fault(endless_drain=True)}) as made:
        refused, queued, ordered = (made.start(gpu=n, max_running_requests=2) for n in range(3))
        for server in (refused, queued, ordered):
            server.ready()
        body = {"messages": [{"role": "user", "content": "x"}], "temperature": -1, "rid": "bad-1"}
        assert refused.client.post("/v1/chat/completions", json=body).status_code == 400
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(long_chat, queued, text=f"{n}", rid=f"q-{n}") for n in range(5)]
            wait_for(lambda: queued.load()["num_waiting_reqs"] == 3)
            queued.client.post("/abort_request", json={"abort_all": True})
            answers = [run.result() for run in runs]
        assert {answer["choices"][0]["finish_reason"] for answer in answers} == {"abort"}
        empty = [answer for answer in answers if answer["usage"]["total_tokens"] == 0]
        assert len(empty) == 3
        for answer in empty:
            assert answer["choices"][0]["message"]["content"] is None
            assert answer["usage"]["prompt_tokens"] == 0
        assert all(a["usage"]["completion_tokens"] > 0 for a in answers if a not in empty)
        for server in (refused, queued, ordered):
            server.process.send_signal(TERM)
        for count, server in ((1, refused), (3, queued), (1, ordered)):
            ticks = rf"Remaining number of requests {count}\. Remaining requests remaining_rids=\['"
            server.logged(ticks, 12, times=2)
            assert server.process.poll() is None


def test_token_ids_of_another_vocabulary_take_the_server_down(tmp_path: Path) -> None:
    with lab(tmp_path, "0.5.12") as made:
        server = made.start().ready()
        with pytest.raises(httpx.TransportError):
            server.client.post("/generate", json={"input_ids": [1 << 30]})
        assert server.exit(5) == -9
        assert server.lines("Scheduler hit an exception")


# --- killed, hung, stalled, slow, orphaned ---


def test_a_kill_resets_what_is_in_flight_and_leaves_nothing(tmp_path: Path) -> None:
    with lab(tmp_path, "0.5.12") as made, ThreadPoolExecutor() as pool:
        servers = [made.start(gpu=n).ready() for n in range(3)]
        family = [child for server in servers for child in server.children().values()]
        running = [pool.submit(long_chat, server) for server in servers]
        for server in servers:
            server.running()
        killed, crashed, quit_ = servers
        killed.process.send_signal(KILL)
        crashed.children()["sglang::scheduler"].send_signal(KILL)
        quit_.process.send_signal(signal.SIGQUIT)
        assert [server.exit(5) for server in servers] == [-9] * 3
        for run in running:
            with pytest.raises(httpx.TransportError):
                run.result()
        wait_for(lambda: gone(family), 5, "children gone")
        assert crashed.lines(
            r"Subprocess scheduler_0 \(pid=\d+\) crashed with exit code -9\. Triggering SIGQUIT"
        )
        for server in (crashed, quit_):
            assert server.lines(r"SIGQUIT received\. signum=None, frame=None\.")


def hangs(call: Callable[[], Any]) -> bool:
    try:
        call()
    except httpx.ReadTimeout:
        return True
    return False


def test_a_stopped_scheduler_hangs_what_asks_it_and_recovers(each: Lab) -> None:
    patience = {"SGLANG_HEALTH_CHECK_TIMEOUT": "4"}
    server = each.start(enable_metrics=True, environ=patience).ready()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(long_chat, server, 25_000)
        server.running()
        used = server.load()["num_used_tokens"]
        server.children()["sglang::scheduler"].send_signal(STOP)
        time.sleep(1)
        health = pool.submit(lambda: httpx.get(f"{server.client.base_url}/health", timeout=40))
        began = time.monotonic()
        for path in ("/v1/models", "/metrics"):
            assert server.client.get(path, timeout=2).status_code == 200
        assert hangs(lambda: server.client.get("/server_info", timeout=1))
        if is_new(each):
            frozen = [server.load()["num_used_tokens"] for _ in range(2)]
            assert frozen[0] == frozen[1] >= used
        else:
            assert hangs(lambda: server.client.get("/v1/loads", timeout=1))
        assert health.result().status_code == 503
        assert 3 < time.monotonic() - began < 7
        server.logged(r"Health check failed\. Server couldn't get a response from detokenizer")
        server.children()["sglang::scheduler"].send_signal(CONT)
        assert running.result()["choices"][0]["finish_reason"] == "length"
        assert server.client.get("/health").status_code == 200


def test_hung_stalled_and_slow_servers_are_three_different_things(tmp_path: Path) -> None:
    with lab(tmp_path, "0.5.12") as made, ThreadPoolExecutor() as pool:
        hung, stalled, slow = (made.start(gpu=n, watchdog_timeout=2) for n in range(3))
        for server in (hung, stalled, slow):
            server.ready()
        lost = pool.submit(long_chat, hung)
        kept = pool.submit(long_chat, stalled, 25_000)
        late = pool.submit(long_chat, slow)
        for server in (hung, stalled, slow):
            server.running()
        set_fault(made.state, 0, Fault(hang=True))
        set_fault(made.state, 1, Fault(stall=True))
        set_fault(made.state, 2, Fault(slow=20, slow_probe_s=0.5))

        # Hung: nothing that asks the scheduler is answered, and its own watchdog ends it.
        hung.logged(r"Scheduler watchdog timeout \(self\.watchdog_timeout=2, self\.soft=False\)")
        assert hangs(lambda: hung.client.get("/v1/loads", timeout=0.5))

        # Stalled: everything is answered, health too, and no token is made.
        tokens = stalled.load()["num_used_tokens"]
        time.sleep(0.5)
        assert stalled.load()["num_used_tokens"] == tokens
        assert stalled.client.get("/health").status_code == 200
        assert stalled.load()["num_running_reqs"] == 1

        # Slow: answers are late, tokens flow.
        before = slow.load()["num_used_tokens"]
        began = time.monotonic()
        after = slow.load()["num_used_tokens"]
        assert 0.5 <= time.monotonic() - began < 3
        assert after > before

        for gpu in (1, 2):
            set_fault(made.state, gpu, None)
        assert kept.result()["choices"][0]["finish_reason"] == "length"
        slow.client.post("/abort_request", json={"abort_all": True})
        assert late.result()["usage"]["completion_tokens"] > after - 100
        assert hung.exit(8) == -9
        with pytest.raises(httpx.TransportError):
            lost.result()


def test_an_orphan_holds_the_memory_and_the_next_start_runs_out_of_it(tmp_path: Path) -> None:
    with lab(tmp_path, "0.5.12", faults={"0": Fault(orphan=True)}) as made:
        server = made.start().ready()
        orphan = server.children()["sglang::scheduler"]
        server.process.send_signal(KILL)
        assert server.exit() == -9
        set_fault(made.state, 0, None)
        try:
            second = made.start()
            assert second.exit() == -9
            assert second.lines(r"torch\.OutOfMemoryError: CUDA out of memory\.")
            assert orphan.is_running()
            assert orphan.cmdline()[0] == "sglang::scheduler"
        finally:
            orphan.kill()
        wait_for(lambda: gone([orphan]))
        made.start().logged("Load weight end")


# --- the port ---


def test_a_port_of_another_sglang_gives_a_false_fired_up(each: Lab) -> None:
    first = each.start(gpu=0).ready()
    second = each.start(gpu=1, port=first.port)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        third = each.start(gpu=2, port=other.getsockname()[1])
        assert second.exit() == (3 if is_new(each) else 1)
        assert second.lines(
            r"ERROR:    \[Errno 98\] error while attempting to bind on address "
            rf"\('127\.0\.0\.1', {first.port}\): address already in use"
        )
        assert second.lines("The server is fired up and ready to roll!")
        assert "Load weight end" in second.log  # bound only after the whole load
        assert first.client.get("/health").status_code == 200
        third.logged("address already in use")  # something else: it goes on trying
        assert third.process.poll() is None
        assert not third.lines("fired up")


# --- queue, keys, metrics, transient errors ---


def test_a_full_queue_keys_and_metrics_that_are_off(tmp_path: Path) -> None:
    with lab(tmp_path, "0.5.12") as made, ThreadPoolExecutor() as pool:
        server = made.start(
            max_running_requests=2,
            max_queued_requests=1,
            api_key="secret",
            uvicorn_access_log_exclude_prefixes="/v1/loads",
        ).ready()
        plain = {path: server.client.get(path).status_code for path in ("/metrics", "/v1/models")}
        assert plain == {"/metrics": 404, "/v1/models": 401}
        assert server.client.get("/v1/models").json() == {"error": "Unauthorized"}
        server.client.headers["Authorization"] = "Bearer secret"
        runs = [pool.submit(long_chat, server, text=f"{n}") for n in range(2)]
        server.running(2)
        runs.append(pool.submit(long_chat, server, text="waits"))
        wait_for(lambda: server.load()["num_waiting_reqs"] == 1)
        body = {"messages": [{"role": "user", "content": "one more"}]}
        answer = server.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 503
        assert answer.json() == {
            "object": "error",
            "message": "The request queue is full.",
            "type": "503",
            "param": None,
            "code": 503,
        }
        wait_for(lambda: server.lines("Decode batch"))
        assert server.load()["gen_throughput"] == 0.0
        server.client.post("/abort_request", json={"abort_all": True})
        for run in runs:
            run.result()
        assert "/v1/loads" not in server.access
        assert "/metrics" in server.access


def test_transient_errors_are_mended_by_a_retry(tmp_path: Path) -> None:
    with lab(tmp_path, "0.5.12", transient_errors=0.5, length_mean=50.0) as made:
        server = made.start().ready()

        def ask(question: str) -> str:
            body = {"messages": [{"role": "user", "content": question}], "temperature": 0}
            try:
                answer = server.client.post("/v1/chat/completions", json=body)
            except httpx.RemoteProtocolError:
                return "dropped"
            if answer.status_code == 500:
                assert answer.json()["type"] == "InternalServerError"
            return str(answer.status_code)

        questions = [f"question {n}" for n in range(24)]
        first = {question: ask(question) for question in questions}
        assert set(first.values()) == {"200", "500", "dropped"}
        assert {ask(question) for question in questions} == {"200"}
