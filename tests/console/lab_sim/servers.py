"""Start simulated servers the way an agent does, for tests: real processes, real sockets."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

from console.lab import venv
from console.lab.sim.settings import SimSettings, Version
from tests import ports

STORY = {
    "mem-fraction-static": "0.85",
    "mamba-ssm-dtype": "bfloat16",
    "reasoning-parser": "qwen3",
    "tool-call-parser": "qwen3_coder",
}
STRATEGY = {
    "0.5.12": "mamba-scheduler-strategy",
    "0.5.23": "mamba-radix-cache-strategy",
}


def wait_for(what: Callable[[], Any], seconds: float = 20.0, why: str = "") -> Any:
    """The first true value of ``what``; fails after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := what():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {why or what}")


@dataclass
class Server:
    """One running (or ended) simulated server."""

    process: subprocess.Popen[bytes]
    port: int
    out: Path
    err: Path
    state: Path
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    @property
    def log(self) -> str:
        """Standard error so far."""
        return self.err.read_bytes().decode(errors="replace")

    @property
    def access(self) -> str:
        """Standard output so far."""
        return self.out.read_text(errors="replace")

    def lines(self, pattern: str) -> list[str]:
        """Log lines that contain this regular expression."""
        return [line for line in re.split(r"[\r\n]", self.log) if re.search(pattern, line)]

    def logged(self, pattern: str, seconds: float = 20.0, *, times: int = 1) -> str:
        """Wait for such a line, or for so many of them."""

        def look() -> str | None:
            found = self.lines(pattern)
            return found[-1] if len(found) >= times else None

        return str(wait_for(look, seconds, f"log line {pattern!r} in:\n{self.log[-3000:]}"))

    def ready(self, seconds: float = 30.0) -> Server:
        """Wait for the last line of a start and for ``/health``."""
        self.logged("fired up", seconds)
        assert self.client.get("/health").status_code == 200
        return self

    def exit(self, seconds: float = 30.0) -> int:
        """Wait for the end; the exit status as a supervisor reads it."""
        return self.process.wait(seconds)

    def children(self) -> dict[str, psutil.Process]:
        """Living children by title."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return {child.cmdline()[0]: child for child in found if child.cmdline()}

    def chat(self, text: str = "How far is the moon?", **more: Any) -> dict[str, Any]:
        """A chat answer."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
        answer = self.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def load(self) -> dict[str, Any]:
        """``/v1/loads`` of the one rank."""
        return dict(self.client.get("/v1/loads").json()["loads"][0])

    def running(self, count: int = 1) -> None:
        """Wait until so many requests run."""
        wait_for(lambda: self.load()["num_running_reqs"] == count, why=f"{count} running")

    def end(self) -> None:
        """Nothing of it is left."""
        self.client.close()
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        for child in family:
            with contextlib.suppress(psutil.Error):
                child.kill()


class Lab:
    """A folder with a stand-in venv; starts servers and ends them all."""

    def __init__(self, folder: Path, version: Version, **settings: Any) -> None:
        self.version, self.folder, self.state = version, folder, folder / "gpus"
        self.settings = msgspec.structs.replace(
            SimSettings(state_dir=str(self.state), speed=400, transient_errors=0), **settings
        )
        self.python = venv.make(folder / "venv", version, self.settings)
        self.state.mkdir(exist_ok=True)
        (self.state / f"kernels-{version}").touch()  # compiled by an earlier start
        self.started: list[Server] = []

    def argv(self, port: int, flags: dict[str, Any]) -> list[str]:
        """The command line of one server."""
        words = [str(self.python), "-m", "sglang.launch_server", "--model-path", "Qwen3.6-27B"]
        words += ["--port", str(port)]
        for name, value in flags.items():
            if value is None:
                continue
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return words

    def start(
        self,
        *,
        gpu: int = 0,
        port: int = 0,
        strategy: str | None = "extra_buffer",
        environ: dict[str, str] | None = None,
        **flags: Any,
    ) -> Server:
        """Start a server; flags with underscores for dashes."""
        port = port or ports.free()
        given = {name.replace("_", "-"): value for name, value in flags.items()}
        every = {STRATEGY[self.version]: strategy, **STORY, **given}
        number = len(self.started)
        out, err = self.folder / f"out{number}", self.folder / f"err{number}"
        env = {
            "PATH": os.environ["PATH"],
            "CUDA_VISIBLE_DEVICES": str(gpu),
            "PYTHONUNBUFFERED": "1",
            **(environ or {}),
        }
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                self.argv(port, every),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=env,
                cwd=self.folder,
                start_new_session=True,
            )
        server = Server(process, port, out, err, self.state)
        self.started.append(server)
        return server

    def close(self) -> None:
        """End every server."""
        for server in self.started:
            server.end()


@contextlib.contextmanager
def lab(folder: Path, version: Version, **settings: Any) -> Iterator[Lab]:
    """A lab for the length of a block."""
    made = Lab(folder, version, **settings)
    try:
        yield made
    finally:
        made.close()


TERM, KILL, STOP, CONT = signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT


def is_new(lab: Lab) -> bool:
    """Whether it speaks the newer dialect."""
    return lab.version == "0.5.23"


def gone(family: list[psutil.Process]) -> bool:
    """Whether none of these processes is left."""
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family)


def long_chat(server: Server, tokens: int = 100_000, **more: Any) -> dict[str, Any]:
    """An answer that outlives its test (eleven seconds), or ends in a few with less tokens."""
    return server.chat(max_tokens=tokens, ignore_eos=True, **more)
