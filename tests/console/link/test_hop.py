"""Quoting: whatever an argument holds, it arrives as it was."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.config import Hop
from console.link import hop
from console.link.errors import LinkError

HOSTILE = [
    "",
    " ",
    "--",
    "-x",
    "a b",
    "it's",
    'say "hi"',
    "$HOME",
    "`id`",
    "$(id)",
    "a;b",
    "a&&b",
    "a|b",
    "*",
    "~",
    "a\nb",
    "a\tb",
    "\\",
    "\\n",
    "!!",
    "#",
    "{a,b}",
    "\x7f\x01",
    "%s",
    "'\"'\"'",
]
PRINT = [sys.executable, "-c", "import json,sys; print(json.dumps(sys.argv[1:]))"]


def through(shell: str, argv: list[str]) -> list[str]:
    """What a program gets when ``shell`` runs the line, as sshd has root's shell do."""
    done = subprocess.run(
        [shell, "-c", hop.line([*PRINT, *argv])], capture_output=True, text=True, check=True
    )
    arrived: list[str] = json.loads(done.stdout)
    return arrived


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_hostile_arguments_through_a_real_shell(shell: str) -> None:
    assert through(shell, HOSTILE) == HOSTILE


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(st.characters(max_codepoint=126, exclude_characters="\0")), max_size=5))
def test_any_ascii_through_a_real_shell(argv: list[str]) -> None:
    assert through("/bin/sh", argv) == argv


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Hop("pct", "200"), ["pct", "exec", "200", "--"]),
        (Hop("pct", "200", sudo=True), ["sudo", "-n", "pct", "exec", "200", "--"]),
        (Hop("docker", "c"), ["docker", "exec", "-i", "c"]),
        (Hop("podman", "c"), ["podman", "exec", "-i", "c"]),
        (Hop("incus", "c"), ["incus", "exec", "-T", "c", "--"]),
        (Hop(), []),
        (Hop(sudo=True), ["sudo", "-n"]),
    ],
)
def test_each_hop(where: Hop, expected: list[str]) -> None:
    argv = ["python", "-c", "x", "--", "y"]
    assert hop.wrap(where, argv) == [*expected, *argv]


def test_what_cannot_travel_is_refused() -> None:
    for argv, text in (
        (["echo", "é"], "only ASCII"),
        (["echo", "a\0b"], "NUL"),
        ([], "empty"),
    ):
        with pytest.raises(hop.HopError, match=text):
            hop.wrap(Hop("pct", "1"), argv)
    with pytest.raises(LinkError, match="use stdin"):  # one line for people, as of any link
        hop.line(["echo", "x" * 200_000])
