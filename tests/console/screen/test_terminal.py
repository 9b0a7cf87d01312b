"""The console in a real terminal: the driver, the first frame, keys, the way out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.terminal import Terminal

ROOT = Path(__file__).parents[3]
STORY = [sys.executable, "-m", "tests.console.screen.story", "--trouble"]


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """A terminal of its own, nothing of the user's."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TMUX", "SSH_CONNECTION")}
    return {
        **kept,
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        **more,
    }


def test_it_starts_answers_keys_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    """Alternate screen in and out, mouse on and off, exit status 0."""
    terminal = Terminal(STORY, environment(tmp_path))
    terminal.until("CUDA out of memory", 60)
    terminal.keys("l")
    terminal.until(r"D \d+ req", 30)
    terminal.keys("?")
    terminal.until("Choose a GPU|Follow/hold", 30)
    terminal.keys("\x1b")
    terminal.drain(0.5)
    terminal.keys("q")
    for _ in range(100):
        terminal.read(0.1)
        if terminal.process.poll() is not None:
            break
    terminal.drain(0.3)
    assert terminal.process.wait(5) == 0
    painted = terminal.tail
    os.close(terminal.main)
    assert painted.count(b"\x1b[?1049h") == painted.count(b"\x1b[?1049l") == 1
    assert painted.rindex(b"\x1b[?25h") > painted.rindex(b"\x1b[?25l")
    assert b"Traceback" not in painted
    children = subprocess.run(
        ["pgrep", "-g", str(terminal.process.pid)], capture_output=True, text=True, check=False
    )
    assert children.stdout.split() == []


def test_no_color_means_none(tmp_path: Path) -> None:
    """States are told by signs and words too."""
    terminal = Terminal(STORY, environment(tmp_path, NO_COLOR="1"))
    terminal.until("CUDA out of memory", 60)
    terminal.drain(1)
    painted = terminal.tail
    terminal.close()
    colours = {tuple(m.group(1).split(b";")) for m in re.finditer(rb"[34]8;2;([0-9;]+)m", painted)}
    grey = {c for c in colours if len(set(c[:3])) == 1}
    assert colours == grey
    assert "✖".encode() in painted


@pytest.mark.parametrize("theme", ["dark", "light", "high-contrast", "colour-blind"])
def test_text_can_be_read_in_every_theme(theme: str) -> None:
    """Contrast of what carries meaning, by WCAG's formula: 4.5 for text, 3 for dimmed text."""
    from textual.color import Color

    from console import themes

    found = next(t for t in themes.load_all()[0] if t.name == theme)
    background = Color.parse(found.background or "#000000")
    least = 7.0 if theme == "high-contrast" else 4.5
    for name in ("good", "info", "warn", "bad", "strong"):
        assert contrast(Color.parse(found.variables[name]), background) >= least, name
    assert contrast(Color.parse(found.variables["dim"]), background) >= 3.9
    for gpu in range(8):
        assert contrast(Color.parse(found.variables[f"g{gpu}"]), background) >= 3.0, gpu


def contrast(one: object, other: object) -> float:
    """WCAG 2's contrast ratio."""
    from textual.color import Color

    def light(colour: object) -> float:
        assert isinstance(colour, Color)
        parts = [
            c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
            for c in (colour.r / 255, colour.g / 255, colour.b / 255)
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    bright, dark = sorted((light(one), light(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)
