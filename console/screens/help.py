"""Every key, from the registry."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from console.actions import ACTIONS, key_name
from console.widgets.cards import STATE_SIGN


def help_text(screen: str) -> Content:
    """Groups of actions, those of the screen in front first."""
    parts: list[Content | tuple[str, str]] = []
    groups = list(dict.fromkeys(a.group for a in ACTIONS))
    first = {"logs": "Logs", "fleet": "Fleet", "run": "Run"}.get(screen, "Look")
    for group in sorted(groups, key=lambda g: g != first):
        parts.append((f"\n{group}\n", "bold $accent"))
        for action in (a for a in ACTIONS if a.group == group):
            keys = " ".join(key_name(k) for k in action.keys)
            asks = {"none": "", "key": " Asks first.", "word": " Asks for a word."}[action.danger]
            parts.append((f"  {keys:<9}", "bold"))
            parts.append((f"{action.title:<17}", ""))
            parts.append((f"{action.help}{asks}\n", "$text-muted"))
    parts.append(("\nCards\n", "bold $accent"))
    parts.append((f"  {'0 … 9':<9}", "bold"))
    parts.append((f"{'Choose a GPU':<17}", ""))
    parts.append(
        ("Actions then mean this one; esc lets it go; a click does the same.\n", "$text-muted")
    )
    for state, (sign, _) in STATE_SIGN.items():
        parts.append((f"  {sign:<9}", "bold"))
        parts.append((f"{state}\n", ""))
    return Content.assemble(*parts)


class HelpScreen(ModalScreen[None]):
    """A scrollable list over the screen it was asked on."""

    def __init__(self, screen: str) -> None:
        super().__init__()
        self._for = screen

    def compose(self) -> ComposeResult:
        """See :class:`ModalScreen`."""
        with Vertical(classes="dialog") as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc closes"
            with VerticalScroll():
                yield Static(help_text(self._for))

    def on_key(self, event: events.Key) -> None:
        """Any of the keys that leave."""
        if event.key in ("escape", "question_mark", "q", "enter"):
            event.stop()
            self.dismiss(None)
        elif event.key in ("j", "k"):
            scroll = self.query_one(VerticalScroll)
            scroll.scroll_relative(y=1 if event.key == "j" else -1, animate=False)
