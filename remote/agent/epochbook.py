"""The epochs of the fleet: which one a start belongs to, and what the run is told of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from remote.agent import epochs
from remote.agent.run import Run
from remote.fleet.fleet import Fleet
from remote.generate import layout
from remote.journal import Journal
from remote.protocol import Epoch, Flags, FleetSpec
from remote.sglang.flags import difference

_CONFIGURED: Final = "configured"
"""Under this name the journal keeps the configuration's flags as the last epoch found them."""


class EpochBook:
    """Opens epochs, and keeps the run's own list of them."""

    def __init__(self, journal: Journal, run: Run, emit: Callable[..., object]) -> None:
        self._journal, self._run, self._emit = journal, run, emit
        self._telling: set[asyncio.Task[None]] = set()
        self._one_by_one = asyncio.Lock()

    def wanted(self, fleet: Fleet, configured: FleetSpec) -> Flags:
        """The flags a start is to use: those of the present epoch, unless the configuration has
        changed since, which then says what is wanted."""
        now = epochs.current(fleet.infos(), self._journal.epochs)
        said = self._journal.noted(_CONFIGURED, Flags)
        if now is None or (said is not None and said != configured.flags):
            return configured.flags
        return now.flags

    def open(
        self, flags: Flags, configured: FleetSpec, who: str, why: str, *, always: bool = False
    ) -> Epoch:
        """The newest epoch where it has these very flags, else a new one."""
        journal = self._journal
        journal.note(_CONFIGURED, configured.flags)
        newest = journal.epochs.get(max(journal.epochs, default=0))
        if newest is not None and newest.flags == flags and not always:
            return newest
        seen = [s.epoch for s in self._run.control.servers if s.epoch is not None]
        epoch = Epoch(id=journal.next_epoch(seen), since=time.time(), flags=flags, who=who, why=why)
        journal.put_epoch(epoch)
        changed = "the first one"
        if newest is not None:
            changed = "; ".join(difference(newest.flags, flags)) or "the same flags"
        self._emit("epoch", f"epoch {epoch.id}: {changed} ({why})", who=who)
        self.tell_soon()
        return epoch

    def tell_soon(self) -> None:
        """Tell the run, without waiting for its disk."""
        task = asyncio.create_task(self.tell())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def tell(self) -> None:
        """Note in the run directory what its epochs gave, and those that it has not heard of.

        Of an id that stands there twice the last line holds.
        """
        async with self._one_by_one:
            path = self._run.output / layout.EPOCHS
            known = dict(self._journal.epochs)

            def note() -> None:
                if not path.parent.is_dir():
                    return
                there = epochs.read(path)
                for number, epoch in sorted(known.items()):
                    if there.get(number) != epoch:
                        epochs.append(path, epoch)

            try:
                await asyncio.to_thread(note)
            except OSError as error:
                self._emit("run.epochs", f"{path}: {error.strerror}", level="warning")
