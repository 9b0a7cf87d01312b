"""The panel for one who comes back."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.screen import ModalScreen

from console.actions import BY_NAME
from console.notices import Notice
from console.widgets.notices import notice_lines
from console.widgets.paint import Line, Painted


class AwayText(Painted):
    """The notices, as many as there are."""

    def __init__(self, found: list[Notice]) -> None:
        super().__init__()
        self.found = found

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        return notice_lines(self.found, width, height)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """See :class:`textual.widget.Widget`."""
        return min(len(notice_lines(self.found, width, 999)), max(3, viewport.height - 6))


class AwayScreen(ModalScreen[str]):
    """Any key leaves it; the key beside a line names the action to go on with."""

    def __init__(self, title: str, found: list[Notice]) -> None:
        super().__init__()
        self._said = title
        self._found = found

    def compose(self) -> ComposeResult:
        """See :class:`ModalScreen`."""
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self._said)
            box.border_subtitle = "any key goes on"
            yield AwayText(self._found)

    def on_key(self, event: events.Key) -> None:
        """Leave, with the action whose key it was."""
        event.stop()
        offered = (BY_NAME[notice.action] for notice in self._found if notice.action)
        self.dismiss(next((a.name for a in offered if event.key in a.keys), ""))
