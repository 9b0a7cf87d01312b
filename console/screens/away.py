"""The panel of notices: for one who comes back, and of what is wrong now."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size

from console.actions import BY_NAME
from console.notices import Notice
from console.screens.modal import Modal
from console.widgets.notices import notice_block
from console.widgets.paint import Line, Painted

_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1}


class AwayText(Painted):
    """The notices, of one who gives so many at most: as many as fit whole, the chosen one in
    sight."""

    MOST = 24

    def __init__(self, found: Callable[[int], list[Notice]]) -> None:
        super().__init__()
        self._all = found
        self.found = found(self.MOST)
        self.chosen: int | None = None

    def move(self, by: int) -> None:
        """Choose another one."""
        last = len(self.found) - 1
        at = (-1 if by > 0 else last + 1) if self.chosen is None else self.chosen
        self.chosen = max(0, min(last, at + by))
        self.show()

    def renew(self) -> None:
        """As it is now; the chosen one stays, wherever it stands by now."""
        held = None if self.chosen is None else self.found[self.chosen]
        self.found = self._all(self.MOST)
        if held is not None:
            same = (i for i, n in enumerate(self.found) if (n.code, n.gpu) == (held.code, held.gpu))
            self.chosen = next(same, None)
        self.refresh(layout=True)
        self.show()

    def _fitting(self, width: int, height: int) -> list[Line]:
        """So many that they fit; where even few do not, those around the chosen one."""
        for most in range(self.MOST, 0, -1):
            self.found = self._all(most)
            blocks = [
                notice_block(notice, width, chosen=index == self.chosen)
                for index, notice in enumerate(self.found)
            ]
            if sum(map(len, blocks)) <= height:
                break
        end = sum(len(block) for block in blocks[: (self.chosen or 0) + 1])
        return [line for block in blocks for line in block][max(0, end - height) :]

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        return self._fitting(width, height)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """See :class:`textual.widget.Widget`."""
        most = max(3, viewport.height - 6)
        return min(len(self._fitting(width, most)), most)


class AwayScreen(Modal[str | Notice]):
    """Leaves with the action whose key was pressed, with the notice whose logs are wanted, or
    with nothing."""

    def __init__(
        self, title: str, found: Callable[[int], list[Notice]], *, live: bool = False
    ) -> None:
        super().__init__()
        self._said = title
        self._found = found
        self._live = live
        """Whether what is shown goes on as time does."""

    def compose(self) -> ComposeResult:
        """See :class:`Modal`."""
        text = AwayText(self._found)
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self._said)
            logs = "↑↓ choose, ⏎ shows its logs; " if any(map(has_logs, text.found)) else ""
            box.border_subtitle = f"{logs}any other key goes on"
            yield text

    def on_mount(self) -> None:
        """From now on each second."""
        if self._live:
            self.set_interval(1, self.query_one(AwayText).renew)

    def on_key(self, event: events.Key) -> None:
        """Choose, or leave."""
        event.stop()
        text = self.query_one(AwayText)
        if event.key in _MOVES:
            text.move(_MOVES[event.key])
        elif event.key == "enter":
            chosen = text.found[text.chosen or 0]
            self.dismiss(chosen if has_logs(chosen) else chosen.action)
        else:
            offered = (BY_NAME[notice.action] for notice in text.found if notice.action)
            self.dismiss(next((a.name for a in offered if event.key in a.keys), ""))


def has_logs(notice: Notice) -> bool:
    """Whether it is about a server, or a moment: then logs tell more."""
    return notice.gpu is not None or notice.since > 0
