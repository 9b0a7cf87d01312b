"""Numbers and foreign text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import text

HOSTILE = [
    "\x1b[2J\x1b[H everything gone",
    "\x1b]52;c;cm0gLXJm\x07 clipboard",
    "\x1b]0;title\x1b\\ title",
    "\x1bPq#0;2;0;0;0#0~~@@vv\x1b\\ sixel",
    "safe \u202eevil\u202c bidi",
    "zero\u200bwidth\ufeffjoin",
    "nul\x00bel\x07bs\x08del\x7f c1 \x9b31m",
    "[bold red]markup[/] [@click=app.quit]click[/]",
    "tab\tand\rreturn",
    "lone surrogate \udcff",
    "\U000e0041tag",
]


@pytest.mark.parametrize("line", HOSTILE)
def test_nothing_foreign_reaches_the_terminal(line: str) -> None:
    """No control, format or reordering character is left, and what was there can be seen."""
    shown = text.visible(line)
    assert all(ord(c) >= 0x20 and not 0x7F <= ord(c) < 0xA0 for c in shown)
    assert not set(shown) & set(
        "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\ufeff"
    )
    shown.encode()  # what a terminal gets must be text


@given(st.text(alphabet=st.characters(codec=None), max_size=400))
def test_any_text_becomes_harmless(line: str) -> None:
    """Whatever Unicode holds."""
    shown = text.visible(line)
    assert all(ord(c) >= 0x20 and not 0x7F <= ord(c) < 0xA0 for c in shown)
    shown.encode()


def test_colours_are_dropped_and_the_rest_is_shown() -> None:
    """Colour says nothing; a cursor movement is worth seeing."""
    assert text.visible("\x1b[1;33mdeprecated\x1b[0m") == "deprecated"
    assert text.visible("a\x1b[5Ab") == "a␛[5Ab"


def test_markup_stays_text() -> None:
    """Brackets of a log line are its own."""
    line = "[2026-05-20 10:00:03] Decode batch"
    assert text.visible(line) == line


def test_a_long_line_is_cut_and_says_so() -> None:
    """A megabyte costs no more than two thousand characters."""
    shown = text.visible("x" * 1_000_000)
    assert shown.endswith("998,000 more characters")
    assert len(shown) < 2_100


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "–"), (0, "0s"), (59.4, "59s"), (92, "1m32s"), (11_220, "3h07m"), (187_200, "2d04h")],
)
def test_durations(seconds: float | None, shown: str) -> None:
    """Two units at most."""
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 min"),
        (0.41, "25 min"),
        (0.99, "59 min"),
        (0.995, "1.0 h"),
        (9.8, "9.8 h"),
        (208, "208 h"),
    ],
)
def test_hours(value: float, shown: str) -> None:
    """Minutes under one."""
    assert text.hours(value) == shown


def test_unknown_is_never_zero() -> None:
    """A dash, not a number."""
    for function in (text.number, text.short, text.percent, text.duration, text.hours, text.size):
        assert function(None) == text.UNKNOWN


def test_percent_is_never_rounded_up_to_done() -> None:
    """99.96% is not 100%."""
    assert text.percent(0.9996) == "99%"
    assert text.percent(0.9996, 1) == "99.9%"
    assert text.percent(1.0) == "100%"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (987, "987"), (1_234, "1.2k"), (193_010, "193k"), (4_130_000, "4.1M")],
)
def test_short_numbers(value: float, shown: str) -> None:
    """Four characters at most."""
    assert text.short(value) == shown


def test_spark_keeps_its_scale_and_its_holes() -> None:
    """Half of the top is half of the rows; nothing known is nothing drawn; 0 is one dot."""
    assert text.spark([None, None], 100, 1) == ["\u2800"]
    assert text.spark([0, 0], 100, 1) == ["\u28c0"]
    assert text.spark([100, 100], 100, 1) == ["\u28ff"]
    assert text.spark([50, 50], 100, 1) == ["\u28e4"]
    assert text.spark([50, 50], 100, 1, rows=2) == ["\u2800", "\u28ff"]
    assert len(text.spark([1.0] * 500, 1, 20)[0]) == 20


@given(st.floats(allow_nan=True) | st.none(), st.integers(1, 60))
def test_bars_fill_their_width(fraction: float | None, width: int) -> None:
    """Whatever the value."""
    filled, rest = text.bar(fraction, width)
    assert len(filled) + len(rest) == width


def test_time_of_several_gpus_says_so() -> None:
    """It is no time of day that anybody waited."""
    shown = [text.gpu_time(s) for s in (None, 8, 600, 38_000, 3_600_000)]
    assert shown == ["–", "8 GPU-s", "10 GPU-min", "10.6 GPU-h", "1,000 GPU-h"]
