"""Every action of the registry in Textual's command palette."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.command import DiscoveryHit, Hit, Hits, Provider

from console.action import Action
from console.actions import ACTIONS

if TYPE_CHECKING:
    from console.app import StokerApp


class Actions(Provider):
    """The actions that may be done now, by title and help."""

    def _offers(self) -> list[tuple[Action, str]]:
        app: StokerApp = self.app  # type: ignore[assignment]
        return [
            (action, f"{action.title}  ({action.group.lower()})")
            for action in ACTIONS
            if action.name != "palette" and app.outbox.allowed(action)
        ]

    async def discover(self) -> Hits:
        """All of them, before anything is typed."""
        for action, text in self._offers():
            yield DiscoveryHit(text, self._do(action), help=action.help)

    async def search(self, query: str) -> Hits:
        """Those whose title or help matches."""
        matcher = self.matcher(query)
        for action, text in self._offers():
            score = matcher.match(f"{text} {action.help}")
            if score > 0:
                yield Hit(score, matcher.highlight(text), self._do(action), help=action.help)

    def _do(self, action: Action) -> Any:
        async def do() -> None:
            await self.app.run_action(f"app.act('{action.name}')")

        return do
