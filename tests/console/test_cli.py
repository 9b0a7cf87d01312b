"""The command line: what it accepts, and the one line it answers mistakes with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from console.arguments import VERBS, parse
from console.cli import HANDLERS, main
from console.config import VERBS as RESERVED_NAMES
from console.config import Target, load
from console.verbs.common import VerbError, say
from console.verbs.fleet import flag_value, flags, plan_lines
from console.verbs.run import check_prompts
from remote.protocol import Plan, Predicted, ServerInfo

TOML = """
[targets.a]
workspace = "/w"
[targets.b]
workspace = "/w"
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "stoker.toml"
    path.write_text(TOML)
    return str(path)


@pytest.mark.parametrize(
    ("words", "verb"),
    [
        ([], ""),
        (["ct200"], ""),
        (["--read-only"], ""),
        (["--config", "status", "ct200"], ""),
        (["status"], "status"),
        (["--config", "x.toml", "status", "--json"], "status"),
        (["run", "start", "--prompts", "p.jsonl"], "run start"),
        (["--config", "x.toml", "run", "--yes", "pause"], "run pause"),
        (["verify", "somewhere"], "verify"),
    ],
)
def test_dispatch(words: list[str], verb: str) -> None:
    assert parse(words).verb == verb


def test_every_verb_has_a_handler_and_no_target_may_be_called_so() -> None:
    assert {*HANDLERS} == {"", *VERBS}
    assert {name.partition(" ")[0] for name in VERBS} <= {*RESERVED_NAMES}


def test_options_before_the_verb_count() -> None:
    options = parse(["--config", "x.toml", "status", "ct200", "--json"])
    assert (options.config, options.target, options.json) == ("x.toml", "ct200", True)
    options = parse(["--config", "x.toml", "run", "start", "ct200"])
    assert (options.config, options.target) == ("x.toml", "ct200")


def test_a_target_behind_a_list_option_is_given_back(config: str) -> None:
    from console.cli import _gpus, _target

    options = parse(["restart", "--config", config, "--set", "x=1", "y=2", "b"])
    assert _target(options, "gpu", "set", "unset").name == "b"
    assert options.set == ["x=1", "y=2"]
    options = parse(["up", "--config", config, "--gpu", "3", "1", "a"])
    assert _target(options, "gpu").name == "a"
    assert _gpus(options) == [1, 3]


def test_read_only_reaches_the_link(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the bridge would start an agent where none is."""
    from console import launch

    seen: list[tuple[list[bool], str | None]] = []

    def run_console(targets: Sequence[Target], first: str | None, **more: object) -> int:
        seen.append(([target.read_only for target in targets], first))
        return 0

    monkeypatch.setattr(launch, "run_console", run_console)
    assert main(["a", "--config", config, "--read-only"]) == 0
    assert main(["b", "--config", config]) == 0
    assert main(["--config", config]) == 0
    assert seen == [([True, True], "a"), ([False, False], "b"), ([False, False], None)]


def test_flag_values() -> None:
    assert flag_value("true") is True
    assert flag_value("0.90") == 0.90
    assert flag_value("32") == 32
    assert flag_value("no_buffer") == "no_buffer"
    assert flag_value("nan") == "nan"
    assert flag_value("1 2 4") == [1, 2, 4]
    assert flag_value("1e9") == "1e9", "an answer shows what was typed"
    assert flag_value('{"a": 1}') == '{"a": 1}'
    assert flags(["--mem-fraction-static=0.9", "enable-metrics"]) == {
        "mem-fraction-static": 0.9,
        "enable-metrics": True,
    }


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["--config", "/nowhere.toml", "status"], 2, "no such configuration file"),
        (["status", "c"], 2, "no target 'c'"),
        (["statsu"], 2, "did you mean 'status'"),
        (["--config", "/nowhere.toml", "statsu"], 2, "statsu: no verb (did you mean status?)"),
        (["events"], 2, "no target 'events'; there is"),
        (["doctor"], 2, "stoker: doctor: this version has no such verb"),
        (["init", "/nowhere/x.toml"], 2, "stoker init: /nowhere/x.toml: No such file"),
        (["status"], 2, "several targets (a, b)"),
        (["up", "--gpu", "x", "--", "a"], 2, "stoker up: --gpu x: numbers from 0 to 63"),
        (["up", "--gpu", "-1", "--", "a"], 2, "--gpu -1: numbers from 0 to 63"),
        (["up", "--gpu", "99999999999999999999", "--", "a"], 2, "numbers from 0 to 63"),
        (["export", "/nowhere", "x.parquet"], 2, "stoker export: /nowhere: no such run directory"),
        (["down", "--yes", "--gpu", "a"], 2, "--gpu a: that is the target"),
        (["restart", "--set", "a"], 2, "--set a: that is the target"),
        (["restart", "a", "--set", "=3"], 2, "FLAG=VALUE"),
        (["verify", "/nowhere"], 2, "no such run directory"),
        (["run", "start", "a", "--prompts", "/nowhere"], 2, "no such prompts file"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    status: int,
    text: str,
    config: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STOKER_CONFIG", config)
    assert main(words) == status
    out, err = capsys.readouterr()
    assert text in err
    assert err.count("\n") == 1
    assert out == ""


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"messages":[{}]}\n{"messages":[}\n', ":2: not JSON"),
        ('{"messages":[{}]}\n[1]\n', ":2: a JSON object with `messages`"),
        ('{"messages":[{}]}', "no newline"),
        ('{"messages":[]}\n', ":1: .messages. is empty"),
        ("", "no prompts in it"),
    ],
)
def test_prompts_are_looked_at_before_they_travel(content: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(content)
    with pytest.raises(VerbError, match=text):
        check_prompts(path)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--lines", "--lines: not known here (did you mean -n?)"),
        ("--folow", "--folow: not known here (did you mean --follow?)"),
        ("--linens", "--linens: not known here;"),
    ],
)
def test_only_an_option_that_may_be_meant_is_proposed(
    word: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["logs", "0", word])
    assert says in capsys.readouterr().err


def test_init_writes_what_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    target = load(tmp_path / "stoker.toml").target(None)
    assert (target.hop.name, target.spec.fleet.gpus) == ("200", 8)
    capsys.readouterr()
    assert main(["init"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_what_a_server_says_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    say("gpu 0: failed: \x1b[2Jboom\x07")
    assert capsys.readouterr().out == "gpu 0: failed: ␛[2Jboom␇\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("verify", "stoker verify: the following arguments are required: RUN_DIR; "),
        ("logs 0 -n -5", "stoker logs: -n: '-5': a whole number from 0 to 10,000 is needed; "),
        ("logs 0 -n 1e3", "-n: '1e3': a whole number"),
        ("logs 0 -n 99999999999999999999", "from 0 to 10,000"),
        ("restart --confirm-within -3", "stoker restart: --confirm-within: '-3': a number above 0"),
        ("restart --confirm-within nan", "a number above 0 to 10080"),
        ("restart --confirm-within inf", "a number above 0 to 10080"),
        ("restart --at-once 0", "--at-once: '0': a whole number from 1 to 64"),
        ("rollback --at-once -1", "stoker rollback: --at-once: '-1'"),
        ("rollback --epoch 0", "--epoch: '0': a whole number from 1"),
        ("restart --strategy fast", "--strategy: invalid choice: 'fast'"),
        ("run", "stoker run: the following arguments are required: start|pause|"),
        ("run halt", "stoker run: start|pause|resume|stop|retry-failed: invalid choice: 'halt'"),
        ("run resume --concurrency 0", "'0': a whole number from 1 to 4,096 is needed, or auto"),
        ("status --jsn", "stoker status: --jsn: not known here (did you mean --json?); "),
        ("status a b", "stoker status: b: not known here; `stoker status --help` shows"),
        ("--config", "stoker: --config: expected one argument; `stoker --help`"),
        ("serve --port 70000", "--port: '70000': a whole number from 0 to 65,535"),
        ("lab --gpus 0", "stoker lab: --gpus: '0': a whole number from 1 to 64"),
        ("lab --count 0", "stoker lab: --count: '0'"),
        ("lab --speed nan", "stoker lab: --speed: 'nan': a number above 0"),
        ("lab --speed 0", "--speed: '0': a number above 0"),
        ("prepare x --workers 0", "stoker prepare: --workers: '0': a whole number from 1"),
        ("prepare", "stoker prepare: a recipe is needed"),
    ],
)
def test_words_that_cannot_be_meant_are_one_line(
    words: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", ["console.cli verify", "remote.prepare", "remote.generate"])
def test_as_a_command(words: str) -> None:
    command = [sys.executable, "-m", *words.split()]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "--help` shows what it takes" in run.stderr


def test_help_tells_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("", *VERBS):
        with pytest.raises(SystemExit) as caught:
            main([*verb.split(), "--help"])
        assert caught.value.code == 0
        assert "usage: stoker" in capsys.readouterr().out


def _infos(*slots: int | None) -> list[ServerInfo]:
    return [
        ServerInfo(gpu, 30_000 + gpu, max_running=n, kv_tokens=483_922, max_mamba=185)
        for gpu, n in enumerate(slots)
    ]


def test_a_plan_is_shown_beside_what_runs_now() -> None:
    plan = Plan(
        None,
        diff=["mamba-ssm-dtype float32 → bfloat16"],
        predicted_max_running=72,
        predicted=Predicted(490_000, 363, 55.4, 7.31, "state slots"),
        costs=["8 servers × 60 s"],
        warnings=["one thing"],
    )
    assert plan_lines(plan, _infos(37, 37, None)) == [
        "mamba-ssm-dtype float32 → bfloat16",
        "predicted: 37 → 72 running requests a server, bound by state slots",
        "predicted: 483,922 → 490,000 KV tokens, 185 → 363 state slots",
        "predicted: 55.4 GiB of pools, 7.3 GiB left for graphs and activations",
        "cost: 8 servers × 60 s",
        "warning: one thing",
    ]
    assert plan_lines(plan, _infos(37, 41))[1].startswith("predicted: 37–41 → 72 running")
    assert plan_lines(plan, [])[1].startswith("predicted: 72 running")
    dense = Plan(None, predicted_max_running=9, predicted=Predicted(1000))
    assert plan_lines(dense, [])[1:] == [
        "predicted: 9 running requests a server",
        "predicted: 1,000 KV tokens",
        "predicted: 0.0 GiB of pools, 0.0 GiB left for graphs and activations",
    ]
    assert plan_lines(Plan(None), []) == ["no flag changes: a plain restart"]


def test_a_terminal_that_cannot_show_a_letter_is_shown_its_number(config: str) -> None:
    """In a locale such as C; and JSON stays what it is."""
    code = "import sys; from console.cli import main; from console.verbs.common import say\n"
    code += "try: main(['--version'])\nexcept SystemExit: say('37 → 72')"
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert run.stdout.endswith(b"\n37 \\u2192 72\n")


def test_whoever_reads_may_leave(tmp_path: Path) -> None:
    """One who has read enough ends the command silently."""
    code = "from console.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    (tmp_path / "s.json").write_text("{}")
    words = [sys.executable, "-c", code, "advise", "--from", str(tmp_path / "s.json")]
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert run.returncode in (1, 120)
    assert run.stderr == b""
