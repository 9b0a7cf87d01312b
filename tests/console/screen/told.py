"""What the console knows of a story, and how it reads, without a screen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from console.model import Link, State, reduce
from console.notices import notices
from console.widgets.paint import Line
from tests.console.screen.story import BEGAN, Story

NOW = BEGAN + 1
"""This side's clock when the story's first snapshot came."""


def silent(**options: Any) -> Story:
    """A story that nobody listens to."""
    return Story(lambda _: None, lambda _: None, **options)


def seen(story: Story, now: float = NOW) -> State:
    """The state after a full snapshot, received at ``now``."""
    return reduce(State(link=Link("connected")), story.snapshot(), now)


def told(**options: Any) -> tuple[Story, State]:
    """A story and the state after its first full snapshot."""
    story = silent(**options)
    return story, seen(story)


def codes(state: State, now: float = NOW) -> list[str]:
    """Codes of the notices, in order."""
    return [n.code for n in notices(state, now)]


def plain(lines: Iterable[Line]) -> str:
    """What is read of painted lines."""
    return "\n".join("".join(text for text, _ in line) for line in lines)
