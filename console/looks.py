"""When each target was last looked at: told to whoever comes back, and remembered so that no way
to lose a console loses more than a few seconds of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from console import prefs

if TYPE_CHECKING:
    from console.app import StokerApp

KEEP_S = 4.0
"""Between two times that it is remembered where things stood: SIGKILL gives no time for it."""


class Looks:
    """Of one app."""

    def __init__(self, app: StokerApp, *, remember: bool) -> None:
        self._app = app
        self._remember = remember
        self._writing: asyncio.Task[None] | None = None

    def greet(self) -> None:
        """Whoever looks at a target for the first time, or again after a gap, is told what
        happened meanwhile."""
        watch = self._app.front
        if watch.state.received is None or self._app.current_mode == "targets":
            return
        first, watch.looked = not watch.looked, True
        if not watch.greeted:
            watch.greeted = True
            from console import away  # not needed for the first frame

            if watch.replay is None and away.worth_telling(watch.seen, watch.state):
                from console.deeds import tell_away  # not needed for the first frame

                self._app.spawn(tell_away(self._app, asked=False))
        if first:
            self.keep_soon()

    def _standing(self) -> dict[str, prefs.Seen]:
        found: dict[str, prefs.Seen] = {}
        for watch in self._app.watches if self._remember else ():
            found |= watch.to_keep()
        return found

    def keep(self) -> None:
        """Remember where things stand, now."""
        if standing := self._standing():
            prefs.keep(seen=standing)

    def keep_soon(self) -> None:
        """The same beside the loop: a disk may take its time."""
        if self._writing is None and (standing := self._standing()):
            self._writing = self._app.spawn(asyncio.to_thread(prefs.keep, seen=standing))
            self._writing.add_done_callback(self._written)

    def _written(self, _task: asyncio.Task[None]) -> None:
        self._writing = None

    async def close(self) -> None:
        """The console ends: remember it for the last time."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self.keep()
