"""The targets under watch, which of them is in front, and which of its screens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from console.screens.base import StokerScreen
from console.watch import Watch
from remote.protocol import Subscribe

if TYPE_CHECKING:
    from console.app import StokerApp

BETWEEN_S = 0.4
"""Between the first connections of targets in the background: an SSH server refuses those that
come all at once (OpenSSH's ``MaxStartups``)."""


class Targets:
    """Of one app: every screen but the list shows ``watch``, and actions mean it."""

    def __init__(self, app: StokerApp, watches: Sequence[Watch], name: str) -> None:
        self._app = app
        self.watches = list(watches)
        self.watch = next((w for w in self.watches if w.name == name), self.watches[0])
        self._built: dict[str, Watch] = {app.DEFAULT_MODE: self.watch}
        """For which target the screen of a mode was made."""

    def connect(self) -> None:
        """Bring all feeds to life, the one in front first."""
        self.watch.start()
        self._app.spawn(self.watch.live(self.wanted()))
        others = [watch for watch in self.watches if watch is not self.watch]
        for index, watch in enumerate(others):
            self._app.spawn(watch.live(watch.cursor(), wait=(index + 1) * BETWEEN_S))

    async def close(self) -> None:
        """End all feeds."""
        await asyncio.gather(*(watch.close() for watch in self.watches))

    def wanted(self) -> Subscribe:
        """What the screen in front needs pushed."""
        wanted = self.watch.cursor()
        stack = self._app.screen_stack
        screen = stack[0] if stack else None
        for source in screen.sources if isinstance(screen, StokerScreen) else ():
            ring = self.watch.state.logs.get(source)
            wanted.logs[source] = (
                (0, -1) if ring is None or ring.next < 0 else (ring.inode, ring.next)
            )
        return wanted

    def resubscribe(self) -> None:
        """Tell the feed what the screen in front needs."""
        self._app.spawn(self.watch.subscribe(self.wanted()))

    async def go(self, mode: str) -> None:
        """Bring a screen to the front, of the target in front; not away from under a dialog that
        somebody is at, which would stay there unseen."""
        app = self._app
        if mode == app.current_mode or app.leaving_now or app.covered:
            return
        if mode != "targets":
            if self._built.get(mode, self.watch) is not self.watch:
                app.remove_mode(mode)  # what it held was another target's
                app.add_mode(mode, app.MODES[mode])
            self._built[mode] = self.watch
        await app.switch_mode(mode)
        self.resubscribe()
        app.looks.greet()
        app.inbox.load_past()
        app.show()

    async def choose(self, watch: Watch) -> None:
        """Another target in front; the screen stays the same."""
        mode, before = self._app.current_mode, self.watch
        if watch is before or self._app.leaving_now or self._app.covered:
            return
        if mode == "targets":
            self.watch = watch
            self._app.soon()
            return
        await self.go("targets")
        self.watch = watch
        self._app.spawn(before.subscribe(before.cursor()))
        await self.go(mode)

    async def turn(self, by: int) -> None:
        """The next target in front, or the one before."""
        if len(self.watches) == 1:
            self._app.say("this console watches one target")
            return
        at = self.watches.index(self.watch) + by
        await self.choose(self.watches[at % len(self.watches)])
