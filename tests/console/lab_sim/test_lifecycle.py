"""How a server starts, fails, drains and ends, in both dialects, as its supervisor sees it."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import psutil
import pytest

from console.lab.sim.settings import Fault, Phase, Version, set_fault
from tests.console.lab_sim.servers import CONT, KILL, STOP, TERM, Lab, Server, lab, wait_for


@pytest.fixture(params=["0.5.12", "0.5.23"])
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab of one test's own."""
    with lab(tmp_path_factory.mktemp("lab"), cast("Version", request.param)) as made:
        yield made


def is_new(each: Lab) -> bool:
    return each.version == "0.5.23"


def gone(family: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family)


def long_chat(server: Server, tokens: int = 100_000, **more: Any) -> dict[str, Any]:
    """An answer that outlives its test (eleven seconds), or ends in a few with less tokens."""
    return server.chat(max_tokens=tokens, ignore_eos=True, **more)


# --- starting ---

OLD_ORDER = [
    r"server_args=ServerArgs\(model_path='Qwen3.6-27B', ",
    r"Init torch distributed begin\.",
    r"Init torch distributed ends\. elapsed=",
    r"Load weight begin\. avail mem=94\.40 GB",
    r"Multi-thread loading shards: 100% Completed \| 14/14",
    r"Load weight end\. elapsed=\d+\.\d\d s, type=Qwen3_5ForConditionalGeneration, avail mem=42",
    r"Using KV cache dtype: torch\.bfloat16",
    r"Mamba Cache is allocated\. max_mamba_cache_size: 186, conv_state size: 0\.51GB, ssm_state",
    r"KV Cache is allocated\. #tokens: 248239, K size: 7\.58 GB, V size: 7\.58 GB",
    r"Memory pool end\. avail mem=14\.16 GB",
    r"Using hybrid linear attention backend for hybrid GDN models\.",
    r"Capture cuda graph begin\. This can take up to several minutes\. avail mem=",
    r"Capture cuda graph bs \[1, 2, 4,",
    r"Capturing batches \(bs=1 avail_mem=\d+\.\d\d GB\): 100% Completed",
    r"Capture cuda graph end\. Time elapsed: \d+\.\d\d s\. mem usage=1\.02 GB\.",
    (
        r"max_total_num_tokens=248239, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        r"max_running_requests=37, context_len=262144, available_gpu_mem="
    ),
    r"INFO:     Started server process \[\d+\]",
    r"INFO:     Waiting for application startup\.",
    r"INFO:     Application startup complete\.",
    r"INFO:     Uvicorn running on http://127\.0\.0\.1:\d+ \(Press CTRL\+C to quit\)",
    r"Prefill batch, #new-seq: 1, #new-token: 8, ",
    r"The server is fired up and ready to roll!",
]
NEW_ORDER = [
    r"server_args=\{'model_path': 'Qwen3.6-27B', ",
    r"Load weight begin\. avail mem=94\.40 GB",
    r"Load weight end\. elapsed=",
    (
        r"max_running_requests is capped to 36 by the mamba state cache "
        r"\(max_mamba_cache_size=184, 5 state slots per request\)\. To raise it: "
    ),
    r"Mamba Cache is allocated\. max_mamba_cache_size: 184, ",
    r"KV Cache is allocated\. dtype: torch\.bfloat16, #tokens: ",
    r"Memory pool end\.",
    r"Capture target decode CUDA graph begin\. backend=full, num_tokens_per_req=1, avail mem=",
    r"Capture target decode CUDA graph end\. bs=\[1, 2, ",
    r"Capture target prefill CUDA graph begin\. backend=",
    r"Capture target prefill CUDA graph end\. elapsed=",
    r"max_total_num_tokens=\d+, .*max_running_requests=36,",
    r"Engine startup timings \(s\): load_weight=",
    r"INFO:     Uvicorn running on",
    r"The server is fired up and ready to roll!",
]


def test_a_start_goes_through_the_real_phases(each: Lab) -> None:
    server = each.start()
    codes = []

    def look() -> bool:
        try:
            codes.append(server.client.get("/health").status_code)
        except httpx.ConnectError:
            codes.append(0)
        return codes[-1] == 200

    wait_for(look, 30, "healthy")
    assert [code for n, code in enumerate(codes) if not n or codes[n - 1] != code] == [0, 503, 200]
    text = re.split(r"[\r\n]+", server.log)
    at = 0
    for pattern in NEW_ORDER if is_new(each) else OLD_ORDER:
        found = next((n for n, line in enumerate(text[at:], at) if re.search(pattern, line)), None)
        assert found is not None, f"{pattern} not after line {at} of:\n{server.log}"
        at = found
    for line in server.log.split("\n"):
        assert not line.strip() or line.startswith("[") or "\r" in line, line
    assert ("Init torch distributed" in server.log) != is_new(each)
    assert ("POST /freeze_gc" in server.access) == is_new(each)
    assert re.search(r'"GET /model_info HTTP/1\.1" 200 OK', server.access)
    main = psutil.Process(server.process.pid)
    assert main.cmdline()[1:3] == ["-m", "sglang.launch_server"]
    assert set(server.children()) == {"sglang::scheduler", "sglang::detokenizer"}
    for child in server.children().values():
        assert child.memory_info().rss < 4 << 20
    server.process.send_signal(signal.SIGINT)
    assert server.exit(5) == (-2 if is_new(each) else 0)


def test_the_first_start_of_a_container_compiles_its_kernels(tmp_path: Path) -> None:
    with lab(tmp_path, "0.5.12", speed=100) as made:
        marker = made.state / "kernels-0.5.12"
        marker.unlink()
        server = made.start(gpu=0)
        server.logged("Uvicorn running")
        assert server.client.get("/health").status_code == 503
        assert server.chat(max_tokens=3)["usage"]["completion_tokens"] == 3  # taken all the same
        assert server.client.get("/health").status_code == 503
        server.ready()
        assert marker.exists()


# --- refused arguments, impossible settings, planned failures ---


@pytest.mark.parametrize(
    ("version", "flags", "text"),
    [
        (
            "0.5.12",
            {"mamba_radix_cache_strategy": "no_buffer"},
            "unrecognized arguments: --mamba-r",
        ),
        ("0.5.12", {"attention_backend": "x"}, "invalid choice: 'x' (choose from"),
        ("0.5.12", {"max_running_requests": "x"}, "--max-running-requests: invalid int value: 'x'"),
        ("0.5.23", {"mamba_scheduler_strategy": "no_buffer"}, "unrecognized arguments: --mamba-s"),
        (
            "0.5.23",
            {"cuda_graph_max_bs": 8},
            (
                "ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, "
                "--cuda-graph-max-bs-prefill"
            ),
        ),
    ],
)
def test_wrong_flags_end_with_status_two(
    tmp_path: Path, version: Version, flags: dict[str, Any], text: str
) -> None:
    with lab(tmp_path, version) as made:
        server = made.start(strategy=None, **flags)
        assert server.exit() == 2
        assert "sglang serve: error: " in server.log
        assert text in server.log


def test_impossible_settings_fail_in_their_phase_with_their_text(each: Lab) -> None:
    new = is_new(each)
    fraction = (
        r"Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0\.5\. "
        r"Raise --mem-fraction-static above 0\.5"
    )
    cases: list[tuple[int, str, dict[str, Any]]] = [
        (-9, r"FlashAttention v3 Backend requires SM>=80 and SM<=90", {"attention_backend": "fa3"}),
        (
            -9,
            r"Only \['flashinfer', 'triton', 'trtllm_mha'\] backends are supported on Blackwell"
            if new
            else r"triton, trtllm_mha, fa4, or flashinfer backend are the only supported backends",
            {"attention_backend": "torch_native"},
        ),
        (
            -9,
            fraction
            if new
            else r"Not enough memory\. Please try to increase --mem-fraction-static\.",
            {"mem_fraction_static": 0.5},
        ),
        (
            -9,
            r"cache is too small to serve any req" if new else r"max_running_request is zero",
            {"max_mamba_cache_size": 2},
        ),
        (-9, r"Capture cuda graph failed: .*out of memory", {"mem_fraction_static": 0.985}),
        (1, r"extra_buffer is not compatible with --disable-radix", {"disable_radix_cache": True}),
        (1, r"context_length \(300000\) is greater than the derived", {"context_length": 300_000}),
    ]
    if new:
        plain = {"strategy": "no_buffer"}
        cases += [
            (1, r"AssertionError: no_buffer do not support overlap schedule\.", plain),
            (
                1,
                r"AssertionError: no_buffer only supports page_size=1\.",
                {**plain, "page_size": 64},
            ),
        ]
    servers = [each.start(gpu=n, **flags) for n, (_, _, flags) in enumerate(cases)]
    for server, (code, text, _) in zip(servers, cases, strict=True):
        assert server.exit() == code, server.log[-2000:]
        assert re.search(text, server.log), server.log[-3000:]
        assert ("Load weight end" in server.log) == (code == -9)
        if code == -9:
            assert "Scheduler hit an exception: Traceback (most recent call last):" in server.log
            last = "Received sigquit from a child process. It usually means the child failed."
            assert server.log.rstrip().endswith(last)
        with pytest.raises(httpx.ConnectError):
            server.client.get("/health")


PLANNED: list[tuple[Phase, str, int, str]] = [
    ("args", "", 1, r"ValueError: "),
    ("args", "no_model", 1, r"OSError: Can't load the configuration of 'Qwen3.6-27B'\."),
    ("weights", "", -9, r"torch\.OutOfMemoryError: CUDA out of memory\. Tried to allocate"),
    ("weights", "killed", 1, r"Rank 0 scheduler died during initialization \(exit code: -9\)"),
    ("memory", "", -9, r"Not enough memory\. Please try to increase"),
    ("graphs", "nv_target", -9, r"fatal error: nv/target: No such file or directory"),
    ("graphs", "", -9, r"Capture cuda graph failed"),
    ("warmup", "", -9, r"Initialization failed\. warmup error: Traceback"),
    ("run", "oom_run", -9, r"(?s)Scheduler hit an exception.*SIGQUIT received\. signum="),
    ("run", "killed", -9, r"Subprocess scheduler_0 \(pid=\d+\) crashed with exit code -9\."),
    ("run", "My own last words", -9, r"My own last words"),
]


def test_servers_fail_where_and_how_they_are_told_to(tmp_path: Path) -> None:
    faults = {
        str(n): Fault(fail=phase, cause=cause) for n, (phase, cause, *_) in enumerate(PLANNED)
    }
    faults["50"] = Fault(lost=True)
    with lab(tmp_path, "0.5.12", faults=faults) as made:
        good, lost = made.start(gpu=99), made.start(gpu=50)
        for n, server in enumerate([made.start(gpu=n) for n in range(len(PLANNED))]):
            phase, _, code, text = PLANNED[n]
            assert server.exit() == code, server.log[-2000:]
            assert re.search(text, server.log), server.log[-2000:]
            assert ("fired up" in server.log) == (phase == "run")
        good.ready()
        assert lost.exit() == -9
        assert lost.lines("RuntimeError: No CUDA GPUs are available")
        assert "Load weight begin" not in lost.log


def test_a_failure_may_strike_a_number_of_starts_only(tmp_path: Path) -> None:
    with lab(tmp_path, "0.5.12", faults={"0": Fault(fail="weights", times=2)}) as made:
        assert [made.start().exit() for _ in range(2)] == [-9, -9]
        made.start().ready()
        for _ in range(2):  # written anew, it counts anew
            (made.state / "fault1.json").write_text('{"fail": "weights", "times": 1}')
            assert made.start(gpu=1).exit() == -9
        made.start(gpu=1).ready()


def test_silent_starts_and_ends_while_loading(tmp_path: Path) -> None:
    with lab(tmp_path, "0.5.12", speed=5, faults={"0": Fault(silent=True)}) as made:
        silent, loading, quit_ = (made.start(gpu=n) for n in range(3))
        loading.logged("Load weight begin")
        family = list(loading.children().values())
        assert silent.process.poll() is None
        assert silent.log == ""
        for server in (silent, loading):
            with pytest.raises(httpx.ConnectError):
                server.client.get("/health")
            server.process.send_signal(TERM)
            assert server.exit(5) == -15
        wait_for(lambda: gone(family), 5, "children gone")
        quit_.logged("Load weight begin")
        quit_.process.send_signal(signal.SIGQUIT)
        assert quit_.exit(5) == -9
        assert quit_.lines("Received sigquit from a child process. It usually means the child")


# --- draining ---


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
