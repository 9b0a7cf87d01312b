"""Starting points (epochs with what they gave, stoker.toml, recipes) and every flag of SGLang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from console import flags as flag_rules
from console import model, saved
from console.presets import Recipe, Start, starts
from console.screens.ask import AskLine
from console.screens.base import StokerScreen, set_height
from console.text import visible
from console.widgets.epochs import epoch_line, head_line
from console.widgets.flag_table import FlagTable
from console.widgets.paint import Line, Painted, Part, clip, cut, pad, spread
from remote.protocol import FlagValue

if TYPE_CHECKING:
    from console.app import StokerApp


def start_line(start: Start, chosen: bool, width: int) -> Line:
    """A starting point that is no epoch: its name, what it is for, what it changes."""
    changes = "; ".join(
        f"{name} {'taken out' if value is None else model.flag_text(value)}"
        for name, value in start.edits.items()
    )
    what = (changes, "text") if changes else ("runs now", "accent")
    if start.problem:
        what = (start.problem, "warn")
    line: list[Part] = [
        ("▸" if chosen else " ", "bold accent"),
        (" ", "text"),
        (pad(visible(start.name), 18), "text"),
        (f"{start.text}  ", "dim"),
        (visible(what[0]), what[1]),
    ]
    return clip(line, width)


class Starts(Painted):
    """The table of starting points, the best epoch and the chosen row marked."""

    app: StokerApp
    chosen = 0
    focused_here = True
    own: Sequence[Recipe] = ()
    """What the user saved."""

    @property
    def found(self) -> list[Start]:
        """The rows."""
        return starts(self.app.state, self.app.front.book, self.own)

    def top_row(self, count: int, height: int) -> int:
        """The first row shown, the chosen one in sight."""
        return max(0, min(self.chosen - (height - 3), count + 1 - height))

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        state, now = self.app.state, self.app.now()
        found = self.found
        self.chosen = max(0, min(self.chosen, len(found) - 1))
        lines: list[Line] = [head_line(width)]
        if not state.epochs:
            lines = [[("no epoch yet: servers have not been started here", "dim")]]
        for index, start in enumerate(found):
            marked = self.focused_here and index == self.chosen
            if start.epoch is not None:
                lines.append(epoch_line(state, start.epoch, marked, now, width))
            else:
                lines.append(start_line(start, marked, width))
        first = self.top_row(len(found), height)
        return [lines[0], *lines[1 + first :]][:height]

    async def on_click(self, event: events.Click) -> None:
        """Choose a row; twice takes it."""
        count = len(self.found)
        row = event.y - 1 + self.top_row(count, self.size.height)
        if event.y > 0 and row < count:
            self.chosen = row
            self.show()
            if event.chain > 1:
                await self.app.action_act("config.take")


class FlagTitle(Painted):
    """Whose flags these are, how many were edited, and what the servers differ in."""

    app: StokerApp

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        front = self.app.front
        state = front.state
        name = state.target.fleet.model if state.target is not None else ""
        name = name.rstrip("/").rpartition("/")[2] if name.startswith("/") else name
        edits = len(front.draft)
        left: list[Part] = [("Flags", "bold text"), (f"  {visible(cut(name, 40))}", "dim")]
        if edits:
            left.append((f"  {edits} edited: r restarts with them", "bold warn"))
        lines: list[Line] = [spread(left, [(front.book.title, "dim")], width)]
        if odd := odd_lines(state):
            lines.append(clip([("▲ ", "warn"), (visible("; ".join(odd)), "warn")], width))
        return lines[:height]


def odd_lines(state: model.State) -> list[str]:
    """Servers that run other flags than the rest."""
    common = model.current_flags(state)
    found: list[str] = []
    for gpu, info in sorted(state.infos.items()):
        changes = model.flag_changes(common, info.flags) if info.flags else []
        if changes:
            words = ", ".join(f"{c.name} {model.flag_text(c.after)}" for c in changes[:3])
            found.append(f"GPU {gpu} runs {words}")
    return found


class SearchLine(Input):
    """Words of a flag's name or help."""

    def __init__(self) -> None:
        super().__init__(
            id="search",
            classes="line-input",
            placeholder="words of the flag's name or help",
            max_length=200,
        )
        self.display = False


class ConfigScreen(StokerScreen):
    """Starting points above, flags below; enter takes one up into the restart dialog."""

    SCREEN = "config"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", show=False),
        Binding("down,j", "choose(1)", show=False),
        Binding("pageup", "choose(-10)", show=False),
        Binding("pagedown", "choose(10)", show=False),
        Binding("home", "choose(-10000)", show=False),
        Binding("end", "choose(10000)", show=False),
        Binding("tab", "app.act('config.table')", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.in_flags = False
        """Whether the flags have the cursor; else the starting points."""
        self._removing = ""
        """The preset that the next press of the same key removes."""
        self._told: set[str] = set()
        """Problems of files that were told already."""

    def body(self) -> ComposeResult:
        """See :class:`StokerScreen`."""
        yield Starts()
        yield FlagTitle()
        yield FlagTable(id="flags")
        yield SearchLine()

    def on_mount(self) -> None:
        """Ask for the flags of the SGLang there."""
        self.app.spawn(self._read_flags())

    async def _read_flags(self) -> None:
        await self._read_own()
        await self.app.front.load_book()
        if self.is_attached:
            self.show()

    async def _read_own(self) -> None:
        """The user's presets, as their files are now."""
        if not self.app.remembers:
            return
        found, problems = await asyncio.to_thread(saved.load_all)
        for problem in problems:
            if problem not in self._told:
                self._told.add(problem)
                self.app.say(f"preset left out: {problem}", "warning")
        if self.is_attached:
            self.query_one(Starts).own = found
            self.show()

    def on_screen_resume(self) -> None:
        """See :class:`StokerScreen`."""
        super().on_screen_resume()
        self.app.spawn(self._read_flags())

    def action_choose(self, by: int) -> None:
        """Another row of the table with the cursor."""
        if self.in_flags:
            self.query_one(FlagTable).move(by)
        else:
            table = self.query_one(Starts)
            table.chosen = max(0, min(len(table.found) - 1, table.chosen + by))
            table.show()

    async def act(self, name: str) -> bool:
        """See :class:`StokerScreen`."""
        removing, self._removing = self._removing, ""
        match name:
            case "config.take":
                await (self.edit_flag() if self.in_flags else self.take_start())
            case "config.table":
                self.turn_to(flags=not self.in_flags)
            case "config.about":
                self.tell_about()
            case "config.drop":
                self.drop()
            case "config.save":
                self.ask_name()
            case "config.remove":
                self.remove_own(removing)
            case "filter":
                line = self.query_one(SearchLine)
                line.display = True
                self.turn_to(flags=True)
                self.call_after_refresh(line.focus)  # the key itself must not be typed
            case _:
                return False
        return True

    def tell_about(self) -> None:
        """Everything about the chosen flag."""
        from console.screens.about import AboutScreen

        row = self.query_one(FlagTable).chosen
        if self.in_flags and row is not None:
            self.app.push_screen(AboutScreen(row))
        else:
            self.app.say("choose a flag first: tab goes to them")

    def turn_to(self, *, flags: bool) -> None:
        """Give the cursor to one of the tables."""
        self.in_flags = flags
        self.show()

    async def take_start(self) -> None:
        """The chosen starting point, as edits in the restart dialog."""
        table = self.query_one(Starts)
        found = table.found
        if not 0 <= table.chosen < len(found):
            return
        start = found[table.chosen]
        if not start.edits:
            self.app.say(start.problem or "these flags run already")
            return
        await self._open(dict(start.edits))

    async def edit_flag(self) -> None:
        """The chosen flag, to be typed in the restart dialog."""
        front = self.app.front
        row = self.query_one(FlagTable).chosen
        if row is None:
            return
        after = flag_rules.apply(model.current_flags(front.state), front.draft)
        await self._open(None, flag_rules.typed(row.name, after, front.book))

    async def _open(self, edits: dict[str, FlagValue | None] | None, typing: str = "") -> None:
        from console.screens.restart import RestartScreen

        self.app.focus_gpu = None  # starting points are those of the fleet
        await self.app.push_screen(RestartScreen(self.app.front, edits=edits, typing=typing))

    def drop(self) -> None:
        """Forget the edit of the chosen flag, or all of them from the other table."""
        draft = self.app.front.draft
        row = self.query_one(FlagTable).chosen if self.in_flags else None
        if row is not None and row.name in draft:
            del draft[row.name]
        elif row is None or not draft:
            self.app.say(f"{len(draft)} edits dropped" if draft else "nothing is edited")
            draft.clear()
        else:
            self.app.say(f"{row.name} is not edited; from the other table all edits are dropped")

    def ask_name(self) -> None:
        """Under which name to save what is edited."""
        draft = dict(self.app.front.draft)
        if not draft:
            self.app.say("nothing is edited: enter on a flag edits it, then save", "warning")
            return

        def named(name: str | None) -> None:
            if name is not None and name.strip():
                self.app.spawn(self._keep(lambda: saved.save(name, draft), "saved in"))

        question = f"Save {len(draft)} edited flags as a starting point"
        self.app.push_screen(AskLine(question, "a name; one that is there is replaced"), named)

    def remove_own(self, sure: str) -> None:
        """Remove the chosen preset, once it was asked for twice."""
        table = self.query_one(Starts)
        found = table.found
        start = found[table.chosen] if 0 <= table.chosen < len(found) else None
        if self.in_flags or start is None or not start.own:
            self.app.say("only starting points that you saved can be removed: choose one")
        elif sure != start.name:
            self._removing = start.name
            self.app.say(f"the same key again removes {start.name!r}")
        else:
            self.app.spawn(self._keep(lambda: saved.remove(start.name), "removed:"))

    async def _keep(self, work: Callable[[], object], done: str) -> None:
        try:
            path = await asyncio.to_thread(work)
        except saved.SavedError as error:
            self.app.say(str(error), "error")
        else:
            self.app.say(f"{done} {path}")
        await self._read_own()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The list follows what is typed."""
        event.stop()
        self.query_one(FlagTable).cursor = 0
        self.show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep it, back to the list."""
        event.stop()
        event.input.display = bool(event.value)
        self.set_focus(None)
        self.show()

    def back(self) -> bool:
        """Escape: the search first."""
        line = self.query_one(SearchLine)
        if not line.display:
            return False
        line.value = ""
        line.display = False
        self.set_focus(None)
        self.show()
        return True

    def lay_out(self) -> None:
        """See :class:`StokerScreen`."""
        front = self.app.front
        line, table, points = (
            self.query_one(SearchLine),
            self.query_one(FlagTable),
            self.query_one(Starts),
        )
        points.focused_here, table.focused_here = not self.in_flags, self.in_flags
        before = model.current_flags(front.state)
        table.rows = flag_rules.rows(front.book, before, front.draft, line.value)
        table.empty = "no flag has that in its name or help"
        room = max(6, self.rows - 2 - (1 if line.display else 0))
        title = 2 if odd_lines(front.state) else 1
        above = max(3, min(room // 2, len(points.found) + 2))
        set_height(points, above)
        set_height(self.query_one(FlagTitle), title)
        set_height(table, max(1, room - above - title))
