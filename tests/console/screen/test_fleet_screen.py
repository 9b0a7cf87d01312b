"""The fleet's screen at any size: every GPU seen and found, and what is wrong."""

from __future__ import annotations

import re

import pytest

from console.screens.fleet import heights
from console.screens.logs import LogsScreen
from console.widgets.cards import Cards, arrange
from console.widgets.chart import Chart
from tests.console.screen.driver import Driven, driven, painted


def done(one: Driven) -> str:
    """The prompts done, as the header writes them; without the last digits, which run on."""
    assert one.app.state.progress is not None
    return f"{one.app.state.progress.completed:,}"[:-2]


@pytest.mark.parametrize(
    ("size", "gpus"),
    [((80, 24), 8), ((120, 40), 8), ((220, 60), 64), ((80, 24), 64), ((120, 40), 1), ((40, 12), 8)],
)
async def test_every_gpu_is_on_the_screen(size: tuple[int, int], gpus: int) -> None:
    """As a card or as a row, down to sizes where only numbers are left."""
    async with driven(size, gpus=gpus) as one:
        cards = one.app.screen.query_one(Cards)
        if size[1] >= 24:
            columns, every = range(size[0]), set(range(gpus))

            def shown() -> set[int | None]:
                return {cards.gpu_at(x, y) for x in columns for y in range(cards.size.height)}

            await one.until(lambda: shown() >= every and "do not fit" not in one.screen())
        await one.until(lambda: done(one) in one.screen())
        text = one.screen()
        assert all(len(line) <= size[0] for line in text.splitlines())
        if size[0] >= 80:
            assert "SIMULATED HARDWARE" in text
            assert "37/37" in text or "36/37" in text


async def test_what_is_wrong_and_which_key_helps_are_on_the_first_screen() -> None:
    """A failed server is a red box with its cause, and the key stands beside the notice."""
    async with driven((80, 24)) as one:
        one.story.servers[3].state = "failed"
        one.story.servers[3].cause = "CUDA out of memory"
        one.story.tell()
        await one.sees("GPU 3 failed: CUDA out of memory")
        assert "u up" in one.screen()


@pytest.mark.parametrize(("size", "gpus"), [((80, 24), 8), ((120, 40), 8), ((220, 60), 64)])
async def test_any_gpu_is_chosen_by_arrows_and_seen_without_colour(
    size: tuple[int, int], gpus: int
) -> None:
    """As they stand on the screen; enter opens the chosen one's log."""
    async with driven(size, gpus=gpus) as one:
        app = one.app
        cards = app.screen.query_one(Cards)
        assert "▸" not in "".join(painted(cards))
        await one.keys("enter")
        await one.sees("choose a GPU first")
        await one.keys("down")
        assert app.focus_gpu == 0
        await one.keys("up", "left")
        assert app.focus_gpu == 0
        one.burst(*["down", "right"] * 12, *["j"] * gpus, *["right"] * gpus)
        last = gpus - (gpus // cards.form.columns)
        await one.until(lambda: app.focus_gpu is not None and app.focus_gpu >= last)
        await one.pilot.pause()
        chosen = app.focus_gpu
        assert chosen is not None
        assert chosen >= last
        await one.until(lambda: f"▸{chosen:>2}" in one.screen() or f"▸{chosen} " in one.screen())
        await one.keys("k")
        assert app.focus_gpu != chosen
        await one.keys("enter")
        await one.until(lambda: isinstance(app.screen, LogsScreen))
        await one.until(lambda: one.story.wanted.logs.keys() == {f"gpu{app.focus_gpu}"})


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_start_tells_its_phase_and_its_time_once(size: tuple[int, int]) -> None:
    """Uncut in a row, too."""
    async with driven(size) as one:
        server = one.story.servers[2]
        server.state, server.phase = "starting", "capturing graphs"
        server.phase_since = one.story.now - 12
        one.story.tell()
        await one.sees("capturing graphs")
        await one.until(lambda: re.search(r" 1\ds of 6s {2}", one.screen()))
        assert one.screen().count(" of 6s") == 1


async def test_resizing_relays_everything() -> None:
    """From a wall to a phone and back."""
    async with driven((220, 60)) as one:
        for width, height in ((80, 24), (40, 10), (20, 5), (120, 40)):
            await one.pilot.resize_terminal(width, height)

            def fills(width: int = width, height: int = height) -> bool:
                lines = one.screen().splitlines()
                return [len(line) for line in lines] == [width] * height

            await one.until(fills)
            await one.until(lambda: done(one) in one.screen())
        await one.sees("tok/s per GPU")


async def test_plots_are_drawn_and_follow_zoom_and_focus() -> None:
    """In a process of their own."""
    async with driven() as one:

        def dots() -> list[bool]:
            charts = one.app.screen.query(Chart)
            return [any("⠀" < c <= "⣿" for c in "".join(painted(chart))) for chart in charts]

        await one.until(lambda: dots() and all(dots()), 60)
        await one.until(lambda: "┤" in one.screen(), 30)
        await one.keys("plus")
        await one.sees("5m")
        await one.keys("m")
        await one.sees("running requests")


def test_heights_never_exceed_the_screen() -> None:
    """At any size, with anything to say."""
    for height in range(5, 90):
        for width in (20, 80, 120, 220):
            for gpus in (1, 2, 8, 16, 64):
                for swap in (0, 6, 12):
                    rows = heights(width, height, gpus, 5, swap)
                    used = (
                        5 + rows.notices + rows.form.height + rows.swap + rows.plots + rows.events
                    )
                    assert used <= max(height, 5 + rows.notices + rows.form.height)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 16, 63, 64])
def test_forms_hold_every_gpu(count: int) -> None:
    """Cards where there is room, rows elsewhere."""
    form = arrange(count, 220, 60)
    if form.kind == "cards":
        assert form.columns * (form.height // form.each) >= count
    else:
        assert form.columns * (form.height - 1) >= count
