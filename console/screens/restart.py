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
from console.actions import BY_NAME
from console.proposal import STRATEGIES, Field, Proposal
from console.screens.about import AboutScreen
from console.screens.confirm import not_the_word, word_hint
from console.screens.modal import Modal
from console.text import visible
from console.watch import Watch
from console.widgets.flag_table import DETAIL, HEAD, FlagTable
from console.widgets.paint import Line, Tall
from console.widgets.plan import difference_lines, entry, how_lines, predicted_lines
from remote.protocol import FlagValue, Restart

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
        return flag_rules.complete(value, dialog.proposal.after, dialog.target.book)


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
        self.proposal = Proposal(watch, edits)
        self.step: Literal["edit", "plan"] = "edit"
        self.field: Field = "strategy"
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
        """The line has the keys."""
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

    def refit(self) -> None:
        """Everything as the step wants it."""
        box = self.query_one(".dialog")
        wish = self.proposal
        meant = wish.restarts if self.step == "plan" else wish.scope
        every = wish.gpu is None and len(meant) == len(wish.scope) > 1
        where = f"all {len(meant)} servers" if every else f"GPU {mixed.ranges(meant)}"
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
            changes = len(wish.changes)
            box.border_subtitle = f"{changes} changed" if changes else "nothing changed yet"
            line.display = True
            line.placeholder = "flag=value   (-flag takes one out; words search all flags)"
            change = (
                ""
                if line.value
                else "  ".join(
                    f"-{n}" if v is None else f"{n}={model.flag_text(v)}"
                    for n, v in wish.advised().items()
                )
            )
            first = f"tab takes what is proposed: {change}\n" if change else ""
            words = "↑↓ choose  enter edits (empty line: plans)  esc leaves"
            self.say_keys(f"{first}{'' if change else 'tab completes  '}{words}")
        else:
            rows = len(self.plan_lines(max(40, self.app.size.width - 8)))
            plan.styles.height = max(1, min(most, rows))
            box.border_subtitle = "nothing has been done yet"
            line.display = wish.asks_word
            line.placeholder = word_hint(BY_NAME["restart"].word)
            how = "type restart, then enter" if wish.asks_word else "y restarts"
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
        wish = self.proposal
        typed = self.query_one("#edit", Input).value.lstrip("-")
        search = typed.partition("=")[0].strip()
        chosen = table.chosen
        table.rows = flag_rules.rows(
            self.target.book, wish.before, wish.edits, search, every=bool(search)
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
        state, wish = self.target.state, self.proposal
        brief = self.app.size.height < BRIEF_BELOW
        plan, meant = wish.plan, wish.restarts
        gap: list[Line] = [] if brief else [[]]
        lines = difference_lines(state, plan, wish.scope, wish.before, wish.after, width)
        lines += predicted_lines(state, plan, meant, width)
        lines += gap
        lines += how_lines(wish.how, self.field, wish.plans, len(meant), width, brief=brief)
        for warning in plan.warnings if plan is not None else ():
            rows = textwrap.wrap(visible(warning), max(20, width - 2))
            lines += [
                [("  " if index else "▲ ", "warn"), (r, "warn")] for index, r in enumerate(rows)
            ]
        done = state.progress.completed if state.progress is not None else 0
        if done and not brief:
            lines += entry("stays", f"the {done:,} finished prompts", "text", width)
        lines += gap
        return [*lines, *entry("from a shell", wish.shell_line(), "dim", width)]

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
        text, wish = event.value.strip(), self.proposal
        if self.step == "plan":
            if text == BY_NAME["restart"].word:
                self.go()
            else:
                event.input.value = ""
                self.mistyped = not_the_word(BY_NAME["restart"].word)
                self.refit()
            return
        if not text:
            self.app.spawn(self.ask_plan() if wish.plan is None else self.show_plan())
            return
        try:
            edit = flag_rules.parse(text, {**wish.before, **wish.after}, self.target.book)
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
        wish.edit(edit.name, edit.value)
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
        if key == "tab" and not line.value and self.proposal.advised():
            self.proposal.take_advice()
            self.refit()
            return True
        if key == "f1" and table.chosen is not None:
            self.app.push_screen(AboutScreen(table.chosen))
            return True
        if key == "tab":
            row = table.chosen
            after, book = self.proposal.after, self.target.book
            completed = flag_rules.complete(line.value, after, book)
            if "=" not in line.value and row is not None and (not completed or table.cursor):
                completed = flag_rules.typed(row.name, after, book)
            if completed:
                line.value = completed
                line.cursor_position = len(completed)
            return True
        return False

    def _plan_key(self, key: str) -> bool:
        wish = self.proposal
        fields = wish.fields
        if key in ("up", "down"):
            at = fields.index(self.field) if self.field in fields else 0
            at += 1 if key == "down" else -1
            self.field = fields[at % len(fields)]
            self.refit()
            return True
        turns = {"tab": 1, "shift+tab": -1}
        if not wish.asks_word:
            turns |= {"right": 1, "left": -1}
        if key in turns:
            wish.how = wish.how.turned(self.field, turns[key], len(wish.restarts))
            self.refit()
            if self.field in ("strategy", "at_once"):
                self.app.spawn(self.ask_costs())
            return True
        if key in ("pageup", "pagedown"):
            box = self.query_one("#plan-box")
            box.scroll_relative(y=-5 if key == "pageup" else 5, animate=False)
            return True
        if key == "y" and not wish.asks_word:
            self.go()
            return True
        return False

    def leave(self) -> None:
        """Out, nothing done; what was edited is kept for the next time."""
        if self.proposal.keep():
            edits = len(self.proposal.edits)
            self.app.say(f"{edits} edits are kept: r goes on, Config drops them")
        self.dismiss(None)

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

    async def ask_plan(self) -> None:
        """The plan from the agent, nothing done. It is shown when it comes, unless somebody types
        again by then: what is typed is not to be taken for an answer to it."""
        self.say_keys("asking for the plan …")
        typed = self._typed
        refused = await self.proposal.ask(self.proposal.how.strategy)
        if not self.is_attached or self.step != "edit":
            return  # left meanwhile
        if typed != self._typed or self.query_one("#edit", Input).value.strip():
            there = "the plan is there: enter on the empty line shows it"
            if refused or self.proposal.plan is not None:
                self.app.say(refused or there, "warning" if refused else "information")
            return
        self.problem = refused
        if refused or self.proposal.plan is None:  # without a plan the flags were edited meanwhile
            self.refit()
        else:
            await self.show_plan()

    async def show_plan(self) -> None:
        """The second step; then what the other ways would cost."""
        self.step = "plan"
        self.problem = self.mistyped = ""
        self.field = self.proposal.fields[0]
        line = self.query_one("#edit", Input)
        with self.prevent(Input.Changed):
            line.value = ""
        if self.proposal.asks_word:
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
        wish = self.proposal
        order = sorted(STRATEGIES, key=lambda s: s != wish.how.strategy)
        for strategy in order if len(wish.restarts) > 1 else order[:1]:
            refused = await wish.ask(strategy)
            if not self.is_attached or mine != self._asked:
                return  # something else was chosen meanwhile
            if strategy == wish.how.strategy:
                self.problem = refused
            self.refit()

    def go(self) -> None:
        """Begin, and show it."""
        request = self.proposal.request(dry_run=False)
        app, watch = self.app, self.target
        if self.proposal.gpu is None:
            watch.draft = dict(self.proposal.edits)
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
