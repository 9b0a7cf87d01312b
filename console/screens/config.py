"""Flags that run now, and every epoch with what it gave."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console import model
from console.screens.base import StokerScreen, set_height
from console.text import UNKNOWN, duration, moment, number, percent, visible
from console.widgets.paint import Line, Painted, Part, clip, cut, pad, spread

if TYPE_CHECKING:
    from console.app import StokerApp


def epoch_lines(
    state: model.State, now: float, width: int, height: int, chosen: int = 0
) -> list[Line]:
    """The epoch table, newest first, the best one and the chosen row marked."""
    best = model.winner(state.epochs)
    head: list[Part] = [
        (pad(word, wide, ">"), "dim")
        for word, wide in (
            ("epoch", 6),
            ("since", 12),
            ("tok/s/GPU", 11),
            ("slots", 7),
            ("mamba", 7),
            ("kv", 6),
            ("busy", 8),
        )
    ]
    head.append(("  what was changed", "dim"))
    lines: list[Line] = [clip(head, width)]
    epochs = list(state.epochs)
    for index in range(len(epochs) - 1, -1, -1):
        epoch = epochs[index]
        before = epochs[index - 1].flags if index else {}
        changes = model.flag_changes(before, epoch.flags) if index else []
        newest = index == len(epochs) - 1
        star = best is not None and best.id == epoch.id
        mark = "▸" if len(epochs) - 1 - index == chosen else " "
        line: list[Part] = [
            (mark, "bold accent"),
            (pad(f"{epoch.id}", 5, ">"), "bold strong" if newest else "text"),
            (pad(moment(epoch.since, now), 12, ">"), "text"),
            (pad(number(epoch.tok_s_per_gpu), 11, ">"), "bold good" if star else "text"),
            (pad(number(epoch.max_running), 7, ">"), "text"),
            (pad(percent(epoch.mamba_usage), 7, ">"), "text"),
            (pad(percent(epoch.kv_usage), 6, ">"), "text"),
            (pad(duration(epoch.seconds) if epoch.seconds else UNKNOWN, 8, ">"), "dim"),
            ("  ", "text"),
        ]
        words = "; ".join(c.text for c in changes) if changes else (epoch.why or "first flags")
        who = f"  {visible(epoch.who)}" if epoch.who else ""
        line.append((visible(words), "text"))
        line.append((who, "dim"))
        if star:
            line.append(("  best", "bold good"))
        if newest:
            line.append(("  runs now", "accent"))
        lines.append(clip(line, width))
    if not epochs:
        lines.append([("no epoch yet: servers have not been started here", "dim")])
    first = top_row(len(epochs), height, chosen)
    return [lines[0], *lines[1 + first :]][:height]


def top_row(epochs: int, height: int, chosen: int) -> int:
    """The first row shown of a table with its heading in so many lines, the chosen one in sight."""
    return max(0, min(chosen - (height - 3), epochs + 1 - height))


def flag_lines(state: model.State, width: int, height: int) -> list[Line]:
    """What runs now, flag by flag, and which GPUs differ from it."""
    common = model.current_flags(state)
    wanted = state.target.fleet.flags if state.target is not None else {}
    lines: list[Line] = []
    wide = max((len(n) for n in {*common, *wanted}), default=10) + 2
    for name in sorted({*common, *wanted}):
        value = common.get(name)
        line: list[Part] = [
            (pad(visible(name), wide), "text"),
            (visible(model.flag_text(value)), "bold strong"),
        ]
        others = [
            f"GPU {gpu}: {model.flag_text(info.flags.get(name))}"
            for gpu, info in sorted(state.infos.items())
            if info.flags and model.flag_text(info.flags.get(name)) != model.flag_text(value)
        ]
        if others:
            line.append((f"  {visible(', '.join(others[:3]))}", "warn"))
        if name in wanted and model.flag_text(wanted[name]) != model.flag_text(value):
            line.append((f"  stoker.toml: {visible(model.flag_text(wanted[name]))}", "dim"))
        lines.append(clip(line, width))
    if not lines:
        lines = [[("no flags known yet", "dim")]]
    if len(lines) > height:
        lines = [*lines[: height - 1], [(f"and {len(lines) - height + 1} more", "dim")]]
    return lines


class Epochs(Painted):
    """The epoch table."""

    app: StokerApp
    chosen = 0
    """Rows from the newest."""

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        return epoch_lines(self.app.state, self.app.now(), width, height, self.chosen)

    def on_click(self, event: events.Click) -> None:
        """Choose a row."""
        count = len(self.app.state.epochs)
        row = event.y - 1 + top_row(count, self.size.height, self.chosen)
        if event.y > 0 and row < count:
            self.chosen = row
            self.show()


class FlagsNow(Painted):
    """The flags that run."""

    app: StokerApp

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        state = self.app.state
        info = next(iter(state.infos.values()), None)
        version = f"SGLang {info.sglang}" if info is not None and info.sglang else ""
        model_name = state.target.fleet.model if state.target is not None else ""
        if model_name.startswith("/"):
            model_name = PurePosixPath(model_name).name  # a folder's name says enough
        title = spread(
            [("Flags", "bold text"), (f"  {visible(cut(model_name, 60))}", "dim")],
            [(version, "dim")],
            width,
        )
        return [title, *flag_lines(state, width, height - 1)]


class ConfigScreen(StokerScreen):
    """Epochs above, flags below; `r` changes them, enter goes back to an epoch's."""

    SCREEN = "config"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", show=False),
        Binding("down,j", "choose(1)", show=False),
    ]

    def body(self) -> ComposeResult:
        """See :class:`StokerScreen`."""
        yield Epochs()
        yield FlagsNow()

    def action_choose(self, by: int) -> None:
        """Another row."""
        table = self.query_one(Epochs)
        table.chosen = max(0, min(len(self.app.state.epochs) - 1, table.chosen + by))
        table.show()

    async def act(self, name: str) -> bool:
        """See :class:`StokerScreen`."""
        if name != "config.take":
            return False
        from console.screens.restart import RestartScreen

        epochs = self.app.state.epochs
        index = len(epochs) - 1 - self.query_one(Epochs).chosen
        if not 0 <= index < len(epochs):
            return True
        changes = model.flag_changes(model.current_flags(self.app.state), epochs[index].flags)
        if not changes:
            self.app.say("these flags run already")
            return True
        edits = {c.name: None if c.after is False else c.after for c in changes}
        await self.app.push_screen(RestartScreen(None, edits))
        return True

    def lay_out(self) -> None:
        """See :class:`StokerScreen`."""
        room = max(4, self.rows - 2)
        epochs = min(room // 2, len(self.app.state.epochs) + 2)
        set_height(self.query_one(Epochs), max(3, epochs))
        set_height(self.query_one(FlagsNow), room - max(3, epochs))
