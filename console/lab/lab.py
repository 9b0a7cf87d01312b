"""``stoker lab``: the whole of a real set-up in one folder, on loopback, with simulated GPUs.

Below the lab's folder: ``ssh/`` (keys, client configuration), ``host/`` (the stand-in Proxmox
host), ``ct/200/`` (the container: its workspace, its bin/, its stand-in SGLang), ``prompts.jsonl``
and ``stoker.toml``, whose target ``ct200`` every verb can use. What the console does to the lab it
does through SSH, ``pct exec`` and the agent, as anywhere else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import msgspec

from console import config
from console.config import ConfigError, Target
from console.lab import container, gpus, host, ports, prompts, s3, venv
from console.lab.container import Container
from console.lab.sim import model
from console.lab.sim.settings import SimSettings, Version, write_whole
from remote.protocol import Flags, RunControl

VMID = 200
JOB = 100_000
"""Prompts of a job without ``--count``: over twenty minutes on eight GPUs at speed 20."""

TOKENS = 2711
"""Mean length of an answer."""

EXPECTED = 900.0
"""Tokens a second and GPU, at a real card's speed, that tell a fleet held back (some 680) from
one that is not (some 1,200): the lab's alert stands while the job would take longer than so."""

STORY: Flags = {
    "mamba-scheduler-strategy": "extra_buffer",
    "mamba-ssm-dtype": "bfloat16",
    "mem-fraction-static": 0.85,
    "context-length": 8192,
    "attention-backend": "flashinfer",
    "reasoning-parser": "qwen3",
    "tool-call-parser": "qwen3_coder",
    "enable-metrics": True,
}
"""What the lab's servers start with: flags that hold each of them at 37 requests."""

RENAMED = {"0.5.23": {"mamba-scheduler-strategy": "mamba-radix-cache-strategy"}}
"""Flags that a version of SGLang calls otherwise (``server_args.py`` of 0.5.12 and 0.5.23)."""


SOURCE = str(Path(config.__file__).resolve().parents[1])
"""Where the package ``console`` is found."""


STOP_S = 8.0
"""For so long a run may take to leave when the lab ends; then it is killed, which it survives."""


class LabError(ConfigError):
    """The lab cannot be brought up: one line that says what and what to do."""


@dataclass(frozen=True)
class Options:
    """What ``stoker lab`` was asked for."""

    gpus: int = 8
    prompts: Path | None = None
    """JSONL of the user's own instead of the shipped prompts."""
    count: int | None = None
    speed: float = 20.0
    sglang: Version = "0.5.12"
    flags: Flags = field(default_factory=dict)
    """Over those of :data:`STORY`."""
    folder: Path | None = None
    """Kept; None: a temporary one."""
    keep: bool = False
    """Leave a temporary folder, too."""
    s3: bool = True
    simulation: dict[str, Any] = field(default_factory=dict)
    """Further fields of :class:`console.lab.sim.settings.SimSettings`."""


class Known(msgspec.Struct, frozen=True):
    """``lab.json``: what must be the same when a lab comes up again in its folder."""

    host: int | None = None
    s3: int | None = None
    base: int | None = None
    gpus: int = 8
    sglang: Version = "0.5.12"


def as_it_was(options: Options, known: Known, folder: Path) -> Options:
    """The options for a lab that comes up again. Raises LabError where others are wanted."""
    usual = Options()
    other = [
        f"--{name} {wanted}"
        for name, wanted, was in (
            ("gpus", options.gpus, known.gpus),
            ("sglang", options.sglang, known.sglang),
        )
        if wanted not in (was, getattr(usual, name))
    ]
    if other:
        was = f"{known.gpus} GPUs and SGLang {known.sglang}"
        raise LabError(f"{folder} holds a lab of {was}: name another --dir for {', '.join(other)}")
    if options.flags:
        raise LabError(f"{folder} holds a lab: change [fleet.flags] in its stoker.toml, not --set")
    return replace(options, gpus=known.gpus, sglang=known.sglang)


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
        self.container = Container(self.folder, VMID)
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
            write_whole(self.toml, self._toml(python, base_port).encode())
        self.target: Target = config.load(self.toml).target(None)

    def check(self) -> None:
        """Raise LabError where a service has ended by itself: nothing goes on without it."""
        for service in self._services:
            if service.process.poll() is not None:
                raise LabError(f"the lab's {service.name} has died: start the lab again")

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
        with open(secrets, "w", opener=host.private) as out:
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

    def _toml(self, python: Path, base_port: int) -> str:
        flags = {**STORY, **self.options.flags}
        for old, new in RENAMED.get(self.options.sglang, {}).items():
            if old in flags:
                flags[new] = flags.pop(old)
        lines = [
            "# The lab: a stand-in Proxmox host and container, simulated GPUs.",
            'default = "ct200"',
            "",
            "[targets.ct200]",
            f"ssh = {_text(host.ALIAS)}",
            'ssh_config = "ssh/config"',
            f"hop = {{ pct = {VMID} }}",
            f"workspace = {_text(self.container.workspace)}",
            f"python = {_text(python)}",
            f"agent_python = {_text(sys.executable)}",
            f"credentials_file = {_text(self.container.root / 'secrets.env')}",
            "",
            "[fleet]",
            f"gpus = {self.options.gpus}",
            f"base_port = {base_port}",
            f"model = {_text(self.container.folder / 'model')}",
            "",
            "[fleet.flags]",
            *(f"{name} = {_value(value)}" for name, value in flags.items()),
            "",
            "[run]",
            'prompts = "prompts.jsonl"',
            'output = "completions"',
            "max_tokens = 4096",
        ]
        if self.s3_port is not None:
            lines += ["", "[run.s3]", f"bucket = {_text(s3.BUCKET)}", 'prefix = "lab/"']
            lines.append(f'endpoint_url = "http://127.0.0.1:{self.s3_port}"')
        per_hour = EXPECTED * self.options.gpus * self.options.speed * 3600
        hours = (self.options.count or JOB) * TOKENS / per_hour
        lines += ["", "[alerts]", f"eta_hours_over = {hours:.2g}"]
        return "\n".join(lines) + "\n"

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


class Service:
    """A process of ours that serves until its standard input ends and first prints its port."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                env=env,
                start_new_session=True,  # a Ctrl-C is the lab's to answer
            )

    async def port(self, timeout: float = 60) -> int:
        """The port it listens on. Raises LabError."""
        assert self.process.stdout is not None
        try:
            line = await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), timeout)
            return int(line)
        except (ValueError, TimeoutError):
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            why = last[0] if last else "it said nothing"
            raise LabError(f"the lab's {self.name} did not start: {why}") from None

    def stop(self) -> None:
        """End it and wait for its end."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        for end in (self.process.terminate, self.process.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(3)
                break
            end()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _temporary() -> str | None:
    """Where a temporary lab goes: a long job writes a gigabyte, and /tmp is often memory."""
    wanted = os.environ.get("TMPDIR")
    return wanted or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else None)


def _text(value: object) -> str:
    """A basic string of TOML: JSON's escapes are TOML's, too."""
    return json.dumps(str(value), ensure_ascii=False)


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- The verb ---


def command(options: argparse.Namespace) -> int:
    """``stoker lab`` → exit status. Raises ConfigError and LinkError."""
    asked = Options(
        gpus=options.gpus,
        prompts=options.prompts,
        count=options.count,
        speed=options.speed,
        sglang=options.sglang,
        flags=options.flags,
        folder=options.dir,
        keep=options.headless,
    )
    if options.headless and options.serve:
        raise LabError("--headless and --serve: one of the two")
    _check(asked)
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, _leave)
    if options.headless:
        from console.lab import headless

        return asyncio.run(headless.run(asked))
    if options.serve:
        return asyncio.run(_serve(asked))
    return asyncio.run(_console(asked, debug=options.debug))


def _leave(number: int, _: object) -> None:
    """A closed terminal and a polite kill end the lab as an operator does."""
    raise SystemExit(128 + number)


def _check(options: Options) -> None:
    if not 1 <= options.gpus <= 64:
        raise LabError(f"--gpus {options.gpus}: 1 to 64 are possible")
    if not options.speed > 0:  # nor is it no number
        raise LabError(f"--speed {options.speed:g}: more than 0 is needed")
    if options.count is not None and options.count < 1:
        raise LabError(f"--count {options.count}: at least 1 is needed")


async def _console(options: Options, *, debug: bool) -> int:
    from console.app import StokerApp
    from console.feed import connect_agent
    from console.lab import job
    from console.launch import check_terminal
    from console.link.deploy import deploy
    from console.watch import Source

    def say(text: str) -> None:
        print(text, flush=True)

    check_terminal()
    async with Lab(options, say) as lab:
        say(f"the lab is up in {lab.folder} (simulated hardware)")
        say(await deploy(lab.target))
        source = Source(lab.target.name, connect_agent(lab.target), target=lab.target)
        app = StokerApp([source], tracebacks=debug)
        complaints: list[str] = []

        def complain(text: str) -> None:
            complaints.append(text)
            app.say(text, "error")

        going_on = asyncio.create_task(job.go_on(lab, complain))
        try:
            await app.run_async()
        finally:
            going_on.cancel()
            for text in complaints:
                say(text)
            say("ending the lab and all that was started in it")
    if options.folder is not None:
        say(f"kept: {lab.folder}")
    return app.return_code or 0


async def _serve(options: Options) -> int:
    async with Lab(options, print) as lab:
        print(
            f"The lab is up in {lab.folder} (simulated hardware). In another terminal:\n"
            f"  export STOKER_CONFIG={lab.toml}\n"
            f"  stoker deploy && stoker up && stoker run start --prompts {lab.prompts}\n"
            "  stoker\n"
            "Ctrl-C ends it and everything that was started in it.",
            flush=True,
        )
        until = asyncio.create_task(interrupted())
        while not until.done():
            lab.check()
            await asyncio.wait([until], timeout=1)
    return 0


async def interrupted() -> None:
    """Until SIGINT or SIGTERM."""
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, leave.set)
    try:
        await leave.wait()
    finally:
        for sign in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(sign)
