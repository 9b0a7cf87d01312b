"""Which epoch to go back to: each with what it gave, and the plan of the chosen one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.widgets import Input, Static

from console import mixed, model
from console.actions import BY_NAME, command_line, danger
from console.feed import PLAN_S, FeedError
from console.screens.confirm import not_the_word, word_hint
from console.screens.modal import Modal
from console.text import visible
from console.watch import Watch
from console.widgets.epochs import epoch_line, head_line
from console.widgets.paint import Line, Painted
from remote.protocol import Epoch, Plan, Rollback, TargetSpec

if TYPE_CHECKING:
    from console.app import StokerApp

_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1}

MOST_ROWS = 8
"""Epochs in sight at once."""


def choices(state: model.State) -> list[Epoch]:
    """Epochs that one can go back to, newest first: all but the one that runs."""
    now = model.current_epoch(state)
    return [e for e in reversed(state.epochs) if now is None or e.id != now.id]


class EpochRows(Painted):
    """The epochs, the best one and the chosen one marked."""

    app: StokerApp

    def __init__(self, state: model.State) -> None:
        super().__init__()
        self._state = state
        self.epochs = choices(state)
        best = model.winner(state.epochs)
        ids = [e.id for e in self.epochs]
        self.at = ids.index(best.id) if best is not None and best.id in ids else 0

    @property
    def chosen(self) -> Epoch:
        """The one to go back to."""
        return self.epochs[self.at]

    def move(self, by: int) -> None:
        """Choose another one."""
        self.at = max(0, min(len(self.epochs) - 1, self.at + by))
        self.show()

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        now = self.app.now()
        rows = [
            epoch_line(self._state, epoch, index == self.at, now, width)
            for index, epoch in enumerate(self.epochs)
        ]
        first = max(0, min(self.at - (height - 2), len(rows) + 1 - height))
        return [head_line(width), *rows[first:]]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """See :class:`textual.widget.Widget`."""
        return 1 + min(MOST_ROWS, len(self.epochs), max(1, viewport.height - 16))


class RollbackScreen(Modal[Rollback | None]):
    """Two steps: choose, then confirm; the plan of what is chosen stands there all the time.

    It ends with the request to send, or with nothing.
    """

    app: StokerApp
    AUTO_FOCUS = ""

    def __init__(self, watch: Watch, spec: TargetSpec) -> None:
        super().__init__()
        self._watch = watch
        self._spec = spec
        self._action = BY_NAME["rollback"]
        self._sure = False
        """Whether an epoch is settled on."""
        self._plans: dict[int, Plan | str] = {}
        """What the agent said of each epoch that was looked at: its plan, or why there is none."""
        numbers = watch.state.numbers
        self._word = danger(self._action, len(numbers), len(numbers)) == "word"

    def compose(self) -> ComposeResult:
        """See :class:`Modal`."""
        with Vertical(classes="dialog danger wide") as box:
            box.border_title = Content(f"Roll back {self._watch.name}: to which epoch?")
            box.border_subtitle = "nothing has been done yet"
            yield EpochRows(self._watch.state)
            yield Static("", id="plan", markup=False)
            yield Static("", id="shell", markup=False, classes="hint")
            yield Input(id="word", placeholder=word_hint(self._action.word))
            yield Static("", id="said", markup=False, classes="bad")
            yield Static("", id="keys", markup=False, classes="hint")

    def on_mount(self) -> None:
        """Begin with the best one."""
        self._refit()

    def _refit(self) -> None:
        epoch = self.query_one(EpochRows).chosen
        line = self.query_one("#word", Input)
        line.display = self._sure and self._word
        self.query_one("#said", Static).update("")
        if line.display:
            line.focus()
        else:
            self.set_focus(None)
        more = ["--epoch", str(epoch.id)]
        shell = command_line(self._action, self._watch.name, more=more, file=self._watch.file)
        self.query_one("#shell", Static).update(Content(f"The same from a shell:  {shell}"))
        self.query_one("#keys", Static).update(Content(self._keys(epoch)))
        self._show_plan(epoch)

    def _keys(self, epoch: Epoch) -> str:
        if not self._sure:
            return "↑↓ or j k choose   ⏎ goes on with it   esc leaves"
        if self._word:
            return (
                f"type {self._action.word} and press ⏎: back to epoch {epoch.id}   esc chooses anew"
            )
        return f"y goes back to epoch {epoch.id}   esc chooses anew"

    def _show_plan(self, epoch: Epoch) -> None:
        plan = self._plans.get(epoch.id)
        if plan is None:
            self.run_worker(self._ask(epoch), group="plan", exclusive=True)
            lines = ["asking the agent for the plan …"]
        elif isinstance(plan, str):
            lines = [plan]
        else:
            lines = [*plan.diff, *filter(None, [mixed.going_on(plan)])]
            lines = [*lines, *plan.warnings, *plan.costs] or ["the flags that run already"]
        state = self._watch.state
        best, now = model.winner(state.epochs), model.current_epoch(state)
        if best is not None and now is not None and best.id == now.id:
            lines.insert(0, f"the present epoch, {now.id}, is the best measured")
        self.query_one("#plan", Static).update(Content("\n".join(map(visible, lines))))

    async def _ask(self, epoch: Epoch) -> None:
        request = self._request(epoch)
        try:
            found = await self._watch.call(replace(request, dry_run=True), PLAN_S)
        except FeedError as error:
            self._plans[epoch.id] = str(error)
        else:
            self._plans[epoch.id] = found if isinstance(found, Plan) else "no plan came"
        if epoch is self.query_one(EpochRows).chosen:
            self._show_plan(epoch)

    def _request(self, epoch: Epoch) -> Rollback:
        """With what its plan has named, and is confirmed with it."""
        plan = self._plans.get(epoch.id)
        named = plan.take_over if isinstance(plan, Plan) else []
        return Rollback(spec=self._spec, epoch=epoch.id, take_over=named)

    def on_key(self, event: events.Key) -> None:
        """Choose, settle, leave."""
        rows = self.query_one(EpochRows)
        if event.key == "escape":
            event.stop()
            if not self._sure:
                self.dismiss(None)
                return
            self._sure = False
        elif self._sure:
            if event.key == "y" and not self._word:
                event.stop()
                self.dismiss(self._request(rows.chosen))
            return
        elif event.key in _MOVES:
            rows.move(_MOVES[event.key])
        elif event.key == "enter":
            if not isinstance(self._plans.get(rows.chosen.id), Plan):
                return  # nothing to agree to yet
            self._sure = True
        else:
            return
        event.stop()
        event.prevent_default()
        self._refit()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The typed word decides."""
        event.stop()
        if event.value.strip() == self._action.word:
            self.dismiss(self._request(self.query_one(EpochRows).chosen))
        else:
            event.input.value = ""
            self.query_one("#said", Static).update(not_the_word(self._action.word))
