"""Servers that the run keeps for one suspect at a time, seen beside what the fleet tells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from remote.protocol import Progress, ServerInfo, ServerState, ServerWork


def work_of(info: ServerInfo, progress: Progress | None) -> ServerWork | None:
    """The run's own account of a server; None where it has none."""
    known = progress.servers.items() if progress is not None else ()
    return next((work for url, work in known if url.endswith(f":{info.port}")), None)


class Reserved:
    """Marks those servers, and begins their steady time anew once they are free again: their slots
    have to fill before their throughput can be held against the others'."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        """GPU → when it was last seen reserved, Unix s."""

    def look(
        self,
        states: Iterable[ServerState],
        infos: Sequence[ServerInfo],
        progress: Progress | None,
        now: float,
    ) -> list[ServerState]:
        """The states with what the run says of them; ``progress`` is None where none is alive."""
        by_gpu = {info.gpu: info for info in infos}
        return [self._one(state, by_gpu.get(state.gpu), progress, now) for state in states]

    def _one(
        self, state: ServerState, info: ServerInfo | None, progress: Progress | None, now: float
    ) -> ServerState:
        work = work_of(info, progress) if info is not None else None
        if work is not None and work.alone:
            self._last[state.gpu] = now
            return replace(state, alone=True, steady_since=None)
        free = self._last.get(state.gpu)
        if free is None or state.steady_since is None:
            return state
        return replace(state, steady_since=max(state.steady_since, free))
