"""The lines that do without Stoker what the console does with it."""

from __future__ import annotations

import shlex
from pathlib import Path

from console import byhand
from console.config import Hop, Target
from console.model import State
from remote.generate.command import parser
from remote.protocol import FleetSpec, RunSpec, RunState, ServerInfo, TargetSpec

SPEC = TargetSpec(
    "t",
    "/work space",
    env_script="/root/env.sh",
    fleet=FleetSpec(gpus=2, log_dir="logs"),
    run=RunSpec(prompts="p.jsonl", output="out", temperature=0.7),
)
TARGET = Target(name="t", ssh="root@pve", hop=Hop("pct", "200"), agent_python="/opt/py", spec=SPEC)


def inner(line: str) -> list[str]:
    """What runs in the container."""
    ssh, host, remote = shlex.split(line)
    assert (ssh, host) == ("ssh", "root@pve")
    words = shlex.split(remote)
    assert words[:4] == ["pct", "exec", "200", "--"]
    return words[4:]


def test_servers_and_run_by_hand() -> None:
    """The log, the end and the start of each."""
    argv = ["/venv/python", "-m", "sglang.launch_server", "--json", '{"a": "b c"}']
    state = State(infos={1: ServerInfo(1, 30001, pid=71, argv=argv)}, run=RunState(True, 90))
    found = [inner(line) for line in byhand.lines(TARGET, state, [1])]
    assert found[0] == ["tail", "-n", "200", "-F", "/work space/logs/sglang_gpu1.log"]
    assert found[1] == ["kill", "-TERM", "71"]
    start = found[2][2]
    assert found[2][:2] == ["bash", "-c"]
    assert start.startswith("cd '/work space' && set -a && . /root/env.sh && ")
    assert f"CUDA_VISIBLE_DEVICES=1 nohup setsid {shlex.join(argv)} >> " in start
    assert found[3] == ["tail", "-n", "200", "-F", "/work space/.stoker/run.log"]
    assert found[4] == ["kill", "-TERM", "90"]
    words = shlex.split(found[5][2])
    run = words[words.index("remote.generate") + 1 : words.index(">>")]
    options = parser().parse_args(run)
    assert (options.prompts, options.output) == (Path("p.jsonl"), Path("out"))
    assert options.server == ["http://127.0.0.1:30000", "http://127.0.0.1:30001"]
    assert "PYTHONPATH=/work space/.stoker/code/current" in words


def test_what_is_not_known_or_cannot_travel_is_left_out() -> None:
    """A server that was never up has a log all the same."""
    found = byhand.lines(TARGET, State(), [0])
    assert [inner(line)[0] for line in found] == ["tail", "tail", "bash"]
    state = State(infos={0: ServerInfo(0, 30000, argv=["/pythön"], log="/l")})
    assert [inner(line)[0] for line in byhand.lines(TARGET, state, [0])] == ["tail", "tail", "bash"]
