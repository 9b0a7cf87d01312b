"""What the simulated container has: SGLang's distribution, its parser, nvidia-smi."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from console.lab import gpus, venv
from console.lab.sim import capacity, config, flags
from console.lab.sim.gpu import Card, claim
from console.lab.sim.settings import Fault, SimSettings, Version, fault, set_fault
from tests.console.lab_sim.servers import STRATEGY, lab

INTROSPECT = """
import argparse, importlib.metadata, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
options = {}
for action in parser._actions:
    for option in action.option_strings:
        options[option] = [action.dest, list(action.choices) if action.choices else None]
print(json.dumps([importlib.metadata.version("sglang"), options]))
"""


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
def test_the_venv_is_made_at_once_and_its_parser_can_be_asked(
    tmp_path: Path, version: Version
) -> None:
    began = time.monotonic()
    python = venv.make(tmp_path / "venv", version, SimSettings(state_dir=str(tmp_path)))
    assert time.monotonic() - began < 1
    env = {"PATH": os.environ["PATH"]}
    out = subprocess.run(
        [python, "-c", INTROSPECT], env=env, cwd="/", capture_output=True, text=True, check=True
    ).stdout
    found, options = json.loads(out)
    assert found == version
    names = {"0.5.12": "--mamba-scheduler-strategy", "0.5.23": "--mamba-radix-cache-strategy"}
    for release, name in names.items():
        assert (name in options) == (release == version)
    assert "extra_buffer" in options[names[version]][1]
    assert len(options) > (380 if version == "0.5.12" else 520)
    assert "flashinfer" in options["--attention-backend"][1]
    assert ("--cuda-graph-max-bs" in options) == (version == "0.5.12")


def test_a_venv_changes_its_release_when_made_again(tmp_path: Path) -> None:
    for version in ("0.5.12", "0.5.23"):
        python = venv.make(tmp_path, version, SimSettings(state_dir=str(tmp_path)))
    command = "import importlib.metadata as m; print(m.version('sglang'))"
    out = subprocess.run([python, "-c", command], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "0.5.23"


def test_the_command_line_program_is_there(tmp_path: Path) -> None:
    python = venv.make(tmp_path, "0.5.12", SimSettings(state_dir=str(tmp_path)))
    program = python.with_name("sglang")
    said = subprocess.run([program, "version"], capture_output=True, text=True, check=True)
    assert said.stdout == "sglang version: 0.5.12\n"
    wrong = subprocess.run([program, "serve", "--nonsense"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "sglang serve: error: " in wrong.stderr


def test_nothing_of_the_stand_in_is_on_our_own_path() -> None:
    code = "import importlib.util; print(importlib.util.find_spec('sglang'))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "None"


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
def test_every_choice_of_every_flag_is_taken_by_the_parser(version: Version) -> None:
    parser = argparse.ArgumentParser()
    flags.add(parser, version)
    for options, dest, kind, _, nargs, choices, _ in flags.table(version):
        if kind != "store" or not choices or nargs:
            continue
        for given in choices:
            parsed = parser.parse_args(["--model-path", "m", options[0], str(given)])
            assert getattr(parsed, dest) == given


def test_human_readable_integers() -> None:
    assert [flags.human_readable_int(text) for text in ("12", "32k", "32Ki", "1.5M")] == [
        12,
        32_000,
        32_768,
        1_500_000,
    ]


def test_faults_are_read_from_the_settings_or_from_what_was_set_last(tmp_path: Path) -> None:
    settings = SimSettings(state_dir=str(tmp_path), faults={"1": Fault(hang=True)})
    assert fault(settings, 1).hang
    assert fault(settings, 0) == Fault()
    set_fault(tmp_path, 1, None)
    assert not fault(settings, 1).hang
    set_fault(tmp_path, 0, Fault(slow=3.0))
    assert fault(settings, 0).slow == 3.0


# --- nvidia-smi ---

QUERY = (
    "index,uuid,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,"
    "power.limit,driver_version,compute_cap"
)


class Smi:
    """The program, installed."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        self.state = folder / "state"
        gpus.install(folder / "bin", self.state, count)
        self.program = folder / "bin" / "nvidia-smi"

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.program, *argv], capture_output=True, text=True, check=False)

    def rows(self, query: str = QUERY) -> list[list[str]]:
        out = self.run(f"--query-gpu={query}", "--format=csv,noheader,nounits").stdout
        return [line.split(", ") for line in out.splitlines()]


@pytest.fixture
def smi(tmp_path: Path) -> Smi:
    return Smi(tmp_path)


def test_idle_cards(smi: Smi) -> None:
    first, second = smi.rows()
    assert first[0] == "0"
    assert first[1] != second[1]
    assert first[2] == "NVIDIA RTX PRO 6000 Blackwell Server Edition (simulated)"
    assert [first[n] for n in (3, 4, 5, 8, 10)] == ["0", "4", "97887", "600.00", "12.0"]


def test_the_fields_come_in_the_order_asked_with_units_unless_told_not_to(smi: Smi) -> None:
    out = smi.run("--query-gpu=memory.total,index", "--format=csv", "-i", "1").stdout
    assert out == "memory.total [MiB], index\n97887 MiB, 1\n"
    assert smi.rows("index,memory.total") == [["0", "97887"], ["1", "97887"]]


def test_lists_summaries_and_mistakes(smi: Smi) -> None:
    assert smi.run("-L").stdout.startswith("GPU 0: NVIDIA RTX PRO 6000")
    summary = smi.run().stdout
    assert "Driver Version" in summary
    assert len({len(line) for line in summary.splitlines()[1:]}) == 1
    wrong = smi.run("--query-gpu=nonsense", "--format=csv")
    assert wrong.returncode == 2
    assert 'Field "nonsense" is not a valid field to query.' in wrong.stdout
    assert smi.run("-i", "7", "--query-gpu=index", "--format=csv").returncode == 6


def test_one_long_lived_process_answers_again_and_again(smi: Smi) -> None:
    argv = [str(smi.program), "--query-gpu=index", "--format=csv,noheader,nounits", "-lms", "50"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().strip() for _ in range(6)] == ["0", "1"] * 3
        process.kill()


def test_a_card_shows_what_its_owner_does_and_cools_when_that_is_gone(smi: Smi) -> None:
    lock = claim(smi.state, 1)
    assert lock is not None
    assert claim(smi.state, 1) is None
    card = Card(smi.state, 1, pid=4242)
    card.memory_mib, card.load = 90_000, 1.0
    card._at -= 120  # two minutes under full load
    card.write(at_once=True)
    row = smi.rows()[1]
    assert [row[3], row[4]] == ["100", "90000"]
    assert 70 <= int(row[6]) <= 80
    assert float(row[7]) > 500
    apps = smi.run("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")
    assert apps.stdout == f"{row[1]}, 4242, 90000\n"
    os.close(lock)
    row = smi.rows()[1]
    assert row[4] == "4"
    assert int(row[6]) > 60  # metal does not cool at once
    assert smi.run("--query-compute-apps=pid", "--format=csv,noheader").stdout == ""


def test_a_lost_card_fails_the_whole_query(smi: Smi) -> None:
    def by_hand() -> None:
        (smi.state / "fault1.json").write_text('{"lost": true}')

    for lose in (by_hand, lambda: set_fault(smi.state, 1, Fault(lost=True))):
        lose()
        answer = smi.run(f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")
        assert answer.returncode == 15
        assert "GPU is lost" in answer.stdout
    rest = smi.run("--query-gpu=index", "--format=csv,noheader,nounits", "-i", "0")
    assert rest.stdout == "0\n"


def test_a_server_moves_the_numbers_of_its_card(tmp_path: Path) -> None:
    with lab(tmp_path, "0.5.12") as made:
        gpus.install(tmp_path / "bin", made.state, 2)
        smi = Smi.__new__(Smi)
        smi.program = tmp_path / "bin" / "nvidia-smi"
        server = made.start(gpu=1).ready()
        idle, mine = smi.rows()
        assert idle[4] == "4"
        assert 80_000 < int(mine[4]) < 97_887
        pid = server.children()["sglang::scheduler"].pid
        apps: Any = smi.run("--query-compute-apps=pid", "--format=csv,noheader").stdout
        assert apps.strip() == str(pid)
        server.end()
        assert smi.rows()[1][4] == "4"


# --- what flags mean, without a process ---


@pytest.mark.parametrize(
    ("argv", "old", "new"),
    [
        (["--mem-fraction-static", "0.85", "STRATEGY", "extra_buffer"], 37, 36),
        (["--mem-fraction-static", "0.9", "STRATEGY", "no_buffer"], 72, 71),
        (["--mem-fraction-static", "0.9"], 72, 43),  # what auto means
        (["--mem-frac", "0.9", "--quantization", "fp8", "STRATEGY", "no_buffer"], 121, 120),
        (["--mem-fraction-static", "0.85", "--max-running-requests", "5"], 5, 5),
        (["--mem-fraction-static", "0.9", "--disable-radix-cache"], 216, 215),
    ],
)
@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
def test_flags_decide_how_many_run(version: Version, argv: list[str], old: int, new: int) -> None:
    words = ["--model-path", "Qwen3.6-27B", "--mamba-ssm-dtype", "bfloat16", *argv]
    if version == "0.5.23" and "no_buffer" in argv:
        words.append("--disable-overlap-schedule")
    words = [f"--{STRATEGY[version]}" if word == "STRATEGY" else word for word in words]
    resolved = config.resolve(flags.parse(words, version), version, 97_887)
    assert capacity.size(resolved.sizing).max_running == (old if version == "0.5.12" else new)


def test_the_card_is_the_visible_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = flags.parse(["--model-path", "m"], "0.5.12")
    second = flags.parse(["--model-path", "m", "--base-gpu-id", "1"], "0.5.12")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert config.gpu_index(plain) == 5
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,6")
    assert config.gpu_index(second) == 6
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert config.gpu_index(second) == 1
