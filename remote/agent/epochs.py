"""Config epochs: which flags come next, and what an epoch gave. Pure but for one file's append."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from remote.agent.reserved import work_of
from remote.protocol import Epoch, Flags, Progress, ServerInfo, ServerState, Swap
from remote.verdict import SAME

MEASURED_S = 240.0
"""Server-seconds at full load from which on an epoch's throughput may be held against another's."""
WARM_S = 10.0
"""A server counts towards its epoch only once it has been busy for so long."""
BUSY = 0.8
"""Busy: at least this share of the slots that it has is taken, or requests queue."""


def current(infos: Iterable[ServerInfo], epochs: Mapping[int, Epoch]) -> Epoch | None:
    """The epoch that most living servers run with; without any, the newest."""
    counts = Counter(i.epoch for i in infos if i.pid is not None and i.epoch in epochs)
    if counts:
        most = max(counts.values())
        return epochs[max(e for e, n in counts.items() if n == most and e is not None)]
    return epochs[max(epochs)] if epochs else None


def before(now: Epoch | None, epochs: Mapping[int, Epoch], swaps: Iterable[Swap]) -> list[Epoch]:
    """Epochs that one can go back to from ``now``: older, with other flags, and not one whose
    last swap failed or was taken back."""
    ended = {s.to_epoch: s.state for s in sorted(swaps, key=lambda swap: swap.id)}
    unfit = {epoch for epoch, state in ended.items() if state in ("failed", "rolled back")}
    return [
        e
        for e in epochs.values()
        if e.id not in unfit and (now is None or (e.id < now.id and e.flags != now.flags))
    ]


def slower(target: Epoch, now: Epoch | None) -> str:
    """What going from ``now`` to ``target`` gives up, by what both gave; empty where that is
    nothing, or where one of them was measured too briefly to tell."""
    if now is None or not target.tok_s_per_gpu or not now.tok_s_per_gpu:
        return ""
    if min(target.seconds, now.seconds) < MEASURED_S:
        return ""
    share = 1 - target.tok_s_per_gpu / now.tok_s_per_gpu
    if share < SAME:
        return ""
    return (
        f"epoch {target.id} gave {target.tok_s_per_gpu:,.0f} tok/s a GPU, the present one "
        f"{now.tok_s_per_gpu:,.0f}: slower by {share:.0%}"
    )


def delta(old: Flags, new: Flags) -> tuple[Flags, list[str]]:
    """(what to set, what to unset) to come from one set of flags to another."""
    return (
        {k: v for k, v in new.items() if k not in old or old[k] != v},
        [k for k in old if k not in new],
    )


class Tally:
    """Adds up, second by second, what busy and ready servers of each epoch do."""

    def __init__(self) -> None:
        self._busy_since: dict[int, tuple[int, float]] = {}
        """GPU → (pid, since when it has been busy without a break)."""

    def add(
        self,
        epochs: Mapping[int, Epoch],
        states: Iterable[ServerState],
        infos: Iterable[ServerInfo],
        progress: Progress | None,
        now: float,
        seconds: float,
    ) -> dict[int, Epoch]:
        """Epochs whose numbers moved in these ``seconds``."""
        by_gpu = {info.gpu: info for info in infos}
        moved: dict[int, Epoch] = {}
        for state in states:
            info = by_gpu.get(state.gpu)
            if info is None or not busy(state, info, progress):
                self._busy_since.pop(state.gpu, None)
                continue
            pid = info.pid or 0
            since = self._busy_since.get(state.gpu)
            if since is None or since[0] != pid:
                self._busy_since[state.gpu] = (pid, now)
                continue
            epoch = moved.get(info.epoch or 0) or epochs.get(info.epoch or 0)
            if epoch is not None and now - since[1] >= WARM_S:
                moved[epoch.id] = _weigh(epoch, state, info, seconds)
        return moved


def busy(state: ServerState, info: ServerInfo, progress: Progress | None) -> bool:
    """Whether a server does all that its flags let it do, so that its throughput tells of them.

    One that is held at fewer requests than it has slots, is paused or emptied, has a suspect to
    itself or gives no sign of life tells of something else. ``progress`` is that of a run that is
    alive.
    """
    if state.state != "ready" or not state.gen_tok_s or state.running is None:
        return False
    if state.silent_since is not None or state.alone or state.dispatch not in ("", "run"):
        return False
    if progress is not None and progress.status != "running":
        return False
    if state.queued:
        return True
    work = work_of(info, progress)
    offered = work.slots if work is not None and work.slots else None
    slots = info.max_running or offered
    if slots is None or (offered is not None and offered < slots):
        return False
    return state.running >= BUSY * slots


def _weigh(epoch: Epoch, state: ServerState, info: ServerInfo, seconds: float) -> Epoch:
    total = epoch.seconds + seconds

    def mean(old: float | None, new: float | None) -> float | None:
        if new is None:
            return old
        return new if old is None else old + (new - old) * seconds / total

    return replace(
        epoch,
        seconds=round(total, 3),
        tok_s_per_gpu=mean(epoch.tok_s_per_gpu, state.gen_tok_s),
        kv_usage=mean(epoch.kv_usage, state.kv_usage),
        mamba_usage=mean(epoch.mamba_usage, state.mamba_usage),
        max_running=info.max_running if info.max_running is not None else epoch.max_running,
    )


def rounded(epoch: Epoch) -> Epoch:
    """For the wire: an epoch whose numbers moved by less than can be seen has not changed."""

    def cut(value: float | None, digits: int) -> float | None:
        return None if value is None else float(f"{value:.{digits}g}")

    return replace(
        epoch,
        seconds=float(int(epoch.seconds / 60) * 60)
        if epoch.seconds > 600
        else round(epoch.seconds, -1),
        tok_s_per_gpu=cut(epoch.tok_s_per_gpu, 3),
        kv_usage=cut(epoch.kv_usage, 2),
        mamba_usage=cut(epoch.mamba_usage, 2),
    )


def read(path: Path) -> dict[int, Epoch]:
    """The epochs a run has seen: the last line of an id holds. Lines of others are passed over."""
    found: dict[int, Epoch] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            epoch = msgspec.json.decode(line, type=Epoch)
        except msgspec.DecodeError:
            continue
        found[epoch.id] = epoch
    return found


def append(path: Path, epoch: Epoch) -> None:
    """Add a line, after mending a last one that a crash has torn. Raises OSError."""
    with path.open("ab") as file:
        torn = file.tell() and path.read_bytes()[-1:] != b"\n"
        file.write((b"\n" if torn else b"") + msgspec.json.encode(epoch) + b"\n")
        file.flush()
        os.fsync(file.fileno())
