"""Tasks that go on by themselves; a fault in one becomes an event, never a silence."""

from __future__ import annotations

import traceback
from pathlib import Path

from remote.fleet.outside import Emit, FleetError
from remote.tasks import Tasks


class Background(Tasks):
    """The fleet's own tasks, held until they end."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(self.fault)
        self._emit = emit
        self._told: set[str] = set()

    def fault(self, error: BaseException) -> None:
        """Tell of it, once for each place where it comes from."""
        if isinstance(error, FleetError):
            self._emit("fleet", str(error), level="error")
            return
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        if where not in self._told:
            self._told.add(where)
            text = f"fault in the fleet at {where}: {type(error).__name__}: {error}"
            self._emit("fleet.fault", text, level="error")
