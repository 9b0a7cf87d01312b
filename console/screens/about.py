"""Everything about one flag, scrolling."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content

from console.flags import Row
from console.screens.modal import Modal
from console.text import visible
from console.widgets.flag_table import about
from console.widgets.paint import Line, Tall


class AboutText(Tall):
    """The lines, as tall as they are."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self._row = row

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        return about(self._row, width)


class AboutScreen(Modal[None]):
    """Over the list that the flag was chosen in."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self._row = row

    def compose(self) -> ComposeResult:
        """See :class:`Modal`."""
        with Vertical(classes="dialog") as box:
            box.border_title = Content(visible(self._row.name))
            box.border_subtitle = "↑↓ scroll, esc closes"
            with VerticalScroll():
                yield AboutText(self._row)

    def on_key(self, event: events.Key) -> None:
        """Any of the keys that leave; j and k."""
        if event.key in ("escape", "q", "enter", "f1", "i"):
            event.stop()
            self.dismiss(None)
        elif event.key in ("j", "k"):
            scroll = self.query_one(VerticalScroll)
            scroll.scroll_relative(y=1 if event.key == "j" else -1, animate=False)
