"""All targets: how each one's link, servers and run stand; the chosen one is what actions mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console import model, reckon
from console.notices import Notice, notices
from console.screens.base import StokerScreen, set_height
from console.text import UNKNOWN, bar, duration, hours, moment, number, percent, short, visible
from console.widgets.bars import LINK_SIGN
from console.widgets.event_lines import EventTail
from console.widgets.notices import Notices, notice_lines
from console.widgets.paint import Line, Painted, Part, clip, pad

if TYPE_CHECKING:
    from console.app import StokerApp
    from console.watch import Watch

COLUMNS: tuple[tuple[str, int, int], ...] = (
    ("link", 14, 0),
    ("run", 12, 0),
    ("done", 8, 0),
    ("prompts", 12, 104),
    ("prompts/s", 10, 96),
    ("tok/s", 7, 0),
    ("ready", 7, 0),
    ("done at", 13, 110),
    ("in", 8, 0),
    ("alerts", 7, 0),
)
"""Heading, cells, and the screen's width from which on it is shown."""

_ALARMING = ("error", "warning")


def alarms(found: list[Notice]) -> list[Notice]:
    """Those of a target's notices that a person should look at, worst first."""
    return [notice for notice in found if notice.level in _ALARMING]


def target_cells(state: model.State, now: float) -> dict[str, Part]:
    """What stands in each column; numbers of a link that is down are greyed."""
    sign, tone = LINK_SIGN.get(state.link.state, ("○", "dim"))
    old = model.age(state, now)
    link: str = state.link.state
    if link not in ("connected", "read-only", "replay") and old is not None:
        link = f"{duration(old)} old"
    faded = old is None or model.stale(state, now)

    def shown(text: str, style: str) -> Part:
        return text, "dim" if faded else style

    progress = state.progress
    sums = reckon.fleet(state)
    found = alarms(notices(state, now))
    bad = any(notice.level == "error" for notice in found)
    cells: dict[str, Part] = {
        "link": (f"{sign} {link}", tone),
        "ready": shown(
            f"{sums.ready}/{sums.servers}" if sums.servers else UNKNOWN,
            "text" if sums.ready == sums.servers else "warn",
        ),
        "tok/s": shown(short(sums.gen_tok_s), "text"),
        "alerts": (str(len(found)) if found else "–", "bold bad" if bad else "warn"),
    }
    if not found:
        cells["alerts"] = ("–", "dim")
    if progress is None:
        cells["run"] = shown("none" if old is not None else UNKNOWN, "dim")
        return cells
    ended = progress.status in ("done", "stopped", "failed")
    status = progress.status if state.run.alive or ended else "not running"
    good = status in ("running", "done")
    cells["run"] = shown(status, "good" if good else "warn")
    share = progress.completed / progress.total if progress.total else None
    cells["done"] = shown(percent(share, 1), "bold strong")
    cells["prompts"] = shown(f"{short(progress.completed)}/{short(progress.total)}", "text")
    if state.run.alive:
        cells["prompts/s"] = shown(number(progress.rate_per_sec, 2), "text")
        estimate = reckon.eta(state)
        over = state.target.alerts.eta_hours_over if state.target is not None else None
        late = over is not None and estimate.hours is not None and estimate.hours > over
        cells["done at"] = shown(moment(estimate.at, now), "bold bad" if late else "text")
        cells["in"] = shown(hours(estimate.hours), "bold bad" if late else "text")
    return cells


def target_line(watch: Watch, chosen: bool, now: float, name_width: int, width: int) -> Line:
    """One row: the name, its columns, and what is worst where there is room."""
    state = watch.state
    cells = target_cells(state, now)
    line: list[Part] = [
        ("▸ " if chosen else "  ", "bold accent"),
        (pad(visible(watch.name), name_width), "bold strong" if chosen else "text"),
    ]
    for heading, wide, least in COLUMNS:
        if width >= least:
            text, style = cells.get(heading, (UNKNOWN, "dim"))
            align = "<" if heading in ("link", "run") else ">"
            line.append((pad(text, wide, align), style))
    if width >= 160 and state.progress is not None and state.progress.total:
        filled, rest = bar(state.progress.completed / state.progress.total, 16)
        line += [("  ", "text"), (filled, "good"), (rest, "on-panel")]
    worst = alarms(notices(state, now))
    if worst and width >= 132:
        tone = "bad" if worst[0].level == "error" else "warn"
        line.append((f"  {visible(worst[0].text)}", tone))
    return clip(line, width)


class TargetTable(Painted):
    """The rows, the chosen one in sight."""

    app: StokerApp

    @property
    def top(self) -> int:
        """The first row shown."""
        chosen = self.app.watches.index(self.app.front)
        rows = max(1, self.size.height - 1)
        return max(0, min(chosen - rows + 1, len(self.app.watches) - rows))

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        app = self.app
        columns = sum(wide for _, wide, least in COLUMNS if width >= least)
        longest = max(len(watch.name) for watch in app.watches)
        name_width = max(8, min(longest + 2, width - 2 - columns))
        head: list[Part] = [(pad("  target", name_width + 2), "dim")]
        for heading, wide, least in COLUMNS:
            if width >= least:
                align = "<" if heading in ("link", "run") else ">"
                head.append((pad(heading, wide, align), "dim"))
        now = app.now()
        rows = [
            target_line(watch, watch is app.front, now, name_width, width) for watch in app.watches
        ]
        return [clip(head, width), *rows[self.top : self.top + height - 1]]

    async def on_click(self, event: events.Click) -> None:
        """One click chooses a target, two open it."""
        row = event.y - 1 + self.top
        if event.y > 0 and row < len(self.app.watches):
            await self.app.targets.choose(self.app.watches[row])
            if event.chain > 1:
                await self.app.targets.go("fleet")


class TargetsScreen(StokerScreen):
    """The table, then what stands out on the chosen target, and what happened there."""

    SCREEN = "targets"
    ALERTS = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", show=False),
        Binding("down,j", "choose(1)", show=False),
    ]

    def body(self) -> ComposeResult:
        """See :class:`StokerScreen`."""
        yield TargetTable()
        yield Notices()
        yield EventTail()

    async def action_choose(self, by: int) -> None:
        """Another row."""
        watches = self.app.watches
        at = max(0, min(len(watches) - 1, watches.index(self.app.front) + by))
        await self.app.targets.choose(watches[at])

    async def act(self, name: str) -> bool:
        """See :class:`StokerScreen`."""
        if name != "target.open":
            return False
        await self.app.targets.go("fleet")
        return True

    def lay_out(self) -> None:
        """See :class:`StokerScreen`."""
        app = self.app
        room = max(3, self.rows - 2)
        table = min(len(app.watches) + 2, max(3, room * 2 // 3))
        found = notices(app.state, app.now())
        notes = len(notice_lines(found, max(20, self.size.width - 2), 12))
        notes = min(notes, max(0, room - table))
        set_height(self.query_one(TargetTable), table)
        set_height(self.query_one(Notices), notes)
        set_height(self.query_one(EventTail), room - table - notes)
