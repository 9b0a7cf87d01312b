"""What every full screen of the console has: a top line, a key line, a way to be painted."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.compose import compose
from textual.screen import Screen
from textual.widget import Widget

from console.widgets.alert_line import AlertLine
from console.widgets.bars import KeyBar, ReplayBar, TopBar
from console.widgets.paint import Painted

if TYPE_CHECKING:
    from console.app import StokerApp


class StokerScreen(Screen[None]):
    """A screen between the two bars; :meth:`body` makes what lies between them."""

    app: StokerApp
    SCREEN: ClassVar[str] = ""
    ALERTS: ClassVar[bool] = True
    """Whether the worst that is wrong is told in one line at its top."""
    AUTO_FOCUS = ""
    _whole = False
    """Whether its body is made."""

    def compose(self) -> ComposeResult:
        """See :class:`Screen`."""
        yield TopBar(self.SCREEN)
        yield AlertLine()
        if self.app.up:
            self._whole = True
            yield from self.body()
        yield ReplayBar()
        yield KeyBar(self.SCREEN)

    def complete(self) -> None:
        """Make what lies between the bars, of a screen that was painted without it: the console's
        first frame does not wait for that."""
        if not self._whole:
            self._whole = True
            self.mount_all(compose(self, self.body()), after=self.query_one(AlertLine))
            self.call_after_refresh(self.show)

    @property
    def alerts(self) -> int:
        """Rows that tell what is wrong: one at most, none on a screen with notices of its own."""
        return int(self.ALERTS and bool(self.query_one(AlertLine).found))

    @property
    def rows(self) -> int:
        """Rows of the screen, less those of a recording's clock and of what is wrong."""
        return self.size.height - (self.app.replay is not None) - self.alerts

    @property
    def sources(self) -> list[str]:
        """Logs that this screen needs pushed."""
        return []

    def body(self) -> ComposeResult:
        """The widgets between the bars."""
        raise NotImplementedError

    def show(self) -> None:
        """Paint the app's state; called about once a second while in front."""
        if not self.is_attached or not self._whole or not self.query(KeyBar):
            return  # not composed yet
        self.query_one(ReplayBar).display = self.app.replay is not None
        set_height(self.query_one(AlertLine), self.alerts)
        self.lay_out()
        for widget in self.query(Painted):
            widget.show()

    def lay_out(self) -> None:
        """Give the parts their sizes; called before each painting, cheap when nothing changed."""

    async def act(self, name: str) -> bool:
        """Do an action in this screen's own way; False leaves it to the app."""
        return False

    def back(self) -> bool:
        """Escape: True where this screen had something to let go of."""
        return False

    def on_screen_resume(self) -> None:
        """In front again: paint what came meanwhile."""
        self.call_after_refresh(self.show)

    def on_resize(self) -> None:
        """A new size."""
        self.call_after_refresh(self.show)


def set_height(widget: Widget, rows: int) -> None:
    """Give a widget so many rows, 0 hides it; nothing happens where it has them already."""
    shown = rows > 0
    if widget.display != shown:
        widget.display = shown
    height = widget.styles.height
    if shown and (height is None or height.cells != rows):
        widget.styles.height = rows
