"""All that is known, once a second."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from remote.protocol.events import Alert, Verdict
from remote.protocol.generation import RunState
from remote.protocol.servers import GpuState, HostState, ServerInfo, ServerState
from remote.protocol.swaps import Epoch, Swap
from remote.protocol.target import TargetSpec


class Snapshot(Struct, tag="snapshot", frozen=True):
    """State, once a second. A section that did not change since the last one is left out.

    Lists keyed by ``gpu`` carry only the changed members unless ``full`` is set; the other
    sections are whole whenever they are there.
    """

    time: float
    seq: int
    full: bool = False
    target: TargetSpec | UnsetType = UNSET
    infos: list[ServerInfo] | UnsetType = UNSET
    servers: list[ServerState] | UnsetType = UNSET
    gpus: list[GpuState] | UnsetType = UNSET
    host: HostState | UnsetType = UNSET
    run: RunState | UnsetType = UNSET
    epochs: list[Epoch] | UnsetType = UNSET
    swap: Swap | UnsetType | None = UNSET
    alerts: list[Alert] | UnsetType = UNSET
    verdict: Verdict | UnsetType | None = UNSET
    journal: str | UnsetType = UNSET
    """Which journal the agent writes, by an id given when that was begun: what has another one is
    another thing, though it stands under the same name."""
