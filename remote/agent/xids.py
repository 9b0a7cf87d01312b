"""The driver's reports of the cards' troubles: told as events, and kept to explain a death."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from remote.kernel_log import KernelLog, Xid

EXPLAINS_S = 60.0
"""A server that fails within this time of a report on its card failed because of it."""


class Xids:
    """What was reported of each card lately. ``buses``: PCI address → card."""

    def __init__(self, emit: Callable[..., object], buses: Mapping[str, int]) -> None:
        self._emit, self._buses = emit, buses
        self._log = KernelLog()
        self._kept = list(self._log.earlier)

    def look(self) -> list[Xid]:
        """What has come since the last look. Blocks for no longer than reading takes."""
        return self._log.read()

    def tell(self, new: list[Xid]) -> set[int]:
        """Put reports into the journal; the cards of ours that something happened to.

        The kernel's log is the host's: cards that are not in this container are passed over.
        """
        cards: set[int] = set()
        for xid in new:
            gpu = self._buses.get(xid.bus)
            if gpu is None and self._buses:
                continue
            whose = f"GPU {gpu} (PCI {xid.bus})" if gpu is not None else f"the card at {xid.bus}"
            level = ("warning" if xid.again else "error") if xid.is_cause else "info"
            self._emit("gpu.xid", f"{whose}: {xid.words}", gpu=gpu, level=level)
            if xid.is_cause and gpu is not None:
                cards.add(gpu)
        self._kept = [*self._kept, *new][-200:]
        return cards

    def lately(self, gpu: int) -> Xid | None:
        """What may have killed a server on this card just now: the worst report, then the first."""
        since = time.time() - EXPLAINS_S
        found = [
            xid
            for xid in self._kept
            if self._buses.get(xid.bus) == gpu and xid.is_cause and xid.at >= since
        ]
        return min(found, key=lambda xid: (xid.again, xid.at), default=None)

    def close(self) -> None:
        """Let go of the kernel log."""
        self._log.close()
