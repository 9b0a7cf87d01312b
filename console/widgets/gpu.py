"""What is known of one GPU and its server, and the words and colours every form of it shares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from console import reckon
from console.text import UNKNOWN, duration, spark, visible
from console.trend import shrink
from console.widgets.paint import Part, cut
from remote.protocol import GpuState, ServerInfo, ServerState

CHOSEN = "▸"
"""In front of the GPU that actions mean: colour alone is no sign."""

STATE_SIGN = {
    "ready": ("●", "good"),
    "warming": ("◐", "info"),
    "starting": ("◔", "info"),
    "draining": ("◑", "warn"),
    "stalled": ("▲", "bad"),
    "silent": ("▲", "warn"),
    "failed": ("✖", "bad"),
    "stopped": ("○", "dim"),
    "foreign": ("◇", "warn"),
}


@dataclass(frozen=True)
class View:
    """What is known of one GPU, and its near past."""

    gpu: int
    info: ServerInfo | None
    server: ServerState
    card: GpuState | None
    speeds: tuple[float | None, ...]
    top: float
    odd: frozenset[str]
    focused: bool
    faded: bool
    now: float
    suspects: int = 0
    """Prompts that are to be tried alone, where this server is kept for one of them."""


def use_tone(view: View, fraction: float | None) -> str:
    """How the use of a pool is coloured."""
    if fraction is None or view.faded:
        return "dim"
    return "bad" if fraction >= 0.97 else "warn" if fraction >= 0.9 else "text"


def seen_as(server: ServerState) -> str:
    """What a server is, a key of :data:`STATE_SIGN`: one that gives no sign of life is ``silent``,
    whatever it was when it gave the last one."""
    return "silent" if reckon.silent(server) else server.state


def sign_of(view: View) -> tuple[str, str, str]:
    """Sign, style and word."""
    word = seen_as(view.server)
    sign, style = STATE_SIGN.get(word, ("?", "warn"))
    return sign, "dim" if view.faded else style, word


def past_rows(view: View, width: int, rows: int = 1) -> list[str]:
    """The throughput of the last minutes, drawn in so many rows."""
    return _drawn(view.speeds, view.top, width, rows)


@lru_cache(512)
def _drawn(speeds: tuple[float | None, ...], top: float, width: int, rows: int) -> list[str]:
    return spark(shrink(list(speeds), 2 * width), top, width, rows)


def slots_text(view: View) -> str:
    """``37/72``: the requests that run, and the most that can."""
    running = view.server.running
    most = view.info.max_running if view.info else None
    if running is None and most is None:
        return UNKNOWN
    return f"{UNKNOWN if running is None else running}/{UNKNOWN if most is None else most}"


def memory_text(card: GpuState | None) -> str:
    """``121/144G``: what is used of the card, and what it has."""
    if card is None or not card.memory_total_mib:
        return UNKNOWN
    return f"{(card.memory_used_mib or 0) / 1024:.0f}/{card.memory_total_mib / 1024:.0f}G"


def phase_parts(view: View) -> tuple[Part, Part]:
    """What a start is at; for how long, and how long it took the last time."""
    server = view.server
    since = "" if server.phase_since is None else duration(view.now - server.phase_since)
    if since and server.phase_usual_s is not None:
        since += f" of {duration(server.phase_usual_s)}"
    tone = "dim" if view.faded else "info"
    return (visible(server.phase) or server.state, tone), (since, "dim")


def again(server: ServerState) -> str:
    """How often it has come back after it had died, beside the word of its state."""
    return f" ↻{server.died}" if 0 < server.died < 100 else ""


def alone_in_words(view: View, width: int) -> str:
    """What a server does that is kept for one suspect, in ``width`` cells."""
    words = f"1 of {view.suspects} suspects alone"
    return cut(f"tries {words}" if len(words) + len("tries ") <= width else words, width)
