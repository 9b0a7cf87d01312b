"""Keys that come in bursts: whatever they meet, on whatever screen, the console goes on."""

from __future__ import annotations

import importlib
import pkgutil
import random
from pathlib import Path

import pytest
from textual import events
from textual.geometry import Size
from textual.screen import ModalScreen

from console import screens
from console.actions import by_key
from console.app import StokerApp
from console.lab import job
from console.lab.lab import Lab
from console.lab.options import Options
from console.registry.look import MOVES
from console.screens.modal import Once
from remote.protocol import Down, Restart
from tests.console.screen.driver import Driven, driven, on_agent

SCREENS = ("f", "l", "c", "g", "e", "A")
DIALOGS = ("r", "d", "C", "w", "question_mark", "a", "y", "exclamation_mark", "x", "B", "ctrl+p")
"""Keys that open something over a screen, or may."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some keys save files in this folder."""
    monkeypatch.chdir(tmp_path)


async def calm(one: Driven) -> None:
    """What was pressed is done, and the console still answers: its help opens and closes."""
    for _ in range(20):
        await one.pilot.pause()
        assert one.app._exception is None
        if not one.app.covered:
            break
        one.burst("escape")
    assert not one.app.covered


@pytest.mark.parametrize("leave", [["escape"] * 5, ["q"] * 3, ["enter"] * 3, ["y", "y", "escape"]])
async def test_a_burst_of_keys_leaves_a_dialog_once(leave: list[str]) -> None:
    """Each dialog is opened and left by one burst, then by one after it is there; keys that are
    too many do nothing."""
    async with driven() as one:
        for opens in DIALOGS:
            if leave[0] != "q":  # without a dialog it quits
                one.burst(opens, *leave)
                await calm(one)
            one.burst(opens)
            await one.pilot.pause()
            if one.app.covered:
                one.burst(*leave)
                await calm(one)
        one.burst("a", "enter", *["escape"] * 4)
        await calm(one)


@pytest.mark.parametrize("leave", ["escape", "enter"])
async def test_a_burst_of_keys_on_each_screen(leave: str) -> None:
    """The keys that lead there come with those that leave it."""
    async with driven() as one:
        for mode in SCREENS:
            one.burst(mode, *["slash", *[leave] * 3], *["question_mark", *[leave] * 5])
            await calm(one)


async def test_a_double_enter_restarts_once() -> None:
    """Nothing is sent twice by a key that bounced."""
    async with driven(rate=20.0) as one:
        await one.keys("r", "enter")
        await one.sees("type restart")
        await one.write("restart")
        one.burst("enter", "enter", "enter")
        await one.until(lambda: [r for r in one.sent(Restart) if not r.dry_run])
        await one.pilot.pause()
        assert len([r for r in one.sent(Restart) if not r.dry_run]) == 1
        await calm(one)
    async with driven() as one:
        await one.keys("3", "d")
        await one.sees("y does it")
        one.burst("y", "y", "y")
        await one.until(lambda: one.sent(Down))
        await calm(one)
        assert len(one.sent(Down)) == 1


@pytest.mark.parametrize("keys", [("l", "q", "q"), ("q", "q", "q")])
async def test_quitting_twice_is_quitting(keys: tuple[str, ...]) -> None:
    """A second q, and whatever comes after it, finds no screen any more."""
    async with driven() as one:
        one.burst(*keys, "l", "d", "escape")
        await one.until(lambda: not one.app.is_running)
    assert one.app._exception is None
    assert one.app.return_code == 0


def storm_keys(seed: int, count: int) -> list[str]:
    """Keys as a cat on the keyboard presses them: all that mean something but quitting, many
    escapes and enters among them."""
    chance = random.Random(seed)
    known = sorted({*by_key(), *(k for m in MOVES for k in m.keys)} - {"q", "ctrl+c", "P"})
    often = ["escape", "enter", "tab", "y", "n", "backspace", "slash", "a", "1", "9"]
    return [chance.choice(known if chance.random() < 0.6 else often) for _ in range(count)]


def resized(app: StokerApp, width: int, height: int) -> None:
    """The terminal is another size."""
    size = Size(width, height)
    app.post_message(events.Resize(size, size))


async def weather(one: Driven, seed: int, count: int) -> None:
    """A storm: bursts of keys, the window resized between them."""
    chance = random.Random(seed)
    keys = storm_keys(seed, count)
    while keys:
        burst = chance.randrange(1, 12)
        one.burst(*keys[:burst])
        del keys[:burst]
        if chance.random() < 0.2:
            resized(one.app, chance.choice([40, 80, 120, 220]), chance.choice([10, 24, 40, 60]))
        if chance.random() < 0.5:
            await one.pilot.pause()
        assert one.app._exception is None, f"seed {seed}, {len(keys)} keys before the end"


@pytest.mark.parametrize("seed", range(2))
async def test_a_storm_of_keys(seed: int) -> None:
    """A few hundred keys on every screen."""
    async with driven(rate=5.0) as one:
        await weather(one, seed, 300)
        resized(one.app, 120, 40)
        await calm(one)
        one.burst("question_mark")
        await one.sees("Moving here")


@pytest.mark.timeout(300)
async def test_a_storm_against_a_real_agent(tmp_path: Path) -> None:
    """Whatever it has them do to servers and run, console and agent go on; the link is real."""
    options = Options(gpus=2, count=5_000, speed=60.0, folder=tmp_path / "lab", s3=False)
    async with Lab(options) as lab:
        await job.begin(lab, lambda _: None)
        await job.start(lab, lambda _: None)
        async with on_agent(lab.target) as one:
            app = one.app
            await one.until(lambda: app.state.progress is not None, 60)
            await weather(one, 11, 200)
            resized(app, 120, 40)
            await calm(one)
            seen = app.state.time
            await one.until(lambda: app.state.time > seen, 60)


def test_every_dialog_is_left_once() -> None:
    """A new one that pops by itself would bring the crash back."""
    for module in pkgutil.iter_modules(screens.__path__):
        importlib.import_module(f"console.screens.{module.name}")

    ours: set[type] = set()
    more: list[type] = [ModalScreen]
    while more:
        kind = more.pop()
        more += kind.__subclasses__()
        if kind.__module__.startswith("console."):
            ours.add(kind)
    assert len(ours) > 8
    assert not [kind.__name__ for kind in ours if not issubclass(kind, Once)]
