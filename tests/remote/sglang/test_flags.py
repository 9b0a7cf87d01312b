"""Flags: against a catalogue, to and from command lines, between dialects, and known to fail."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.protocol import FlagInfo, Flags, FleetSpec
from remote.sglang import dialect, flags, introspect
from remote.sglang.catalogue import Catalogue, FlagError, check, load, parse_size
from remote.sglang.refusals import doubts, refusals

OLD = Catalogue(
    version="0.5.12",
    flags=[
        FlagInfo("mem-fraction-static", "float"),
        FlagInfo("max-running-requests", "int"),
        FlagInfo("context-length", "size"),
        FlagInfo("enable-metrics", "bool", default=False),
        FlagInfo("tp-size", "int", default=1, aliases=["tensor-parallel-size"]),
        FlagInfo(
            "mamba-scheduler-strategy",
            "str",
            choices=["auto", "no_buffer", "extra_buffer"],
            default="auto",
        ),
        FlagInfo("cuda-graph-max-bs", "int"),
        FlagInfo("cuda-graph-bs", "int", many=True),
        FlagInfo("log-requests-level", "int", choices=[0, 1, 2, 3]),
        FlagInfo("model-loader-extra-config", "json"),
        FlagInfo("uvicorn-access-log-exclude-prefixes", "str", many=True),
    ],
)
NEW = Catalogue(
    version="0.5.23",
    flags=[
        FlagInfo("mem-fraction-static", "float"),
        FlagInfo(
            "mamba-radix-cache-strategy",
            "str",
            choices=["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"],
        ),
        FlagInfo("cuda-graph-max-bs-decode", "int"),
        FlagInfo("disable-overlap-schedule", "bool"),
    ],
)
FLEET = FleetSpec(model="/models/q", base_port=30000)


def test_command_line_has_full_names_and_quiet_pollers() -> None:
    argv = flags.server_argv(
        "/opt/sglang/bin/python",
        FLEET,
        3,
        {
            "mem-fraction-static": 0.9,
            "enable-metrics": True,
            "disable-radix-cache": False,
            "cuda-graph-bs": [1, 2, 4],
        },
        OLD,
    )
    assert argv == [
        "/opt/sglang/bin/python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "/models/q",
        "--port",
        "30003",
        "--mem-fraction-static",
        "0.90",
        "--enable-metrics",
        "--cuda-graph-bs",
        "1",
        "2",
        "4",
        "--uvicorn-access-log-exclude-prefixes",
        "/health",
        "/metrics",
        "/v1/loads",
        "/server_info",
    ]
    plain = flags.server_argv("python", FLEET, 0, {}, NEW)
    assert "--uvicorn-access-log-exclude-prefixes" not in plain
    own = flags.server_argv("p", FLEET, 0, {"uvicorn-access-log-exclude-prefixes": ["/x"]}, OLD)
    assert own.count("--uvicorn-access-log-exclude-prefixes") == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"port": 1}, "follows from `base_port`"),
        ({"model-path": "x"}, "follows from `model`"),
        ({"model_path": "x"}, "follows from `model`"),
        ({"api-key": "secret"}, "SGLANG_API_KEY into credentials_file"),
        ({"--tp-size": 1}, "without dashes"),
        ({"base_gpu_id": 3}, "follows from the server's number"),
    ],
)
def test_flags_that_are_not_the_operators(given: Flags, words: str) -> None:
    with pytest.raises(FlagError, match=words) as error:
        flags.refuse_own(given)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "server_args=ServerArgs(model_path='/m', api_key='s3:\\'cret', admin_api_key='s4')",
            "server_args=ServerArgs(model_path='/m', api_key=***, admin_api_key=***)",
        ),
        (
            "server_args={'model_path': '/m', 'api_key': 's3cret', 'admin_api_key': None}",
            "server_args={'model_path': '/m', 'api_key': ***, 'admin_api_key': None}",
        ),
        ("python -m sglang --api-key s3cret --port 1", "python -m sglang --api-key *** --port 1"),
        ("python -m sglang --admin-api-key=s4", "python -m sglang --admin-api-key=***"),
        ("ServerArgs(api_key=None, port=1)", "ServerArgs(api_key=None, port=1)"),
        ("a monkey has no key", "a monkey has no key"),
    ],
)
def test_keys_in_a_log_are_hidden(line: str, shown: str) -> None:
    assert flags.without_keys(line) == shown


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        (["--port", "1", "--api-key", "k"], "k"),
        (["--api_key=k", "--port", "1"], "k"),
        (["--admin-api-key", "k"], ""),
        (["--api-key"], ""),
    ],
)
def test_the_key_on_a_command_line(argv: list[str], key: str) -> None:
    assert flags.given_key(argv) == key


def test_check_gives_full_names_and_types() -> None:
    checked = check(
        OLD,
        {
            "mem_fraction_static": "0.90",
            "tensor-parallel-size": "2",
            "context-length": "8k",
            "cuda-graph-bs": "1 2 4",
            "enable-metrics": "true",
            "log-requests-level": "2",
            "max-running-requests": 64.0,
        },
    )
    assert checked == {
        "mem-fraction-static": 0.9,
        "tensor-parallel-size": 2,
        "context-length": "8k",
        "cuda-graph-bs": [1, 2, 4],
        "enable-metrics": True,
        "log-requests-level": 2,
        "max-running-requests": 64,
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mamba-schedular-strategy": "x"}, "did you mean mamba-scheduler-strategy?"),
        ({"mem-fraction": 0.9}, "SGLang 0.5.12 has no flag mem-fraction"),
        ({"zzz": 1}, "has no flag zzz$"),
        ({"mamba-scheduler-strategy": "nobuffer"}, "did you mean no_buffer?"),
        ({"log-requests-level": 9}, r"one of 0, 1, 2, 3"),
        ({"mem-fraction-static": "high"}, "takes a number, not 'high'"),
        ({"max-running-requests": 1.5}, "takes a whole number"),
        ({"context-length": "8x"}, "32k or 32Ki"),
        ({"context-length": "infk"}, "32k or 32Ki"),
        ({"context-length": 8192.5}, "32k or 32Ki"),
        ({"context-length": float("inf")}, "32k or 32Ki"),
        ({"mem-fraction-static": True}, "needs a value"),
        ({"enable-metrics": 3}, "is a switch"),
        ({"mem-fraction-static": [0.8, 0.9]}, "takes one value, not 2"),
        ({"model-loader-extra-config": "{"}, "takes JSON"),
        ({"tp-size": 1, "tensor-parallel-size": 2}, "are one flag"),
    ],
)
def test_check_refuses_with_a_hint(given: Flags, words: str) -> None:
    with pytest.raises(FlagError, match=words) as error:
        check(OLD, given)
    assert "\n" not in str(error.value)


def test_a_catalogue_that_is_none() -> None:
    with pytest.raises(FlagError, match="could not be read"):
        load(b"Traceback: no")


@pytest.mark.parametrize(
    ("text", "number"), [("32k", 32_000), ("32Ki", 32_768), ("1M", 1_000_000), (7, 7), ("8", 8)]
)
def test_sizes(text: str | int, number: int) -> None:
    assert parse_size(text) == number


def test_flags_of_a_foreign_command_line() -> None:
    argv = [
        "/venv/bin/python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "Qwen/Qwen3.6-27B",
        "--port=30005",
        "--mem_fraction_static",
        "0.85",
        "--enable-metrics",
        "--cuda-graph-bs",
        "1",
        "2",
        "--kv-cache-dtype",
        "fp8_e4m3",
        "--preferred-sampling-params",
        '{"temperature": 1}',
    ]
    assert flags.is_server_argv(argv)
    assert flags.model_and_port(argv) == ("Qwen/Qwen3.6-27B", 30005)
    found = flags.from_argv(argv)
    assert found["mem-fraction-static"] == 0.85
    assert found["enable-metrics"] is True
    assert found["cuda-graph-bs"] == [1, 2]
    assert found["kv-cache-dtype"] == "fp8_e4m3"
    assert found["preferred-sampling-params"] == '{"temperature": 1}'
    assert flags.model_and_port(["python", "-m", "sglang.launch_server"]) == (None, 30000)
    # As a server of the fleet, which has one card alone, could take them over.
    own = flags.own_flags([*argv, "--base-gpu-id", "3", "--api-key", "k"])
    assert own == {k: v for k, v in found.items() if k not in ("model-path", "port")}


@pytest.mark.parametrize(
    ("argv", "is_one"),
    [
        (["/venv/bin/python", "/venv/bin/sglang", "serve", "--model-path", "x"], True),
        (["sglang", "serve", "--port", "1"], True),
        (["python", "-m", "http.server", "30000"], False),
        (["vim", "sglang.launch_server.py"], False),
        ([], False),
    ],
)
def test_is_it_a_server(argv: list[str], is_one: bool) -> None:
    assert flags.is_server_argv(argv) is is_one


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,6}){0,3}", fullmatch=True)
WORDS = st.from_regex(r"[A-Za-z_/{][A-Za-z0-9_./{}: ]{0,12}", fullmatch=True)
VALUES = st.one_of(
    st.just(True),
    st.integers(0, 10**9),
    st.floats(0.01, 0.99).map(lambda x: round(x, 3)),
    WORDS,
    st.lists(st.integers(1, 512), min_size=2, max_size=4),
)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_a_command_line_says_what_the_flags_say(given: Flags) -> None:
    assert flags.from_argv(["python", "-m", "x", *flags.to_argv(given)]) == given


def test_changes_and_their_difference() -> None:
    old: Flags = {"mem-fraction-static": 0.85, "enable-metrics": True, "log-level": "info"}
    new = flags.changed(old, {"mem_fraction_static": 0.9, "page-size": 1}, ["log-level"])
    assert new == {"mem-fraction-static": 0.9, "enable-metrics": True, "page-size": 1}
    assert flags.difference(old, new) == [
        "log-level info → unset",
        "mem-fraction-static 0.85 → 0.90",
        "page-size unset → 1",
    ]
    assert flags.difference(new, new) == []
    assert flags.difference({"enable-metrics": False}, {}) == []
    assert flags.difference({}, {"enable-metrics": True}) == ["enable-metrics unset → on"]
    with pytest.raises(FlagError, match="log-level is not set"):
        flags.changed(new, {}, ["log-level"])


@given(st.dictionaries(NAMES, VALUES, max_size=5), st.dictionaries(NAMES, VALUES, max_size=5))
def test_a_difference_is_empty_only_between_equals(old: Flags, new: Flags) -> None:
    assert (flags.difference(old, new) == []) == (old == new)
    assert len(flags.difference(old, new)) == len(flags.difference(new, old))


def test_renames_between_dialects() -> None:
    given: Flags = {"mamba-scheduler-strategy": "extra_buffer", "cuda-graph-max-bs": 64}
    new, said = dialect.translate(given, NEW)
    assert new == {"mamba-radix-cache-strategy": "extra_buffer", "cuda-graph-max-bs-decode": 64}
    assert said[0] == (
        "mamba-scheduler-strategy is called mamba-radix-cache-strategy in SGLang 0.5.23"
    )
    back, _ = dialect.translate(new, OLD)
    assert back == given
    assert dialect.translate(given, OLD) == (given, [])
    assert dialect.translate({"unknown": 1}, NEW) == ({"unknown": 1}, [])


@pytest.mark.parametrize(
    ("version", "catalogue", "new"),
    [
        ("0.5.12", None, False),
        ("0.5.12.post1", None, False),
        ("0.5.23", None, True),
        ("0.6.0rc1", None, True),
        (None, None, False),
        ("0.5.15", OLD, False),
        ("0.5.15", NEW, True),
    ],
)
def test_which_dialect(version: str | None, catalogue: Catalogue | None, new: bool) -> None:
    assert dialect.is_new(version, catalogue) is new


def test_what_auto_comes_to() -> None:
    assert dialect.resolved_strategy({}, False) == "no_buffer"
    assert dialect.resolved_strategy({}, True) == "extra_buffer"
    assert dialect.resolved_strategy({"disable-overlap-schedule": True}, True) == "no_buffer"
    assert dialect.resolved_strategy({"linear-attn-backend": "cutedsl"}, True) == "no_buffer"
    (said,) = dialect.changed_meanings({}, True)
    assert "auto is extra_buffer in this SGLang and no_buffer in 0.5.12" in said
    assert "fewer slots" in said
    (said,) = dialect.changed_meanings({}, False)
    assert "auto is no_buffer in this SGLang and extra_buffer in 0.5.23" in said
    assert "two thirds more slots" in said
    assert not dialect.changed_meanings({"mamba-radix-cache-strategy": "extra_buffer"}, True)


PRO = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


@pytest.mark.parametrize(
    ("given", "new", "card", "hybrid", "words"),
    [
        ({"mamba-radix-cache-strategy": "no_buffer"}, True, None, None, "disable-overlap-schedule"),
        (
            {
                "mamba-radix-cache-strategy": "no_buffer",
                "disable-overlap-schedule": True,
                "page-size": 64,
            },
            True,
            None,
            None,
            "needs page-size 1",
        ),
        (
            {"mamba-scheduler-strategy": "extra_buffer", "disable-radix-cache": True},
            False,
            None,
            True,
            "remove one of them",
        ),
        ({"mamba-scheduler-strategy": "extra_buffer_lazy"}, False, None, None, "use extra_buffer"),
        ({"attention-backend": "fa3"}, False, PRO, None, "fa3 does not run"),
        ({"attention-backend": "fa4"}, True, PRO, True, "triton, trtllm_mha or flashinfer"),
        ({"decode-attention-backend": "torch_native"}, False, PRO, True, "linear attention"),
        ({"mem-fraction-static": 90}, False, None, None, "between 0 and 1"),
        ({"mem-fraction-static": float("nan")}, False, None, None, "between 0 and 1"),
        ({"max-running-requests": 0}, False, None, None, "at least 1, not 0"),
        ({"max-running-requests": -3}, True, None, None, "at least 1, not -3"),
        ({"max-running-requests": "many"}, True, None, None, "at least 1, not many"),
        ({"context-length": 8192.5}, False, None, None, "a whole number of at least 1"),
        ({"context-length": "0k"}, False, None, None, "at least 1"),
        ({"page-size": True}, False, None, False, "at least 1, not True"),
        ({"tp-size": 2}, False, None, None, "must be 1, not 2: each server here has one GPU"),
        ({"data-parallel-size": "8"}, True, None, None, "must be 1, not 8"),
        ({"log-level": "WARNING"}, False, None, None, "leave it at info"),
        ({"log-level": "error"}, True, None, None, "log-level error hides the lines"),
    ],
)
def test_known_to_fail(
    given: Flags, new: bool, card: str | None, hybrid: bool | None, words: str
) -> None:
    (said,) = refusals(given, new, card=card, hybrid=hybrid)
    assert words in said


@pytest.mark.parametrize(
    ("given", "new", "card", "hybrid"),
    [
        ({"mamba-scheduler-strategy": "no_buffer", "mem-fraction-static": 0.9}, False, PRO, True),
        ({"mamba-scheduler-strategy": "extra_buffer", "page-size": 64}, False, PRO, True),
        ({"attention-backend": "flashinfer"}, True, PRO, True),
        ({"attention-backend": "fa3"}, False, "NVIDIA H200", True),
        ({"attention-backend": "fa3"}, False, None, True),
        ({"attention-backend": "fa4"}, False, PRO, True),
        ({"mamba-radix-cache-strategy": "no_buffer"}, True, PRO, False),
        ({"max-running-requests": 1, "context-length": "32k", "tp-size": 1}, True, PRO, True),
        ({"log-level": "debug", "log-level-http": "warning"}, True, PRO, True),
        ({"max-running-requests": False, "chunked-prefill-size": -1}, True, PRO, True),
        ({}, True, PRO, True),
    ],
)
def test_not_refused(given: Flags, new: bool, card: str | None, hybrid: bool | None) -> None:
    assert refusals(given, new, card=card, hybrid=hybrid) == []


@pytest.mark.parametrize(
    ("fraction", "words"),
    [
        (0.3, "mem-fraction-static 0.3 leaves much of the card unused"),
        (0.99, "mem-fraction-static 0.99 leaves hardly any memory"),
        (0.5, ""),
        (0.9, ""),
        (0.95, ""),
        ("high", ""),
        (True, ""),
    ],
)
def test_a_memory_share_worth_a_second_look(fraction: float | str | bool, words: str) -> None:
    assert refusals({"mem-fraction-static": 0.3}, False) == []
    said = doubts({"mem-fraction-static": fraction})
    assert len(said) == bool(words)
    assert all(words in line for line in said)
    assert doubts({}) == []


def test_help_travels_as_the_parser_shows_it() -> None:
    """Defaults are filled in, signs for argparse are taken out, what is hidden stays hidden."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=float, default=0.9, help="Most of it,  90%%; %(default)s.")
    parser.add_argument("--stray", help="100% of it")
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    told = {f["name"]: f["help"] for f in introspect.catalogue(parser, "1")["flags"]}
    assert told == {"share": "Most of it, 90%; 0.9.", "stray": "100% of it", "hidden": ""}
