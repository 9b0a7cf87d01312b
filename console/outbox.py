"""What goes out to the targets: whether it may, and how it was taken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from console.action import Action
from console.actions import BY_NAME
from console.feed import FeedError
from console.notices import Notice
from console.watch import Watch
from remote.protocol import Done, Plan, Request, Result

if TYPE_CHECKING:
    from console.app import StokerApp

SEND_S = 180.0
"""For so long an action may take to be begun: a restart asks SGLang's parser first."""


class Outbox:
    """Of one app; with ``read_only`` nothing goes out that changes anything."""

    def __init__(self, app: StokerApp, *, read_only: bool) -> None:
        self._app = app
        self._asked_read_only = read_only

    @property
    def read_only(self) -> bool:
        """Whether this console may only look at the target in front."""
        only = self._asked_read_only or self._app.front.read_only
        return only or self._app.state.link.state in ("read-only", "replay")

    def allowed(self, action: Action) -> bool:
        """Whether the action may be done now."""
        link = self._app.state.link.state
        if action.group == "Replay":
            return self._app.replay is not None
        if not action.changes:
            return True
        if action.name == "deploy":  # the very thing that mends a link without an agent
            asked = self._asked_read_only or self._app.front.read_only
            return not asked and link != "replay"
        return not self.read_only and link == "connected"

    def offered(self, found: Iterable[Notice]) -> list[Notice]:
        """Notices whose keys work here: no key is named that would be refused. A link that cannot
        be mended from here can be tried again."""
        shown = []
        for notice in found:
            action = BY_NAME.get(notice.action)
            if action is not None and not self.allowed(action):
                again = notice.code == "link" and notice.level == "error"
                notice = replace(notice, action="link.retry" if again else "")
            shown.append(notice)
        return shown

    def refusal(self, action: Action) -> str:
        """Why an action is not allowed, in one line."""
        link = self._app.state.link
        if action.group == "Replay":
            return f"{action.title}: this is live, no recording"
        if self._asked_read_only:
            return f"{action.title}: this console was opened read-only"
        if self._app.front.read_only:
            return f"{action.title}: {self._app.target_name} is only to be looked at"
        if self.read_only:
            return f"{action.title}: {link.text or 'this console may only look'}"
        return f"{action.title}: the link is {link.state}; nothing was sent"

    async def ask(
        self,
        request: Request,
        *,
        quiet: bool = False,
        timeout: float = 30,
        watch: Watch | None = None,
    ) -> Result | None:
        """The result, of the target in front unless another is named; None where it was not done,
        and the reason is told unless ``quiet``."""
        try:
            return await (watch or self._app.front).call(request, timeout)
        except FeedError as error:
            if not quiet:
                self._app.say(str(error), "error")
            return None

    async def send(self, request: Request, watch: Watch | None = None) -> bool:
        """Send, and say how it was taken; whether it was."""
        meant = watch or self._app.front
        result = await self.ask(request, timeout=SEND_S, watch=meant)
        where = f"{meant.name}: " if len(self._app.watches) > 1 else ""
        if isinstance(result, Done):
            self._app.say(where + (result.text or "done"))
        elif isinstance(result, Plan):
            self._app.say(where + ("; ".join(result.diff) or "under way"))
        return result is not None
