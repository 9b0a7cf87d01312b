"""What must not stand in a prompt's texts."""

from __future__ import annotations

from typing import Any

from remote.prepare import calls as pasting
from remote.prepare import text as texts
from remote.prepare.rows import Drop, Message, Notes


class Cleaner:
    """Markers and credentials, in everything the template will write.

    Args:
        markers: those of chat templates; a text that holds one is escaped, or its row dropped.
        notes: what was found is counted there.
        drop: drop such rows.
        redact: replace credentials.
    """

    def __init__(self, markers: texts.Markers, notes: Notes, *, drop: bool, redact: bool) -> None:
        self._drop = drop
        self._markers = markers
        self._notes = notes
        self._redact = redact

    def text(self, content: str) -> str:
        """One text.

        Raises:
            Drop: ``chat_markup_in_text``, where such rows are to be dropped.
        """
        if self._markers.found(content):
            self._notes.add("flag:chat_markup_in_text")
            if self._drop:
                raise Drop("chat_markup_in_text")
            content = self._markers.escape(content)
        if self._redact:
            content, count = texts.redact(content)
            if count:
                self._notes.add("redact:credential", count)
        return content

    def tree(self, value: Any) -> Any:
        """Every text within lists and objects (tools)."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        if isinstance(value, dict):
            return {key: self.tree(item) for key, item in value.items()}
        return value

    def messages(self, messages: list[Message]) -> None:
        """All contents, and the arguments of calls, in place."""
        for message in messages:
            if message["content"]:
                message["content"] = self.text(message["content"])
            for call in message.get("tool_calls", ()):
                function = call["function"]
                cleaned = self.text(function["arguments"])
                if cleaned != function["arguments"]:
                    function["arguments"] = pasting.checked_arguments(cleaned)
