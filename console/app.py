"""The Textual app: screens, keys, themes, and the targets under watch.

State lives in :class:`console.watch.Watch`, one a target; :attr:`StokerApp.front` is the one that
screens and widgets show, read through :attr:`StokerApp.state`. Feeds connect only after the first
frame is on the screen, and nothing here waits for them: a dead link freezes nothing.

What the app does beside its own life and its keys is done by one object a job: ``targets`` (which
is in front, and which screen), ``inbox`` (what comes), ``outbox`` (what goes), ``looks`` (when
somebody looked), ``wardrobe`` (themes).
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

from console import calls, clipboard, corner, model, prefs, themes
from console.actions import BY_NAME, by_key
from console.feed import Connect
from console.inbox import Inbox
from console.leaving import Leaving
from console.lookback import Lookback
from console.looks import KEEP_S, Looks
from console.notices import Notice, notices
from console.outbox import Outbox
from console.palette import Actions, Palette
from console.quiet import Quiet
from console.ringer import Ringer
from console.screens.base import StokerScreen
from console.screens.fleet import FleetScreen
from console.targets import Targets
from console.wardrobe import Wardrobe
from console.watch import Source, Watch
from console.widgets.chart import SETS, Plot, Plotter

if TYPE_CHECKING:
    from console.replay import ReplayFeed


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
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-wide")]
        self.strict = strict
        """Whether a part that cannot be painted ends the app: for tests."""
        self.tracebacks = tracebacks
        self._quiet = Quiet()
        self.up = False
        """Whether the first frame is on the screen."""
        self.plots = 0
        self.plotter = Plotter()
        self.animation_level = "none"
        self._tasks: set[asyncio.Task[Any]] = set()
        self._shown_at = 0.0
        self._due = False
        self.remembers = remember
        """Whether it reads and keeps what is the user's: preferences, presets."""
        known = prefs.read() if remember else prefs.Prefs()
        self.wardrobe = Wardrobe(self, remember=remember)
        self.wardrobe.wear(theme or known.theme)
        self.ringer = Ringer(self)
        self.looks = Looks(self, remember=remember)
        self.leaving = Leaving(self)
        self.inbox = Inbox(self)
        self.outbox = Outbox(self, read_only=read_only)
        sources = connect if isinstance(connect, Sequence) else [Source(name, connect)]
        watches = [
            Watch(source, self.inbox.heard, self.inbox.linked, remembered=known.seen)
            for source in sources
        ]
        self.targets = Targets(self, watches, name)

    # --- the target in front ---

    @property
    def watches(self) -> list[Watch]:
        """Every target under watch."""
        return self.targets.watches

    @property
    def front(self) -> Watch:
        """The target that every screen but the list shows, and that actions mean."""
        return self.targets.watch

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

    # --- life ---

    def on_mount(self) -> None:
        """The first frame, then the feeds."""
        self.leaving.watch()
        self.theme_changed_signal.subscribe(self, self.wardrobe.recolour)
        self.set_interval(0.5, self._age)
        self.set_interval(KEEP_S, self.looks.keep_soon)
        self.set_interval(5, self.leaving.look)
        self.call_after_refresh(self._start)

    def _start(self) -> None:
        self.up = True
        for screen in self.screen_stack:
            if isinstance(screen, StokerScreen):
                screen.complete()
        self.call_after_refresh(self._connect)

    def _connect(self) -> None:
        self.wardrobe.lay_out()
        self._quiet.settle()
        self.set_interval(5, lambda: self._quiet.tidy(self.ringer.touched))
        self.targets.connect()

    def refresh_css(self, animate: bool = True) -> None:
        """See :class:`App`, which has every stylesheet read twice for the first screen of a mode.
        What was read just now, on the theme put on before it, cannot be out of date."""
        if self.up:
            super().refresh_css(animate)

    async def run_async(self, *args: Any, **options: Any) -> None:
        """See :class:`App`."""
        try:
            await super().run_async(*args, **options)
        finally:
            self.leaving.over()

    async def on_unmount(self) -> None:
        """Leave: remember, close the feeds, end the drawing process."""
        await self.looks.close()
        await self.targets.close()
        for task in list(self._tasks):
            task.cancel()
        await self.plotter.close()

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

    @staticmethod
    def now() -> float:
        """The console's clock."""
        return time.time()

    async def on_event(self, event: events.Event) -> None:
        """See :class:`App`; notes when somebody was last here. Keys behind the one that quits find
        no screen any more."""
        if isinstance(event, events.InputEvent):
            if self.leaving_now:
                return
            self.ringer.touch()
        await super().on_event(event)

    def say(self, text: str, severity: Any = "information", *, keep: bool = False) -> None:
        """One line in the corner; never markup. ``keep``: see :func:`console.corner.say`."""
        corner.say(self, text, severity, keep=keep)

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

    @property
    def leaving_now(self) -> bool:
        """Whether the console is being left: its screens may be gone already."""
        return self._exit or not self.screen_stack

    @property
    def covered(self) -> bool:
        """Whether something lies over the screen of this mode: a dialog, a panel, the palette."""
        return len(self.screen_stack) > 1

    # --- painting ---

    def soon(self) -> None:
        """Paint once what came is taken in."""
        if not self._due:
            self._due = True
            self.call_later(self.show)

    def _age(self) -> None:
        for watch in self.watches:
            if watch.newly_lost(calls.LOST_S):
                self.ringer.call(f"{watch.name}: the link is lost: {watch.state.link.text}")
        if self.now() - self._shown_at > 0.95:
            self.soon()

    def show(self) -> None:
        """Paint the state on the screen in front."""
        self._due = False
        self._shown_at = self.now()
        for screen in self.screen_stack:
            if isinstance(screen, StokerScreen):
                screen.show()

    def notices(self) -> list[Notice]:
        """What is wrong now with the target in front, and which keys help here."""
        return self.outbox.offered(notices(self.state, self.now()))

    def plots_for(self, width: int) -> tuple[Plot, ...]:
        """The plots of the chosen set for a screen of this width."""
        wide, narrow = SETS[self.plots]
        return wide if width >= 180 else narrow

    # --- actions ---

    async def action_key(self, key: str) -> None:
        """Do what a key means on the screen in front; nothing once the console is being left, or
        where a dialog came over the screen that the key was meant for."""
        if self.leaving_now or self.covered:
            return
        meant = by_key()[key]
        here = [a for a in meant if not a.screens or self.current_mode in a.screens]
        await self.action_act((here or meant)[0].name)

    async def action_act(self, name: str) -> None:
        """Do an action of the registry: the screen in front first, then the app."""
        if self.leaving_now:
            return
        action = BY_NAME[name]
        screen = self.screen
        if not self.outbox.allowed(action):
            self.say(self.outbox.refusal(action), "warning")
            return
        if isinstance(screen, StokerScreen) and await screen.act(name):
            self.soon()
            return
        from console.deeds import do  # not needed for the first frame

        await do(self, action)
        self.soon()

    def action_command_palette(self) -> None:
        """Ours instead of Textual's."""
        if not self.leaving_now and not self.covered:
            self.push_screen(Palette(id="--command-palette"))

    def action_let_go(self) -> None:
        """Escape: let go of what was chosen, step by step."""
        if self.leaving_now or self.covered:
            return
        screen = self.screen
        if isinstance(screen, StokerScreen) and screen.back():
            return
        swap, front = self.state.swap, self.front
        if front.focus_gpu is not None:
            front.focus_gpu = None
        elif swap is not None and swap.state != "doing" and front.hidden_swap != swap.id:
            front.hidden_swap = swap.id
        elif self.lookback.until is not None:
            self.inbox.look(self.lookback.follow())
        elif self.current_mode != "fleet":
            self.spawn(self.targets.go("fleet"))
        self.soon()

    def action_choose_gpu(self, gpu: int) -> None:
        """Choose a GPU; choosing it again lets it go."""
        if not self.covered and gpu in self.state.numbers:
            self.focus_gpu = None if self.focus_gpu == gpu else gpu
            self.soon()


class ListedApp(StokerApp):
    """The console that opens on the list of its targets."""

    DEFAULT_MODE = "targets"
