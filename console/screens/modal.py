"""What every dialog and panel over a screen has: it is left once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from textual.await_complete import AwaitComplete
from textual.message import Message
from textual.screen import ModalScreen, Screen

Answered = TypeVar("Answered")

if TYPE_CHECKING:
    _Over = Screen[Any]
else:
    _Over = object  # no node of its own: the stylesheet's rules are found by the other base


class Once(_Over):
    """A screen over others that may be left in any way, any number of times.

    Keys come in bursts: a held key, a slow link, a double click. Those behind the one that leaves
    are under way to this screen already; they must neither pop the screen beneath it nor do its
    work a second time.
    """

    left = False
    """Whether it was left; it may still be on its way out."""

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Leave with a result; nothing where it was left before, or where it is not the one in
        front: then what was pressed was meant for the one over it."""
        stack = self.app.screen_stack
        if self.left or not stack or stack[-1] is not self:
            return AwaitComplete()
        self.left = True
        return super().dismiss(result)

    async def _dispatch_message(self, message: Message) -> None:
        # What bubbles is what somebody did: keys, clicks, and what its widgets make of them.
        if self.left and message.bubble:
            message.stop()
            return
        await super()._dispatch_message(message)


class Modal(Once, ModalScreen[Answered]):
    """A dialog or panel of ours."""
