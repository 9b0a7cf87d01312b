"""Every action of the registry in Textual's command palette."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider

from console.action import Action
from console.actions import ACTIONS, key_name
from console.screens.modal import Once

if TYPE_CHECKING:
    from console.app import StokerApp


def closeness(query: str, action: Action) -> int:
    """How well what was typed names an action: 4 its title begins with it, 3 a word of the title
    does, 2 a word of its name or a word in the footer does, 1 it stands in its help, 0 else."""
    wanted = " ".join(query.casefold().split())
    title = action.title.casefold()

    def begins(text: str) -> bool:
        return f" {text}".find(f" {wanted}") >= 0

    if title.startswith(wanted):
        return 4
    if begins(title):
        return 3
    if begins(f"{action.name.replace('.', ' ')} {action.label}".casefold()):
        return 2
    return int(wanted in action.help.casefold())


class Palette(Once, CommandPalette):
    """Textual's palette, left once however many keys come."""


class Actions(Provider):
    """The actions that may be done now, by title and help."""

    def _offers(self) -> list[tuple[Action, str]]:
        app: StokerApp = self.app  # type: ignore[assignment]
        return [
            (action, f"{key_name(action.keys[0]):>4}  {action.title}  ({action.group.lower()})")
            for action in ACTIONS
            if action.name != "palette" and app.outbox.allowed(action)
        ]

    async def discover(self) -> Hits:
        """All of them, before anything is typed."""
        for action, text in self._offers():
            yield DiscoveryHit(text, self._do(action), help=action.help)

    async def search(self, query: str) -> Hits:
        """Those that have it in their title, then those whose words have it, then those that hold
        its letters somewhere in this order."""
        matcher = self.matcher(query)
        for action, text in self._offers():
            said = f"{text} {action.help}"
            score = matcher.match(said)
            if score > 0:
                score = min(score, 1_000_000) + 1_000_000 * closeness(query, action)
                yield Hit(score, matcher.highlight(text), self._do(action), help=action.help)

    def _do(self, action: Action) -> Any:
        async def do() -> None:
            await self.app.run_action(f"app.act('{action.name}')")

        return do
