"""The lines at the edges of every screen: where one is, how the link stands, which keys work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events

from console import model
from console.actions import ACTIONS, Action, key_name
from console.text import clock, duration, moment
from console.widgets.paint import Line, Painted, Part, fit, pad, spread, width_of

if TYPE_CHECKING:
    from console.app import StokerApp

LINK_SIGN = {
    "connected": ("●", "good"),
    "connecting": ("◌", "warn"),
    "reconnecting": ("◌", "bad"),
    "read-only": ("●", "warn"),
    "failed": ("✖", "bad"),
    "closed": ("○", "dim"),
    "replay": ("▶", "info"),
}


def top_line(
    state: model.State, name: str, screen: str, read_only: bool, now: float, width: int
) -> Line:
    """Target, link, age of the data, marks, clock."""
    sign, style = LINK_SIGN.get(state.link.state, ("○", "dim"))
    link: list[Part] = [(f"{sign} ", style), (state.link.state, style)]
    old = model.age(state, now)
    if state.link.state not in ("connected", "replay", "read-only"):
        link.append((f" {duration(now - state.link.since)}" if state.link.since else "", style))
    where: list[Part] = [(state.link.text, "dim")] if state.link.state == "connected" else []
    data: list[Part] = []
    if old is None:
        data = [("no data yet", "warn")]
    elif model.stale(state, now):
        data = [(f"data {duration(old)} old", "bold bad")]
    marks: list[Part] = []
    if state.simulated:
        marks.append((" SIMULATED HARDWARE ", "reverse warn"))
    if read_only:
        marks += [(" ", "text")] * bool(marks) + [(" READ-ONLY ", "reverse info")]
    right: list[Part] = [
        (f"{screen} ", "dim"),
        (clock(model.agent_now(state, now)), "text"),
        (" ", "text"),
    ]
    head: list[Part] = [(" stoker ", "bold accent"), (name, "bold strong")]
    left = fit([head, link, data, marks, where], width - width_of(right) - 1)
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
        return [top_line(app.state, app.target_name, self.title, app.read_only, app.now(), width)]


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
            await self.app.seek(begin + share * (end - begin))


KEYS_TO_CHANGE = ("targets", "fleet", "run", "config")
"""Screens whose key line has what changes servers and run."""


class KeyBar(Painted):
    """The keys that do something here, most wanted first; a click does the same."""

    app: StokerApp

    def __init__(self, screen: str) -> None:
        super().__init__()
        self.screen_name = screen
        self._spans: list[tuple[int, int, str]] = []

    def actions(self) -> list[Action]:
        """The footer's actions on this screen, by rank."""
        here = [
            a
            for a in ACTIONS
            if a.footer
            and (a.group != "Replay" or self.app.replay is not None)
            and (not a.changes or self.app.replay is None)
            and a.name != self.screen_name
            and (len(self.app.watches) > 1 or a.name not in ("targets", "target.next"))
            and (not a.screens or self.screen_name in a.screens)
            and (a.group not in ("Fleet", "Run") or self.screen_name in KEYS_TO_CHANGE)
        ]
        return sorted(here, key=lambda a: a.footer)

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        line: list[Part] = [(" ", "text")]
        tail: list[Part] = [("?", "bold accent"), (" help ", "dim")]
        room = width - width_of(tail) - 1
        self._spans = [(width - width_of(tail), width, "help")]
        at = 1
        for action in self.actions():
            allowed = self.app.allowed(action)
            word = action.title.lower()
            parts: list[Part] = [
                (key_name(action.keys[0]), "bold accent" if allowed else "faint"),
                (f" {word}  ", "text" if allowed else "faint"),
            ]
            wide = width_of(parts)
            if at + wide > room:
                break
            self._spans.append((at, at + wide - 2, action.name))
            line += parts
            at += wide
        return [spread(line, tail, width)]

    async def on_click(self, event: events.Click) -> None:
        """Do what was clicked."""
        for start, end, name in self._spans:
            if start <= event.x < end:
                await self.app.run_action(f"app.act('{name}')")
                return
