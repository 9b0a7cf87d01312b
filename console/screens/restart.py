"""The restart dialog: edit flags, see the difference and the plan, choose how, confirm."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Literal, TypeAlias

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import Input, Static

from console import flags as flag_rules
from console import model
from console.actions import BY_NAME, command_line, danger
from console.feed import FeedError
from console.text import number, visible
from console.widgets.paint import Line, Painted, Part, clip, pad, spread
from remote.protocol import Flags, FlagValue, Plan, Restart

if TYPE_CHECKING:
    from console.app import StokerApp

Strategy: TypeAlias = Literal["rolling", "all", "canary"]
STRATEGIES: tuple[Strategy, ...] = ("rolling", "all", "canary")
_HOW = {
    "rolling": "one server after the other; the rest go on generating",
    "canary": "one GPU first; the rest follow unless it does worse (K keeps now, B takes back)",
    "all": "all at once; nothing generates until they are ready again",
}


def _entry(label: str, text: str, style: str, width: int) -> list[Line]:
    """A text wrapped beside its label."""
    rows = textwrap.wrap(text, max(20, width - 18))
    return [
        [(pad("" if index else label, 18), "dim"), (row, style)] for index, row in enumerate(rows)
    ]


class _Flags(Suggester):
    def __init__(self, dialog: RestartScreen) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._dialog = dialog

    async def get_suggestion(self, value: str) -> str | None:
        if self._dialog.step == "plan":
            return None  # what is typed there is the word
        return flag_rules.complete(value, self._dialog.after)


class FlagTable(Painted):
    """Every flag that is set, edited ones first to the eye; a cursor chooses one to edit."""

    def __init__(self, dialog: RestartScreen) -> None:
        super().__init__(id="flags")
        self.dialog = dialog
        self.cursor = 0

    @property
    def names(self) -> list[str]:
        """The rows."""
        return sorted({*self.dialog.before, *self.dialog.edits})

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        names = self.names
        if not names:
            return [[("no flag is set: SGLang's own defaults", "dim")]]
        self.cursor = max(0, min(self.cursor, len(names) - 1))
        first = max(0, min(self.cursor - height // 2, len(names) - height))
        wide = min(34, max(map(len, names)) + 2)
        lines: list[Line] = []
        for index, name in enumerate(names[first : first + height], first):
            old = self.dialog.before.get(name)
            edited = name in self.dialog.edits
            new = self.dialog.edits[name] if edited else old
            chosen = index == self.cursor
            line: list[Part] = [
                ("▸ " if chosen else "  ", "bold accent"),
                (pad(visible(name), wide), "bold text" if edited else "text"),
            ]
            if edited and old != new:
                line += [
                    (f"{visible(model.flag_text(old))} ", "dim"),
                    ("→ ", "accent"),
                    (visible(model.flag_text(new)), "bold warn" if new is not None else "bold bad"),
                ]
                if new is None:
                    line.append((" taken out", "bad"))
            else:
                line.append((visible(model.flag_text(old)), "text"))
            known = flag_rules.KNOWN.get(name)
            help_: list[Part] = [(known.help, "dim")] if known is not None and width > 84 else []
            lines.append(spread(line, help_, width))
        return lines


class PlanText(Painted):
    """The difference, what it is predicted to bring, what it costs, and how."""

    def __init__(self, dialog: RestartScreen) -> None:
        super().__init__(id="plan")
        self.dialog = dialog

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        return self.dialog.plan_lines(width)


class RestartScreen(ModalScreen[None]):
    """Two steps: edit, then plan and confirm."""

    app: StokerApp

    def __init__(self, gpu: int | None, edits: dict[str, FlagValue | None] | None = None) -> None:
        super().__init__()
        self.gpu = gpu
        self.edits: dict[str, FlagValue | None] = dict(edits or {})
        self.before: Flags = {}
        self.step: Literal["edit", "plan"] = "edit"
        self.strategy: Strategy = "rolling"
        self.plan: Plan | None = None
        self.problem = ""
        self._doubted = ""

    # --- parts ---

    def compose(self) -> ComposeResult:
        """See :class:`ModalScreen`."""
        with Vertical(classes="dialog"):
            yield FlagTable(self)
            yield PlanText(self)
            yield Input(id="edit", suggester=_Flags(self), placeholder="flag=value")
            yield Static("", id="said", markup=False, classes="bad")
            yield Static("", id="keys", markup=False, classes="hint")

    def on_mount(self) -> None:
        """Start from what runs now."""
        self.before = model.current_flags(self.app.state, self.gpu)
        self.query_one(Input).focus()
        self.refit()

    @property
    def after(self) -> Flags:
        """The flags as edited."""
        return flag_rules.apply(self.before, self.edits)

    @property
    def gpus(self) -> list[int] | None:
        """The servers meant; None for all."""
        return None if self.gpu is None else [self.gpu]

    @property
    def scope(self) -> list[int]:
        """The same, as numbers."""
        return self.gpus or self.app.state.numbers

    @property
    def asks_word(self) -> bool:
        """Whether a word has to be typed."""
        numbers = self.app.state.numbers
        return danger(BY_NAME["restart"], len(self.scope), len(numbers)) == "word"

    def refit(self) -> None:
        """Everything as the step wants it."""
        box = self.query_one(".dialog")
        where = f"GPU {self.gpu}" if self.gpu is not None else f"all {len(self.scope)} servers"
        changes = len(model.flag_changes(self.before, self.after))
        entry = self.query_one("#edit", Input)
        table, plan = self.query_one(FlagTable), self.query_one(PlanText)
        editing = self.step == "edit"
        table.display, plan.display = editing, not editing
        most = max(4, self.app.size.height - 10)
        table.styles.height = max(1, min(most, len(table.names)))
        plan.styles.height = max(1, min(most, len(self.plan_lines(plan.size.width or 96))))
        box.border_title = f"Restart {where} of {self.app.target_name}"
        box.set_class(not editing, "danger")
        if editing:
            box.border_subtitle = f"{changes} changed" if changes else "nothing changed yet"
            entry.display = True
            entry.placeholder = "flag=value   (-flag takes one out)"
            self.say_keys(
                "→ completes   ↑↓ choose   enter edits; on an empty line: the plan   esc leaves"
            )
        else:
            box.border_subtitle = "nothing has been done yet"
            entry.display = self.asks_word
            entry.placeholder = "restart"
            how = "type restart, then enter" if self.asks_word else "y restarts"
            self.say_keys(f"{how}   tab how   ↑ back to the flags   esc leaves")
        said = self.query_one("#said", Static)
        said.update(self.problem)
        said.display = bool(self.problem)
        table.show()
        plan.show()

    def say_keys(self, text: str) -> None:
        """The line of keys."""
        self.query_one("#keys", Static).update(text)

    def plan_lines(self, width: int) -> list[Line]:
        """What is about to be done."""
        state = self.app.state
        changes = model.flag_changes(self.before, self.after)
        lines: list[Line] = []
        if not changes:
            lines.append([("No flag changes: a plain restart.", "text")])
        wide = max((len(c.name) for c in changes), default=0) + 2
        lines += [
            [
                (pad(visible(change.name), wide), "bold text"),
                (f"{visible(model.flag_text(change.before))} ", "dim"),
                ("→ ", "accent"),
                (visible(model.flag_text(change.after)), "bold warn"),
            ]
            for change in changes
        ]
        lines.append([("", "text")])
        slots = sorted(
            {i.max_running for g, i in state.infos.items() if g in self.scope and i.max_running}
        )
        now = "–".join(str(s) for s in (slots[:1] + slots[-1:] if len(slots) > 1 else slots)) or "?"
        plan = self.plan
        if plan is not None and plan.predicted_max_running is not None:
            new = plan.predicted_max_running
            gain = f"  ×{new / slots[-1]:.2f}" if slots else ""
            better = bool(slots) and new > slots[-1]
            lines.append(
                [
                    (pad("slots a server", 18), "dim"),
                    (f"{now} → ", "dim"),
                    (f"{number(new)} predicted", "bold good" if better else "bold text"),
                    (gain, "good" if better else "dim"),
                ]
            )
        how: list[Part] = [(pad("how", 18), "dim")]
        for strategy in STRATEGIES:
            chosen = strategy == self.strategy
            how.append((f" {strategy} ", "reverse accent bold" if chosen else "dim"))
        lines.append(clip(how, width))
        lines += _entry("", _HOW[self.strategy], "text", width)
        lines += _entry(
            "meanwhile", model.swap_cost(state, self.scope, self.strategy), "text", width
        )
        if plan is not None:
            lines += _entry("cost", visible("; ".join(plan.costs)), "text", width)
            for warning in plan.warnings:
                lines.append(clip([("▲ ", "warn"), (visible(warning), "warn")], width))
        line = command_line(
            BY_NAME["restart"],
            self.app.target_name,
            gpus=self.gpus,
            set_flags={n: v for n, v in self.edits.items() if v is not None},
            unset_flags=[n for n, v in self.edits.items() if v is None],
            strategy=self.strategy,
        )
        lines.append([("", "text")])
        return [*lines, *_entry("from a shell", line, "dim", width)]

    # --- editing ---

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take an edit in, or go on."""
        event.stop()
        text = event.value.strip()
        if self.step == "plan":
            if text == BY_NAME["restart"].word:
                self.go()
            else:
                event.input.value = ""
                self.problem = f"that was not {BY_NAME['restart'].word!r}; nothing was done"
                self.refit()
            return
        table = self.query_one(FlagTable)
        if not text:
            self.app.spawn(self.ask_plan())
            return
        try:
            edit = flag_rules.parse(text, {**self.before, **self.after})
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
        if edit.value == self.before.get(edit.name) or (
            edit.value is None and edit.name not in self.before
        ):
            self.edits.pop(edit.name, None)
        else:
            self.edits[edit.name] = edit.value
        event.input.value = ""
        names = table.names
        if edit.name in names:
            table.cursor = names.index(edit.name)
        self.refit()

    def on_key(self, event: events.Key) -> None:
        """The dialog's own keys."""
        entry = self.query_one("#edit", Input)
        table = self.query_one(FlagTable)
        key = event.key
        if key == "escape":
            event.stop()
            if self.step == "plan":
                self.back_to_edit()
            else:
                self.dismiss(None)
        elif self.step == "plan":
            if key == "tab":
                event.stop()
                event.prevent_default()
                at = STRATEGIES.index(self.strategy)
                self.strategy = STRATEGIES[(at + 1) % len(STRATEGIES)]
                self.refit()
                self.app.spawn(self.ask_plan())  # another way has other costs
            elif key == "up":
                event.stop()
                self.back_to_edit()
            elif key == "y" and not self.asks_word:
                event.stop()
                self.go()
        elif key in ("up", "down"):
            event.stop()
            names = table.names
            if names:
                by = 1 if key == "down" else -1
                table.cursor = max(0, min(len(names) - 1, table.cursor + by))
                table.show()
                name = names[table.cursor]
                value = model.flag_text(self.after.get(name))
                entry.value = name if value in ("on", "–") else f"{name}={value}"
                entry.cursor_position = len(entry.value)
        elif key == "tab":
            event.stop()
            event.prevent_default()
            completed = flag_rules.complete(entry.value, self.after)
            if completed:
                entry.value = completed
                entry.cursor_position = len(completed)

    def back_to_edit(self) -> None:
        """From the plan to the flags."""
        self.step = "edit"
        self.problem = ""
        entry = self.query_one("#edit", Input)
        entry.value = ""
        self.refit()
        entry.focus()

    # --- plan and go ---

    def request(self, *, dry_run: bool) -> Restart | None:
        """What is asked of the agent."""
        spec = self.app.state.target
        if spec is None:
            return None
        return Restart(
            spec=spec,
            set_flags={n: v for n, v in self.edits.items() if v is not None},
            unset_flags=[n for n, v in self.edits.items() if v is None],
            strategy=self.strategy,
            gpus=self.gpus,
            dry_run=dry_run,
        )

    async def ask_plan(self) -> None:
        """The plan from the agent, nothing done."""
        request = self.request(dry_run=True)
        if request is None:
            self.problem = "nothing is known of the target yet"
            self.refit()
            return
        step, refused = self.step, ""
        if step == "edit":
            self.say_keys("asking for the plan …")
        try:
            found = await self.app.ask_or_raise(request)
        except FeedError as error:
            refused = str(error)
        if not self.is_attached or (step, request) != (self.step, self.request(dry_run=True)):
            return  # left, or something else was chosen meanwhile
        self.problem = refused
        if not refused:
            self.plan = found if isinstance(found, Plan) else None
            if step == "edit":
                self.to_plan()
        self.refit()

    def to_plan(self) -> None:
        """From the flags to the plan."""
        self.step = "plan"
        entry = self.query_one("#edit", Input)
        entry.value = ""
        if self.asks_word:
            entry.focus()
        else:
            self.set_focus(None)

    def go(self) -> None:
        """Begin, and show it."""
        request = self.request(dry_run=False)
        app = self.app
        self.dismiss(None)
        if request is not None:
            app.spawn(self._send(app, request))

    @staticmethod
    async def _send(app: StokerApp, request: Restart) -> None:
        await app.send(request)
        await app.go("fleet")
