"""What a run is to do: the desired state that its ``control.json`` holds, changed and written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from remote.fleet.outside import Dispatch
from remote.generate import control
from remote.generate.control import Control, ServerControl
from remote.protocol import Progress

OBEYED_S = 2.5
"""A progress file this much younger than an order was written by a run that knows the order, where
it does not say which it obeys (one of older code): it looks at ``control.json`` each second and
rewrites its progress at least every two."""


class Orders:
    """The desired state of the run in one folder, which may become another one."""

    def __init__(
        self,
        url: Callable[[int], str],
        folder: Callable[[], Path],
        emit: Callable[..., object],
    ) -> None:
        self._url, self._folder, self._emit = url, folder, emit
        self.control = Control()
        self._ordered: dict[int, tuple[int, float]] = {}
        """GPU → version of ``control.json`` that last changed its dispatch, and when (Unix s)."""
        self._write_lock = asyncio.Lock()
        self._writing: set[asyncio.Task[None]] = set()

    def take(self, known: Control | None, *, moved: bool) -> None:
        """What stands in the run directory, which is another one than before where it moved."""
        if not moved and self.control.servers:
            return
        if known is not None:
            self.control = known
            gpus = [s.gpu for s in known.servers if s.gpu is not None]
            self._ordered = dict.fromkeys(gpus, (known.version, time.time()))
        elif moved:
            self.control = replace(self.control, dispatch="run", version=0)

    def obeyed(self, gpu: int, progress: Progress) -> bool:
        """Whether a run that says this of itself knows the last order for a server."""
        version, at = self._ordered.get(gpu, (0, 0.0))
        if progress.control_version:
            return progress.control_version >= version
        return progress.time >= at + OBEYED_S

    def dispatch(self, gpu: int, do: Dispatch) -> None:
        """What the run may do with one server from now on."""
        self.change(gpu, dispatch=do)

    def change(self, gpu: int, **fields: Any) -> None:
        """Change what is said of one server. Of one that the run has never heard of, only that it
        may be used, or that it is there."""
        url = self._url(gpu)
        servers = list(self.control.servers)
        for at, old in enumerate(servers):
            if old.gpu == gpu or old.url == url:
                new = replace(old, url=url, gpu=gpu, **fields)
                if new == old:
                    return
                servers[at] = new
                break
        else:
            if "process" not in fields and fields.get("dispatch") != "run":
                return
            servers.append(ServerControl(url=url, gpu=gpu, **fields))
            servers.sort(key=lambda s: (s.gpu is None, s.gpu))
        self.set(servers=servers)
        if "dispatch" in fields:
            self._ordered[gpu] = (self.control.version, time.time())

    def set(self, **fields: Any) -> None:
        """Change the desired state and have it written, in order, off the loop."""
        self.control = replace(self.control, **fields, version=self.control.version + 1)
        task = asyncio.get_running_loop().create_task(self._write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self) -> None:
        async with self._write_lock:
            wanted, output = self.control, self._folder()
            try:
                await asyncio.to_thread(_write_where_there_is_a_folder, output, wanted)
            except OSError as error:
                text = f"{output / control.NAME}: {error.strerror}; trying again"
                self._emit("run.control", text, level="error")
                await asyncio.sleep(2)
                if wanted is self.control:
                    self.set()

    async def written(self) -> None:
        """Until the desired state is on disk."""
        while self._writing:
            await asyncio.gather(*self._writing, return_exceptions=True)


def _write_where_there_is_a_folder(output: Path, wanted: Control) -> None:
    if output.is_dir():
        control.write(output, wanted)
