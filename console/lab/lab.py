"""``stoker lab``: the whole of a real set-up in one folder, on loopback, with simulated GPUs.

Below the lab's folder: ``ssh/`` (keys, client configuration), ``host/`` (the stand-in Proxmox
host), ``ct/200/`` (the container: its workspace, its bin/, its stand-in SGLang), ``prompts.jsonl``
and ``stoker.toml``, whose target ``ct200`` every verb can use. What the console does to the lab it
does through SSH, ``pct exec`` and the agent, as anywhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from console import config
from console.config import Target
from console.lab import container, gpus, host_files, ports, prompts, s3, stoker_toml, venv
from console.lab.container import Container
from console.lab.errors import LabError, LabFailedError
from console.lab.options import JOB, Known, Options, as_it_was
from console.lab.service import Service
from console.lab.sim import model
from console.lab.sim.settings import SimSettings, write_whole
from remote.protocol import RunControl

SOURCE = str(Path(config.__file__).resolve().parents[1])
"""Where the package ``console`` is found."""

STOP_S = 8.0
"""For so long a run may take to leave when the lab ends; then it is killed, which it survives."""


class Lab:
    """A lab that is up between ``async with`` and its end.

    ``target`` is what ``stoker.toml`` says; ``prompts`` is the file to send.
    """

    def __init__(self, options: Options, say: Callable[[str], None] = lambda _: None) -> None:
        self.options = options
        self.say = say
        self.s3_port: int | None = None
        self._services: list[Service] = []
        self._lock: IO[str] | None = None
        self._temporary = options.folder is None

    async def __aenter__(self) -> Lab:
        try:
            await self.up()
        except BaseException:
            await self.down()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.down()

    # --- Up ---

    async def up(self) -> None:
        """Everything but the agent, the servers and the run: those are the console's to start."""
        try:
            await self._up()
        except OSError as error:  # a full disk, a file where a folder should be, no free ports
            where = error.filename or self.options.folder or "the lab's folder"
            text = f"{where}: {error.strerror}: mend that, or name another --dir"
            raise LabError(text if error.strerror else str(error)) from None

    async def _up(self) -> None:
        await asyncio.to_thread(self._make_folder)
        self.container = Container(self.folder)
        known = self._known()
        if self.toml.exists():
            self.options = as_it_was(self.options, known, self.folder)
        python, _, host_port, self.s3_port = await asyncio.gather(
            asyncio.to_thread(self._prepare_container),
            asyncio.to_thread(self._write_prompts),
            self._serve("host", self._host_module(), known.host),
            self._serve_s3(known.s3),
        )
        base_port = known.base or ports.free_range(self.options.gpus)
        found = Known(host_port, self.s3_port, base_port, self.options.gpus, self.options.sglang)
        write_whole(self.folder / "lab.json", msgspec.json.encode(found))
        if not self.toml.exists():
            text = stoker_toml.text(
                self.options,
                self.container,
                python=python,
                base_port=base_port,
                s3_port=self.s3_port,
            )
            write_whole(self.toml, text.encode())
        self.target: Target = config.load(self.toml).target(None)

    def check(self) -> None:
        """Raise LabError where a service has ended by itself: nothing goes on without it."""
        for service in self._services:
            if service.process.poll() is not None:
                raise LabFailedError(f"the lab's {service.name} has died: start the lab again")

    def cut(self) -> None:
        """Drop every SSH connection at once; what runs in the container is told nothing."""
        for service in self._services:
            if service.name == "host":
                service.process.send_signal(signal.SIGUSR1)

    @property
    def toml(self) -> Path:
        """``stoker.toml`` of the lab."""
        return self.folder / "stoker.toml"

    @property
    def prompts(self) -> Path:
        """The prompts on this side of the link."""
        return self.folder / "prompts.jsonl"

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.container.workspace / self.target.spec.run.output

    def _make_folder(self) -> None:
        if self.options.folder is None:
            folder = Path(tempfile.mkdtemp(prefix="stoker-lab-", dir=_temporary()))
        else:
            folder = self.options.folder.expanduser()
            path = str(folder.resolve())
            if not path.isascii() or not path.isprintable() or set(path) & set('"%\\'):
                # Command lines travel as ASCII, and OpenSSH's configuration has no escapes.
                raise LabError(f'--dir {folder}: plain ASCII is needed, without ", % and \\')
            if folder.is_dir() and any(folder.iterdir()) and not (folder / "lab.lock").exists():
                raise LabError(f"{folder} is not empty and no lab: name another --dir")
            folder.mkdir(parents=True, exist_ok=True)
        folder = folder.resolve()
        lock = (folder / "lab.lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise LabError(f"{folder}: another `stoker lab` is at work there") from None
        # Only now: whatever runs in the folder of a lab is ended with it.
        self.folder, self._lock = folder, lock

    def _known(self) -> Known:
        """An earlier lab in this folder: its ``stoker.toml`` relies on what is told here."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode((self.folder / "lab.json").read_bytes(), type=Known)
        return Known()

    def _prepare_container(self) -> Path:
        """The container and what would be installed in it; the python that has SGLang."""
        options = self.options
        inside = self.container
        inside.create()
        cards = inside.folder / "gpus"
        cards.mkdir(exist_ok=True)
        gpus.install(inside.bin, cards, options.gpus)
        model.write(inside.folder / "model")
        settings = SimSettings(
            **{"state_dir": str(cards), "speed": options.speed, **options.simulation}
        )
        # A card that has served before: its kernels are compiled, so the servers start together.
        kernels = inside.root / ".cache" / "flashinfer" / "simulated"
        kernels.mkdir(parents=True, exist_ok=True)
        (kernels / "kernels.so").touch()
        (cards / f"kernels-{options.sglang}").touch()
        secrets = inside.root / "secrets.env"
        with open(secrets, "w", opener=host_files.private) as out:
            out.write(s3.credentials())
        return venv.make(inside.folder / "sglang", options.sglang, settings)

    def _write_prompts(self) -> None:
        """The prompts file, as long as wanted; one that an earlier lab wrote is kept."""
        own, count = self.options.prompts, self.options.count
        if self.prompts.exists() and own is None and count is None:
            return
        if own is None:
            prompts.write(self.prompts, prompts.expand(prompts.shipped(), count or JOB))
            return
        part = self.prompts.with_suffix(".part")
        try:
            lines = own.expanduser().open("rb")
        except OSError as error:
            raise LabError(f"--prompts {own}: {error.strerror}") from None
        with lines, part.open("wb") as out:
            out.writelines(itertools.islice(lines, count))
        part.replace(self.prompts)

    def _host_module(self) -> list[str]:
        """The host is the last to go: when this process is killed it ends what runs inside."""
        gone = ["--temporary"] if self._temporary and not self.options.keep else []
        return ["console.lab.host", str(self.folder), *gone]

    async def _serve_s3(self, port: int | None) -> int | None:
        if not self.options.s3:
            return None
        if not s3.installed():
            self.say("no S3 in this lab: it comes with `stoker[lab]`")
            return None
        if port is not None and not ports.free(port):
            raise LabError(
                f"port {port} of the lab's S3 is taken: end what listens there, or change "
                f"run.s3.endpoint_url in {self.toml} and delete {self.folder / 'lab.json'}"
            )
        return await self._serve("s3", ["console.lab.s3"], port)

    async def _serve(self, name: str, module: list[str], port: int | None) -> int:
        if name == "host" and port is not None and not ports.free(port):
            port = None  # only ssh/config says it, and that is written at each start
        command = [sys.executable, "-m", *module, "--port", str(port or 0)]
        spill = self.folder / name
        spill.mkdir(exist_ok=True)
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": SOURCE,
            "HOME": str(spill),
            "TMPDIR": str(spill),
            "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(s3.SPILL),
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        service = Service(name, command, env, self.folder / f"{name}.log")
        self._services.append(service)
        return await service.port()

    # --- Down ---

    async def down(self) -> None:
        """End everything that was started in this lab; a temporary folder goes, too."""
        if not hasattr(self, "folder"):
            return
        if hasattr(self, "target") and not self._temporary:
            await self._stop_run()
        await asyncio.to_thread(container.end_all, self.folder)
        await asyncio.gather(*(asyncio.to_thread(service.stop) for service in self._services))
        if self._lock is not None:
            self._lock.close()
        if self._temporary and not self.options.keep:
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    async def _stop_run(self) -> None:
        """Have a run that is still at work leave its directory in order, if it can be asked."""
        if not any(
            container.is_module(p, "remote.generate") for p in container.processes(self.folder)
        ):
            return
        from console.link.client import LinkError
        from console.session import session

        with contextlib.suppress(LinkError, TimeoutError):
            async with asyncio.timeout(STOP_S), session(self.target) as here:
                await here.follow()
                await here.call(RunControl(do="stop"))

                def ended() -> bool | None:
                    run = here.state.run
                    return True if run is None or not run.alive else None

                await here.until(ended)


def _temporary() -> str | None:
    """Where a temporary lab goes: a long job writes a gigabyte, and /tmp is often memory."""
    wanted = os.environ.get("TMPDIR")
    return wanted or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else None)
