"""Numbers and foreign text as people read them in a terminal.

Pure functions without a screen: the console, the command line and the tests share them. What is
unknown (``None``) always reads ``–``, never 0.
"""

from __future__ import annotations

import math
import re
import time
from functools import lru_cache

UNKNOWN = "–"
"""Shown for every value that is not known."""

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor, erase
    r"|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC with their payload
    r"|[ -/]*[0-~])"  # two-character escapes and charset switches
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_HARMLESS = re.compile(
    r"[\x20-\x7e\xa0-\xac\xae-\u02ff\u0370-\u058f\u2010-\u2027\u2030-\u205e"
    r"\u20a0-\u20cf\u2100-\u27bf]*\Z"
)
_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_HIDDEN = "\u200b\u200c\u200d\u2028\u2029\u2060\u2061\u2062\u2063\u2064\ufeff\u00ad"


def _shown(char: str) -> str:
    code = ord(char)
    if char == "\t":
        return "    "
    if code < 0x20:
        return chr(0x2400 + code)  # the Control Pictures block draws ␀ ␛ ␍ …
    if code == 0x7F:
        return "␡"
    if 0x80 <= code < 0xA0 or char in _BIDI or char in _HIDDEN or 0xE0000 <= code <= 0xE0FFF:
        return f"‹{code:x}›"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return char


def visible(line: str, limit: int = 2000) -> str:
    """One line from outside, made safe to paint.

    Plain colour sequences are dropped, all other control sequences are shown as text, so that
    nothing a server prints can move the cursor, set the clipboard or reorder what is read. Tabs
    become four spaces. A longer line is cut at ``limit`` characters and says how many are left
    out.
    """
    rest = len(line) - limit
    if rest > 0:
        line = line[:limit]
    if not _HARMLESS.match(line):
        line = "".join(map(_shown, _COLOUR.sub("", line)))
    return f"{line} … {rest:,} more characters" if rest > 0 else line


def plain(line: str) -> str:
    """The line without any terminal sequence: what filters and searches look at."""
    return _ANSI.sub("", line) if "\x1b" in line else line


def number(value: float | None, digits: int = 0) -> str:
    """``12,345`` or ``3.42``; thousands separated."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.{digits}f}"


def short(value: float | None) -> str:
    """Four characters at most for counts: ``987``, ``1.2k``, ``193k``, ``4.1M``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.0f}{unit}" if abs(scaled) >= 9.95 else f"{scaled:.1f}{unit}"
    return f"{value:.0f}"


def size(value: float | None) -> str:
    """Bytes in binary units: ``1.2 GiB``."""
    if value is None:
        return UNKNOWN
    for unit, step in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(value) >= step:
            return f"{value / step:.1f} {unit}"
    return f"{value:.0f} B"


def percent(fraction: float | None, digits: int = 0) -> str:
    """A fraction 0..1 as ``61%``; never rounds an unfinished one up to 100%."""
    if fraction is None:
        return UNKNOWN
    text = f"{fraction * 100:.{digits}f}%"
    if fraction < 1 and text.startswith("100"):
        return f"{math.floor(fraction * 100 * 10**digits) / 10**digits:.{digits}f}%"
    return text


def duration(seconds: float | None) -> str:
    """Two units at most: ``8s``, ``1m32s``, ``3h07m``, ``2d04h``."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def gpu_time(seconds: float | None) -> str:
    """Time summed over GPUs, as no clock shows it: ``10 GPU-min``, ``12.4 GPU-h``."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 59.5:
        return f"{seconds:.0f} GPU-s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} GPU-min"
    return f"{number(seconds / 3600, 1 if seconds < 100 * 3600 else 0)} GPU-h"


def hours(value: float | None) -> str:
    """Hours as an operator says them: ``25 min``, ``9.8 h``, ``208 h``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if 60 * value < 59.5:
        return f"{60 * value:.0f} min"
    return f"{value:,.0f} h" if value >= 99.5 else f"{value:.1f} h"


def clock(at: float | None) -> str:
    """Local time of day, ``16:25:03``."""
    return UNKNOWN if at is None else time.strftime("%H:%M:%S", time.localtime(at))


def clock_day(at: float, now: float) -> str:
    """Local time of day with its seconds; ``11-29`` in front where it was not today."""
    form = "%H:%M:%S" if same_day(at, now) else "%m-%d %H:%M:%S"
    return time.strftime(form, time.localtime(at))


def same_day(at: float, now: float) -> bool:
    """Whether both are of one day here."""
    there, here = time.localtime(at), time.localtime(now)
    return (there.tm_year, there.tm_yday) == (here.tm_year, here.tm_yday)


def moment(at: float | None, now: float) -> str:
    """Local time, with its day when not today: ``03:12``, ``Tue 03:12``, ``8 Dec 03:12``."""
    if at is None or not math.isfinite(at) or at > 32_503_680_000:
        return UNKNOWN
    there = time.localtime(at)
    if same_day(at, now):
        return time.strftime("%H:%M", there)
    if abs(at - now) < 6 * 86400:
        return time.strftime("%a %H:%M", there)
    return time.strftime(f"{there.tm_mday} %b %H:%M", there)


_SPARK = tuple(
    (0x00, 0x80, 0xA0, 0xB0, 0xB8)[right] | (0x00, 0x40, 0x44, 0x46, 0x47)[left]
    for left in range(5)
    for right in range(5)
)


def spark(values: list[float | None], top: float, width: int, rows: int = 1) -> list[str]:
    """``values`` as filled braille, two a cell, newest at the right, on a fixed scale.

    ``top`` is the value that fills all ``rows``. A missing value leaves a hole; any other value
    shows at least one dot, so that an idle server and an unknown one look different.
    """

    def dots(value: float | None) -> int:
        if value is None or top <= 0 or not math.isfinite(value):
            return 0
        return min(4 * rows, max(1, math.ceil(value / top * 4 * rows - 0.5)))

    wanted = values[-2 * width :]
    counts = [0] * (2 * width - len(wanted)) + [dots(v) for v in wanted]
    lines = []
    for row in range(rows - 1, -1, -1):
        part = [min(4, max(0, count - 4 * row)) for count in counts]
        lines.append(
            "".join(chr(0x2800 + _SPARK[part[i] * 5 + part[i + 1]]) for i in range(0, 2 * width, 2))
        )
    return lines


@lru_cache(4096)
def bar(fraction: float | None, width: int) -> tuple[str, str]:
    """A bar of eighths: the filled part and the empty rest, together ``width`` cells."""
    if fraction is None or not math.isfinite(fraction):
        return "", " " * width
    eighths = round(min(1.0, max(0.0, fraction)) * width * 8)
    if fraction > 0 and eighths == 0:
        eighths = 1
    full, part = divmod(eighths, 8)
    filled = "█" * full + ("▏▎▍▌▋▊▉"[part - 1] if part else "")
    return filled, " " * (width - len(filled))
