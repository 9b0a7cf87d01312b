"""Servers and run by hand: the lines that do without Stoker what the console does with it.

Each is typed on this machine and goes through SSH and hop as the console's own commands do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from console.config import Target
from console.link import hop
from console.model import State
from remote import runline
from remote.protocol import STOKER_DIR


def lines(target: Target, state: State, gpus: Sequence[int]) -> list[str]:
    """For these servers: follow the log, end it, start it; then the same for the run.

    What cannot travel on a command line (a name that is not ASCII, say) is left out.
    """
    found: list[list[str]] = []
    for gpu in gpus:
        found += _server(target, state, gpu)
    found += _run(target, state)
    shown: list[str] = []
    for argv in found:
        try:
            shown.append(hop.plain(target, argv))
        except hop.HopError:
            continue
    return shown


def _server(target: Target, state: State, gpu: int) -> list[list[str]]:
    spec = state.target or target.spec
    info = state.infos.get(gpu)
    told = info.log if info is not None else ""
    place = told or f"{spec.fleet.log_dir}/sglang_gpu{gpu}.log"
    log = str(PurePosixPath(spec.workspace) / place)
    found = [["tail", "-n", "200", "-F", log]]
    if info is None:
        return found
    if info.pid is not None:
        found.append(["kill", "-TERM", str(info.pid)])
    if info.argv:
        env = {"CUDA_VISIBLE_DEVICES": str(gpu)}
        folder, script = spec.workspace, spec.env_script
        found.append(hop.in_background(info.argv, folder=folder, log=log, env=env, script=script))
    return found


def _run(target: Target, state: State) -> list[list[str]]:
    """Without an agent the run looks after itself; the same command resumes it."""
    spec = state.target or target.spec
    stoker = PurePosixPath(spec.workspace) / STOKER_DIR
    log = str(stoker / "run.log")
    found = [["tail", "-n", "200", "-F", log]]
    if state.run.pid is not None:
        found.append(["kill", "-TERM", str(state.run.pid)])
    if target.agent_python:
        argv = runline.argv(target.agent_python, spec, None)
        env = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(stoker / "code" / "current")}
        found.append(hop.in_background(argv, folder=spec.workspace, log=log, env=env))
    return found
