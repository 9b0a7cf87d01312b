"""What passes between the steps from a row to a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""One message in OpenAI's chat form."""


class Drop(Exception):  # noqa: N818 - a verdict, not a failure
    """The row becomes no request; ``cause`` is its name in every count."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.detail = detail


class Notes(dict[str, int]):
    """What was changed in a row on its way, by name."""

    def add(self, name: str, count: int = 1) -> None:
        """Count ``name``."""
        self[name] = self.get(name, 0) + count


@dataclass
class Draft:
    """A row in common form, before any rule was applied to it."""

    turns: list[Any]
    role_key: str = ""
    content_key: str = ""
    system: str = ""
    tools: Any = None
    schema: Any = None
    id: str = ""
    labels: list[str] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    captured: bool = False
    """A captured request: it may hold credentials, and is a step of a session."""


@dataclass
class Request:
    """One prompt as it will be sent."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    mode: str = "last"
    turn: int | None = None
    """Which assistant turn of the row it asks for, where a row gives several prompts."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Tool name as sent → as in the dataset."""

    def user_texts(self) -> list[str]:
        """The texts of the user turns."""
        return [m["content"] for m in self.messages if m["role"] == "user"]

    def has_tool_turns(self) -> bool:
        """Whether the history holds calls or their results."""
        return any(m["role"] == "tool" or m.get("tool_calls") for m in self.messages)
