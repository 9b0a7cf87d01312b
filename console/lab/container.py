"""The lab's container: a folder that ``pct`` of the stand-in host calls a container.

Everything started in a lab carries ``STOKER_LAB`` with the lab's folder in its environment, as
everything in an LXC container carries its cgroup: :func:`processes` finds it, however detached.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

State = Literal["running", "stopped", "frozen"]


@dataclass(frozen=True)
class Container:
    """Container ``vmid`` of the lab in a folder."""

    lab: Path
    vmid: int = 200

    @property
    def folder(self) -> Path:
        """All of it."""
        return self.lab / "ct" / str(self.vmid)

    @property
    def workspace(self) -> Path:
        """Where the run, the servers' logs and Stoker's own things lie."""
        return self.folder / "workspace"

    @property
    def bin(self) -> Path:
        """First on the PATH inside."""
        return self.folder / "bin"

    @property
    def root(self) -> Path:
        """Root's home inside."""
        return self.folder / "root"

    def create(self, hostname: str = "stoker-lab") -> None:
        """Make it, running; one that is there is kept as it is and started."""
        for folder in (self.workspace, self.bin, self.root):
            folder.mkdir(parents=True, exist_ok=True)
        config = {
            "arch": "amd64",
            "description": "Stoker's lab%3A simulated hardware",
            "hostname": hostname,
            "memory": "524288",
            "ostype": "debian",
            "rootfs": f"local-lvm:vm-{self.vmid}-disk-0,size=2T",
            "swap": "0",
            "unprivileged": "1",
        }
        text = "".join(f"{key}: {value}\n" for key, value in config.items())
        (self.folder / "config").write_text(text)
        self.set_state("running")

    def set_state(self, state: State) -> None:
        """What ``pct`` finds; nothing is done to what runs inside."""
        (self.folder / "state").write_text(state + "\n")

    def stop(self) -> None:
        """As ``pct stop``: everything inside is killed at once."""
        self.set_state("stopped")
        for process in processes(self.lab, self.vmid):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def freeze(self) -> None:
        """As ``pct suspend``: everything inside stands still, and ``pct exec`` hangs."""
        self.set_state("frozen")
        for process in processes(self.lab, self.vmid):
            with contextlib.suppress(psutil.Error):
                process.suspend()

    def thaw(self) -> None:
        """As ``pct resume``."""
        for process in processes(self.lab, self.vmid):
            with contextlib.suppress(psutil.Error):
                process.resume()
        self.set_state("running")


def processes(lab: Path, vmid: int | None = None) -> Iterator[psutil.Process]:
    """Live processes that were started in this lab: all of them, or those inside a container."""
    me = os.getpid()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == me or process.status() == psutil.STATUS_ZOMBIE:
                continue
            marks = process.environ()
            if marks.get("STOKER_LAB") != str(lab):
                continue
            if vmid is None or marks.get("STOKER_CONTAINER") == str(vmid):
                yield process


def end_all(folder: Path) -> None:
    """End every process started in the lab in this folder.

    The agent goes first, lest it mends what goes with it; the rest is killed: all of it has to
    survive that anyway.
    """
    found = list(processes(folder))
    agents = [process for process in found if is_module(process, "remote.agent")]
    _signal(agents, psutil.Process.terminate)
    _, stubborn = psutil.wait_procs(agents, 1)
    _signal(stubborn, psutil.Process.kill)
    for _ in range(3):  # what was just being started is found the next time
        found = list(processes(folder))
        if not found:
            return
        _signal(found, psutil.Process.kill)
        psutil.wait_procs(found, 5)


def is_module(process: psutil.Process, name: str) -> bool:
    """Whether it runs ``python -m NAME``."""
    with contextlib.suppress(psutil.Error):
        return name in process.cmdline()
    return False


def _signal(found: list[psutil.Process], send: Callable[[psutil.Process], None]) -> None:
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.resume()
            send(process)
