"""How many requests are in flight on each server: asked for, judged, sent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from console import reckon
from console.actions import BY_NAME, command_line
from console.screens.ask import AskLine
from console.screens.confirm import Confirm
from remote.protocol import MOST_AT_ONCE, RunControl

if TYPE_CHECKING:
    from console.app import StokerApp


def ask(app: StokerApp) -> None:
    """Ask for the number, and once more where it gives slots away or only fills queues."""
    state = app.state
    slots = reckon.slots_each(state)
    now = f"now {state.run.concurrency}" + (f", a server runs {slots}" if slots else "")
    question = f"Requests at once on each server ({now})"
    app.push_screen(AskLine(question, 'a number, or "auto"'), lambda text: _take(app, text))


def _take(app: StokerApp, text: str | None) -> None:
    word = (text or "").strip()
    if not word:
        return
    if word != "auto" and not (word.isdecimal() and 0 < int(word) <= MOST_AT_ONCE):
        app.say(f"{word!r} is neither a number from 1 to {MOST_AT_ONCE:,} nor auto", "error")
        return
    watch, progress = app.front, app.state.progress
    do: Literal["pause", "resume"] = "resume"
    if progress is not None and progress.status == "paused":
        do = "pause"
    request = RunControl(do=do, concurrency="auto" if word == "auto" else int(word))

    def send(yes: bool | None) -> None:
        if yes:
            app.spawn(app.outbox.send(request, watch))

    cost = reckon.at_once_cost(app.state, request.concurrency)
    if not cost:
        send(True)
        return
    action = replace(BY_NAME["run.concurrency"], verb=f"run {do} --concurrency {word}")
    line = command_line(action, watch.name, file=watch.file)
    question = f"{word} requests at once on each server of {watch.name}?"
    app.push_screen(Confirm(question, action, "key", line, cost), send)
