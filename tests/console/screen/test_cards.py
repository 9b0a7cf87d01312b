"""The cards of the fleet, as they are painted."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from console.text import moment
from console.widgets.card import card_lines
from console.widgets.cards import Cards
from console.widgets.gpu import View
from console.widgets.row import row_columns, row_line
from remote.protocol import ServerInfo, ServerState
from tests.console.screen.driver import driven
from tests.console.screen.told import plain

READY = ServerState(gpu=3, state="ready", running=37, gen_tok_s=661.0, kv_usage=0.2)


def view(server: ServerState) -> View:
    info = ServerInfo(gpu=3, port=30003, max_running=37)
    return View(3, info, server, None, (), 1000.0, frozenset(), False, False, 1_000_012.0)


def card(server: ServerState, width: int = 34) -> str:
    return plain(card_lines(view(server), width))


@pytest.mark.parametrize("width", [29, 34, 60])
def test_a_silent_server_is_not_shown_as_ready(width: int) -> None:
    """In amber, since when, and without the throughput that it had."""
    silent = replace(READY, silent_since=1_000_000.0, gen_tok_s=None)
    assert "● ready" in card(READY, width)
    assert "661 tok/s" in card(READY, width)
    shown = card(silent, width)
    assert "▲ silent 12s" in shown
    assert "ready" not in shown
    assert "– tok/s" in shown
    styles = {
        style for line in card_lines(view(silent), width) for text, style in line if "▲" in text
    }
    assert styles == {"warn"}
    row = "".join(text for text, _ in row_line(view(silent), row_columns(90), 90))
    assert "▲ silent" in row
    assert "ready" not in row


def test_what_is_told_as_failed_stays_so() -> None:
    """The cause is worth more than the silence that led to it."""
    stalled = replace(READY, state="stalled", cause="no token for 90 s", silent_since=1_000_000.0)
    assert "stalled" in card(stalled)
    assert "no token for 90 s" in card(stalled)


@pytest.mark.parametrize(
    ("width", "words"),
    [(29, "1 of 46 suspects alone"), (34, "tries 1 of 46 suspects alone"), (60, "40 tok/s")],
)
def test_a_server_that_is_kept_for_a_suspect_says_so(width: int, words: str) -> None:
    """Its few tokens are no fault of it."""
    alone = dataclasses.replace(view(replace(READY, running=1, gen_tok_s=40.0)), suspects=46)
    shown = plain(card_lines(alone, width))
    assert words in shown
    assert "1 of 46 suspects alone" in shown
    row = "".join(text for text, _ in row_line(alone, row_columns(90), 90))
    assert "tries 1 of 46 suspects alone" in row


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (29, "died 3×"),
        (40, "died 3×, last"),
        (80, "died 3×, last {at}: out of GPU memory while generating"),
    ],
)
def test_a_server_that_died_shows_it_once_it_is_up_again(width: int, words: str) -> None:
    died = replace(READY, died=3, died_at=1_000_000.0, died_of="out of GPU memory while generating")
    assert words.format(at=moment(1_000_000.0, 1_000_012.0)) in card(died, width)
    assert "661 tok/s" in card(died, width)
    row = "".join(text for text, _ in row_line(view(died), row_columns(90), 90))
    assert "● ready ↻3" in row
    assert "● ready ↻3" in card(died, width)
    assert "↻" not in card(READY, width)


async def test_the_smallest_terminal_shows_every_gpu() -> None:
    """Several short texts a row, no GPU left out."""
    async with driven((40, 10)) as one:
        cards = one.app.screen.query_one(Cards)
        await one.until(lambda: cards.form.kind == "brief")
        await one.until(lambda: all(f"{gpu}●" in one.screen() for gpu in range(8)))
        assert "37/37" in one.screen()
