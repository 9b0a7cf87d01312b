"""``pct`` of the real pair: the project's front end over ``lxc-attach`` itself.

``python -I -S pct.py FOLDER COMMAND …``; the containers are LXC's, below ``FOLDER/ct``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from console.lab import pct


class Lxc(pct.Node):
    """The containers of one LXC path."""

    def __init__(self, folder: str) -> None:
        self.base = f"{folder}/ct"

    def vmids(self) -> Iterable[int]:
        return [int(n) for n in os.listdir(self.base) if self.config(int(n)) is not None]  # noqa: PTH208

    def config(self, vmid: int) -> dict[str, str] | None:
        try:
            with open(f"{self.base}/{vmid}/config", encoding="utf-8") as file:
                lines = [line.split(" = ", 1) for line in file if " = " in line]
        except FileNotFoundError:
            return None
        lxc = {key: value.strip() for key, value in lines}
        return {"arch": "amd64", "hostname": lxc["lxc.uts.name"], "ostype": "unmanaged"}

    def running(self, vmid: int) -> bool:
        ask = ["lxc-info", "-P", self.base, "-n", str(vmid), "-sH"]
        return subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip() in (
            "RUNNING",
            "FROZEN",
        )

    def attach(self, vmid: int, keep_env: bool, argv: list[str]) -> int:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        environment = "--keep-env" if keep_env else "--clear-env"
        os.execvp(
            "lxc-attach",
            ["lxc-attach", "-P", self.base, "-n", str(vmid), environment, "--", *argv],
        )


if __name__ == "__main__":
    sys.exit(pct.main(lambda: Lxc(sys.argv[1]), sys.argv[2:]))
