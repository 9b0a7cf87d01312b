"""A process that serves the lab."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from pathlib import Path

from console.lab.errors import LabFailedError


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
        """The port it listens on. Raises LabFailedError."""
        assert self.process.stdout is not None
        try:
            line = await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), timeout)
            return int(line)
        except (ValueError, TimeoutError):
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            why = last[0] if last else "it said nothing"
            raise LabFailedError(f"the lab's {self.name} did not start: {why}") from None

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
