"""The environment that servers get: the agent's, cleaned, then what the env script makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path

from remote.fleet.holder import AGENTS_OWN

_SECONDS = 60.0
_KILL_S = 5.0
"""For so long one that was killed is waited for."""
"""Longer than any sane env script takes: modules are loaded, a venv is activated."""

_CREDENTIALS_FOR_SERVERS = ("HF_", "HUGGING_FACE_", "SGLANG_")
"""Prefixes of what servers need from the credentials file (a gated model's token, API keys)."""

_NOISE = ("_", "SHLVL", "PWD", "OLDPWD")


class EnvScriptError(Exception):
    """The env script or credentials file cannot be used; one line."""


def clean(env: Mapping[str, str]) -> dict[str, str]:
    """Without what belongs to the agent's Python, and without storage credentials."""
    return {k: v for k, v in env.items() if k not in AGENTS_OWN and not k.startswith("AWS_")}


async def output(
    argv: list[str], env: Mapping[str, str], seconds: float
) -> tuple[int, bytes, bytes]:
    """Run a command to its end: exit status, standard output and error.

    Raises :class:`TimeoutError` after so long, with all that it started ended, and
    :class:`OSError` where it cannot be run.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), seconds)
    except (TimeoutError, asyncio.CancelledError):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):  # a driver that hangs lets nobody be killed
            await asyncio.wait_for(process.wait(), _KILL_S)
        raise
    return process.returncode or 0, out, err


async def sourced(script: str, base: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The environment after ``script`` was sourced once by bash, and the names it set or changed.

    Raises :class:`EnvScriptError` where the script is missing, fails or takes over a minute.
    """
    if not await asyncio.to_thread(Path(script).is_file):
        raise EnvScriptError(f"env_script {script} is not there")
    command = 'set -a; . "$1" >/dev/null 2>&1 </dev/null || exit 97; exec env -0'
    try:
        code, out, _ = await output(["bash", "-c", command, "bash", script], base, _SECONDS)
    except TimeoutError:
        raise EnvScriptError(f"env_script {script} did not end within {_SECONDS:.0f} s") from None
    except OSError as error:
        raise EnvScriptError(f"env_script needs bash: {error.strerror}") from error
    if code != 0:
        raise EnvScriptError(f"env_script {script} failed: run `bash {script}` to see why")
    env: dict[str, str] = {}
    for entry in out.decode("utf-8", "surrogateescape").split("\0"):
        name, equals, value = entry.partition("=")
        if equals and name not in _NOISE:
            env[name] = value
    changed = sorted(name for name, value in env.items() if base.get(name) != value)
    return env, changed


def credentials(path: str, prefixes: tuple[str, ...] = _CREDENTIALS_FOR_SERVERS) -> dict[str, str]:
    """The ``KEY=value`` lines (``export`` and shell quotes allowed) whose names begin with one of
    ``prefixes``; by default what servers need.

    Raises :class:`EnvScriptError` where the file cannot be read or others may read it.
    """
    if not path:
        return {}
    try:
        if Path(path).stat().st_mode & 0o077:
            raise EnvScriptError(f"{path} may be read by others: chmod 600 {path}")
        text = Path(path).read_text("utf-8")
    except OSError as error:
        raise EnvScriptError(f"credentials_file {path}: {error.strerror}") from error
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals or name.startswith("#") or not name.startswith(prefixes):
            continue
        try:
            words = shlex.split(value)
        except ValueError:
            words = [value]
        found[name.strip()] = words[0] if words else ""
    return found
