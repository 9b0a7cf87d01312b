"""The Textual app: screens, keys, themes, and the life of the feed.

State lives here (:attr:`StokerApp.state`, made by :func:`console.model.reduce`); screens and
widgets read it and paint. The feed connects only after the first frame is on the screen, and
nothing here waits for it: a dead link freezes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider

from console import away, clipboard, model, prefs, themes
from console.actions import ACTIONS, BY_NAME, Action, Danger, command_line, danger
from console.config import ConfigError
from console.feed import Connect, Feed, FeedError, connect_agent
from console.lookback import Lookback
from console.replay import Recorded, ReplayFeed
from console.screens.base import StokerScreen
from console.screens.fleet import FleetScreen
from console.text import visible
from console.widgets.chart import SETS, Plot, Plotter
from remote.protocol import (
    Decide,
    Done,
    Events,
    Happened,
    Message,
    Plan,
    ReadEvents,
    Request,
    Result,
    RunControl,
    RunStart,
    Snapshot,
    Subscribe,
)

if TYPE_CHECKING:
    from console.config import Settings, Target


def _later(name: str) -> Callable[[], StokerScreen]:
    """A screen that is imported when it is first wanted: the first frame does not wait for it."""

    def make() -> StokerScreen:
        module = importlib.import_module(f"console.screens.{name}")
        screen: StokerScreen = getattr(module, f"{name.capitalize()}Screen")()
        return screen

    return make


class Actions(Provider):
    """Every action of the registry in the command palette."""

    def _offers(self) -> list[tuple[Action, str]]:
        keys = [(a, f"{a.title}  ({a.group.lower()})") for a in ACTIONS if a.name != "palette"]
        app = self.app
        return [(a, text) for a, text in keys if not isinstance(app, StokerApp) or app.allowed(a)]

    async def discover(self) -> Hits:
        """All of them, before anything is typed."""
        for action, text in self._offers():
            yield DiscoveryHit(text, self._do(action), help=action.help)

    async def search(self, query: str) -> Hits:
        """Those whose title or help matches."""
        matcher = self.matcher(query)
        for action, text in self._offers():
            score = matcher.match(f"{text} {action.help}")
            if score > 0:
                yield Hit(score, matcher.highlight(text), self._do(action), help=action.help)

    def _do(self, action: Action) -> Any:
        async def do() -> None:
            await self.app.run_action(f"app.act('{action.name}')")

        return do


class MistakeError(Exception):
    """An error of ours that ends the app, told in one line instead of a page of local values."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"stoker: {type(error).__name__}: {error} (a mistake of ours)")
        self.__cause__ = error

    def __rich__(self) -> Text:
        return Text(" ".join(str(self).split()) + "; --debug shows where")


class StokerApp(App[None], inherit_bindings=False):
    """The console on one target."""

    CSS_PATH = themes.folder() / "app.tcss"
    TITLE = "stoker"
    COMMANDS: ClassVar[Any] = {Actions}
    MODES: ClassVar[Any] = {
        "fleet": FleetScreen,
        **{name: _later(name) for name in ("logs", "config", "run", "events")},
    }
    DEFAULT_MODE = "fleet"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(",".join(a.keys), f"act('{a.name}')", a.title, show=False, id=a.name)
        for a in ACTIONS
    ]
    BINDINGS += [
        Binding("escape", "let_go", "back", show=False),
        *(Binding(str(n), f"choose_gpu({n})", "focus GPU", show=False) for n in range(10)),
    ]

    def __init__(
        self,
        connect: Connect,
        *,
        name: str = "",
        read_only: bool = False,
        theme: str = "",
        remember: bool = True,
        strict: bool = False,
        tracebacks: bool = False,
    ) -> None:
        super().__init__()
        self.target_name = name
        self.strict = strict
        """Whether a part that cannot be painted ends the app: for tests."""
        self.tracebacks = tracebacks
        self.read_only_asked = read_only
        self.state = model.State()
        self.lookback = Lookback(
            lambda request: self.ask(request, quiet=True), lambda: self.state.time or self.now()
        )
        self.plots = 0
        self.plotter = Plotter()
        self.focus_gpu: int | None = None
        self.hidden_swap: int | None = None
        self.animation_level = "none"
        self._connect = connect
        self._feed: Feed | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._shown_at = 0.0
        self._due = False
        self._remember = remember
        self._prefs = prefs.read() if remember else prefs.Prefs()
        self._wish = theme or self._prefs.theme
        self._seen = self._prefs.seen.get(name)
        """Where things stood when this target was last looked at."""
        self._greeted = False
        self._played = 0.0
        self._reading = False

    # --- life ---

    def on_mount(self) -> None:
        """Themes, then the first frame, then the feed."""
        found, problems = themes.load_all()
        for theme in found:
            self.register_theme(theme)
        self.theme_names = [t.name for t in found]
        if self._wish in self.theme_names:
            self.theme = self._wish
        elif self.theme_names:
            self.theme = self.theme_names[0]
        for problem in problems:
            self.say(f"theme left out: {problem}", "warning")
        self.theme_changed_signal.subscribe(self, self._recolour)
        self.set_interval(0.5, self._age)
        self.call_after_refresh(self._start)

    def _start(self) -> None:
        self._feed = self._connect(self._heard, self._linked)
        self.spawn(self._live(self._feed))

    async def _live(self, feed: Feed) -> None:
        with contextlib.suppress(FeedError):
            await feed.subscribe(self.wanted())
        try:
            await feed.run()
        except FeedError as error:
            self._linked(model.Link("failed", str(error), self.now()))
        except Exception as error:  # a bug in the link must show, and must not take the screen down
            self._linked(model.Link("failed", f"{type(error).__name__}: {error}", self.now()))

    async def on_unmount(self) -> None:
        """Leave: remember, close the feed, end the drawing process."""
        self._keep()
        if self._feed is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._feed.close(), 3)
        for task in list(self._tasks):
            task.cancel()
        await self.plotter.close()

    def _keep(self) -> None:
        if not self._remember:
            return
        self._prefs.theme = self.theme
        if self.state.received is not None and self.target_name and self.replay is None:
            progress = self.state.progress
            self._prefs.seen[self.target_name] = prefs.Seen(
                self.state.time,
                self.state.events[-1].id if self.state.events else 0,
                progress.completed if progress else 0,
                progress.rate_per_sec if progress else 0.0,
                model.eta(self.state, self.state.time).at,
            )
        prefs.write(self._prefs)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run something beside the screen; it is cancelled when the console ends."""
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _handle_exception(self, error: Exception) -> None:
        """A mistake ends the app; secrets could stand among the locals that Textual prints."""
        own = error if self.tracebacks or isinstance(error, MistakeError) else MistakeError(error)
        super()._handle_exception(own)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if self.strict:
                self._handle_exception(error if isinstance(error, Exception) else RuntimeError())
            else:
                self.say(f"this went wrong: {error!r}", "error")

    # --- what comes in ---

    @staticmethod
    def now() -> float:
        """The console's clock."""
        return time.time()

    def _heard(self, message: Message) -> None:
        self.state = model.reduce(self.state, message, self.now())
        if isinstance(message, Snapshot):
            if not self._greeted:
                self._greeted = True
                if self.replay is None and away.worth_telling(self._seen, self.state):
                    self.spawn(self.tell_away(asked=False))
            self._keep_past(message)
        if isinstance(message, Snapshot | Happened):
            self._soon()
        if isinstance(message, Happened):
            self._react(message)

    def _keep_past(self, snapshot: Snapshot) -> None:
        """What is now becomes what was; a recording that is played fast is read instead."""
        if self.replay is not None:
            if snapshot.time != self._played and not self._reading:
                self._played = snapshot.time
                self._reading = True
                self.spawn(self._past())
            return
        self.lookback.add(self.state)

    def _react(self, message: Happened) -> None:
        event = message.event
        if event.level == "error" and event.time > model.agent_now(self.state, self.now()) - 10:
            self.bell()
            if not self.app_focus:
                self.call_out(f"{self.target_name}: {event.text}")

    def call_out(self, text: str) -> None:
        """A desktop notification through the terminal, for one who looks elsewhere.

        OSC 9 is iTerm2's, WezTerm's and Windows Terminal's, OSC 777 urxvt's, foot's and VTE's;
        others ignore both.
        """
        if self._driver is not None and not self.is_headless:
            shown = visible(text, 200).replace(";", ",")
            self._driver.write(f"\x1b]9;stoker {shown}\a\x1b]777;notify;stoker;{shown}\a")

    def _linked(self, link: model.Link) -> None:
        before = self.state.link.state
        if not link.since:
            link = replace(link, since=self.now())
        self.state = model.reduce(self.state, link, self.now())
        if link.state in ("connected", "read-only", "replay") and before != link.state:
            self.spawn(self._past())
        self._soon()

    async def _past(self) -> None:
        """Fill cards and charts with what was before this console."""
        try:
            await self.lookback.load()
        finally:
            self._reading = False
        self._soon()

    def _look(self, changed: bool) -> None:
        """Load another window beside the screen."""

        async def load() -> None:
            await self.lookback.load_window()
            self._soon()

        if changed:
            self.spawn(load())

    # --- what goes out ---

    @property
    def read_only(self) -> bool:
        """Whether this console may only look."""
        return self.read_only_asked or self.state.link.state in ("read-only", "replay")

    def allowed(self, action: Action) -> bool:
        """Whether the action may be done now."""
        if action.group == "Replay":
            return self.replay is not None
        if not action.changes:
            return True
        if action.name == "deploy":  # the very thing that mends a link without an agent
            return not self.read_only_asked and self.state.link.state != "replay"
        return not self.read_only and self.state.link.state == "connected"

    @property
    def replay(self) -> ReplayFeed | None:
        """The recording that is played, where it is one."""
        return self._feed if isinstance(self._feed, ReplayFeed) else None

    def refusal(self, action: Action) -> str:
        """Why an action is not allowed, in one line."""
        if action.group == "Replay":
            return f"{action.title}: this is live, no recording"
        if self.read_only_asked:
            return f"{action.title}: this console was opened read-only"
        if self.read_only:
            return f"{action.title}: {self.state.link.text or 'this console may only look'}"
        return f"{action.title}: the link is {self.state.link.state}; nothing was sent"

    async def ask_or_raise(self, request: Request, timeout: float = 30) -> Result:
        """The result. Raises :class:`FeedError` with one line for people."""
        if self._feed is None:
            raise FeedError("not connected yet")
        return await self._feed.call(request, timeout)

    async def ask(
        self, request: Request, *, quiet: bool = False, timeout: float = 30
    ) -> Result | None:
        """The result, or None where it was not done; the reason is told unless ``quiet``."""
        try:
            result = await self.ask_or_raise(request, timeout)
        except FeedError as error:
            if not quiet:
                self.say(str(error), "error")
            return None
        if isinstance(result, Events):
            self.state = model.with_events(self.state, result.events)
        return result

    def wanted(self) -> Subscribe:
        """What the screen in front needs pushed."""
        logs: dict[str, tuple[int, int]] = {}
        screen = self.screen_stack[0] if self.screen_stack else None
        for source in screen.sources if isinstance(screen, StokerScreen) else ():
            ring = self.state.logs.get(source)
            logs[source] = (0, -1) if ring is None or ring.next < 0 else (ring.inode, ring.next)
        last = self.state.events[-1].id if self.state.events else 0
        return Subscribe(snapshots=True, events_after=last, logs=logs)

    def resubscribe(self) -> None:
        """Tell the feed what the screen in front needs."""

        async def tell() -> None:
            if self._feed is not None:
                with contextlib.suppress(FeedError):
                    await self._feed.subscribe(self.wanted())

        self.spawn(tell())

    def say(self, text: str, severity: Any = "information") -> None:
        """One line in the corner; never markup."""
        self.notify(text, severity=severity, markup=False, timeout=8 if severity == "error" else 4)

    def copy_to_clipboard(self, text: str) -> None:
        """By the system's own tool, else by the terminal; too long a text is said, not cut."""

        async def copy() -> None:
            if await asyncio.to_thread(clipboard.by_tool, text):
                return
            sequence = clipboard.osc52(text)
            if sequence is None:
                self.say("too long for this terminal's clipboard: save it to a file", "warning")
            elif self._driver is not None:
                self._driver.write(sequence)

        self._clipboard = text
        self.spawn(copy())

    # --- painting ---

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self.call_later(self.show)

    def _age(self) -> None:
        if self.now() - self._shown_at > 0.95:
            self._soon()

    def show(self) -> None:
        """Paint the state on the screen in front."""
        self._due = False
        self._shown_at = self.now()
        for screen in self.screen_stack:
            if isinstance(screen, StokerScreen):
                screen.show()

    def _recolour(self, _theme: object) -> None:
        for screen in self.screen_stack:
            for widget in screen.walk_children():
                widget.notify_style_update()
                widget.refresh()

    # --- actions ---

    async def action_act(self, name: str) -> None:
        """Do an action of the registry: the screen in front first, then the app."""
        action = BY_NAME[name]
        screen = self.screen
        if not self.allowed(action):
            self.say(self.refusal(action), "warning")
            return
        if isinstance(screen, StokerScreen) and await screen.act(name):
            self._soon()
            return
        match name:
            case "fleet" | "logs" | "config" | "run" | "events":
                await self.go(name)
            case "since":
                self.spawn(self.tell_away(asked=True))
            case "answers":
                from console.screens.answers import AnswersScreen

                await self.push_screen(AnswersScreen())
            case "incident":
                self.spawn(self.pack_incident())
            case "help":
                from console.screens.help import HelpScreen

                await self.push_screen(HelpScreen(self.current_mode))
            case "line":
                from console.screens.lines import LinesScreen

                await self.push_screen(LinesScreen())
            case "palette":
                self.action_command_palette()
            case "theme":
                self.next_theme()
            case "picture":
                self.save_picture()
            case "quit":
                self.exit()
            case "chart.in" | "chart.out":
                self._look(self.lookback.zoom(-1 if name == "chart.in" else 1))
            case "chart.back" | "chart.forward":
                self._look(self.lookback.move(-1 if name == "chart.back" else 1))
            case "chart.metric":
                self.plots = (self.plots + 1) % len(SETS)
            case "replay.pause" | "replay.back" | "replay.on" | "replay.faster" | "replay.slower":
                await self.turn(name)
            case "restart":
                from console.screens.restart import RestartScreen

                await self.push_screen(RestartScreen(self.focus_gpu))
            case "deploy":
                await self.ask_deploy()
            case "run.go":
                self.run_go()
            case "keep" | "take_back":
                await self.decide(action)
            case _ if action.request is not None:
                await self.confirm_and_send(action)
        self._soon()

    async def tell_away(self, *, asked: bool) -> None:
        """What happened since the last look; without being asked only where there is something."""
        seen = self._seen
        if seen is None or seen.time <= 0:
            if asked:
                self.say("this target was never looked at from here before")
            return
        await self.ask(ReadEvents(after=seen.event, limit=model.MAX_EVENTS), quiet=True)
        fresh = [e for e in self.state.events if e.id > seen.event]
        found = away.account(seen, self.state, fresh)
        if found and (asked or len(self.screen_stack) == 1):
            from console.screens.away import AwayScreen

            def left(action: str | None) -> None:
                if action:
                    self.spawn(self.action_act(action))

            await self.push_screen(AwayScreen(away.title(seen, self.state), found), left)

    async def pack_incident(self) -> None:
        """Everything a bug report needs, as one file in this folder."""
        from console import incident

        self.say("packing …")

        async def ask(request: Request) -> Result | None:
            return await self.ask(request, quiet=True)

        try:
            path = await incident.bundle(ask, self.state, Path.cwd())
        except OSError as error:
            self.say(f"the bundle was not written: {error}", "error")
        else:
            self.say(f"{path.name} is written; secrets were removed")

    async def go(self, mode: str) -> None:
        """Bring a screen to the front."""
        if mode != self.current_mode:
            await self.switch_mode(mode)
            self.resubscribe()
            self.show()

    async def turn(self, name: str) -> None:
        """Turn the clock of a recording."""
        replay = self.replay
        if replay is None:
            return
        step = (replay.recorded.end - replay.recorded.begin) / 50
        match name:
            case "replay.pause":
                replay.toggle()
            case "replay.faster" | "replay.slower":
                replay.faster(1 if name == "replay.faster" else -1)
            case _:
                await self.seek(replay.at + (step if name == "replay.on" else -step))

    async def seek(self, at: float) -> None:
        """Go to a time of the recording, charts and all."""
        if self.replay is None:
            return
        await self.replay.seek(at)
        self.lookback.clear()
        await self._past()

    async def ask_deploy(self) -> None:
        """Bring the agent there, after a key."""
        action = BY_NAME["deploy"]
        line = command_line(action, self.target_name)
        question = f"Deploy to {self.target_name}"
        await self._confirm(question, action, action.danger, line, "", self._deploy)

    async def _deploy(self) -> None:
        if self._feed is None:
            return
        self.say("deploying …")
        try:
            self.say(await self._feed.deploy())
        except FeedError as error:
            self.say(str(error), "error")

    def run_go(self) -> None:
        """Start the run, or lift its pause."""
        state = self.state
        progress = state.progress
        if state.run.alive and progress is not None and progress.status == "paused":
            self.spawn(self.send(RunControl(do="resume")))
        elif state.run.alive:
            self.say("the run is alive already")
        elif state.target is None:
            self.say("nothing is known of the target yet", "warning")
        else:
            self.spawn(self.send(RunStart(spec=state.target)))

    async def confirm_and_send(self, action: Action) -> None:
        """Ask by blast radius, then send."""
        state = self.state
        if state.target is None or action.request is None:
            self.say("nothing is known of the target yet", "warning")
            return
        scope = None
        if action.group == "Fleet" and self.focus_gpu is not None and action.name in ("up", "down"):
            scope = [self.focus_gpu]
        request = action.request(state.target, scope)
        numbers = state.numbers
        count = len(scope or numbers)
        how = danger(action, count, len(numbers)) if action.group == "Fleet" else action.danger
        if how == "none":
            self.spawn(self.send(request))
            return
        line = command_line(action, self.target_name, gpus=scope)
        where = f"GPU {scope[0]}" if scope else f"all {count} servers"
        question = action.title if action.group != "Fleet" else f"{action.title}: {where}"
        cost = ""
        if action.name in ("down", "rollback"):
            way = "all" if action.name == "down" else "rolling"
            cost = model.swap_cost(state, scope or numbers, way)
        await self._confirm(question, action, how, line, cost, lambda: self.send(request))

    async def decide(self, action: Action) -> None:
        """Keep or take back the new flags of the swap under way, after a key."""
        state = self.state
        swap, keep = state.swap, action.name == "keep"
        if swap is None or swap.state != "doing":
            self.say(f"{action.title}: no swap is under way", "warning")
            return
        if keep and not model.awaits_decision(swap):
            self.say(f"{action.title}: nothing waits for it, the swap goes on by itself", "warning")
            return
        cost = "" if keep else model.swap_cost(state, model.touched(swap))
        line = command_line(action, self.target_name)
        question = f"{action.title}: epoch {swap.to_epoch}"
        await self._confirm(
            question, action, action.danger, line, cost, lambda: self.send(Decide(keep=keep))
        )

    async def _confirm(
        self,
        question: str,
        action: Action,
        how: Danger,
        line: str,
        cost: str,
        do: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Ask, then do it beside the screen."""
        from console.screens.confirm import Confirm

        def decided(yes: bool | None) -> None:
            if yes:
                self.spawn(do())

        await self.push_screen(Confirm(question, action, how, line, cost), decided)

    async def send(self, request: Request) -> None:
        """Send, and say how it was taken."""
        result = await self.ask(request, timeout=60)
        if isinstance(result, Done):
            self.say(result.text or "done")
        elif isinstance(result, Plan):
            self.say("; ".join(result.diff) or "under way")

    def save_picture(self) -> None:
        """This screen as an SVG file in this folder."""
        try:
            self.say(f"saved {self.save_screenshot()}")
        except OSError as error:
            self.say(f"the picture was not saved: {error}", "error")

    def next_theme(self) -> None:
        """The next theme, kept for the next time."""
        names = self.theme_names or ["textual-dark"]
        index = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(index + 1) % len(names)]
        self._keep()
        self.say(f"theme: {self.theme}")

    def action_let_go(self) -> None:
        """Escape: let go of what was chosen, step by step."""
        screen = self.screen
        if isinstance(screen, StokerScreen) and screen.back():
            return
        swap = self.state.swap
        if self.focus_gpu is not None:
            self.focus_gpu = None
        elif swap is not None and swap.state != "doing" and self.hidden_swap != swap.id:
            self.hidden_swap = swap.id
        elif self.lookback.until is not None:
            self._look(self.lookback.follow())
        elif self.current_mode != "fleet":
            self.spawn(self.go("fleet"))
        self._soon()

    def action_choose_gpu(self, gpu: int) -> None:
        """Choose a GPU; choosing it again lets it go."""
        if gpu in self.state.numbers:
            self.focus_gpu = None if self.focus_gpu == gpu else gpu
            self._soon()

    def plots_for(self, width: int) -> tuple[Plot, ...]:
        """The plots of the chosen set for a screen of this width."""
        wide, narrow = SETS[self.plots]
        return wide if width >= 180 else narrow


def run_console(
    settings: Settings | None,
    target: Target,
    *,
    read_only: bool = False,
    theme: str = "",
    debug: bool = False,
) -> int:
    """The console on ``target``, until the operator leaves it; the exit status."""
    del settings  # other targets can be reached from here once there is a screen for it
    check_terminal()
    app = StokerApp(
        connect_agent(target),
        name=target.name,
        read_only=read_only or target.read_only,
        theme=theme,
        tracebacks=debug,
    )
    app.run()
    return app.return_code or 0


def check_terminal() -> None:
    """Raise ConfigError where there is no terminal: the screen would wait for one for ever."""
    # The screen is painted on standard error's terminal and read from standard input's.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            "the console needs a terminal; without one, `stoker status`, `stoker logs -f` "
            "and `stoker lab --headless` say what it shows"
        )


def run_replay(recorded: Recorded, name: str, *, theme: str = "") -> None:
    """The same screens on a recording, until they are left."""

    def connect(
        on_message: Callable[[Message], None], on_link: Callable[[model.Link], None]
    ) -> Feed:
        return ReplayFeed(recorded, on_message, on_link)

    StokerApp(connect, name=name, read_only=True, theme=theme).run()
