"""The registry of actions, and flags as they are typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from console import flags
from console.action import Action
from console.actions import ACTIONS, BY_NAME, command_line, danger, key_name
from console.arguments import parse
from remote.protocol import READ_ONLY, TargetSpec
from tests.console.screen.driver import driven
from tests.console.screen.story import catalogue

SPEC = TargetSpec(name="t", workspace="/w")
FORBIDDEN = {"ctrl+b", "ctrl+a", "ctrl+s", "ctrl+q", "ctrl+z"}


def test_no_key_means_two_things_on_one_screen() -> None:
    """And none that multiplexers or terminals take for themselves."""
    for one in ACTIONS:
        for other in ACTIONS:
            if one is other or not set(one.keys) & set(other.keys):
                continue
            assert one.screens
            assert other.screens
            assert not one.screens & other.screens
    assert not {key for action in ACTIONS for key in action.keys} & FORBIDDEN


def test_what_sends_a_changing_request_is_marked() -> None:
    """Read-only mode switches off exactly those."""
    for action in ACTIONS:
        if action.request is not None:
            assert action.changes == (not isinstance(action.request(SPEC, [1]), READ_ONLY))
        if action.danger != "none":
            assert action.changes
        if action.changes:
            assert action.verb, f"{action.name} can be done from a shell too"


def test_danger_grows_with_the_blast_radius() -> None:
    """One GPU: a key; all: the word."""
    restart = BY_NAME["restart"]
    assert danger(restart, 1, 8) == "key"
    assert danger(restart, 8, 8) == "word"
    assert danger(restart, 1, 1) == "key"
    assert danger(BY_NAME["up"], 8, 8) == "key"
    assert danger(BY_NAME["fleet"], 8, 8) == "none"


def test_command_lines_are_quoted_words() -> None:
    """They can be pasted into a shell."""
    line = command_line(
        BY_NAME["restart"],
        "my target",
        gpus=[3],
        set_flags={"a": 0.9, "b": True, "l": ["x", "y z"]},
        unset_flags=["c"],
        more=["--strategy", "rolling"],
    )
    assert shlex.split(line) == [
        "stoker", "restart", "my target", "--set", "a=0.9", "--set", "b=true",
        "--set", "l=x y z", "--unset", "c", "--strategy", "rolling", "--gpu", "3",
    ]  # fmt: skip
    assert command_line(BY_NAME["logs"], "t") == ""


@pytest.mark.parametrize("action", [action for action in ACTIONS if action.verb])
def test_command_lines_are_what_the_command_takes(action: Action) -> None:
    """From any shell: they name the configuration that the console was opened with."""
    more = {"set_flags": {"a": 0.9}, "gpus": [3]} if action.verb == "restart" else {}
    line = command_line(action, "t", file=Path("/my files/stoker.toml"), **more)  # type: ignore[arg-type]
    options = parse(shlex.split(line)[1:])
    assert (options.target, options.config) == ("t", "/my files/stoker.toml")


BOOK = flags.Book(catalogue())
CURRENT = {"mem-fraction-static": 0.85, "enable-metrics": True}


@pytest.mark.parametrize(
    ("typed", "name", "value"),
    [
        ("mem-fraction-static=0.9", "mem-fraction-static", 0.9),
        ("--mem_fraction_static 0.9", "mem-fraction-static", 0.9),
        ("disable-radix-cache", "disable-radix-cache", True),
        ("disable-radix-cache=true", "disable-radix-cache", True),
        ("enable-metrics=false", "enable-metrics", None),
        ("-enable-metrics", "enable-metrics", None),
        ("mem-fraction-static=", "mem-fraction-static", None),
        ("max-running-requests=64", "max-running-requests", 64),
        ("attention-backend=trtllm_mha", "attention-backend", "trtllm_mha"),
        ("served-model-name=7", "served-model-name", "7"),
    ],
)
def test_flags_as_typed(typed: str, name: str, value: object) -> None:
    """In every form people type them."""
    edit = flags.parse(typed, dict(CURRENT), BOOK)
    assert (edit.name, edit.value, edit.doubt) == (name, value, "")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("mem-fraction-static=1.2", "between 0 and 1"),
        ("max-running-requests=lots", "whole number"),
        ("enable-metrics=7", "takes no value"),
        ("mamba-scheduler-strategy=no_bufer", "did you mean no_buffer"),
        ("max-running-requests", "needs a value"),
        ("-max-running-requests", "is not set"),
        ("port=30000", "set by Stoker"),
        ("=3", "name=value"),
        ("   ", "name=value"),
    ],
)
def test_mistakes_are_told_at_once(typed: str, says: str) -> None:
    """One line, before anything is sent."""
    with pytest.raises(flags.FlagError, match=says):
        flags.parse(typed, dict(CURRENT), BOOK)


def test_an_unknown_flag_is_doubted_not_refused() -> None:
    """The server's parser has the last word."""
    edit = flags.parse("mem-fracton-static=0.9", {}, flags.Book())
    assert "did you mean mem-fraction-static" in edit.doubt
    assert edit.value == 0.9


@pytest.mark.parametrize(
    ("typed", "whole"),
    [
        ("mem", "mem-fraction-static=0.85"),
        ("mamba-sch", "mamba-scheduler-strategy="),
        ("mamba-scheduler-strategy=no", "mamba-scheduler-strategy=no_buffer"),
        ("-mem", "-mem-fraction-static"),
        ("disable-rad", "disable-radix-cache"),
        ("zzz", None),
        ("", None),
    ],
)
def test_completion(typed: str, whole: str | None) -> None:
    """Set flags first, then known ones; values where there are choices."""
    assert flags.complete(typed, dict(CURRENT), BOOK) == whole


def test_edits_apply() -> None:
    """Changed, added, taken out."""
    after = flags.apply(dict(CURRENT), {"mem-fraction-static": 0.9, "enable-metrics": None, "x": 1})
    assert after == {"mem-fraction-static": 0.9, "x": 1}


def test_the_documentation_names_every_key() -> None:
    """The table of console/docs/console.md is the registry's."""
    text = (Path(__file__).parents[3] / "console" / "docs" / "console.md").read_text("utf-8")
    for action in ACTIONS:
        keys = " ".join(f"`{key_name(key)}`" for key in action.keys)
        asks = "" if action.danger == "none" else " Asks first."
        where = f" *({', '.join(sorted(action.screens))})*" if action.screens else ""
        assert f"| {keys} | {action.title} | {action.help}{asks}{where} |" in text, action.name


def test_a_slip_in_a_flag_is_seen_without_sglang() -> None:
    """Other flags that are much alike are left alone."""
    assert flags.slips({"mem-fraction-statc": 0.9, "mem-fraction-static": 0.9}) == [
        "mem-fraction-statc: not a flag known here; did you mean mem-fraction-static?"
    ]
    others = {"cuda-graph-bs", "disable-cuda-graph-padding", "max-prefill-tokens", "tp_size"}
    assert flags.slips(dict.fromkeys(others, 1)) == []


async def test_what_is_said_in_the_corner_does_not_pile_up() -> None:
    """The same is said once, an action's answer gives way to its next, three are enough."""
    async with driven() as one:
        for text in ("Up: one", "Up: two", "Down: one", "Down: one", "third", "third", "fourth"):
            one.app.say(text)
        await one.pilot.pause()
        said = [note.message for note in one.app._notifications]
        assert said == ["Down: one", "third", "fourth"]
