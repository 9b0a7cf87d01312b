"""How a server starts, and where it fails, in both dialects, as its supervisor sees it."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from console.lab.sim.settings import Fault, Phase, Version
from remote import redact
from tests.console.lab_sim.servers import TERM, Lab, gone, is_new, lab, wait_for

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
    assert redact.text(server.log) == server.log, "a report would miss ordinary lines"
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
