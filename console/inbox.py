"""What comes in from the targets: taken to the screen, to the past, and to whoever should know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console import calls, model
from console.watch import UP, Watch
from remote.protocol import Event, Happened, Message, Snapshot, TargetSpec

if TYPE_CHECKING:
    from console.app import StokerApp


class Inbox:
    """Of one app, for all its targets."""

    def __init__(self, app: StokerApp) -> None:
        self._app = app
        self._played = 0.0
        """The time of a recording whose past was read last."""
        self._reading = False
        self._turns = 0
        """How often the clock of a recording was turned."""
        self._turning = False

    def heard(self, watch: Watch, message: Message) -> None:
        """A target has taken a message in."""
        app = self._app
        if isinstance(message, Snapshot):
            app.looks.greet()
            self._keep_past(watch, message)
            self.load_past()
            if watch is app.front and isinstance(message.target, TargetSpec):
                from console.deeds import tell_unsent  # not needed for the first frame

                app.spawn(tell_unsent(app, watch))
        if isinstance(message, Happened):
            self._react(watch, message.event)
        if watch is app.front and isinstance(message, Snapshot | Happened):
            app.soon()

    def linked(self, watch: Watch, before: str) -> None:
        """A target's link has changed from the state it had ``before``."""
        state = watch.state.link.state
        if state in UP and before != state:
            watch.past_due = watch.replay is None  # a recording is read at each of its times
            self.load_past()
        if watch is self._app.front:
            self._app.soon()

    def _react(self, watch: Watch, event: Event) -> None:
        """Call whoever should know of it."""
        app = self._app
        there = model.agent_now(watch.state, app.now())
        known = event.id <= watch.rung
        if watch.replay is not None or known or not calls.worth_it(event, watch.began, there):
            return
        watch.rung = event.id
        if watch is not app.front:
            severity = {"error": "error", "warning": "warning"}.get(event.level, "information")
            app.say(f"{watch.name}: {event.text}", severity)
        app.ringer.call(f"{watch.name}: {event.text}")

    # --- the past ---

    def _keep_past(self, watch: Watch, snapshot: Snapshot) -> None:
        """What is now becomes what was; a recording that is played fast is read instead."""
        if watch.replay is None:
            if watch.lookback.add(watch.state) and watch is self._app.front:
                self.look(changed=True)
        elif snapshot.time != self._played and not self._reading:
            self._played = snapshot.time
            self._reading = True
            self._app.spawn(self._past(watch))

    def load_past(self) -> None:
        """Fetch what was before this console, of the target that is looked at. Its clock has to be
        known: the past ends where its first snapshot stands."""
        watch = self._app.front
        looked_at = self._app.current_mode != "targets"
        if watch.past_due and watch.state.received is not None and looked_at:
            watch.past_due = False
            self._app.spawn(self._past(watch))

    async def _past(self, watch: Watch) -> None:
        try:
            await watch.lookback.load()
        finally:
            self._reading = False
        self._app.soon()

    def look(self, changed: bool) -> None:
        """Load another window of the past beside the screen, where it is another one."""
        watch = self._app.front

        async def load() -> None:
            await watch.lookback.load_window()
            self._app.soon()

        if changed:
            self._app.spawn(load())

    def seek(self, at: float) -> None:
        """Go to a time of the recording, charts and all. The clock moves at once; reading what was
        there then follows beside the keys, for the last of several times only."""
        replay = self._app.replay
        if replay is not None:
            replay.turn(at)
            self._turns += 1
            if not self._turning:
                self._turning = True
                self._app.spawn(self._turn(self._app.front))

    async def _turn(self, watch: Watch) -> None:
        try:
            shown = -1
            while watch.replay is not None and shown != self._turns:
                shown = self._turns
                await watch.replay.seek(watch.replay.at)
                if shown == self._turns:
                    watch.lookback.clear()
                    await self._past(watch)
        finally:
            self._turning = False
