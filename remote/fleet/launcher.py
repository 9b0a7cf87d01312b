"""Starting one server: what is checked first, and the start itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from remote.fleet import environment, processes, tail
from remote.fleet.holder import HOLDS, USER_PYTHONPATH
from remote.fleet.outside import FleetError
from remote.fleet.records import Folder, Launch
from remote.fleet.timing import Timing
from remote.paths import Workspace
from remote.protocol import Flags, TargetSpec
from remote.sglang import flags as sglang_flags
from remote.sglang.catalogue import Catalogue, FlagError

_CODE = Path(__file__).resolve().parents[2]
"""Where the package ``remote`` lies: the holder runs from the same code."""

LEAST_DISK = 256 << 20
"""Free bytes below which no server is started: its log would stop, and then it."""


@dataclass(frozen=True)
class Start:
    """What a server is to be started with, and for whom."""

    spec: TargetSpec
    flags: Flags
    epoch: int | None
    who: str
    swap: int | None = None
    catalogue: Catalogue | None = None
    version: str | None = None
    """The SGLang that is installed now."""


class Launcher:
    """Starts servers of one workspace; reads the env script once until it changes."""

    def __init__(self, workspace: Workspace, timing: Timing) -> None:
        self.workspace = workspace
        self.timing = timing
        self.sourced: list[str] = []
        """Names of the variables that the env script set or changed."""
        self._env: tuple[object, dict[str, str]] | None = None

    def log(self, spec: TargetSpec, gpu: int) -> Path:
        """The log of server ``gpu``."""
        return self.workspace.root / spec.fleet.log_dir / f"sglang_gpu{gpu}.log"

    async def environment(self, spec: TargetSpec) -> dict[str, str]:
        """The servers' environment but for what differs from GPU to GPU.

        Raises :class:`FleetError` where env script or credentials file cannot be used.
        """
        key = tuple(
            (name, _modified(name)) for name in (spec.env_script, spec.credentials_file) if name
        )
        if self._env is not None and self._env[0] == key:
            return self._env[1]
        env = environment.clean(os.environ)
        self.sourced = []
        try:
            env.update(await asyncio.to_thread(environment.credentials, spec.credentials_file))
            if spec.env_script:
                env, self.sourced = await environment.sourced(spec.env_script, env)
        except environment.EnvScriptError as error:
            raise FleetError(str(error)) from error
        self._env = (key, env)
        return env

    async def possible(self, spec: TargetSpec, gpu: int) -> None:
        """What can be known to make a start fail while the server still runs: all but its port
        and its card's memory. Changes nothing.

        Raises :class:`FleetError`.
        """
        await asyncio.to_thread(self._possible, spec, gpu)
        await self.environment(spec)

    def _possible(self, spec: TargetSpec, gpu: int) -> None:
        if not spec.fleet.model:
            raise FleetError("no model is set: put `model` under [fleet] in stoker.toml")
        if not spec.python:
            raise FleetError(
                "no Python is set: put `python` (the one that has SGLang) in the target"
            )
        if shutil.which(spec.python) is None:
            raise FleetError(f"python {spec.python} is not there or not executable")
        for folder in (self.log(spec, gpu).parent, self.workspace.server(gpu)):
            there = next(p for p in (folder, *folder.parents) if p.exists())
            if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
                raise FleetError(f"{folder} cannot be written: see who may write {there}")
            free = shutil.disk_usage(there).free
            if free < LEAST_DISK:
                raise FleetError(
                    f"only {free >> 20} MiB free in {folder}: make room ({LEAST_DISK >> 20} MiB)"
                )

    def check(self, spec: TargetSpec, gpu: int) -> None:
        """Everything that can be known before a start to fail. Blocking.

        Raises :class:`FleetError`.
        """
        self._possible(spec, gpu)
        port = spec.fleet.base_port + gpu
        taken = processes.listeners([port])
        if port in taken:
            raise FleetError(
                f"port {port} is taken by {describe(taken[port])}: end it or move base_port"
            )
        folder = self.log(spec, gpu).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with self.log(spec, gpu).open("ab"):
                pass
        except OSError as error:
            raise FleetError(f"log folder {folder}: {error.strerror}") from error

    async def prepare(self, gpu: int, asked: Start) -> Launch:
        """Check, and write down the launch of server ``gpu``; :meth:`hold` then starts it.

        Raises :class:`FleetError` where a check fails.
        """
        spec, flags = asked.spec, asked.flags
        try:
            sglang_flags.refuse_own(flags)
        except FlagError as error:
            raise FleetError(str(error)) from error
        await asyncio.to_thread(self.check, spec, gpu)
        env = await self.environment(spec)
        folder = Folder(self.workspace.server(gpu))
        log = self.log(spec, gpu)
        try:
            config = await asyncio.to_thread(_secrets, folder.root, env)
            await asyncio.to_thread(tail.rotate, log)
        except OSError as error:
            raise FleetError(f"{error.filename}: {error.strerror}") from error
        record = Launch(
            launch=uuid.uuid4().hex,
            gpu=gpu,
            port=spec.fleet.base_port + gpu,
            argv=sglang_flags.server_argv(
                spec.python, spec.fleet, gpu, flags, asked.catalogue, config
            ),
            cwd=str(self.workspace.root),
            log=str(log),
            log_offset=_size(log),
            flags=flags,
            epoch=asked.epoch,
            swap=asked.swap,
            who=asked.who,
            asked=time.time(),
            sglang=asked.version,
        )
        await asyncio.to_thread(folder.write_launch, record)
        return record

    async def hold(self, spec: TargetSpec, record: Launch) -> None:
        """Start what was prepared, under a holder; returns once its process runs.

        Raises :class:`FleetError` where the command cannot be run, or where that takes too long:
        whatever there is of it may still come, and has to be ended.
        """
        env = await self.environment(spec)
        folder = Folder(self.workspace.server(record.gpu))
        holder_env = {
            **env,
            "CUDA_VISIBLE_DEVICES": str(record.gpu),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(_CODE),
            USER_PYTHONPATH: env.get("PYTHONPATH", ""),
            HOLDS: record.launch,
        }
        command = [sys.executable, "-S", "-m", "remote.fleet.holder", str(folder.root)]
        try:
            starter = await asyncio.create_subprocess_exec(
                *command,
                env=holder_env,
                cwd=_CODE,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:  # no memory, or too many processes
            raise FleetError(f"server {record.gpu}: no process for it: {error.strerror}") from error
        deadline = time.monotonic() + self.timing.holder
        try:
            async with asyncio.timeout(self.timing.holder):
                await starter.wait()  # only it: the holder itself has detached from it
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                starter.kill()
            await starter.wait()
        while time.monotonic() < deadline:
            if folder.running(record.launch) is not None:
                return
            if (ended := folder.exit(record.launch)) is not None and ended.error:
                raise FleetError(f"server {record.gpu} {ended.error}")
            await asyncio.sleep(0.02)
        raise FleetError(
            f"server {record.gpu}: its holder did not start it within {self.timing.holder:.0f} s"
        )


def describe(pid: int | None) -> str:
    """A process in words: pid, user and the start of its command."""
    if pid is None:
        return "a process outside this container or of another user"
    line = one_line(" ".join(sglang_flags.masked(processes.command(pid))))
    return f"pid {pid} of {processes.owner(pid)} ({line[:80]}{'…' if len(line) > 80 else ''})"


def one_line(text: str) -> str:
    """What another's process says of itself, with every run of white space and of control
    characters as one blank."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def api_key(env: dict[str, str]) -> str:
    """The key with which servers of this environment are asked."""
    return env.get("SGLANG_API_KEY", "")


def _secrets(folder: Path, env: dict[str, str]) -> str:
    """A private YAML file with the API keys of the credentials file; "" where it has none."""
    names = {"SGLANG_API_KEY": "api-key", "SGLANG_ADMIN_API_KEY": "admin-api-key"}
    lines = [
        f"{flag}: '{env[n].replace(chr(39), chr(39) * 2)}'"
        for n, flag in names.items()
        if env.get(n)
    ]
    if not lines:
        return ""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / "secrets.yaml"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")
    return str(path)


def _modified(path: str) -> int | None:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
