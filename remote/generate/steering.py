"""The run obeys ``control.json``: which servers get work, how much, and whether it goes on."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from remote.generate import control
from remote.generate.control import Control, ServerControl
from remote.generate.dispatch import Dispatcher
from remote.generate.server import Server
from remote.generate.settings import Settings

Stamp: TypeAlias = tuple[int, int, int]


class Steering:
    """Looks whether the file is another one, and passes on what is wanted of each server.

    ``wish`` is what is obeyed now; at the start what the command line said.
    """

    def __init__(
        self,
        settings: Settings,
        dispatcher: Dispatcher,
        *,
        spawn: Callable[[Any], Any],
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._dispatcher = dispatcher
        self._spawn, self._say = spawn, say
        self._path: Path = settings.output / control.NAME
        self.wish = Control(
            servers=[ServerControl(url) for url in settings.servers],
            concurrency=settings.concurrency,
        )
        # Alone, what stands there at the start is some earlier agent's word and does not count.
        self._obeyed = None if settings.agent is not None else self._stamp()
        self._broken: Stamp | None = None
        self._strange: set[str] = set()
        """Keys that nobody knows, told once each."""

    def _stamp(self) -> Stamp | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size

    def look(self, *, started: bool) -> bool:
        """Obey the file where it changed; whether it did. ``started``: requests are sent already,
        so that a process that the agent vouches for needs no trial."""
        stamp = self._stamp()
        if stamp is None or stamp == self._obeyed:
            return False
        try:
            wish, unknown = control.merged(self._path.read_bytes(), self.wish)
        except (OSError, control.ControlError) as error:
            if stamp == self._broken:  # a second look: nobody is still writing it
                self._obeyed = stamp
                why = error.strerror if isinstance(error, OSError) else error
                self._say(f"warning: {control.NAME} is not obeyed: {why}; mend it")
            self._broken = stamp
            return False
        self._obeyed = stamp
        for name in dict.fromkeys(unknown):
            if name in self._strange:
                continue
            self._strange.add(name)
            self._say(f"warning: {control.NAME}: {_unknown(name)}")
        before = {server.url: server for server in self.wish.servers}
        self.wish = wish
        for want in wish.servers:
            self._server(want, before.get(want.url, ServerControl(want.url)), started=started)
        servers = self._dispatcher.servers
        for url in set(servers) - {want.url for want in wish.servers}:
            servers[url].wanted = wish.concurrency
            servers[url].dispatch = "pause"  # no longer one of ours: what flies may land
        return True

    def _server(self, want: ServerControl, before: ServerControl, *, started: bool) -> None:
        dispatcher = self._dispatcher
        server = dispatcher.servers.get(want.url)
        if server is None:
            server = dispatcher.servers[want.url] = Server(want.url)
        server.gpu, server.epoch, server.wanted = want.gpu, want.epoch, self.wish.concurrency
        # The run's own word for a process says nothing against the file's.
        if want.process not in (before.process, server.process):
            # At the run's own start every server is tried by the run itself.
            vouched = want.tried and started and self._settings.agent is not None
            dispatcher.replaced(server, want.process, vouched=vouched)
        if want.max_running and want.max_running != before.max_running:
            server.said = want.max_running
        was, server.dispatch = server.dispatch, want.dispatch
        if server.breaks_off and want.dispatch != was and server.flying:
            aim = want.dispatch
            self._spawn(dispatcher.break_off(server, lambda: server.dispatch == aim))


def _unknown(name: str) -> str:
    where, _, key = name.rpartition(": ")
    known = ServerControl if where else Control
    near = difflib.get_close_matches(key, known.__struct_fields__, 1)
    return f"unknown key {key}" + (f"; is {near[0]} meant?" if near else "")
