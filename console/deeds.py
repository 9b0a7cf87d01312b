"""What the actions of the registry do, where no screen does them in its own way.

Whatever changes a target asks first, by blast radius, and names the target it means: the one in
front when the key was pressed, whichever is in front when the answer is given.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console import away, corner, model, reckon, unsent
from console.action import Action, Danger
from console.actions import BY_NAME, command_line, danger, key_name
from console.config import ConfigError
from console.feed import FeedError
from console.notices import Notice
from console.text import duration
from console.watch import UP, Watch
from console.widgets.chart import SETS
from remote.protocol import (
    Decide,
    Differing,
    ReadEvents,
    Rollback,
    RunControl,
    RunStart,
)

if TYPE_CHECKING:
    from console.app import StokerApp


async def do(app: StokerApp, action: Action) -> None:
    """Do it, for the target in front."""
    if action.changes and action.name not in ("deploy", "run.go"):
        app.spawn(tell_unsent(app, app.front))
    match action.name:
        case "targets" | "fleet" | "logs" | "config" | "run" | "events":
            await app.targets.go(action.name)
        case "target.next":
            await app.targets.turn(1)
        case "wrong":
            none = [Notice("good", "nothing stands out")]
            title = f"What is wrong now on {app.target_name}"
            show_notices(app, title, lambda _: app.notices() or none, live=True)
        case "since":
            app.spawn(tell_away(app, asked=True))
        case "answers":
            from console.screens.answers import AnswersScreen

            await app.push_screen(AnswersScreen())
        case "incident":
            app.spawn(pack_incident(app))
        case "help":
            from console.screens.help import HelpScreen

            await app.push_screen(HelpScreen(app.current_mode))
        case "line":
            from console.screens.lines import LinesScreen

            await app.push_screen(LinesScreen())
        case "link.retry":
            connect_now(app)
        case "palette":
            app.action_command_palette()
        case "theme":
            app.wardrobe.turn()
        case "picture":
            save_picture(app)
        case "quit":
            app.exit()
        case "run.concurrency":
            from console import at_once

            at_once.ask(app)
        case "chart.in" | "chart.out":
            app.inbox.look(app.lookback.zoom(-1 if action.name == "chart.in" else 1))
        case "chart.back" | "chart.forward":
            app.inbox.look(app.lookback.move(-1 if action.name == "chart.back" else 1))
        case "chart.whole":
            if app.lookback.run() is None:
                app.say("no run here yet: nothing to show the whole of")
            app.inbox.look(app.lookback.all())
        case "chart.metric":
            app.plots = (app.plots + 1) % len(SETS)
        case _ if action.group == "Replay":
            await turn_clock(app, action.name)
        case "restart":
            from console.screens.restart import RestartScreen

            await app.push_screen(RestartScreen(app.front))
        case "deploy":
            await ask_deploy(app)
        case "run.go":
            await run_go(app)
        case "keep" | "take_back":
            await decide(app, action)
        case "rollback":
            await ask_rollback(app)
        case _ if action.request is not None:
            await confirm_and_send(app, action)
        case _ if action.screens and app.current_mode not in action.screens:
            where = " and ".join(sorted(action.screens))
            app.say(f"{action.title}: works on the {where} screen", "warning")


# --- Looking ---


async def tell_away(app: StokerApp, *, asked: bool) -> None:
    """What happened since the last look; without being asked only where there is something."""
    watch = app.front
    seen = watch.seen
    if seen is None or seen.time <= 0:
        if asked:
            app.say("this target was never looked at from here before")
        return
    await app.outbox.ask(ReadEvents(after=seen.event, limit=model.MAX_EVENTS), quiet=True)
    fresh = [e for e in watch.state.events if e.id > seen.event]
    account = away.account(seen, watch.state, fresh)
    if not account(1) or app.front is not watch:
        return

    def found(most: int) -> list[Notice]:
        return app.outbox.offered(account(most))

    if asked and app.covered:
        return  # asked twice, and there it is; or something else was opened meanwhile
    if app.covered:
        gone = duration(watch.state.time - seen.time)
        app.say(f"You were away {gone}: w tells what happened")
    else:
        show_notices(app, away.title(seen, watch.state), found)


def show_notices(
    app: StokerApp, title: str, found: Callable[[int], list[Notice]], *, live: bool = False
) -> None:
    """A panel of them, of one who gives so many at most, ``live`` asked anew each second; the key
    beside one goes on with its action."""
    from console.screens.away import AwayScreen

    def left(chosen: str | Notice | None) -> None:
        if isinstance(chosen, Notice):
            app.spawn(logs_at(app, chosen.gpu, chosen.since or None))
        elif chosen:
            app.spawn(app.action_act(chosen))

    app.push_screen(AwayScreen(title, found, live=live), left)


async def logs_at(app: StokerApp, gpu: int | None, at: float | None) -> None:
    """The logs around a moment, or the newest lines; of a server, or side by side."""
    from console.screens.logs import LogsScreen

    app.focus_gpu = gpu
    await app.targets.go("logs")
    screen = app.screen
    if at is not None and isinstance(screen, LogsScreen):
        screen.show_at(at)


async def pack_incident(app: StokerApp) -> None:
    """Everything a bug report needs, as one file in this folder: of the event chosen on the
    Events screen, or of the newest errors."""
    from console import incident
    from console.config import user_file
    from console.screens.events import EventsScreen

    watch = app.front
    toml = watch.target.file or user_file() if watch.target is not None else None
    chosen = app.screen.chosen if isinstance(app.screen, EventsScreen) else None
    app.say("packing …" if chosen is None else f"packing event {chosen.id}: {chosen.kind} …")
    try:
        path = await incident.bundle(watch.call, watch.state, Path.cwd(), chosen, toml)
    except OSError as error:
        app.say(f"the bundle was not written: {error}", "error")
    else:
        app.say(f"{path} is written; secrets were removed", keep=True)


def connect_now(app: StokerApp) -> None:
    """Try a lost link at once."""
    watch = app.front
    if watch.state.link.state in UP:
        app.say("the link is up")
    elif watch.feed is not None:
        watch.feed.hurry()
        app.say("trying again …")


def save_picture(app: StokerApp) -> None:
    """This screen as an SVG file in this folder."""
    try:
        app.say(f"saved {app.save_screenshot()}")
    except OSError as error:
        app.say(f"the picture was not saved: {error}", "error")


async def turn_clock(app: StokerApp, name: str) -> None:
    """Turn the clock of a recording."""
    replay = app.replay
    if replay is None:
        return
    step = (replay.recorded.end - replay.recorded.begin) / 50
    match name:
        case "replay.pause":
            replay.toggle()
        case "replay.faster" | "replay.slower":
            replay.faster(1 if name == "replay.faster" else -1)
        case _:
            app.inbox.seek(replay.at + (step if name == "replay.on" else -step))


# --- Changing ---


async def ask_deploy(app: StokerApp) -> None:
    """Bring the agent there, after a key."""
    action, watch = BY_NAME["deploy"], app.front
    line = command_line(action, watch.name, file=watch.file)

    async def deploy() -> None:
        if watch.feed is None:
            return
        app.say("deploying …")
        try:
            app.say(await watch.feed.deploy())
        except FeedError as error:
            app.say(str(error), "error")

    await _confirm(app, f"Deploy to {watch.name}", action, action.danger, line, "", deploy)


async def tell_unsent(app: StokerApp, watch: Watch) -> list[Differing]:
    """Settings of stoker.toml that the agent has not got, said once until they are others; none
    where nothing can be sent."""
    known, deploy = watch.state.target, BY_NAME["deploy"]
    if watch.target is None or known is None or not app.outbox.allowed(deploy):
        return []
    found: list[Differing] = []
    try:
        found = await asyncio.to_thread(unsent.unsent, watch.target, known)
        text = unsent.in_words(found, key_name(deploy.keys[0]))
    except ConfigError as error:
        text = str(error)
    if text != watch.told_unsent:
        corner.take_back(app, watch.told_unsent)
        watch.told_unsent = text
        if text:
            app.say(text, "warning", keep=True)
    return found


async def run_go(app: StokerApp) -> None:
    """Start the run, or lift its pause. A start with other settings than stoker.toml has wants the
    key once more."""
    watch = app.front
    new = [one.name for one in await tell_unsent(app, watch) if one.name.startswith("run.")]
    state = watch.state
    progress = state.progress
    if state.run.alive and progress is not None and progress.status == "paused":
        app.spawn(app.outbox.send(RunControl(do="resume"), watch))
    elif state.run.alive:
        app.say("the run is alive already")
    elif state.target is None:
        app.say("nothing is known of the target yet", "warning")
    elif new and new != watch.starts_without:
        watch.starts_without = new
        line = command_line(BY_NAME["run.go"], watch.name, file=watch.file)
        app.say(f"not started yet: `{line}` takes them; s again starts without them", "warning")
    else:
        app.spawn(app.outbox.send(RunStart(spec=state.target), watch))


async def confirm_and_send(app: StokerApp, action: Action) -> None:
    """Ask by blast radius, then send."""
    watch = app.front
    state = watch.state
    if state.target is None or action.request is None:
        app.say("nothing is known of the target yet", "warning")
        return
    scope = None
    if watch.focus_gpu is not None and action.name in ("up", "down"):
        scope = [watch.focus_gpu]
    if pointless := reckon.pointless(state, action.name, scope or state.numbers):
        app.say(pointless)
        return
    request = action.request(state.target, scope)
    numbers = state.numbers
    count = len(scope or numbers)
    how = danger(action, count, len(numbers))
    if how == "none":
        if action.name == "run.pause":
            app.say(pause_costs(state))
        app.spawn(app.outbox.send(request, watch))
        return
    line = command_line(action, watch.name, gpus=scope, file=watch.file)
    where = (
        f"GPU {scope[0]} of"
        if scope
        else f"all {count} servers of"
        if count > 1
        else "the server of"
    )
    question = f"{action.title}: {where if action.group == 'Fleet' else ''} {watch.name}"
    cost = ""
    if action.name == "down":
        cost = reckon.swap_cost(state, scope or numbers)
    elif action.name in ("run.retry", "run.retry_aside"):
        cost = reckon.retry_means(state, aside=action.name == "run.retry_aside")
    elif action.name == "run.stop":
        cost = reckon.stop_cost(state)
    question = " ".join(question.split())
    send = functools.partial(app.outbox.send, request, watch)
    await _confirm(app, question, action, how, line, cost, send)


async def ask_rollback(app: StokerApp) -> None:
    """Choose an epoch to go back to, look at its plan, confirm."""
    from console.screens.rollback import RollbackScreen, choices

    watch = app.front
    spec = watch.state.target
    if spec is None:
        app.say("nothing is known of the target yet", "warning")
        return
    if not choices(watch.state):
        app.say("there is no other epoch to go back to", "warning")
        return

    def decided(request: Rollback | None) -> None:
        if request is not None:
            app.spawn(app.outbox.send(request, watch))

    await app.push_screen(RollbackScreen(watch, spec), decided)


def pause_costs(state: model.State) -> str:
    """What a pause does, in one line."""
    flying = state.progress.in_flight if state.progress is not None and state.run.alive else 0
    return f"pause: {flying:,} in flight end and are kept, then GPUs idle; s goes on"


async def decide(app: StokerApp, action: Action) -> None:
    """Keep or take back the new flags of the swap under way, after a key."""
    watch = app.front
    state = watch.state
    swap, keep = state.swap, action.name == "keep"
    if swap is None or swap.state != "doing":
        app.say(f"{action.title}: no swap is under way", "warning")
        return
    if keep and not model.awaits_decision(swap):
        app.say(f"{action.title}: nothing waits for it, the swap goes on by itself", "warning")
        return
    servers = model.touched(swap)
    cost = "" if keep else reckon.swap_cost(state, servers)
    how: Danger = "word" if not keep and len(servers) > 1 else action.danger
    line = command_line(action, watch.name, file=watch.file)
    many = f" from {len(servers)} servers" if not keep and len(servers) > 1 else ""
    question = f"{action.title}: epoch {swap.to_epoch}{many} of {watch.name}"
    request = Decide(keep=keep)
    await _confirm(app, question, action, how, line, cost, lambda: app.outbox.send(request, watch))


async def _confirm(
    app: StokerApp,
    question: str,
    action: Action,
    how: Danger,
    line: str,
    cost: str,
    do: Callable[[], Coroutine[Any, Any, object]],
) -> None:
    """Ask, then do it beside the screen."""
    from console.screens.confirm import Confirm

    def decided(yes: bool | None) -> None:
        if yes:
            app.spawn(do())

    await app.push_screen(Confirm(question, action, how, line, cost), decided)
