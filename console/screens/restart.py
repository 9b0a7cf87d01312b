"""The restart dialog: edit flags, see the difference and the plan, choose how, confirm."""

from __future__ import annotations

import textwrap
import time
from typing import TYPE_CHECKING, Literal

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.suggester import Suggester
from textual.widgets import Input, Static

from console import flags as flag_rules
from console import mixed, model
from console.actions import BY_NAME, command_line, danger
from console.feed import PLAN_S, FeedError
from console.notices import proposed
from console.screens.about import AboutScreen
from console.screens.confirm import not_the_word, word_hint
from console.screens.modal import Modal
from console.text import visible
from console.watch import Watch
from console.widgets.flag_table import DETAIL, HEAD, FlagTable
from console.widgets.paint import Line, Tall
from console.widgets.plan import (
    STRATEGIES,
    Field,
    How,
    difference_lines,
    entry,
    how_lines,
    predicted_lines,
)
from remote.protocol import Flags, FlagValue, Plan, Restart

if TYPE_CHECKING:
    from console.app import StokerApp

BRIEF_BELOW = 34
"""Terminal rows under which only the chosen way's cost is shown, not each one's."""


class _Flags(Suggester):
    def __init__(self, dialog: RestartScreen) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._dialog = dialog

    async def get_suggestion(self, value: str) -> str | None:
        dialog = self._dialog
        if dialog.step == "plan":
            return None  # what is typed there is the word
        return flag_rules.complete(value, dialog.after, dialog.target.book)


class PlanText(Tall):
    """The difference, what it is predicted to bring, what each way costs."""

    def __init__(self, dialog: RestartScreen) -> None:
        super().__init__(id="plan")
        self.dialog = dialog

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        return self.dialog.plan_lines(width)


class RestartScreen(Modal[None]):
    """Two steps: edit, then plan and confirm.

    ``edits`` are flags already edited, ``typing`` what stands in the line at first.
    """

    app: StokerApp

    def __init__(
        self,
        watch: Watch,
        *,
        edits: dict[str, FlagValue | None] | None = None,
        typing: str = "",
    ) -> None:
        super().__init__()
        self.target = watch
        self.gpu = watch.focus_gpu
        self.edits: dict[str, FlagValue | None] = dict(watch.draft if edits is None else edits)
        self._offered: dict[str, FlagValue | None] = {}
        """Edits it began with by itself."""
        self.before: Flags = {}
        self.step: Literal["edit", "plan"] = "edit"
        self.how = How()
        self.field: Field = "strategy"
        self.plans: dict[str, Plan] = {}
        """What the agent said of each strategy."""
        self.problem = ""
        self.mistyped = ""
        """What is said of a word that was not the one; a plan that comes in leaves it."""
        self._typing = typing
        self._doubted = ""
        self._asked = 0
        self._typed = 0
        """Moves with each change of what stands in the line."""
        self._planned_at = 0.0
        """Since when the plan is shown, on the clock of key presses."""

    # --- parts ---

    def compose(self) -> ComposeResult:
        """See :class:`Modal`."""
        with Vertical(classes="dialog wide"):
            yield FlagTable(id="flags")
            with VerticalScroll(id="plan-box", can_focus=False):
                yield PlanText(self)
            yield Input(self._typing, id="edit", suggester=_Flags(self), select_on_focus=False)
            yield Static("", id="said", markup=False, classes="bad")
            yield Static("", id="keys", markup=False, classes="hint")

    def on_mount(self) -> None:
        """Start from what runs now."""
        state = self.target.state
        self.before = model.current_flags(state, self.gpu)
        if self.gpu is None and not self.edits:
            self._offered = mixed.finishing(state, self.before)
            self.edits = dict(self._offered)
        line = self.query_one(Input)
        line.focus()
        line.cursor_position = len(line.value)
        self.refit()
        self.app.spawn(self._read_flags())

    def on_resize(self) -> None:
        """The line to type in stays in sight."""
        self.refit()

    async def _read_flags(self) -> None:
        await self.target.load_book()
        if self.is_attached:
            self.refit()

    @property
    def after(self) -> Flags:
        """The flags as edited."""
        return flag_rules.apply(self.before, self.edits)

    @property
    def plan(self) -> Plan | None:
        """What the agent said of the chosen strategy."""
        return self.plans.get(self.how.strategy)

    @property
    def gpus(self) -> list[int] | None:
        """The servers meant; None for all."""
        return None if self.gpu is None else [self.gpu]

    @property
    def scope(self) -> list[int]:
        """The same, as numbers."""
        return self.gpus or self.target.state.numbers

    @property
    def asks_word(self) -> bool:
        """Whether a word has to be typed."""
        numbers = self.target.state.numbers
        return danger(BY_NAME["restart"], len(self.scope), len(numbers)) == "word"

    def refit(self) -> None:
        """Everything as the step wants it."""
        box = self.query_one(".dialog")
        where = f"GPU {self.gpu}" if self.gpu is not None else f"all {len(self.scope)} servers"
        line = self.query_one("#edit", Input)
        table, plan = self.query_one(FlagTable), self.query_one("#plan-box")
        editing = self.step == "edit"
        table.display, plan.display = editing, not editing
        box.border_title = Content(f"Restart {where} of {self.target.name}")
        box.set_class(not editing, "danger")
        most = max(4, self.app.size.height - 9)
        if editing:
            self._list_flags()
            table.styles.height = max(1, min(most, len(table.rows) + DETAIL + HEAD))
            changes = len(model.flag_changes(self.before, self.after))
            box.border_subtitle = f"{changes} changed" if changes else "nothing changed yet"
            line.display = True
            line.placeholder = "flag=value   (-flag takes one out; words search all flags)"
            change = (
                ""
                if line.value
                else "  ".join(
                    f"-{n}" if v is None else f"{n}={model.flag_text(v)}"
                    for n, v in self.proposed().items()
                )
            )
            first = f"tab takes what is proposed: {change}\n" if change else ""
            words = "↑↓ choose  enter edits (empty line: plans)  esc leaves"
            self.say_keys(f"{first}{'' if change else 'tab completes  '}{words}")
        else:
            rows = len(self.plan_lines(max(40, self.app.size.width - 8)))
            plan.styles.height = max(1, min(most, rows))
            box.border_subtitle = "nothing has been done yet"
            line.display = self.asks_word
            line.placeholder = word_hint(BY_NAME["restart"].word)
            how = "type restart, then enter" if self.asks_word else "y restarts"
            self.say_keys(f"{how}   ↑↓ choose   tab turns   esc back to the flags")
        said = self.query_one("#said", Static)
        busy = mixed.under_way(self.target.state)
        told = "; ".join(filter(None, (busy, self.mistyped, self.problem)))
        said.update(told)
        said.display = bool(told)
        table.show()
        text = self.query_one(PlanText)
        text.refresh(layout=True)
        text.show()

    def _list_flags(self) -> None:
        """Those that are set, or those that what is typed means."""
        table = self.query_one(FlagTable)
        typed = self.query_one("#edit", Input).value.lstrip("-")
        search = typed.partition("=")[0].strip()
        chosen = table.chosen
        table.rows = flag_rules.rows(
            self.target.book, self.before, self.edits, search, every=bool(search)
        )
        if chosen is not None and not search:
            table.choose(chosen.name)
        elif search:
            table.cursor = 0
            table.choose(flag_rules.plain(search))
        table.empty = f"no flag has {search!r} in its name or help" if search else FlagTable.empty

    def say_keys(self, text: str) -> None:
        """The line of keys."""
        self.query_one("#keys", Static).update(text)

    def plan_lines(self, width: int) -> list[Line]:
        """What is about to be done."""
        state, app = self.target.state, self.app
        brief = app.size.height < BRIEF_BELOW
        plan = self.plan
        gap: list[Line] = [] if brief else [[]]
        lines = difference_lines(state, self.scope, self.before, self.after, width)
        lines += predicted_lines(state, plan, self.scope, width)
        lines += gap
        lines += how_lines(self.how, self.field, self.plans, len(self.scope), width, brief=brief)
        for warning in plan.warnings if plan is not None else ():
            rows = textwrap.wrap(visible(warning), max(20, width - 2))
            lines += [
                [("  " if index else "▲ ", "warn"), (r, "warn")] for index, r in enumerate(rows)
            ]
        done = state.progress.completed if state.progress is not None else 0
        if done and not brief:
            lines += entry("stays", f"the {done:,} finished prompts", "text", width)
        lines += gap
        return [*lines, *entry("from a shell", self.shell_line(), "dim", width)]

    def shell_line(self) -> str:
        """The command line that does the same."""
        request = self.request(dry_run=False)
        return command_line(
            BY_NAME["restart"],
            self.target.name,
            gpus=self.gpus,
            set_flags=request.set_flags if request is not None else {},
            unset_flags=request.unset_flags if request is not None else (),
            more=self.options(),
            file=self.target.file,
        )

    def options(self) -> list[str]:
        """The way of the restart as options of the command line."""
        how = self.how
        words = ["--strategy", how.strategy] if len(self.scope) > 1 else []
        words += ["--in-flight", how.in_flight]
        if how.at_once > 1 and "at_once" in how.fields(len(self.scope)):
            words += ["--at-once", str(how.at_once)]
        if how.within is not None:
            words += ["--confirm-within", f"{how.within:g}"]
        return words

    # --- editing ---

    def on_input_changed(self, event: Input.Changed) -> None:
        """The list follows what is typed."""
        event.stop()
        self._typed += 1
        if self.step == "edit" and self.is_attached:
            self.problem = ""
            self.refit()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take an edit in, or go on."""
        event.stop()
        text = event.value.strip()
        if self.step == "plan":
            if text == BY_NAME["restart"].word:
                self.go()
            else:
                event.input.value = ""
                self.mistyped = not_the_word(BY_NAME["restart"].word)
                self.refit()
            return
        if not text:
            self.app.spawn(self.ask_plan() if self.plan is None else self.show_plan())
            return
        try:
            edit = flag_rules.parse(text, {**self.before, **self.after}, self.target.book)
        except flag_rules.FlagError as mistake:
            self.problem = str(mistake)
            self.refit()
            return
        if edit.doubt and self._doubted != edit.name:
            self._doubted = edit.name
            self.problem = edit.doubt
            self.refit()
            return
        self.problem = ""
        if model.flag_text(edit.value) == model.flag_text(self.before.get(edit.name)):
            self.edits.pop(edit.name, None)
        else:
            self.edits[edit.name] = edit.value
        self.plans.clear()
        with self.prevent(Input.Changed):
            event.input.value = ""
        table = self.query_one(FlagTable)
        self._list_flags()
        table.choose(edit.name)
        self.refit()

    def on_key(self, event: events.Key) -> None:
        """The dialog's own keys."""
        key = event.key
        if key == "escape":
            event.stop()
            if self.step == "plan":
                self.back_to_edit()
            else:
                self.leave()
            return
        if self.step == "plan" and event.time < self._planned_at:
            event.stop()  # pressed before the plan was there: it means something else
            event.prevent_default()
            return
        taken = self._plan_key(key) if self.step == "plan" else self._edit_key(key)
        if taken:
            event.stop()
            event.prevent_default()

    def _edit_key(self, key: str) -> bool:
        table, line = self.query_one(FlagTable), self.query_one("#edit", Input)
        if key in ("up", "down", "pageup", "pagedown"):
            by = {"up": -1, "down": 1, "pageup": -10, "pagedown": 10}[key]
            table.move(by)
            return True
        if key == "tab" and not line.value and (change := self.proposed()):
            self.edits |= change
            self.plans.clear()
            self.refit()
            return True
        if key == "f1" and table.chosen is not None:
            self.app.push_screen(AboutScreen(table.chosen))
            return True
        if key == "tab":
            row = table.chosen
            completed = flag_rules.complete(line.value, self.after, self.target.book)
            if "=" not in line.value and row is not None and (not completed or table.cursor):
                completed = flag_rules.typed(row.name, self.after, self.target.book)
            if completed:
                line.value = completed
                line.cursor_position = len(completed)
            return True
        return False

    def proposed(self) -> dict[str, FlagValue | None]:
        """What the verdict proposes and is not edited so yet."""
        change = proposed(self.target.state).items()
        wanted = {name: None if value is False else value for name, value in change}
        left = {n: v for n, v in wanted.items() if self.edits.get(n, self) != v}
        return {n: v for n, v in left.items() if self.before.get(n) != v}

    def _plan_key(self, key: str) -> bool:
        servers = len(self.scope)
        fields = self.how.fields(servers)
        if key in ("up", "down"):
            at = fields.index(self.field) + (1 if key == "down" else -1)
            self.field = fields[at % len(fields)]
            self.refit()
            return True
        turns = {"tab": 1, "shift+tab": -1}
        if not self.asks_word:
            turns |= {"right": 1, "left": -1}
        if key in turns:
            self.how = self.how.turned(self.field, turns[key], servers)
            self.refit()
            if self.field in ("strategy", "at_once"):
                self.app.spawn(self.ask_costs())
            return True
        if key in ("pageup", "pagedown"):
            box = self.query_one("#plan-box")
            box.scroll_relative(y=-5 if key == "pageup" else 5, animate=False)
            return True
        if key == "y" and not self.asks_word:
            self.go()
            return True
        return False

    def leave(self) -> None:
        """Out, nothing done; what was edited is kept for the next time."""
        self.keep_draft()
        self.dismiss(None)

    def keep_draft(self) -> None:
        """Edits of the whole fleet outlive the dialog."""
        if self.gpu is None:
            own = self.edits != self._offered
            self.target.draft = dict(self.edits) if own else {}
            if self.target.draft:
                self.app.say(f"{len(self.edits)} edits are kept: r goes on, Config drops them")

    def back_to_edit(self) -> None:
        """From the plan to the flags."""
        self.step = "edit"
        self.problem = self.mistyped = ""
        line = self.query_one("#edit", Input)
        with self.prevent(Input.Changed):
            line.value = ""
        self.refit()
        line.focus()

    # --- plan and go ---

    def request(self, *, dry_run: bool, how: How | None = None) -> Restart | None:
        """What is asked of the agent."""
        spec = self.target.state.target
        if spec is None:
            return None
        how = how or self.how
        shown = self.plans.get(how.strategy)
        return Restart(
            spec=spec,
            set_flags={n: v for n, v in self.edits.items() if v is not None},
            unset_flags=[n for n, v in self.edits.items() if v is None and n in self.before],
            strategy=how.strategy,
            gpus=self.gpus,
            in_flight=how.in_flight,
            at_once=how.at_once if how.strategy != "all" else 1,
            confirm_within_min=how.within,
            take_over=[] if dry_run or shown is None else shown.take_over,
            dry_run=dry_run,
        )

    async def ask_plan(self) -> None:
        """The plan from the agent, nothing done. It is shown when it comes, unless somebody types
        again by then: what is typed is not to be taken for an answer to it."""
        self.say_keys("asking for the plan …")
        typed = self._typed
        refused = await self._ask(self.how)
        if not self.is_attached or self.step != "edit":
            return  # left meanwhile
        if typed != self._typed or self.query_one("#edit", Input).value.strip():
            there = "the plan is there: enter on the empty line shows it"
            if refused or self.plan is not None:
                self.app.say(refused or there, "warning" if refused else "information")
            return
        self.problem = refused
        if refused or self.plan is None:  # without a plan the flags were edited meanwhile
            self.refit()
        else:
            await self.show_plan()

    async def show_plan(self) -> None:
        """The second step; then what the other ways would cost."""
        self.step = "plan"
        self.problem = self.mistyped = ""
        self.field = self.how.fields(len(self.scope))[0]
        line = self.query_one("#edit", Input)
        with self.prevent(Input.Changed):
            line.value = ""
        if self.asks_word:
            line.focus()
        else:
            self.set_focus(None)
        self.refit()
        self._planned_at = time.monotonic()
        await self.ask_costs()

    async def ask_costs(self) -> None:
        """What each strategy would cost, the chosen one first."""
        self._asked += 1
        mine = self._asked
        order = sorted(STRATEGIES, key=lambda s: s != self.how.strategy)
        for strategy in order if len(self.scope) > 1 else order[:1]:
            how = How(strategy, self.how.in_flight, self.how.at_once, self.how.within)
            refused = await self._ask(how)
            if not self.is_attached or mine != self._asked:
                return  # something else was chosen meanwhile
            if strategy == self.how.strategy:
                self.problem = refused
            self.refit()

    async def _ask(self, how: How) -> str:
        """Ask for one plan; why it was refused, or nothing."""
        request = self.request(dry_run=True, how=how)
        if request is None:
            return "nothing is known of the target yet"
        try:
            found = await self.target.call(request, PLAN_S)
        except FeedError as error:
            return str(error)
        if isinstance(found, Plan) and request.set_flags == self._set_flags():
            self.plans[how.strategy] = found
        return ""

    def _set_flags(self) -> Flags:
        return {n: v for n, v in self.edits.items() if v is not None}

    def go(self) -> None:
        """Begin, and show it."""
        request = self.request(dry_run=False)
        app, watch = self.app, self.target
        if self.gpu is None:
            watch.draft = dict(self.edits)
        self.dismiss(None)
        if request is not None:
            app.spawn(self._send(app, watch, request))

    @staticmethod
    async def _send(app: StokerApp, watch: Watch, request: Restart) -> None:
        if not await app.outbox.send(request, watch):
            return  # refused: the edits are kept
        if request.gpus is None:
            watch.draft = {}
        if app.front is watch:
            await app.targets.go("fleet")
