"""The lines at the edges of every screen: where one is, how the link stands, which keys work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from textual import events

from console import model
from console.action import Action
from console.actions import ACTIONS, BY_NAME, key_name
from console.text import clock, duration, moment
from console.widgets.paint import Line, Painted, Part, fit, pad, spread, width_of

if TYPE_CHECKING:
    from console.app import StokerApp

LINK_SIGN = {
    "connected": ("●", "good"),
    "connecting": ("◌", "warn"),
    "reconnecting": ("◌", "bad"),
    "failed": ("✖", "bad"),
    "closed": ("○", "dim"),
    "replay": ("▶", "info"),
}


def top_line(
    state: model.State, name: str, screen: str, read_only: bool, now: float, width: int
) -> Line:
    """Target, link, age of the data, marks, clock."""
    old = model.age(state, now)
    # Whether one may act is another thing than how the link is, and has a mark of its own.
    word: str = "connected" if state.link.state == "read-only" else state.link.state
    sign, style = LINK_SIGN.get(word, ("○", "dim"))
    mute = word == "connected" and model.stale(state, now)
    if mute:
        sign, style, word = "◌", "bad", f"silent {duration(old)}"
    link: list[Part] = [(f"{sign} ", style), (word, style)]
    if state.link.state not in ("connected", "replay", "read-only"):
        link.append((f" {duration(now - state.link.since)}" if state.link.since else "", style))
    where: list[Part] = [(state.link.text, "dim")] if state.link.state == "connected" else []
    data: list[Part] = []
    if old is None:
        data = [("no data yet", "warn")]
    elif model.stale(state, now) and not mute:
        data = [(f"data {duration(old)} old", "bold bad")]
    only: list[Part] = [(" READ-ONLY ", "reverse info")] if read_only else []
    marks: list[Part] = [(" SIMULATED HARDWARE ", "reverse warn")] if state.simulated else []
    right: list[Part] = [
        (f"{screen} ", "dim"),
        (clock(model.agent_now(state, now)), "text"),
        (" ", "text"),
    ]
    head: list[Part] = [(" stoker ", "bold accent"), (name, "bold strong")]
    left = fit([head, link, only, data, marks, where], width - width_of(right) - 1)
    return spread(left, right, width)


class TopBar(Painted):
    """One line at the top of every screen."""

    app: StokerApp

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        app = self.app
        return [
            top_line(app.state, app.target_name, self.title, app.outbox.read_only, app.now(), width)
        ]


class ReplayBar(Painted):
    """The recording's clock: where it stands, how fast it goes; a click goes there."""

    app: StokerApp
    EDGE = 22

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        replay = self.app.replay
        if replay is None:
            return []
        begin, end = replay.recorded.begin, replay.recorded.end
        room = max(4, width - 2 * self.EDGE)
        share = (replay.at - begin) / max(1.0, end - begin)
        here = min(room - 1, int(share * room))
        sign = "▶" if replay.playing else "❚❚"
        left = f" {sign} {moment(replay.at, end)}:{clock(replay.at)[-2:]} ×{replay.speed:g}"
        right = f"{moment(begin, end)} – {moment(end, end)} "
        return [
            [
                (pad(left, self.EDGE), "bold info"),
                ("━" * here, "info"),
                ("●", "bold strong"),
                ("─" * (room - here - 1), "faint"),
                (pad(right, self.EDGE, ">"), "dim"),
            ]
        ]

    async def on_click(self, event: events.Click) -> None:
        """Go there."""
        replay = self.app.replay
        if replay is not None:
            room = max(4, self.size.width - 2 * self.EDGE)
            share = max(0.0, min(1.0, (event.x - self.EDGE) / room))
            begin, end = replay.recorded.begin, replay.recorded.end
            self.app.inbox.seek(begin + share * (end - begin))


OWN_GROUPS: Mapping[str, tuple[str, ...]] = {
    "fleet": ("Fleet", "Run"),
    "targets": ("Fleet", "Run"),
    "run": ("Run",),
}
"""Groups of actions that are a screen's own though they work everywhere."""

BESIDE = 5
"""Up to this rank the run's actions are another screen's own, too."""

MORE_GROUPS: Mapping[str, tuple[str, ...]] = {"run": ("Fleet",), "config": ("Fleet", "Run")}
"""Those that its key line has as well where there is room."""


WORDS_SHARE = 0.6
"""Of the line, so much may go to the words of other screens."""


_QUIT = BY_NAME["quit"]
"""It comes last: of what there is no room for, it is the one that most people know."""


class KeyBar(Painted):
    """The keys that do something here, the screen's own first; a click does the same.

    Where not all words fit, the screen's last ones are left out, told by ``?``; on a terminal too
    narrow for words, going to another screen is told by its letters alone.
    """

    app: StokerApp

    def __init__(self, screen: str) -> None:
        super().__init__()
        self.screen_name = screen
        self._spans: list[tuple[int, int, str]] = []

    def _rank(self, action: Action) -> int:
        """0 the screen's own, 1 going elsewhere, 2 other rooms', 3 not in the line."""
        screen = self.screen_name
        group = action.group
        if screen in action.screens or group in ("Replay", *OWN_GROUPS.get(screen, ())):
            return 2 if group == "Run" and screen != "run" and action.footer > BESIDE else 0
        if group == "Look":
            return 1
        return 2 if group in MORE_GROUPS.get(screen, ()) else 3

    def actions(self, rank: int) -> list[Action]:
        """The footer's actions of a rank on this screen."""
        here = [
            a
            for a in ACTIONS
            if a.footer
            and self._rank(a) == rank
            and (a.group != "Replay" or self.app.replay is not None)
            and (not self.app.outbox.read_only or self.app.outbox.allowed(a))
            and a.name != self.screen_name
            and (len(self.app.watches) > 1 or a.name not in ("targets", "target.next"))
            and (not a.screens or self.screen_name in a.screens)
        ]
        return sorted(here, key=lambda a: (a.group != "Replay", a.footer))

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        tail: list[Part] = [("?", "bold accent"), (" more ", "dim")]
        room = width - width_of(tail) - 1
        self._spans = [(width - width_of(tail), width, "help")]
        own, away, others = (self.actions(rank) for rank in range(3))
        whole = sum(len(key_name(a.keys[0]) + a.label) + 3 for a in (*own, *away)) + 1
        line: list[Part] = [(" ", "text")]
        if whole <= room:
            for action in (*own, *away, *others, _QUIT):
                self._put(line, action, room)
            return [spread(line, tail, width)]
        wide = sum(len(key_name(a.keys[0]) + a.label) + 3 for a in away)
        words = wide <= room * WORDS_SHARE
        keep = wide if words else sum(len(key_name(a.keys[0])) + 1 for a in away)
        for action in own:
            self._put(line, action, room - keep + 2)
        for action in away:
            self._put(line, action, room + 2, word=words)
        self._put(line, _QUIT, room + 1, word=words)
        text, style = line[-1]
        line[-1] = (text.rstrip(), style)  # its gap to the next key is not to be cut
        return [spread(line, tail, width)]

    def _put(self, line: list[Part], action: Action, room: int, *, word: bool = True) -> None:
        """One more key at the end of the line, where it fits whole."""
        allowed = self.app.outbox.allowed(action)
        parts: list[Part] = [
            (key_name(action.keys[0]), "bold accent" if allowed else "faint"),
            (f" {action.label}  " if word else " ", "text" if allowed else "faint"),
        ]
        at, wide = width_of(line), width_of(parts)
        if at + wide <= room:
            self._spans.append((at, at + wide - (2 if word else 1), action.name))
            line += parts

    async def on_click(self, event: events.Click) -> None:
        """Do what was clicked."""
        for start, end, name in self._spans:
            if start <= event.x < end:
                await self.app.run_action(f"app.act('{name}')")
                return
