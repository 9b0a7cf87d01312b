"""Quoting: whatever an argument holds, it arrives as it was."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.config import Hop, Target
from console.link import hop
from console.link.errors import LinkError
from remote.protocol import TargetSpec

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


def test_places_are_parsed() -> None:
    assert hop.destination("root@10.1.2.6") == ("root", "10.1.2.6", 0)
    assert hop.destination("alias") == ("", "alias", 0)
    assert hop.destination("ssh://me@host:2222/") == ("me", "host", 2222)
    assert hop.destination("me@[::1]:22") == ("me", "::1", 22)
    assert hop.destination("fe80::1") == ("", "fe80::1", 0)


def test_a_plain_line_goes_the_same_way() -> None:
    """SSH in front, quoted for this machine's shell and for the host's."""
    target = Target(
        name="t",
        ssh="ops@pve:2222",
        ssh_config=Path("/home/me/my config"),
        hop=Hop("pct", "200", sudo=True),
        spec=TargetSpec("t", "/w"),
    )
    words = shlex.split(hop.plain(target, HOSTILE))
    assert words[:-1] == ["ssh", "-F", "/home/me/my config", "-p", "2222", "ops@pve"]
    assert shlex.split(words[-1]) == ["sudo", "-n", "pct", "exec", "200", "--", *HOSTILE]
    here = Target(name="t", ssh="", spec=TargetSpec("t", "/w"))
    assert shlex.split(hop.plain(here, HOSTILE)) == HOSTILE
    with pytest.raises(hop.HopError, match="only ASCII"):
        hop.plain(target, ["tail", "/wörk/x.log"])


def test_what_is_left_to_itself_gets_folder_script_and_variables(tmp_path: Path) -> None:
    """Through real shells, whatever the names; it writes to its log after the line has ended."""
    folder = tmp_path / "it's a $HOME; folder"
    folder.mkdir()
    script = folder / "env & more.sh"
    script.write_text("FROM_SCRIPT='a b'\nOWN=no\n")
    code = "import os, sys; print(os.getcwd(), os.environ['FROM_SCRIPT'], os.environ['OWN'])"
    argv = hop.in_background(
        [sys.executable, "-c", code],
        folder=str(folder),
        log="the log",
        env={"OWN": "it's mine"},
        script=str(script),
    )
    here = Target(name="t", ssh="", spec=TargetSpec("t", "/w"))
    subprocess.run(["/bin/sh", "-c", hop.plain(here, argv)], check=True, timeout=20)
    end = time.monotonic() + 20
    log = folder / "the log"
    while not (log.exists() and log.read_text().endswith("\n")):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert log.read_text() == f"{folder} a b it's mine\n"
