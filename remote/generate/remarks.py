"""What a run's settings and its answers show to be wrong with them: each is said once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remote.generate.outcomes import Answer, thinks_aloud, thoughts
from remote.generate.settings import Settings


class Remarks:
    """Looks at every answer; cheap where there is nothing to say."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._thinking = _thinking(settings.request, settings.thinking)
        self._told: set[str] = set()
        """Servers of which it was said that they think aloud; "" for thinking that is off."""

    def at_start(self) -> None:
        """What the settings alone show."""
        temperature = self._settings.request.get("temperature", self._settings.temperature)
        if temperature == 0 and self._thinking:
            self._say(
                "warning: temperature 0 with thinking: many models then think in circles until "
                "max_tokens; use what the model's card recommends, or thinking off"
            )

    def look(self, server: str, answer: Answer, params: dict[str, Any] | None) -> None:
        """One answer to a prompt with these ``params`` of its own."""
        if server not in self._told and thinks_aloud(answer):
            self._told.add(server)
            self._say(
                f"warning: {server} leaves its thoughts in the answer's text: start it with a "
                "reasoning parser (SGLang: --reasoning-parser)"
            )
        if "" in self._told or _thinking(params or {}, self._thinking):
            return
        if thoughts(answer):
            self._told.add("")
            self._say(
                f"warning: {server} thinks though thinking is off: its chat template does not "
                "know enable_thinking; set thinking on, or serve a model that can do without"
            )


def _thinking(request: dict[str, Any], otherwise: bool) -> bool:
    """Whether request fields ask for thinking."""
    kwargs = request.get("chat_template_kwargs")
    said = kwargs.get("enable_thinking") if isinstance(kwargs, dict) else None
    return said if isinstance(said, bool) else otherwise
