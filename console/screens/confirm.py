"""The question before something that is not undone by the next key."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from console.action import Action, Danger
from console.screens.modal import Modal


def word_hint(word: str) -> str:
    """What stands in the empty line that a word is typed into: no word that looks typed."""
    return f"(type {word} here)"


def not_the_word(word: str) -> str:
    """The answer to anything else, a bare enter too."""
    return f"that was not {word!r}; nothing was done"


class Confirm(Modal[bool]):
    """Asks with one key, or with a typed word where a whole fleet is meant."""

    def __init__(
        self,
        question: str,
        action: Action,
        how: Danger,
        line: str,
        cost: str = "",
    ) -> None:
        super().__init__()
        self.question = question
        self.action = action
        self.how = how
        self.line = line
        self.cost = cost

    def compose(self) -> ComposeResult:
        """See :class:`Modal`."""
        with Vertical(classes="dialog danger") as box:
            box.border_title = Content(self.question)
            yield Static(self.action.help, markup=False)
            if self.action.loses:
                yield Static(f"What it costs: {self.action.loses}", markup=False)
            if self.cost:
                yield Static(f"Now: {self.cost}.", markup=False, classes="bad")
            if self.line:
                yield Static(f"The same from a shell:  {self.line}", markup=False, classes="hint")
            yield Static("")
            if self.how == "word":
                yield Static(
                    f"Type {self.action.word} and press enter; esc leaves it.", markup=False
                )
                yield Input(id="word", placeholder=word_hint(self.action.word))
                yield Static("", id="said", markup=False, classes="bad")
            else:
                yield Static("y does it; n or esc leaves it.", markup=False)

    def on_key(self, event: events.Key) -> None:
        """y, n, esc."""
        if event.key == "escape" or (self.how != "word" and event.key == "n"):
            event.stop()
            self.dismiss(False)
        elif self.how != "word" and event.key == "y":
            event.stop()
            self.dismiss(True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The typed word decides."""
        if event.value.strip() == self.action.word:
            self.dismiss(True)
        else:
            event.input.value = ""
            self.query_one("#said", Static).update(not_the_word(self.action.word))
