"""Themes: those that are shipped, those of the user, and which one the next session has."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from console import prefs, themes
from console.app import StokerApp
from tests.console.screen.story import connect


async def test_themes_are_switched_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next session starts with the theme of the last."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for expected in ("dark", "light"):
        app = StokerApp(connect(now=time.time()), name="ct200")
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.pause()
            assert app.theme == expected
            await pilot.press("t")
            await pilot.pause()
    assert prefs.read().theme == "high-contrast"


def test_shipped_themes_load_and_a_bad_one_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake in a user's file never stops the console."""
    folder = tmp_path / "stoker" / "themes"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('primary = "#ff0000"\n')
    (folder / "bad.toml").write_text('primary = "#ff0000"\ncolour = "x"\n')
    (folder / "worse.toml").write_text('primary = "#gg0000"\n')
    (folder / "worst.toml").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found, problems = themes.load_all()
    assert [t.name for t in found] == ["dark", "light", "high-contrast", "colour-blind", "mine"]
    assert len(problems) == 3
    assert all("\n" not in p for p in problems if "bad" in p or "worse" in p)
