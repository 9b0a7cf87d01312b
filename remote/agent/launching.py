"""How the run is started: checked, with what command and environment, and under a holder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import msgspec
from msgspec import Struct

from remote import runline
from remote.agent.serve import RequestError
from remote.fleet import environment
from remote.fleet.holder import USER_PYTHONPATH
from remote.paths import Workspace
from remote.protocol import TargetSpec

CODE = Path(__file__).resolve().parents[2]
_CACHE = ("HF_HOME", "HF_HUB_CACHE")
_LOG_BYTES = 64 << 20


class RunLaunch(Struct, frozen=True):
    """``launch.json`` of the run; the holder reads launch, argv, cwd and log."""

    launch: str
    argv: list[str]
    cwd: str
    log: str
    output: str
    prompts: str
    asked: float
    who: str = ""


def launch_in(folder: Path) -> RunLaunch | None:
    """What an earlier agent started; None where none has. Blocking."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((folder / "launch.json").read_bytes(), type=RunLaunch)
    return None


def prepare(
    workspace: Workspace, spec: TargetSpec, *, who: str, extend: bool, accept_params: bool
) -> RunLaunch:
    """A new launch of the run that the target describes. Raises RequestError. Blocking."""
    prompts, output = workspace.root / spec.run.prompts, workspace.root / spec.run.output
    if not prompts.is_file():
        raise RequestError(
            f"{prompts} is not there: bring it with `stoker run start --prompts FILE`"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"{output}: {error.strerror}") from None
    return RunLaunch(
        launch=uuid.uuid4().hex,
        argv=_argv(workspace, spec, extend=extend, accept_params=accept_params),
        cwd=str(workspace.root),
        log=str(workspace.run_log),
        output=spec.run.output,
        prompts=spec.run.prompts,
        asked=time.time(),
        who=who,
    )


def once_more(workspace: Workspace, spec: TargetSpec, launch: RunLaunch) -> RunLaunch:
    """The same launch again: the socket may be another one by now, and what was allowed once is
    not allowed again. Blocking."""
    argv = _argv(workspace, spec, extend=False, accept_params=False)
    return msgspec.structs.replace(
        launch, launch=uuid.uuid4().hex, argv=argv, log=str(workspace.run_log), asked=time.time()
    )


def _argv(
    workspace: Workspace, spec: TargetSpec, *, extend: bool, accept_params: bool
) -> list[str]:
    return [
        *runline.argv(sys.executable, spec, workspace.socket),
        *(["--extend"] if extend else []),
        *(["--accept-params"] if accept_params else []),
    ]


def hold(folder: Path, launch: RunLaunch, env: dict[str, str]) -> None:
    """Start it under a holder in this folder. Raises OSError. Blocking."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _rotate(Path(launch.log))
    for stale in ("running.json", "exit.json"):
        (folder / stale).unlink(missing_ok=True)
    temporary = folder / ".launch.json"
    temporary.write_bytes(msgspec.json.encode(launch))
    temporary.replace(folder / "launch.json")
    subprocess.run(
        [sys.executable, "-S", "-m", "remote.fleet.holder", str(folder)],
        cwd=CODE,
        env={**env, "PYTHONPATH": str(CODE), USER_PYTHONPATH: str(CODE)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
        timeout=30,
    )


async def environ(spec: TargetSpec) -> dict[str, str]:
    """The run's environment: ours, the secrets of the credentials file, and where the servers'
    env script puts Hugging Face's cache (the run reads the model's sampling there)."""
    env = environment.clean(os.environ)
    # S3 keys may stand in the agent's own environment as well.
    env.update({k: v for k, v in os.environ.items() if k.startswith("AWS_")})
    if spec.env_script:
        # What is wrong with the script is told where servers are started.
        with contextlib.suppress(environment.EnvScriptError):
            found, _ = await environment.sourced(spec.env_script, env)
            env.update({name: found[name] for name in _CACHE if name in found})
    try:
        secrets = await asyncio.to_thread(
            environment.credentials, spec.credentials_file, prefixes=("",)
        )
    except environment.EnvScriptError as error:
        raise RequestError(str(error)) from None
    return {**env, **secrets, "PYTHONUNBUFFERED": "1"}


def _rotate(path: Path, limit: int = _LOG_BYTES) -> None:
    """Begin a new log where the old one is large; only ever between two runs."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > limit:
            path.replace(path.with_name(path.name + ".1"))
