"""Which logs the panes show, chosen from a list that is filtered while one types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from console import model
from console.notices import notices
from console.screens.modal import Modal
from console.text import number, visible
from console.widgets.gpu import STATE_SIGN, seen_as

if TYPE_CHECKING:
    from console.app import StokerApp

TROUBLE = "those in trouble"
EVERY = "all of them, page by page"


@dataclass(frozen=True)
class Choice:
    """A line of the list, and the logs that it marks; with none, every log."""

    name: str
    sources: tuple[str, ...]
    says: str = ""


def troubled(state: model.State, now: float) -> list[str]:
    """The logs of servers that are not as they should be, or that a notice is about."""
    told = {notice.gpu for notice in notices(state, now) if notice.level in ("error", "warning")}
    words = ("stalled", "silent", "failed")
    return [
        f"gpu{gpu}"
        for gpu, server in sorted(state.servers.items())
        if gpu in told or seen_as(server) in words
    ]


def choices(sources: Sequence[str], state: model.State, now: float) -> list[Choice]:
    """Every line of the list."""
    found = [Choice(EVERY, ())]
    if bad := troubled(state, now):
        found.append(Choice(TROUBLE, tuple(bad), ", ".join(bad)))
    for source in sources:
        server = state.servers.get(int(source[3:])) if source.startswith("gpu") else None
        says = ""
        if server is not None:
            word = seen_as(server)
            says = f"{STATE_SIGN.get(word, ('?', ''))[0]} {visible(server.phase or word)}"
            if server.state == "ready":
                info = state.infos.get(int(source[3:]))
                slots = number(None if info is None else info.max_running)
                says += f"  {number(server.running)}/{slots}  {number(server.gen_tok_s)} tok/s"
        found.append(Choice(source, (source,), says))
    return found


def matching(found: Sequence[Choice], typed: str) -> list[Choice]:
    """Those whose name or words hold what is typed; one that is called just so comes first."""
    typed = typed.strip().lower()
    kept = [one for one in found if typed in one.name.lower() or typed in one.says.lower()]
    return sorted(kept, key=lambda one: not called(one, typed))


def called(one: Choice, typed: str) -> bool:
    """Whether it is just what is typed, for a server also by its number alone."""
    return one.name in (typed.strip().lower(), f"gpu{typed.strip()}")


class FindLine(Input):
    """No log has a space in its name: that key marks."""

    class Mark(Message):
        """Space."""

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "space":
            event.stop()
            event.prevent_default()
            self.post_message(self.Mark())
        else:
            await super()._on_key(event)


class SourcesScreen(Modal[list[str] | None]):
    """The logs chosen, none of them for every log; None where it was left."""

    app: StokerApp

    def __init__(self, sources: Sequence[str], chosen: Sequence[str]) -> None:
        super().__init__()
        self.sources = list(sources)
        self.marked = [source for source in chosen if source in self.sources]
        self.lines: list[Choice] = []

    def compose(self) -> ComposeResult:
        """See :class:`Modal`."""
        with Vertical(classes="dialog") as box:
            box.border_title = "Logs to show"
            box.border_subtitle = "space marks, enter shows them, esc leaves"
            yield FindLine(placeholder="type to find: 12, run, failed")
            yield OptionList(markup=False)

    def on_mount(self) -> None:
        """The whole list, ready to be typed into."""
        self.query_one(Input).focus()
        self.fill()

    def fill(self, at: int = 0) -> None:
        """The lines that match what is typed, with their marks."""
        found = choices(self.sources, self.app.state, self.app.now())
        self.lines = matching(found, self.query_one(Input).value)
        listed = self.query_one(OptionList)
        listed.clear_options()
        listed.add_options(Option(self._line(one)) for one in self.lines)
        if self.lines:
            listed.highlighted = min(at, len(self.lines) - 1)
        count = len(self.marked)
        self.query_one(".dialog").border_title = Content(
            f"Logs to show: {count} marked" if count else "Logs to show"
        )

    def _line(self, one: Choice) -> str:
        on = set(one.sources) <= set(self.marked) if one.sources else not self.marked
        return f"{'[x]' if on else '[ ]'} {one.name:<8} {one.says}".rstrip()

    @property
    def at(self) -> int:
        """The line that space marks."""
        return self.query_one(OptionList).highlighted or 0

    def on_find_line_mark(self) -> None:
        """Space."""
        self.mark()

    def mark(self) -> None:
        """Mark the chosen line's logs, or take their marks back."""
        if not self.lines:
            return
        one = self.lines[self.at]
        rest = [source for source in self.marked if source not in one.sources]
        on = set(one.sources) <= set(self.marked)
        self.marked = [] if not one.sources else rest if on else [*rest, *one.sources]
        entry = self.query_one(Input)
        if entry.value and called(one, entry.value):
            entry.value = ""  # it was typed to its end: the next one
        else:
            self.fill(self.at)

    def take(self) -> None:
        """What is marked; with nothing marked, the chosen line."""
        if self.marked:
            self.dismiss([source for source in self.sources if source in self.marked])
        elif self.lines:
            self.dismiss(list(self.lines[self.at].sources))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Another list."""
        event.stop()
        self.fill()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        event.stop()
        self.take()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A click marks."""
        event.stop()
        self.mark()
        self.query_one(Input).focus()

    def on_key(self, event: events.Key) -> None:
        """What is not typed."""
        listed = self.query_one(OptionList)
        moves: dict[str, Callable[[], None]] = {
            "up": listed.action_cursor_up,
            "down": listed.action_cursor_down,
            "pageup": listed.action_page_up,
            "pagedown": listed.action_page_down,
        }
        if event.key == "escape":
            event.stop()
            self.dismiss(None)
        elif event.key in moves:
            event.stop()
            moves[event.key]()
