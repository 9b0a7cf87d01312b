"""The endpoints that only look, in each dialect."""

from __future__ import annotations

import re
import time

import pytest

from tests.console.lab_sim.asking import REAL, real, shape
from tests.console.lab_sim.servers import Lab, Server, is_new


def test_health_takes_a_second(server: Server) -> None:
    began = time.monotonic()
    answer = server.client.get("/health")
    took = time.monotonic() - began
    assert (answer.status_code, answer.content) == (200, b"")
    assert 1.0 <= took < 2.5
    assert "content-type" not in answer.headers
    assert answer.headers["server"] == "uvicorn"


def test_an_idle_health_check_logs_a_prefill_of_one_token(server: Server) -> None:
    before = len(server.lines(r"#new-token: 1,"))
    server.client.get("/health")
    assert len(server.lines(r"#new-token: 1,")) == before + 1


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("/ready", 404, 200),
        ("/ping", 200, 200),
        ("/get_load", 200, 404),
        ("/get_model_info", 200, 200),
        ("/nope", 404, 404),
        ("/metrics", 200, 200),
    ],
)
def test_which_paths_there_are(both: Lab, server: Server, path: str, old: int, new: int) -> None:
    answer = server.client.get(path)
    assert answer.status_code == (new if is_new(both) else old)
    if answer.status_code == 404:
        assert answer.text == '{"detail":"Not Found"}'


def test_loads_have_the_shape_of_the_real_answer(both: Lab, server: Server) -> None:
    got = server.client.get("/v1/loads").json()
    if is_new(both):
        assert {"aggregate", "dp_rank_count"}.isdisjoint(got)
        assert {"accelerator", "num_accelerators"} <= set(got)
        load = got["loads"][0]
        assert load["dp_rank"] == 0
        assert "num_total_reqs" not in load
        assert {"decode_moments", "num_active_tokens", "timestamp"} <= set(load)
        return
    expected = shape(real("get_v1_loads.txt"))
    assert shape(got) == expected


def test_loads_in_parts_and_as_prometheus_text(both: Lab, server: Server) -> None:
    core = server.client.get("/v1/loads?include=core").json()["loads"][0]
    assert {"memory", "queues", "disaggregation"}.isdisjoint(core)
    some = server.client.get("/v1/loads?include=core,queues").json()["loads"][0]
    assert "queues" in some
    text = server.client.get("/v1/loads?format=prometheus")
    assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    rank = "0" if is_new(both) else "None"
    assert f'sglang_num_running_reqs{{dp_rank="{rank}"}} 0' in text.text
    assert "sglang_memory_weight_gb{" in text.text
    assert server.client.get("/v1/loads?include=x").status_code == (400 if is_new(both) else 200)


def test_server_info_has_the_effective_numbers(both: Lab, server: Server) -> None:
    info = server.client.get("/server_info").json()
    state = info["internal_states"][0]
    expected = 36 if is_new(both) else 37
    assert state["effective_max_running_requests_per_dp"] == expected
    assert server.load()["max_running_requests"] == expected
    assert info["max_running_requests"] is None
    assert info["max_mamba_cache_size"] is None
    assert state["max_mamba_cache_size"] == (184 if is_new(both) else 186)
    assert info["version"] == both.version
    graph = state["memory_usage"]["graph"]
    assert graph == ({"decode": 1.02, "prefill": 0.34} if is_new(both) else 1.02)
    assert info["context_length"] == 65536
    strategy = "mamba_radix_cache_strategy" if is_new(both) else "mamba_scheduler_strategy"
    assert info[strategy] == "extra_buffer"
    assert ("launch_command" in info) == is_new(both)


def test_server_info_has_the_keys_of_the_real_one(both: Lab, server: Server) -> None:
    if is_new(both):
        pytest.skip("recorded for the older release")
    expected = real("server_info_full.json")
    got = server.client.get("/server_info").json()
    assert set(expected) - set(got) <= {
        "custom_sigquit_handler",
        "debug_tensor_dump_inject",
    }


def test_the_deprecated_path_is_logged(server: Server) -> None:
    server.client.get("/get_server_info")
    server.logged(r"Endpoint '/get_server_info' is deprecated")


def test_models(server: Server) -> None:
    assert shape(server.client.get("/v1/models").json()) == {
        "object": str,
        "data": [
            {
                "id": str,
                "object": str,
                "created": float,
                "owned_by": str,
                "root": str,
                "parent": None,
                "max_model_len": float,
            }
        ],
    }


def test_metrics_have_the_names_and_labels_of_the_real_ones(both: Lab, server: Server) -> None:
    server.chat(max_tokens=5)
    text = server.client.get("/metrics").text
    names = set(re.findall(r"^(sglang:\w+)", text, re.MULTILINE))
    assert {
        "sglang:num_running_reqs",
        "sglang:mamba_usage",
        "sglang:realtime_tokens_total",
        "sglang:generation_tokens_total",
        "sglang:e2e_request_latency_seconds_bucket",
    } <= names
    assert ('is_streaming="false"' in text) == is_new(both)
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"sglang:\w+\{[^}]*\} (\S+)", line), line
    if not is_new(both) and REAL.exists():
        recorded = (REAL / "metrics_under_load_full.txt").read_text()
        known = set(re.findall(r"^(sglang:\w+)", recorded, re.MULTILINE))
        assert names - known <= {
            "sglang:cached_tokens_total",
            "sglang:get_loads_duration_seconds_bucket",
            "sglang:get_loads_duration_seconds_count",
            "sglang:get_loads_duration_seconds_sum",
            "sglang:num_aborted_requests_total",
            "sglang:evicted_tokens_total",
        }
