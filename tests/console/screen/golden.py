"""Every screen as it should look: text and styles, kept in ``golden/``, compared by a test.

``python -m tests.console.screen.golden [80x24 …]`` draws them anew; ``git diff`` then shows what
changed, and somebody looks at it before it is committed. A file holds the text of a screen at one
size, and for each theme a digest of each line's styles.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import sys
import tempfile
import time
import zlib
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
from rich.segment import Segment
from rich.style import Style
from textual.pilot import Pilot
from textual.widgets import Input

import console.app
import console.replay
import console.watch
from console.app import StokerApp
from console.config import Hop, Target
from console.feed import Connect
from console.model import Link
from console.replay import ReplayFeed
from console.watch import Source
from console.widgets.chart import Chart
from remote.journal import SCHEMA, TARGET
from remote.protocol import (
    SERIES,
    Alert,
    Epoch,
    Flags,
    FleetSpec,
    Progress,
    Restart,
    RunState,
    TargetSpec,
)
from remote.recording import Recording
from remote.samples import Sample
from remote.seen import Seen
from tests.console.screen.story import BEGAN, JOURNAL, Story

FOLDER = Path(__file__).parent / "golden"
SIZES = ((80, 24), (120, 40), (220, 60))
THEMES = ("dark", "light")
NOW = BEGAN + 120
CLOCK = SimpleNamespace(now=NOW)
"""What the console's clock says while the screens are drawn."""

SETTLED_S = 120.0


class Still(Story):
    """The story at one moment: told once, and nothing moves."""

    async def run(self) -> None:
        """Connect, tell everything, wait."""
        self.on_link(Link("connected", "root@10.1.2.6 → pct 200", NOW - 60))
        self.tell()
        for event in self.events:
            self.on_message(_happened(event))
        await self._closed.wait()


def _happened(event: Any) -> Any:
    from remote.protocol import Happened

    return Happened(event)


@dataclass
class Shot:
    """Keys that lead to a screen, from the one before it."""

    name: str
    keys: Sequence[str] = ()
    write: str = ""
    """Typed after the keys."""


@dataclass
class Tour:
    """One app, and the screens that are gone through in it."""

    name: str
    make: Callable[[Path], StokerApp]
    shots: list[Shot] = field(default_factory=list)


def _story(change: Callable[[Story], None] = lambda _: None) -> Connect:
    def make(on_message: Any, on_link: Any) -> Story:
        story = Still(on_message, on_link, now=BEGAN, elapsed=120)
        change(story)
        return story

    return make


WAY = Target(
    name="ct200",
    ssh="root@10.1.2.6",
    hop=Hop("pct", "200"),
    agent_python="/opt/agent/bin/python",
    spec=TargetSpec("ct200", "/workspace"),
)
"""The way to the story's target, for the lines to copy."""


def _app(connect: Connect | list[Source], seen: Seen | None = None) -> StokerApp:
    sources = connect if isinstance(connect, list) else [Source("ct200", connect, target=WAY)]
    app = StokerApp(sources, name="ct200", remember=False, strict=True)
    app.front.greeted = True
    if seen is not None:
        app.front.remembered = {JOURNAL: seen}
    return app


def _trouble(story: Story) -> None:
    story.servers[3].state = "failed"
    story.servers[3].cause = "CUDA out of memory: tried to allocate 2.41 GiB (exit 1)"
    story.servers[5].speed, story.servers[5].heat = 0.6, 24
    story.say("server.failed", "GPU 3: CUDA out of memory", gpu=3, level="error", at=NOW - 400)
    story.say("alert", "GPU 5: 88 °C", level="warning", at=NOW - 300)
    story.epochs[1] = msgspec.structs.replace(story.epochs[1], since=NOW - 600)
    text = "ETA 208 h, over the 48 h allowed: the Mamba state pool"
    story.alerts.append(Alert("eta", text, NOW - 200, "error"))


def _swapping(story: Story) -> None:
    flags: Flags = {"mamba-scheduler-strategy": "no_buffer", "mem-fraction-static": 0.9}
    story.restart(Restart(story.spec, set_flags=flags, why="more slots"))
    story.advance(71)
    story.now = NOW


def _connecting(on_message: Any, on_link: Any) -> Story:
    class Waiting(Story):
        async def run(self) -> None:
            self.on_link(Link("connecting", "connecting to 10.1.2.6", NOW - 3))
            await self._closed.wait()

    return Waiting(on_message, on_link, now=BEGAN, elapsed=120)


def _dead(story: Story) -> None:
    story.alive, story.status = False, "running"


class Stale(Still):
    """The link went half an hour ago, and what was told then is all there is."""

    AGO = 1_800.0

    async def run(self) -> None:
        """Tell it as it was then, and lose the link."""
        self.on_link(Link("connected", "root@10.1.2.6 → pct 200", NOW - 4_000))
        self.now = CLOCK.now = NOW - self.AGO
        try:
            self.tell()
        finally:
            CLOCK.now = NOW
        for event in self.events:
            self.on_message(_happened(event))
        self.on_link(Link("reconnecting", "no answer from 10.1.2.6, again in 15 s", NOW - self.AGO))
        await self._closed.wait()


def _stale(on_message: Any, on_link: Any) -> Story:
    story = Stale(on_message, on_link, now=BEGAN, elapsed=120)
    _starting(story, NOW - Stale.AGO)
    return story


def _starting(story: Story, now: float = NOW) -> None:
    for gpu, phase in enumerate(("loading weights", "capturing graphs", "warming up")):
        server = story.servers[gpu]
        server.state, server.phase = "starting" if gpu < 2 else "warming", phase
        server.phase_since = now - 12 * (gpu + 1)


def _replay(folder: Path) -> StokerApp:
    """Half an hour of two GPUs, with the run's numbers and one log."""
    path = folder / "journal.db"
    begin = int(BEGAN) - 1_800
    db = sqlite3.connect(path)
    db.executescript(SCHEMA)
    for second in range(0, 1_800, 10):
        speed = 660.0 + second % 70
        row = {"gen_tok_s": speed, "kv_usage": 0.2, "mamba_usage": 0.7, "running": 37.0}
        data = array("f", [row.get(name, float("nan")) for name in SERIES for _ in range(2)])
        sample = Sample(begin + second, 2, data)
        values = (10, sample.time, sample.gpus, sample.pack())
        db.execute("INSERT INTO samples VALUES (?,?,?,?)", values)
        done = Progress(
            total=9_000, completed=2 * second, rate_per_sec=2.0, status="running",
            outcomes={"ok": 2 * second}, eta_hours=1.2, time=begin + second,
        )  # fmt: skip
        state = msgspec.json.encode(RunState(alive=True, progress=done))
        db.execute("INSERT INTO runs VALUES (?,?)", (begin + second, zlib.compress(state)))
    event = (1, begin + 60.0, "run.started", "info", "0 done, 0 repaired, 2/2 healthy", None, "ops")
    db.execute("INSERT INTO events VALUES (?,?,?,?,?,?,?)", event)
    epoch = Epoch(1, begin, {"mem-fraction-static": 0.85}, "ops", "", 660.0, 37)
    db.execute("INSERT INTO epochs VALUES (1,?)", (msgspec.json.encode(epoch).decode(),))
    spec = TargetSpec("run", "/w", fleet=FleetSpec(gpus=2))
    db.execute("INSERT INTO notes VALUES (?,?)", (TARGET, msgspec.json.encode(spec).decode()))
    db.commit()
    db.close()
    with (folder / "sglang_gpu0.log").open("w") as out:
        for second in range(0, 1_800, 3):
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(begin + second))
            out.write(f"[{at}] Decode batch, #running-req: 37, second {second}\n")
    recorded = Recording(path)

    def connect(on_message: Any, on_link: Any) -> ReplayFeed:
        feed = ReplayFeed(recorded, on_message, on_link)
        feed.playing, feed.at = False, float(begin + 900)
        return feed

    app = StokerApp(connect, name="journal.db", read_only=True, remember=False, strict=True)
    app.front.greeted = True
    return app


SEEN = Seen(NOW - 26_000, 2, 1_000, 2.4, NOW + 40_000)

TOURS = [
    Tour(
        "calm",
        lambda _: _app(_story(), SEEN),
        [
            Shot("fleet"),
            Shot("fleet-heat", ("m", "m")),
            Shot("fleet-chosen", ("m", "2")),
            Shot("since", ("escape", "w")),
            Shot("logs", ("escape", "l")),
            Shot("logs-filter", ("slash",), "prefill"),
            Shot("logs-merged", ("escape", "M")),
            Shot("logs-choose", ("L",), "gpu"),
            Shot("config", ("escape", "M", "c")),
            Shot("run", ("g",)),
            Shot("answers", ("a",)),
            Shot("answers-failed", ("tab",)),
            Shot("answer", ("tab", "tab", "enter")),
            Shot("events", ("escape", "escape", "e")),
            Shot("help", ("question_mark",)),
            Shot("lines", ("escape", "y")),
            Shot("palette", ("escape", "ctrl+p")),
        ],
    ),
    Tour(
        "trouble",
        lambda _: _app(_story(_trouble)),
        [
            Shot("fleet-trouble"),
            Shot("confirm-one", ("3", "d")),
            Shot("confirm-all", ("escape", "escape", "d")),
            Shot("restart", ("escape", "r")),
            Shot("events-trouble", ("escape", "e")),
        ],
    ),
    Tour(
        "change",
        lambda _: _app(_story()),
        [
            Shot("config-flags", ("c", "tab", "down", "down", "down")),
            Shot("restart-edit", ("r",), "mamba"),
            Shot("restart-plan", ("ctrl+u", "enter")),
        ],
    ),
    Tour("swap", lambda _: _app(_story(_swapping)), [Shot("fleet-swap")]),
    Tour("starting", lambda _: _app(_story(_starting)), [Shot("fleet-starting")]),
    Tour("stale", lambda _: _app(_stale), [Shot("fleet-stale"), Shot("run-stale", ("g",))]),
    Tour("dead", lambda _: _app(_story(_dead)), [Shot("fleet-dead"), Shot("run-dead", ("g",))]),
    Tour("connecting", lambda _: _app(_connecting), [Shot("fleet-connecting")]),
    Tour(
        "targets",
        lambda _: _app([Source("ct200", _story(_trouble)), Source("ct201", _connecting)]),
        [Shot("targets", ("A",))],
    ),
    Tour(
        "replay",
        _replay,
        [
            Shot("replay-fleet"),
            Shot("replay-run", ("g",)),
            Shot("replay-logs", ("l",)),
        ],
    ),
]


@contextmanager
def frozen() -> Iterator[None]:
    """One moment, one time zone, for everything the console shows."""
    clock = SimpleNamespace(
        time=lambda: CLOCK.now,
        **{n: getattr(time, n) for n in ("monotonic", "localtime", "strftime", "gmtime")},
    )
    zone = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        with (
            patch.object(console.watch, "time", clock),
            patch.object(console.app, "time", clock),
            patch.object(console.replay, "time", clock),
        ):
            yield
    finally:
        if zone is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = zone
        time.tzset()


def lines_of(app: StokerApp) -> list[list[Segment]]:
    """What stands on the screen, a line of segments each."""
    strips = app.screen._compositor.render_strips()
    return [list(strip) for strip in strips[: app.size.height]]


def text_of(lines: list[list[Segment]]) -> list[str]:
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


@cache
def looks(style: Style | None) -> tuple[str, str]:
    """Of a blank and of any other character in a style; a style is slow to describe."""
    if style is None:
        return "", ""
    back = style.color if style.reverse else style.bgcolor
    return f"{back}", f"{style}"


def digests_of(lines: list[list[Segment]]) -> list[str]:
    """Of each line, what colours which cells have; of a blank, only its background counts."""
    found = []
    for line in lines:
        cells: list[str] = []
        for text, style, _ in line:
            blank, full = looks(style)
            cells += [blank if char == " " else full for char in text]
        runs = [f"{len(list(group))}×{style}" for style, group in groupby(cells)]
        found.append(hashlib.sha256("|".join(runs).encode()).hexdigest()[:6])
    return found


async def settle(app: StokerApp, pilot: Pilot[None]) -> list[list[Segment]]:
    """The screen once nothing on it moves any more: plots are drawn, answers are there."""
    deadline = time.monotonic() + SETTLED_S
    before: tuple[list[str], list[str]] | None = None
    same = 0
    while True:
        assert time.monotonic() < deadline, "the screen does not come to rest"
        for entry in app.screen.query(Input):
            entry.cursor_blink = False
            entry._cursor_visible = True
        app.show()
        await pilot.pause(0.1)
        charts = [c for c in app.screen.query(Chart) if c.display and c.size.height > 4]
        drawn = all(c._rows and c._drawing is not None and c._drawing.done() for c in charts)
        lines = lines_of(app)
        now = text_of(lines), digests_of(lines)
        same = same + 1 if drawn and now == before else 0
        before = now
        if same >= 3:
            return lines


@asynccontextmanager
async def touring(tour: Tour, size: tuple[int, int], folder: Path) -> AsyncIterator[Any]:
    """The tour's app at a size."""
    app = tour.make(folder)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot


async def draw(tour: Tour, size: tuple[int, int]) -> dict[str, str]:
    """Every shot of a tour at one size, as the content of its file, by its name."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="stoker-golden-") as place, frozen():
        async with touring(tour, size, Path(place)) as (app, pilot):
            for shot in tour.shots:
                app.theme = THEMES[0]
                await pilot.press(*shot.keys)
                await pilot.pause()
                focused = app.focused
                if shot.write and isinstance(focused, Input):
                    focused.insert_text_at_cursor(shot.write)
                parts: list[str] = []
                for theme in THEMES:
                    app.theme = theme
                    lines = await settle(app, pilot)
                    if not parts:
                        parts = text_of(lines)
                    parts.append(f"--- {theme} {' '.join(digests_of(lines))}")
                found[f"{shot.name}-{size[0]}x{size[1]}.txt"] = "\n".join(parts) + "\n"
    return found


async def main(sizes: Sequence[tuple[int, int]], report: Callable[[str], None]) -> None:
    """Draw all of them anew, of these sizes."""
    FOLDER.mkdir(exist_ok=True)
    kept = {f"{s.name}-{w}x{h}.txt" for tour in TOURS for s in tour.shots for w, h in SIZES}
    for size in sizes:
        for tour in TOURS:
            for name, content in (await draw(tour, size)).items():
                path = FOLDER / name
                old = path.read_text("utf-8") if path.exists() else ""
                if old != content:
                    path.write_text(content, "utf-8")
                    report(f"{'changed' if old else 'new'}: {path.name}")
    for path in FOLDER.glob("*.txt"):
        if path.name not in kept:
            path.unlink()
            report(f"gone: {path.name}")


if __name__ == "__main__":
    chosen = [size for size in SIZES if not sys.argv[1:] or f"{size[0]}x{size[1]}" in sys.argv[1:]]
    asyncio.run(main(chosen, lambda text: print(text, file=sys.__stdout__, flush=True)))
