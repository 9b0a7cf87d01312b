"""The line in which a filter is typed, for every screen that has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input

from console.sift import Filter

if TYPE_CHECKING:
    from console.app import StokerApp

PAUSE_S = 0.15
"""Typing that rests for so long is looked for: every key at once would be one search a key."""

MOST = 500
"""Characters of a filter; a log pasted by mistake is none."""


HINT = "show lines that match this regular expression; ! in front: that do not"

Problem: TypeAlias = Callable[[str], str]
"""What is wrong with a filter, in one line; empty where nothing is."""


def _problem(text: str) -> str:
    return Filter(text).problem


class FilterLine(Input):
    """A regular expression at work while it is typed; a mistake is marked and changes nothing."""

    app: StokerApp

    class Wanted(Message):
        """Another filter is in force: :attr:`FilterLine.text`."""

    class Entered(Message):
        """It was typed to its end; the lines should have the keys again."""

    def __init__(self, placeholder: str = HINT, problem: Problem = _problem) -> None:
        super().__init__(
            id="filter", classes="line-input", placeholder=placeholder, max_length=MOST
        )
        self._problem = problem
        self.display = False
        self.text = ""
        """The filter in force."""
        self._resting: Timer | None = None

    def open(self) -> None:
        """Show it, with the filter in force, and type into it."""
        self.display = True
        self.value = self.text
        self.call_after_refresh(self.focus)  # the key itself must not be typed

    def let_go(self) -> bool:
        """No filter any more, and the line hidden; whether there was anything to let go of."""
        if not self.display and not self.text:
            return False
        self.display = False
        self.value = self.text = ""
        self.post_message(self.Wanted())
        self.post_message(self.Entered())
        return True

    def refuse(self, problem: str) -> None:
        """Take back a filter that turned out to be of no use; it can still be mended here."""
        if self.text:
            self.text = ""
            self.add_class("bad")
            self.app.say(problem, "error")
            self.post_message(self.Wanted())

    def restricted(self) -> None:
        """See :class:`Input`: said once, where a bell would ring for each letter of a paste."""
        if not self.has_class("bad"):
            self.add_class("bad")
            self.app.say(f"a filter has {MOST} characters at most", "warning")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Look for it once the typing rests."""
        event.stop()
        self.set_class(bool(self._problem(event.value)), "bad")
        if self._resting is not None:
            self._resting.stop()
        self._resting = self.set_timer(PAUSE_S, self._take)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep it, back to the lines."""
        event.stop()
        if problem := self._problem(event.value):
            self.app.say(problem, "error")
            return
        self._take()
        self.display = bool(event.value)
        self.post_message(self.Entered())

    def _take(self) -> None:
        if self.value != self.text and not self._problem(self.value):
            self.text = self.value
            self.post_message(self.Wanted())
