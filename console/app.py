"""The Textual app: screens, keys, themes, and the targets under watch.

State lives in :class:`console.watch.Watch`, one a target; :attr:`StokerApp.front` is the one that
screens and widgets show, read through :attr:`StokerApp.state`. Feeds connect only after the first
frame is on the screen, and nothing here waits for them: a dead link freezes nothing.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import App
from textual.binding import Binding, BindingType

from console import away, calls, clipboard, model, prefs, themes
from console.action import Action
from console.actions import BY_NAME, by_key
from console.feed import Connect, FeedError
from console.lookback import Lookback
from console.palette import Actions
from console.quiet import Quiet
from console.ringer import Ringer
from console.screens.base import StokerScreen
from console.screens.fleet import FleetScreen
from console.watch import UP, Source, Watch
from console.widgets.chart import SETS, Plot, Plotter
from remote.protocol import (
    Done,
    Event,
    Happened,
    Message,
    Plan,
    Request,
    Result,
    Snapshot,
    Subscribe,
)

if TYPE_CHECKING:
    from console.replay import ReplayFeed

BETWEEN_S = 0.4
"""Between the first connections of targets in the background: an SSH server refuses those that
come all at once (OpenSSH's ``MaxStartups``)."""

KEEP_S = 60.0
"""Between two times that it is remembered where things stood."""

SEND_S = 180.0
"""For so long an action may take to be begun: a restart asks SGLang's parser first."""


def _later(name: str) -> Callable[[], StokerScreen]:
    """A screen that is imported when it is first wanted: the first frame does not wait for it."""

    def make() -> StokerScreen:
        module = importlib.import_module(f"console.screens.{name}")
        screen: StokerScreen = getattr(module, f"{name.capitalize()}Screen")()
        return screen

    return make


class MistakeError(Exception):
    """An error of ours that ends the app, told in one line instead of a page of local values."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"stoker: {type(error).__name__}: {error} (a mistake of ours)")
        self.__cause__ = error

    def __rich__(self) -> Text:
        return Text(" ".join(str(self).split()) + "; --debug shows where")


class StokerApp(App[None], inherit_bindings=False):
    """The console. ``connect`` is the way to its one target, called ``name``, or all the targets
    that it watches: then ``name`` says which is in front."""

    CSS_PATH = themes.folder() / "app.tcss"
    TITLE = "stoker"
    COMMANDS: ClassVar[Any] = {Actions}
    MODES: ClassVar[Any] = {
        "fleet": FleetScreen,
        **{name: _later(name) for name in ("targets", "logs", "config", "run", "events")},
    }
    DEFAULT_MODE = "fleet"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"key('{key}')", show=False) for key in by_key()),
        Binding("escape", "let_go", "back", show=False),
        *(Binding(str(n), f"choose_gpu({n})", "focus GPU", show=False) for n in range(10)),
    ]

    def __init__(
        self,
        connect: Connect | Sequence[Source],
        *,
        name: str = "",
        read_only: bool = False,
        theme: str = "",
        remember: bool = True,
        strict: bool = False,
        tracebacks: bool = False,
    ) -> None:
        super().__init__()
        self.strict = strict
        """Whether a part that cannot be painted ends the app: for tests."""
        self.tracebacks = tracebacks
        self._quiet = Quiet()
        self.up = False
        """Whether the first frame is on the screen."""
        self.read_only_asked = read_only
        self.plots = 0
        self.plotter = Plotter()
        self.animation_level = "none"
        self._tasks: set[asyncio.Task[Any]] = set()
        self._shown_at = 0.0
        self._due = False
        self._remember = remember
        known = prefs.read() if remember else prefs.Prefs()
        self.theme_names: list[str] = []
        self._wear(theme or known.theme)
        self._played = 0.0
        self._reading = False
        self.ringer = Ringer(self)
        sources = connect if isinstance(connect, Sequence) else [Source(name, connect)]
        self.watches = [
            Watch(source, self._heard, self._linked, seen=known.seen.get(source.name))
            for source in sources
        ]
        self.front = next((w for w in self.watches if w.name == name), self.watches[0])
        """The target that every screen but the list shows, and that actions mean."""
        self._built: dict[str, Watch] = {self.DEFAULT_MODE: self.front}
        """For which target the screen of a mode was made."""

    # --- the target in front ---

    @property
    def state(self) -> model.State:
        """What is known of the target in front."""
        return self.front.state

    @state.setter
    def state(self, state: model.State) -> None:
        self.front.state = state

    @property
    def target_name(self) -> str:
        """Its name."""
        return self.front.name

    @property
    def lookback(self) -> Lookback:
        """Its past."""
        return self.front.lookback

    @property
    def focus_gpu(self) -> int | None:
        """The GPU chosen on it."""
        return self.front.focus_gpu

    @focus_gpu.setter
    def focus_gpu(self, gpu: int | None) -> None:
        self.front.focus_gpu = gpu

    @property
    def hidden_swap(self) -> int | None:
        """The ended swap that need not be shown any more."""
        return self.front.hidden_swap

    @property
    def replay(self) -> ReplayFeed | None:
        """The recording that is played, where it is one."""
        return self.front.replay

    @property
    def remembers(self) -> bool:
        """Whether it reads and keeps what is the user's: preferences, presets."""
        return self._remember

    # --- life ---

    def on_mount(self) -> None:
        """The first frame, then the feeds."""
        self.theme_changed_signal.subscribe(self, self._recolour)
        self.set_interval(0.5, self._age)
        self.set_interval(KEEP_S, self._keep)
        self.call_after_refresh(self._start)

    def _wear(self, wish: str) -> None:
        """Put the wished theme on, before the stylesheet is read: a change later would have it
        read again, and everything painted twice."""
        theme = themes.find(wish) or themes.find(themes.FIRST)
        if theme is not None:
            self.register_theme(theme)
            self.set_reactive(App.theme, theme.name)
            self.stylesheet.set_variables(self.get_css_variables())
            self.set_class(theme.dark, "-dark-mode", update=False)
            self.set_class(not theme.dark, "-light-mode", update=False)
            self.set_class(True, f"-theme-{theme.name}", update=False)

    def _lay_out_themes(self) -> None:
        """All of them, to be gone through by a key."""
        found, problems = themes.load_all()
        for theme in found:
            self.register_theme(theme)
        self.theme_names = [t.name for t in found]
        for problem in problems:
            self.say(f"theme left out: {problem}", "warning")

    def _start(self) -> None:
        self.up = True
        for screen in self.screen_stack:
            if isinstance(screen, StokerScreen):
                screen.complete()
        self.call_after_refresh(self._connect)

    def _connect(self) -> None:
        self._lay_out_themes()
        self._quiet.settle()
        self.set_interval(5, lambda: self._quiet.tidy(self.ringer.touched))
        self.front.start()
        self.spawn(self.front.live(self.wanted()))
        others = [watch for watch in self.watches if watch is not self.front]
        for index, watch in enumerate(others):
            self.spawn(watch.live(watch.cursor(), wait=(index + 1) * BETWEEN_S))

    async def on_unmount(self) -> None:
        """Leave: remember, close the feeds, end the drawing process."""
        self._keep()
        await asyncio.gather(*(watch.close() for watch in self.watches))
        for task in list(self._tasks):
            task.cancel()
        await self.plotter.close()

    def _keep(self) -> None:
        """Remember where things stand: a terminal that is closed gives no time for it."""
        looks = {w.name: look for w in self.watches if w.name and (look := w.to_keep())}
        if self._remember and looks:
            prefs.keep(seen=looks)

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

    def _heard(self, watch: Watch, message: Message) -> None:
        if isinstance(message, Snapshot):
            self._greet()
            self._keep_past(watch, message)
            self._load_past()
        if isinstance(message, Happened):
            self._react(watch, message.event)
        if watch is self.front and isinstance(message, Snapshot | Happened):
            self._soon()

    def _greet(self) -> None:
        """Whoever looks at a target for the first time, or again after a gap, is told what
        happened meanwhile."""
        watch = self.front
        if watch.state.received is None or self.current_mode == "targets":
            return
        watch.looked = True
        if not watch.greeted:
            watch.greeted = True
            if watch.replay is None and away.worth_telling(watch.seen, watch.state):
                from console.deeds import tell_away  # not needed for the first frame

                self.spawn(tell_away(self, asked=False))

    def _keep_past(self, watch: Watch, snapshot: Snapshot) -> None:
        """What is now becomes what was; a recording that is played fast is read instead."""
        if watch.replay is None:
            watch.lookback.add(watch.state)
        elif snapshot.time != self._played and not self._reading:
            self._played = snapshot.time
            self._reading = True
            self.spawn(self._past(watch))

    def _react(self, watch: Watch, event: Event) -> None:
        """Call whoever should know of it."""
        there = model.agent_now(watch.state, self.now())
        known = event.id <= watch.rung
        if watch.replay is not None or known or not calls.worth_it(event, watch.began, there):
            return
        watch.rung = event.id
        if watch is not self.front:
            severity = {"error": "error", "warning": "warning"}.get(event.level, "information")
            self.say(f"{watch.name}: {event.text}", severity)
        self.ringer.call(f"{watch.name}: {event.text}")

    async def on_event(self, event: events.Event) -> None:
        """See :class:`App`; notes when somebody was last here."""
        if isinstance(event, events.InputEvent):
            self.ringer.touch()
        await super().on_event(event)

    def _linked(self, watch: Watch, before: str) -> None:
        state = watch.state.link.state
        if state in UP and before != state:
            watch.past_due = watch.replay is None  # a recording is read at each of its times
            self._load_past()
        if watch is self.front:
            self._soon()

    def _load_past(self) -> None:
        """Fetch what was before this console, of the target that is looked at. Its clock has to be
        known: the past ends where its first snapshot stands."""
        watch = self.front
        if watch.past_due and watch.state.received is not None and self.current_mode != "targets":
            watch.past_due = False
            self.spawn(self._past(watch))

    async def _past(self, watch: Watch) -> None:
        try:
            await watch.lookback.load()
        finally:
            self._reading = False
        self._soon()

    def look(self, changed: bool) -> None:
        """Load another window of the past beside the screen, where it is another one."""
        watch = self.front

        async def load() -> None:
            await watch.lookback.load_window()
            self._soon()

        if changed:
            self.spawn(load())

    async def seek(self, at: float) -> None:
        """Go to a time of the recording, charts and all."""
        watch = self.front
        if watch.replay is not None:
            await watch.replay.seek(at)
            watch.lookback.clear()
            await self._past(watch)

    # --- what goes out ---

    @property
    def read_only(self) -> bool:
        """Whether this console may only look at the target in front."""
        only = self.read_only_asked or self.front.read_only
        return only or self.state.link.state in ("read-only", "replay")

    def allowed(self, action: Action) -> bool:
        """Whether the action may be done now."""
        if action.group == "Replay":
            return self.replay is not None
        if not action.changes:
            return True
        if action.name == "deploy":  # the very thing that mends a link without an agent
            asked = self.read_only_asked or self.front.read_only
            return not asked and self.state.link.state != "replay"
        return not self.read_only and self.state.link.state == "connected"

    def refusal(self, action: Action) -> str:
        """Why an action is not allowed, in one line."""
        if action.group == "Replay":
            return f"{action.title}: this is live, no recording"
        if self.read_only_asked:
            return f"{action.title}: this console was opened read-only"
        if self.front.read_only:
            return f"{action.title}: {self.target_name} is only to be looked at"
        if self.read_only:
            return f"{action.title}: {self.state.link.text or 'this console may only look'}"
        return f"{action.title}: the link is {self.state.link.state}; nothing was sent"

    async def ask_or_raise(
        self, request: Request, timeout: float = 30, watch: Watch | None = None
    ) -> Result:
        """The result, of the target in front unless another is named. Raises :class:`FeedError`
        with one line for people."""
        return await (watch or self.front).call(request, timeout)

    async def ask(
        self,
        request: Request,
        *,
        quiet: bool = False,
        timeout: float = 30,
        watch: Watch | None = None,
    ) -> Result | None:
        """The result, or None where it was not done; the reason is told unless ``quiet``."""
        try:
            return await self.ask_or_raise(request, timeout, watch)
        except FeedError as error:
            if not quiet:
                self.say(str(error), "error")
            return None

    async def send(self, request: Request, watch: Watch | None = None) -> bool:
        """Send, and say how it was taken; whether it was."""
        meant = watch or self.front
        result = await self.ask(request, timeout=SEND_S, watch=meant)
        where = f"{meant.name}: " if len(self.watches) > 1 else ""
        if isinstance(result, Done):
            self.say(where + (result.text or "done"))
        elif isinstance(result, Plan):
            self.say(where + ("; ".join(result.diff) or "under way"))
        return result is not None

    def wanted(self) -> Subscribe:
        """What the screen in front needs pushed."""
        wanted = self.front.cursor()
        screen = self.screen_stack[0] if self.screen_stack else None
        for source in screen.sources if isinstance(screen, StokerScreen) else ():
            ring = self.state.logs.get(source)
            wanted.logs[source] = (
                (0, -1) if ring is None or ring.next < 0 else (ring.inode, ring.next)
            )
        return wanted

    def resubscribe(self) -> None:
        """Tell the feed what the screen in front needs."""
        self.spawn(self.front.subscribe(self.wanted()))

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
        for watch in self.watches:
            if watch.newly_lost(calls.LOST_S):
                self.ringer.call(f"{watch.name}: the link is lost: {watch.state.link.text}")
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

    def plots_for(self, width: int) -> tuple[Plot, ...]:
        """The plots of the chosen set for a screen of this width."""
        wide, narrow = SETS[self.plots]
        return wide if width >= 180 else narrow

    def next_theme(self) -> None:
        """The next theme, kept for the next time."""
        names = self.theme_names or ["textual-dark"]
        index = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(index + 1) % len(names)]
        if self._remember:
            prefs.keep(theme=self.theme)
        self.say(f"theme: {self.theme}")

    # --- actions ---

    async def action_key(self, key: str) -> None:
        """Do what a key means on the screen in front."""
        meant = by_key()[key]
        here = [a for a in meant if not a.screens or self.current_mode in a.screens]
        await self.action_act((here or meant)[0].name)

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
        from console.deeds import do  # not needed for the first frame

        await do(self, action)
        self._soon()

    async def go(self, mode: str) -> None:
        """Bring a screen to the front, of the target in front."""
        if mode == self.current_mode:
            return
        if mode != "targets":
            if self._built.get(mode, self.front) is not self.front:
                self.remove_mode(mode)  # what it held was another target's
                self.add_mode(mode, self.MODES[mode])
            self._built[mode] = self.front
        await self.switch_mode(mode)
        self.resubscribe()
        self._greet()
        self._load_past()
        self.show()

    async def choose_target(self, watch: Watch) -> None:
        """Another target in front; the screen stays the same."""
        mode, before = self.current_mode, self.front
        if watch is before:
            return
        if mode == "targets":
            self.front = watch
            self._soon()
            return
        await self.go("targets")
        self.front = watch
        self.spawn(before.subscribe(before.cursor()))
        await self.go(mode)

    async def turn_target(self, by: int) -> None:
        """The next target in front, or the one before."""
        if len(self.watches) == 1:
            self.say("this console watches one target")
            return
        at = self.watches.index(self.front) + by
        await self.choose_target(self.watches[at % len(self.watches)])

    def action_let_go(self) -> None:
        """Escape: let go of what was chosen, step by step."""
        screen = self.screen
        if isinstance(screen, StokerScreen) and screen.back():
            return
        swap, front = self.state.swap, self.front
        if front.focus_gpu is not None:
            front.focus_gpu = None
        elif swap is not None and swap.state != "doing" and front.hidden_swap != swap.id:
            front.hidden_swap = swap.id
        elif self.lookback.until is not None:
            self.look(self.lookback.follow())
        elif self.current_mode != "fleet":
            self.spawn(self.go("fleet"))
        self._soon()

    def action_choose_gpu(self, gpu: int) -> None:
        """Choose a GPU; choosing it again lets it go."""
        if gpu in self.state.numbers:
            self.focus_gpu = None if self.focus_gpu == gpu else gpu
            self._soon()


class ListedApp(StokerApp):
    """The console that opens on the list of its targets."""

    DEFAULT_MODE = "targets"
