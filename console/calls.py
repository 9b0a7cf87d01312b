"""Calling a person: what is worth the terminal's bell and a notification, and how it is asked for.

Pure; the app rings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from console.away import LEAST_S
from console.text import visible
from remote.protocol import Event

KINDS: Final = ("alert", "run.done", "run.ended", "run.failed")
"""Kinds of events that call somebody however little is wrong; errors call always."""

LOST_S: Final = 30.0
"""After so long without its link a target calls; shorter cuts mend themselves."""

IDLE_S: Final = 120.0
"""Whoever touched nothing for so long is taken to look elsewhere: many a multiplexer does not tell
when its terminal loses the focus."""


def worth_it(event: Event, began: float | None, now: float) -> bool:
    """Whether an event calls somebody. ``began`` is when this console first heard of the target,
    ``now`` the time there: what was before is history, what came during a longer gap is told in
    the panel for one who comes back."""
    if began is None or event.time < began or event.time <= now - LEAST_S:
        return False
    return event.level == "error" or event.kind in KINDS


def summary(texts: Sequence[str]) -> str:
    """What came at once, in one line."""
    more = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
    return f"{texts[0]}{more}"


def sequence(text: str, *, tmux: bool) -> str:
    """What asks a terminal for a desktop notification.

    OSC 9 is iTerm2's, WezTerm's and Windows Terminal's, OSC 777 urxvt's, foot's and VTE's; others
    ignore both. tmux keeps them for itself unless they are wrapped and ``allow-passthrough`` is on.
    """
    shown = visible(text, 200).replace(";", ",")
    asked = f"\x1b]9;stoker {shown}\a\x1b]777;notify;stoker;{shown}\a"
    return "\x1bPtmux;" + asked.replace("\x1b", "\x1b\x1b") + "\x1b\\" if tmux else asked
