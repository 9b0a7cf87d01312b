"""What changed between what a subscriber has and what is: pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from remote.protocol import (
    Alert,
    Epoch,
    GpuState,
    HostState,
    RunState,
    ServerInfo,
    ServerState,
    Snapshot,
    Swap,
    TargetSpec,
    Verdict,
)


class Picture(Struct, frozen=True):
    """Everything a snapshot can tell, whole."""

    target: TargetSpec | None = None
    infos: list[ServerInfo] = []
    servers: list[ServerState] = []
    gpus: list[GpuState] = []
    host: HostState = HostState()
    run: RunState = RunState()
    epochs: list[Epoch] = []
    swap: Swap | None = None
    alerts: list[Alert] = []
    verdict: Verdict | None = None
    journal: str = ""


class Keyed(Protocol):
    """A member of a list that is told GPU by GPU."""

    @property
    def gpu(self) -> int: ...


K = TypeVar("K", bound=Keyed)
T = TypeVar("T")


def full(now: Picture, time: float, seq: int) -> Snapshot:
    """A snapshot with every section."""
    sections = {name: getattr(now, name) for name in Picture.__struct_fields__}
    if now.target is None:
        del sections["target"]
    return Snapshot(time=time, seq=seq, full=True, **sections)


def changes(old: Picture | None, now: Picture, time: float, seq: int) -> Snapshot:
    """A snapshot with the sections that changed since ``old``; whole where nothing was sent yet,
    or where a GPU is no longer listed (a member can't be un-sent)."""
    if old is None or _fewer(old.infos, now.infos) or _fewer(old.gpus, now.gpus):
        return full(now, time, seq)

    def whole(a: T, b: T) -> T | UnsetType:
        return UNSET if a == b else b

    return Snapshot(
        time=time,
        seq=seq,
        target=UNSET if now.target in (None, old.target) else now.target,
        infos=members(old.infos, now.infos),
        servers=members(old.servers, now.servers),
        gpus=members(old.gpus, now.gpus),
        host=whole(old.host, now.host),
        run=whole(old.run, now.run),
        epochs=whole(old.epochs, now.epochs),
        swap=whole(old.swap, now.swap),
        alerts=whole(old.alerts, now.alerts),
        verdict=whole(old.verdict, now.verdict),
        journal=whole(old.journal, now.journal),
    )


def members(old: Sequence[K], now: Sequence[K]) -> list[K] | UnsetType:
    """The members that are new or changed; UNSET where none is."""
    before = {member.gpu: member for member in old}
    changed = [member for member in now if before.get(member.gpu) != member]
    return changed or UNSET


def _fewer(old: Sequence[Keyed], now: Sequence[Keyed]) -> bool:
    return bool({m.gpu for m in old} - {m.gpu for m in now})


def tidy(value: T) -> T:
    """The struct with its floats rounded to four significant places after the unit: measured
    numbers carry no more, and a snapshot in which nothing moved stays empty."""
    fields = {
        name: round(number, 4)
        for name in value.__struct_fields__  # type: ignore[attr-defined]
        if isinstance(number := getattr(value, name), float) and abs(number) < 1e8
    }
    return msgspec.structs.replace(value, **fields) if fields else value  # type: ignore[type-var]
