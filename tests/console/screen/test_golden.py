"""Every screen looks as it did when somebody last looked at it: text and styles, in two themes."""

from __future__ import annotations

import difflib

import pytest

from tests.console.screen.golden import FOLDER, SIZES, TOURS, Tour, draw

RENEW = "python -m tests.console.screen.golden draws them anew"


def differences(name: str, wanted: str, found: str) -> list[str]:
    """What is another text, and which lines are the same text in other styles."""
    old, new = wanted.splitlines(), found.splitlines()
    told = list(difflib.unified_diff(old, new, f"golden/{name}", "now", lineterm="", n=0))
    texts = [line for line in told if not line[1:].startswith("--- ")]
    for before, after in zip(old, new, strict=False):
        if before.startswith("--- ") and before != after:
            pairs = zip(before.split()[2:], after.split()[2:], strict=False)
            lines = [str(n) for n, (one, two) in enumerate(pairs) if one != two]
            texts.append(f"{before.split()[1]}: other styles in lines {', '.join(lines)}")
    return texts


BY_SIZE = [
    pytest.param((w, h), id=f"{w}x{h}", marks=pytest.mark.xdist_group(f"golden {w}x{h}"))
    for w, h in SIZES
]
"""Each size may have a worker of its own: all of them one after the other take longest of all."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", BY_SIZE)
@pytest.mark.parametrize("tour", TOURS, ids=lambda tour: tour.name)
async def test_every_screen_looks_as_it_did(tour: Tour, size: tuple[int, int]) -> None:
    """And fits its size."""
    found = await draw(tour, size)
    assert set(found) == {f"{shot.name}-{size[0]}x{size[1]}.txt" for shot in tour.shots}
    wrong: list[str] = []
    for name, content in found.items():
        text = [line for line in content.splitlines() if not line.startswith("--- ")]
        assert len(text) == size[1]
        path = FOLDER / name
        wanted = path.read_text("utf-8") if path.is_file() else ""
        if content != wanted:
            wrong += differences(name, wanted, content)[:60]
    assert not wrong, "\n".join([*wrong, RENEW])


def test_no_file_is_left_of_a_screen_that_is_gone() -> None:
    names = {f"{s.name}-{w}x{h}.txt" for tour in TOURS for s in tour.shots for w, h in SIZES}
    assert {path.name for path in FOLDER.glob("*.txt")} == names
