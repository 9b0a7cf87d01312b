"""A question with one line for an answer."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input

from console.screens.modal import Modal


class AskLine(Modal[str | None]):
    """The answer; None where it was left."""

    def __init__(self, question: str, example: str = "") -> None:
        super().__init__()
        self.question = question
        self.example = example

    def compose(self) -> ComposeResult:
        """See :class:`Modal`."""
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self.question)
            box.border_subtitle = "enter does it, esc leaves"
            yield Input(placeholder=self.example)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The answer."""
        self.dismiss(event.value)

    def on_key(self, event: events.Key) -> None:
        """Escape leaves."""
        if event.key == "escape":
            event.stop()
            self.dismiss(None)
