"""The progress header, the key line and the help, at the widths there are."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest
from textual.binding import Binding

from console import reckon
from console.actions import ACTIONS, by_key
from console.app import StokerApp
from console.model import Link, State
from console.notices import Notice, notices
from console.registry.look import MOVES
from console.screens.config import ConfigScreen
from console.screens.events import EventsScreen
from console.screens.fleet import FleetScreen, heights
from console.screens.help import help_lines
from console.screens.logs import LogsScreen
from console.screens.run import RunScreen
from console.screens.targets import TargetsScreen
from console.text import moment
from console.widgets.bars import KeyBar, top_line
from console.widgets.notices import notice_lines
from console.widgets.pane import Pane
from console.widgets.progress import STUCK_S, header
from remote.protocol import Progress, RunState, RunStatus
from tests.console.screen.driver import driven, painted
from tests.console.screen.story import connect
from tests.console.screen.told import NOW, plain, told


def now_told() -> State:
    """The story's state."""
    return told(elapsed=120)[1]


def text(state: State, width: int = 78, now: float = NOW) -> str:
    """The header's lines."""
    return plain(header(state, now, width))


def test_until_the_first_answer_ends_the_servers_tell_the_throughput() -> None:
    """The run counts tokens with their answers; 0 tok/s beside busy servers would be false."""
    state = now_told()
    assert state.progress is not None
    progress = msgspec.structs.replace(state.progress, tok_s=0.0)
    fresh = replace(state, run=RunState(True, progress=progress))
    speed = sum(server.gen_tok_s or 0 for server in state.servers.values())
    assert speed > 0
    assert f"{speed:,.0f} tok/s" in text(fresh)


def test_numbers_of_a_lost_link_are_grey_and_dated() -> None:
    """Nothing bold, no time left that would run on; as of when it was told."""
    state = now_told()
    assert " in 2" in text(state)
    styles = {style for line in header(state, NOW + 10_800, 78) for _, style in line}
    assert not [style for style in styles if not style.startswith("dim")]
    old = text(state, 78, NOW + 10_800)
    assert " as of " in old
    assert "to go" not in text(state, 220, NOW + 10_800)
    when = text(state).partition(" (")[0].rpartition("done ")[2]
    assert f"done {when} as of" in old


@pytest.mark.parametrize("width", [78, 118, 218])
def test_every_number_has_its_label(width: int) -> None:
    """The overall rate and the range of the end at any width; what a count counts."""
    line = text(now_told(), width)
    assert ", 1.96 overall" in line
    assert "records wait" in line
    assert re.search(r"done (\w+ )?\d\d:\d\d \(.*\d\d:\d\d–.*\d\d:\d\d\) in \d", line), line
    assert "tok/s" in line


@pytest.mark.parametrize("width", [78, 118, 218])
def test_causes_and_what_waits_stand_beside_the_trouble(width: int) -> None:
    """An S3 that cannot be reached does not hide how much waits for it, nor its reason what was
    lost."""
    state = now_told()
    progress = Progress(
        total=9_000,
        completed=1_000,
        failed=12,
        failures={"rejected": 9, "timeout": 3},
        not_in_s3=1_291,
        s3_uploaded=4,
        s3_error="https://s3.eu-central-1.example.com/bucket/very/long cannot be reached" * 3,
    )
    line = text(replace(state, run=RunState(True, progress=progress)), width)
    assert "failed 12 (rejected 9, timeout 3)" in line
    assert ("1,291 records wait: https://s3" if width > 100 else "1,291 records wait ✖") in line
    assert max(map(len, line.splitlines())) <= width


@pytest.mark.parametrize("width", [58, 78, 118, 218])
def test_what_is_set_aside_or_waits_is_seen_at_every_size(width: int) -> None:
    """Before what lies in S3."""
    line = text(now_told(), width)
    assert "31 set aside   3 wait for a retry" in line


@pytest.mark.parametrize("status", ["done", "stopped", "failed", "running"])
def test_a_run_that_has_ended_has_no_end_to_come(status: RunStatus) -> None:
    """How it ended, when, and how long it took; nothing of what would be to go."""
    progress = Progress(
        total=9_000, completed=8_000, remaining=1_000, rate_per_sec=2.0, eta_hours=0.0,
        elapsed_hours=14.5, status=status, time=NOW - 7_200, set_aside=4, tok_s=900.0,
        avg_output_tokens=2_000.0,
    )  # fmt: skip
    state = replace(now_told(), run=RunState(False, exit=1, progress=progress), time=NOW)
    for width in (78, 218):
        shown = text(state, width)
        word = {"running": "not running since", "done": "done"}.get(status, f"{status} since")
        assert f"{word} {moment(NOW - 7_200, NOW)}" in shown
        assert "14.5 h" in shown
        assert "to go" not in shown
        assert " in 0" not in shown
        assert "4 set aside" in shown
    assert reckon.eta(state).at is None


def test_a_run_that_is_held_tells_no_end() -> None:
    """A pause moves it by as long as it lasts."""
    state = now_told()
    assert state.progress is not None
    paused = msgspec.structs.replace(state.progress, status="paused")
    assert " in 2" not in text(replace(state, run=RunState(True, progress=paused)))


def test_before_the_first_answer_it_has_no_length() -> None:
    """And a run that cannot upload without an error is seen all the same."""
    state = now_told()
    progress = Progress(total=100, in_flight=8, not_in_s3=500, s3_uploaded=1)
    state = replace(state, run=RunState(True, progress=progress), uploads=(1, state.time))
    assert "tok/answer" not in text(state, 218)
    assert "no file for" not in text(state, 218)
    stuck = replace(state, uploads=(1, state.time - STUCK_S - 60))
    assert "500 records wait, no file for 31m" in text(stuck, 218)


def test_the_host_is_seen() -> None:
    """Memory, disk, processors."""
    assert "RAM 61/512 GiB   disk free 1.4 TiB   CPU 18% load 6.1" in text(now_told(), 260)


def test_notices_take_rows_from_old_events() -> None:
    """Six lines of what is wrong at 80x24; events keep theirs where there is nothing to say."""
    assert heights(80, 24, 8, 6, 0).notices == 6
    assert heights(80, 24, 8, 6, 0).events >= 3
    assert heights(80, 24, 8, 20, 0).events >= 3
    assert heights(80, 24, 8, 1, 0).events == 9
    assert heights(120, 40, 8, 9, 0).notices == 9
    assert heights(120, 40, 8, 9, 0).plots >= 7
    assert heights(80, 24, 64, 6, 0).form == heights(80, 24, 64, 2, 0).form


async def test_alarms_that_do_not_fit_have_a_key() -> None:
    """All of them in one panel, with the key of each."""
    async with driven((80, 24), gpus=16) as one:
        for gpu in range(8):
            one.story.servers[gpu].state = "failed"
            one.story.servers[gpu].cause = f"cause number {gpu} of eight"
        one.story.tell()
        await one.sees("more: ! shows them")
        assert "GPU 7 failed" not in one.screen()
        await one.keys("exclamation_mark")
        await one.sees("What is wrong now on ct200")
        assert "GPU 7 failed: cause number 7 of eight" in one.screen()


KEYLINES = [
    (80, "", ["r restart", "s start", "p pause", "d down", "l logs  c config  g run  e events"]),
    (80, "l", ["space hold", "/ filter", "E error", "f fleet  c config  g run  e events"]),
    (80, "c", ["⏎ take/edit", "f fleet  l logs  g run  e events"]),
    (80, "g", ["s start", "p pause", "a answers", "f fleet  l logs  c config  e events"]),
    (80, "e", ["⏎ logs then", "/ filter", "S save", "f fleet  l logs  c config  g run"]),
    (60, "", ["r restart", "l c g e"]),
    (40, "", ["r restart", "l c g e q"]),
    (160, "", ["e events", "q quit"]),
    (120, "", ["a answers", "m plot", "e events"]),
    (120, "l", ["E error", "M merge", "T time", "f fleet  c config  g run  e events"]),
    (120, "g", ["x stop", "C at once", "R retry", "U retry aside", "f fleet"]),
]


@pytest.mark.parametrize(("width", "key", "words"), KEYLINES)
async def test_a_screens_own_keys_come_first(width: int, key: str, words: list[str]) -> None:
    """Then the way to the others, in words from 80 columns on, and where all stand."""
    async with driven((width, 24)) as one:
        await one.keys(*([key] if key else []))
        await one.until(lambda: one.app.screen.query(KeyBar))
        bar = one.app.screen.query_one(KeyBar)
        await one.until(lambda: painted(bar))
        line = painted(bar)[0]
        assert [word for word in words if word not in line] == []
        assert line.rstrip().endswith("? more")
        assert "…" not in line
        assert len(line) <= width


def bound(kind: type) -> set[str]:
    """Keys that a screen or a widget binds by itself."""
    found: set[str] = set()
    for one in kind.__dict__.get("BINDINGS", ()):
        keys = one.key if isinstance(one, Binding) else one[0]
        found |= {key.strip() for key in keys.split(",")}
    return found


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (FleetScreen, ()),
        (LogsScreen, (Pane,)),
        (EventsScreen, (Pane,)),
        (ConfigScreen, ()),
        (RunScreen, ()),
        (TargetsScreen, ()),
    ],
)
def test_the_help_tells_every_key_that_is_bound(kind: type, parts: tuple[type, ...]) -> None:
    """Of the registry, and what a screen or its panes bind by themselves."""
    name = kind.SCREEN  # type: ignore[attr-defined]
    told_of = {key for move in MOVES if name in move.screens for key in move.keys}
    keys = set().union(bound(kind), *(bound(part) for part in parts))
    assert keys <= told_of | set(by_key())
    lines = plain(help_lines(name, 76))
    assert all(action.title in lines for action in ACTIONS)
    assert all(move.title in lines for move in MOVES if name in move.screens)


def header_text(state: State, read_only: bool, age: float, width: int) -> str:
    """The top line, with data of an age."""
    now = 1_000.0
    line = top_line(replace(state, received=now - age), "ct200", "fleet", read_only, now, width)
    return "".join(text for text, _ in line)


@pytest.mark.parametrize("width", [80, 120])
def test_silence_and_read_only_are_two_things_and_both_are_said(width: int) -> None:
    """A link that brings nothing is not called connected; whether one may act stands beside."""
    state = replace(State(), link=Link("read-only", "this console only looks"))
    assert "● connected" in header_text(state, True, 1, width)
    assert "◌ silent 9s" in header_text(state, True, 9, width)
    assert "READ-ONLY" in header_text(state, True, 9, width)
    assert "connected" not in header_text(state, True, 9, width)
    lost = replace(state, link=Link("reconnecting", "the link was lost", 995.0))
    assert "reconnecting 5s" in header_text(lost, True, 9, width)
    assert "READ-ONLY" in header_text(lost, True, 9, width)


def test_no_key_is_named_that_is_refused() -> None:
    """Where one may only look, a lost link is tried again, not deployed to."""
    app = StokerApp(connect(), name="ct200", read_only=True, remember=False)
    app.state = replace(State(), link=Link("failed", "no agent: `stoker deploy` starts one"))
    assert [n.action for n in app.notices()] == ["link.retry"]
    app = StokerApp(connect(), name="ct200", remember=False)
    app.state = replace(State(), link=Link("failed", "no agent: `stoker deploy` starts one"))
    assert [n.action for n in app.notices()] == ["deploy"]


def test_a_notice_that_is_cut_says_so_and_where_it_is_whole() -> None:
    """An ellipsis and the key, in one row and in two."""
    long = Notice("warning", "at 02:57: " + "37 slots a server and many more words " * 8)
    for rows in (1, 2, 3):
        lines = ["".join(t for t, _ in line) for line in notice_lines([long], 78, rows)]
        assert len(lines) == rows
        assert "…" in lines[-1]
        assert "!" in lines[-1]
        assert all(len(line) <= 78 for line in lines)


def test_that_one_may_only_look_comes_last() -> None:
    """The mark in the top line says it already; what is wrong comes first."""
    state = replace(now_told(), link=Link("read-only", "this console only looks"), time=NOW)
    found = notices(replace(state, run=RunState(False)), NOW)
    assert len(found) > 1
    assert found[-1].level == "info"
    assert found[-1].code == "link"
    assert found[0].level in ("warning", "error")


def test_the_help_of_a_recording_begins_with_what_plays_it() -> None:
    """What would change something comes last in it."""
    lines = [
        "".join(t for t, _ in line) for line in help_lines("fleet", 100, changes=False, replay=True)
    ]
    groups = [line.split("  ")[0] for line in lines if line and not line.startswith(" ")]
    assert groups[0] == "Replay"
    restart, quits = (next(i for i, x in enumerate(lines) if w in x) for w in ("Restart", "Quit"))
    assert restart > quits
