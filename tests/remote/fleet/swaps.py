"""Swaps to be tried: planned from a fleet that is ready, saved as the journal saves them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import msgspec
import pytest
from msgspec.structs import replace

from remote.fleet import plan
from remote.fleet.fleet import Fleet
from remote.protocol import Epoch, Flags, InFlight, Plan, Swap
from tests.remote.fleet.conftest import Site

OLD: Flags = {"mamba-scheduler-strategy": "extra_buffer", "mem-fraction-static": 0.85}


@dataclass
class Journal:
    """Saves like the journal: only what was encoded can be read back."""

    saved: list[bytes] = field(default_factory=list)
    stop_at: tuple[int, str, str] | None = None
    fleet_task: asyncio.Task[Swap] | None = None

    async def __call__(self, swap: Swap) -> None:
        self.saved.append(msgspec.json.encode(swap))
        if self.stop_at is not None and self.fleet_task is not None:
            step = plan.of(swap, self.stop_at[0], self.stop_at[1])  # type: ignore[arg-type]
            if step is not None and step.state == self.stop_at[2]:
                self.stop_at = None
                self.fleet_task.cancel()

    async def killed(self, fleet: Fleet, swap: Swap, old: Epoch, new: Epoch) -> None:
        """Begin a swap whose agent dies at ``stop_at``."""
        self.fleet_task = asyncio.create_task(fleet.swap(swap, old=old, new=new, save=self))
        with pytest.raises(asyncio.CancelledError):
            await self.fleet_task

    @property
    def last(self) -> Swap:
        return msgspec.json.decode(self.saved[-1], type=Swap)


def begin(planned: Plan, number: int = 1) -> Swap:
    assert planned.swap is not None
    return replace(planned.swap, id=number, to_epoch=2, who="ann", began=time.time())


async def ready_fleet(site: Site, **flags: object) -> tuple[Fleet, Epoch]:
    spec = site.spec(**{**OLD, **flags})  # type: ignore[arg-type]
    fleet = site.fleet(spec)
    epoch = site.epoch(spec, 1)
    await fleet.up(None, epoch=epoch, who="ann")
    await site.all_are(fleet, "ready")
    return fleet, epoch


async def swap_to(
    fleet: Fleet,
    epoch: Epoch,
    strategy: str,
    in_flight: InFlight = "drain",
    at_once: int = 1,
    **flags: object,
) -> tuple[Swap, Epoch, Plan]:
    typed: Flags = {name.replace("_", "-"): value for name, value in flags.items()}  # type: ignore[misc]
    planned = await fleet.plan(
        current=epoch,
        set_flags=typed,
        unset_flags=[],
        strategy=strategy,  # type: ignore[arg-type]
        gpus=None,
        in_flight=in_flight,
        at_once=at_once,
    )
    new, _ = fleet.new_flags(epoch.flags, typed, [])
    return begin(planned), Epoch(id=2, since=time.time(), flags=new, who="ann"), planned
