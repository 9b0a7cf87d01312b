"""The plain command lines that the console's actions equal, to read and to copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from console import byhand
from console.actions import ACTIONS, BY_NAME, command_line
from console.config import command
from console.screens.modal import Modal
from console.text import visible

if TYPE_CHECKING:
    from console.app import StokerApp


class LinesScreen(Modal[None]):
    """One line an action, then how servers and run are looked after by hand; enter copies one."""

    app: StokerApp

    def compose(self) -> ComposeResult:
        """See :class:`Modal`."""
        with Vertical(classes="dialog") as box:
            box.border_title = "The same without the console"
            box.border_subtitle = "enter copies, esc closes"
            yield OptionList(
                *(Option(visible(line), id=f"l{n}") for n, line in enumerate(self.lines())),
                markup=False,
            )
            yield Static(
                "Servers and run go on without Stoker; each line works from any shell.",
                classes="hint",
            )

    def lines(self) -> list[str]:
        """What stands in the list."""
        app = self.app
        gpu = app.focus_gpu
        scope = None if gpu is None else [gpu]
        draft, file = app.front.draft, app.front.file
        found = [command(app.target_name, file, ["status"])]
        if draft and gpu is None:
            found.append(
                command_line(
                    BY_NAME["restart"],
                    app.target_name,
                    set_flags={name: value for name, value in draft.items() if value is not None},
                    unset_flags=[name for name, value in draft.items() if value is None],
                    file=file,
                )
            )
        found += [
            line
            for action in ACTIONS
            if (
                line := command_line(
                    action,
                    app.target_name,
                    gpus=scope if action.group == "Fleet" and action.name != "rollback" else None,
                    file=file,
                )
            )
        ]
        found = list(dict.fromkeys(found))
        chosen = [gpu] if gpu is not None else sorted(app.state.infos)[:1]
        found += [command(app.target_name, file, ["logs", str(n)], ["-f"]) for n in chosen]
        if app.front.target is not None:
            found += byhand.lines(app.front.target, app.state, chosen)
        return found

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Copy it."""
        text = self.lines()[event.option_index]
        self.app.copy_to_clipboard(text)
        self.app.say("copied")
        self.dismiss(None)

    def on_key(self, event: events.Key) -> None:
        """Escape leaves."""
        if event.key == "escape":
            event.stop()
            self.dismiss(None)
