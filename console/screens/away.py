"""The panel of notices: for one who comes back, and of what is wrong now."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.screen import ModalScreen

from console.actions import BY_NAME
from console.notices import Notice
from console.widgets.notices import notice_block
from console.widgets.paint import Line, Painted

_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1}


class AwayText(Painted):
    """The notices, the chosen one in sight."""

    def __init__(self, found: list[Notice]) -> None:
        super().__init__()
        self.found = found
        self.chosen: int | None = None

    def move(self, by: int) -> None:
        """Choose another one."""
        last = len(self.found) - 1
        at = (-1 if by > 0 else last + 1) if self.chosen is None else self.chosen
        self.chosen = max(0, min(last, at + by))
        self.show()

    def _blocks(self, width: int) -> list[list[Line]]:
        return [
            notice_block(notice, width, chosen=index == self.chosen)
            for index, notice in enumerate(self.found)
        ]

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        blocks = self._blocks(width)
        end = sum(len(block) for block in blocks[: (self.chosen or 0) + 1])
        lines = [line for block in blocks for line in block]
        return lines[max(0, end - height) :]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """See :class:`textual.widget.Widget`."""
        return min(sum(map(len, self._blocks(width))), max(3, viewport.height - 6))


class AwayScreen(ModalScreen[str | Notice]):
    """Leaves with the action whose key was pressed, with the notice whose logs are wanted, or
    with nothing."""

    def __init__(self, title: str, found: list[Notice]) -> None:
        super().__init__()
        self._said = title
        self._found = found

    def compose(self) -> ComposeResult:
        """See :class:`ModalScreen`."""
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self._said)
            logs = "↑↓ choose, ⏎ shows its logs; " if any(map(has_logs, self._found)) else ""
            box.border_subtitle = f"{logs}any other key goes on"
            yield AwayText(self._found)

    def on_key(self, event: events.Key) -> None:
        """Choose, or leave."""
        event.stop()
        text = self.query_one(AwayText)
        if event.key in _MOVES:
            text.move(_MOVES[event.key])
        elif event.key == "enter":
            chosen = self._found[text.chosen or 0]
            self.dismiss(chosen if has_logs(chosen) else chosen.action)
        else:
            offered = (BY_NAME[notice.action] for notice in self._found if notice.action)
            self.dismiss(next((a.name for a in offered if event.key in a.keys), ""))


def has_logs(notice: Notice) -> bool:
    """Whether it is about a server, or a moment: then logs tell more."""
    return notice.gpu is not None or notice.since > 0
