"""A made-up target that tells the story, as protocol messages: for tests and for looking.

Eight servers stand at 37 slots under ``extra_buffer``; a restart with ``no_buffer`` brings 72.
Everything is computed from a seed and a clock that the caller may turn by hand
(:meth:`Story.advance`). ``python -m tests.console.screen.story`` opens the console on it.
"""

from tests.console.screen.story.beginning import BAD, BEGAN, JOURNAL
from tests.console.screen.story.catalogue import catalogue
from tests.console.screen.story.feed import Story, connect

__all__ = ["BAD", "BEGAN", "JOURNAL", "Story", "catalogue", "connect"]
