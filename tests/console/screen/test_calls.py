"""What rings and asks for a desktop notification, and how."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from console import calls
from remote.protocol import Event, Happened
from tests.bench.terminal import Terminal
from tests.console.screen.driver import driven
from tests.console.screen.test_terminal import environment

AWAY = "\x1b[O"
"""What a terminal says when it has lost the focus."""


@pytest.mark.parametrize(
    ("kind", "level", "ago", "rings"),
    [
        ("server.failed", "error", 1, True),
        ("server.failed", "error", 60, True),  # it came after a cut of a minute
        ("server.failed", "error", 500, False),  # the panel tells of it
        ("server.failed", "error", 2_000, False),  # before this console
        ("alert", "warning", 1, True),
        ("run.done", "info", 1, True),
        ("swap.lost", "warning", 1, False),
        ("s3.uploaded", "info", 1, False),
    ],
)
def test_what_calls(kind: str, level: str, ago: float, rings: bool) -> None:
    """Errors, what the agent takes for an alert, and the end of the run; nothing of the past."""
    event = Event(1, 10_000 - ago, kind, level)  # type: ignore[arg-type]
    assert calls.worth_it(event, 9_000, 10_000) == rings
    assert not calls.worth_it(event, None, 10_000)


def test_in_tmux_the_sequence_is_wrapped() -> None:
    """Every escape in it doubled, as tmux wants it; nothing of the text gets out."""
    plain = calls.sequence("GPU 3; \x1b]0;x\a failed", tmux=False)
    assert plain.count("\x1b") == plain.count("\a") == 2
    assert "GPU 3, " in plain
    wrapped = calls.sequence("GPU 3 failed", tmux=True)
    assert wrapped.startswith("\x1bPtmux;\x1b\x1b]9;stoker GPU 3 failed\a\x1b\x1b]777;")
    assert wrapped.endswith("\a\x1b\\")


async def test_what_comes_at_once_rings_once_and_a_warning_rings_too() -> None:
    """Eight dead servers are one bell; after a cut what came meanwhile is still rung."""
    async with driven() as one:
        bells: list[float] = []
        one.app.bell = lambda: bells.append(time.monotonic())  # type: ignore[method-assign]
        one.story.advance(1)
        for gpu in range(8):
            one.story.say("server.failed", f"GPU {gpu}: CUDA error", gpu=gpu, level="error")
        await one.until(lambda: bells)
        assert len(bells) == 1
        one.story.say("alert", "S3: no such bucket", level="warning")
        await one.until(lambda: len(bells) == 2)
        one.story.lose()
        one.story.on_message = lambda message: None
        one.story.advance(20)
        one.story.say("run.done", "the run is done: 193,010 done")
        late = one.story.events[-1]
        one.story.on_message = one.app.front.hear
        one.story.find()
        one.app.front.hear(Happened(late))
        await one.until(lambda: len(bells) == 3)
        one.app.front.hear(Happened(late))
        await one.pilot.pause(0.7)
        assert len(bells) == 3


async def test_a_lost_link_rings_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After half a minute; not again until it was there."""
    monkeypatch.setattr(calls, "LOST_S", 0.2)
    async with driven() as one:
        bells: list[float] = []
        one.app.bell = lambda: bells.append(time.monotonic())  # type: ignore[method-assign]
        one.story.lose()
        await one.until(lambda: bells)
        await one.pilot.pause(1.5)
        assert len(bells) == 1
        one.story.find()
        await one.sees("● connected")
        one.story.lose()
        await one.until(lambda: len(bells) == 2)


@pytest.mark.parametrize("tmux", [False, True])
def test_a_terminal_that_lost_the_focus_is_asked_for_a_notification(
    tmp_path: Path, tmux: bool
) -> None:
    """On the wire of a real terminal: one bell, then OSC 9 and 777, wrapped inside tmux."""
    more = {"TMUX": f"{tmp_path}/default,1,0"} if tmux else {}
    command = [sys.executable, "-m", "tests.console.screen.story", "--call", "4"]
    terminal = Terminal(command, environment(tmp_path, **more))
    terminal.until("8/8 healthy", 60)
    terminal.keys(AWAY)
    terminal.until("777;notify;stoker;", 60)
    terminal.drain(0.5)
    painted = terminal.tail
    terminal.close()
    wanted = calls.sequence("ct200: GPU 1: 91 °C", tmux=tmux).encode()
    assert wanted in painted
    assert b"\a" in painted[: painted.index(wanted)].rpartition(b"\x1b[?1049h")[2]
