"""The home screen: is it running, how far, how fast, when done, what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from console.screens.base import StokerScreen, set_height
from console.widgets.cards import Cards, Form, arrange
from console.widgets.chart import Chart
from console.widgets.event_lines import EventTail
from console.widgets.notices import Notices, notice_lines
from console.widgets.progress import ProgressHeader
from console.widgets.swap import SwapPanel

MOST_NOTICES = 12
"""Rows of notices, however many there are: `!` shows all."""

LEAST_PLOTTED = 11
"""Rows that plots and events need together."""


@dataclass(frozen=True)
class Heights:
    """Rows of each part between the progress header and the key line."""

    form: Form
    notices: int
    swap: int
    plots: int
    events: int


def heights(width: int, height: int, gpus: int, notices: int, swap: int) -> Heights:
    """How the rows of a terminal are shared.

    What is wrong comes first, then every GPU, then a swap under way, then the latest events;
    plots take what is left where it is enough to read them. Notices that did not fit at first
    take rows from old events, and from plots that keep enough.
    """
    left = height - 5  # two bars, three lines of progress
    most = 2 if height < 30 else 4 if height < 50 else 6
    notes = max(1, min(notices, most))
    left -= notes
    keep = 3 if height < 30 else 4
    least_plots = 7 if height >= 34 else 0
    need_swap = min(swap, 5 if height < 30 else 9)
    form = arrange(gpus, width, max(3, left - keep - max(least_plots, need_swap)))
    left -= form.height
    shown_swap = max(0, min(swap, left - 1))
    left -= shown_swap
    more = max(0, min(notices - notes, left - (LEAST_PLOTTED if left >= LEAST_PLOTTED else keep)))
    notes += more
    left -= more
    if left < LEAST_PLOTTED:
        return Heights(form, notes, shown_swap, 0, max(0, left))
    events = min(10, max(4, left // 5))
    return Heights(form, notes, shown_swap, left - events, events)


class FleetScreen(StokerScreen):
    """Progress, what is wrong, every GPU, plots, events."""

    SCREEN = "fleet"
    ALERTS = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "beside(0, -1)", show=False),
        Binding("down,j", "beside(0, 1)", show=False),
        Binding("left", "beside(-1, 0)", show=False),
        Binding("right", "beside(1, 0)", show=False),
    ]

    def action_beside(self, across: int, down: int) -> None:
        """Choose the GPU beside the chosen one, as they stand on the screen."""
        gpu = self.query_one(Cards).beside(self.app.focus_gpu, across, down)
        if gpu is not None:
            self.app.focus_gpu = gpu
            self.show()

    async def act(self, name: str) -> bool:
        """See :class:`StokerScreen`."""
        if name != "gpu.log":
            return False
        if self.app.focus_gpu is None:
            self.app.say("choose a GPU first: its number, an arrow key, or a click")
        else:
            await self.app.targets.go("logs")
        return True

    def body(self) -> ComposeResult:
        """See :class:`StokerScreen`."""
        yield ProgressHeader()
        yield Notices()
        yield Cards()
        yield SwapPanel()
        with Horizontal(id="plots"):
            for plot in self.app.plots_for(self.app.size.width):
                yield Chart(plot)
        yield EventTail()

    def lay_out(self) -> None:
        """See :class:`StokerScreen`."""
        app = self.app
        width, height = self.size.width, self.rows
        if not width:
            return
        found = app.notices()
        swap = self.query_one(SwapPanel)
        rows = heights(
            width,
            height,
            len(app.state.numbers) or 8,
            len(notice_lines(found, width - 2, MOST_NOTICES)),
            swap.wanted(),
        )
        cards = self.query_one(Cards)
        cards.form = rows.form
        set_height(self.query_one(ProgressHeader), 3)
        set_height(self.query_one(Notices), rows.notices)
        set_height(cards, rows.form.height)
        set_height(swap, rows.swap)
        set_height(self.query_one(EventTail), rows.events)
        plots = self.query_one("#plots", Horizontal)
        set_height(plots, rows.plots)
        if rows.plots:
            self._plots(plots, width)

    def _plots(self, box: Horizontal, width: int) -> None:
        wanted = self.app.plots_for(width)
        charts = list(box.query(Chart))
        for chart, plot in zip(charts, wanted, strict=False):
            chart.set_plot(plot)
        for chart in charts[len(wanted) :]:
            chart.remove()
        for plot in wanted[len(charts) :]:
            box.mount(Chart(plot))

    async def on_cards_chosen(self, message: Cards.Chosen) -> None:
        """One click focuses a GPU, two open its log."""
        self.app.action_choose_gpu(message.gpu)
        if message.twice:
            self.app.focus_gpu = message.gpu
            await self.app.targets.go("logs")
