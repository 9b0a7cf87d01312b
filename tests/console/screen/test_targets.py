"""Several targets in one console: the list, the switch, and that one harms no other."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from console import prefs
from console.app import ListedApp, StokerApp
from console.model import Link
from console.screens.confirm import Confirm
from console.screens.fleet import FleetScreen
from console.screens.logs import LogsScreen
from console.screens.restart import RestartScreen
from console.screens.targets import TargetsScreen, TargetTable
from console.watch import Source
from console.widgets.log_pane import LogPane
from remote.protocol import Alert, Down, Event, Happened, Message, Restart, RunControl
from tests.console.screen.driver import Driven, painted
from tests.console.screen.story import Story


class Broken(Story):
    """A target whose link has a mistake."""

    async def run(self) -> None:
        raise RuntimeError("a bug in the link")


class Fleet(Driven):
    """Several stories in one app."""

    stories: dict[str, Story]

    def line(self, name: str) -> str:
        """The target's row of the list."""
        table = self.app.screen.query_one(TargetTable)
        return next((line for line in painted(table)[1:] if name in line), "")


@asynccontextmanager
async def fleet(
    size: tuple[int, int] = (120, 40),
    names: tuple[str, ...] = ("ct200", "ct201", "ct202"),
    kinds: dict[str, type[Story]] | None = None,
    listed: bool = True,
    front: str = "",
    remember: bool = False,
) -> AsyncIterator[Fleet]:
    """An app on several targets."""
    stories: dict[str, Story] = {}

    def source(number: int, name: str) -> Source:
        def make(on_message: Callable[[Message], None], on_link: Callable[[Link], None]) -> Story:
            kind = (kinds or {}).get(name, Story)
            stories[name] = kind(on_message, on_link, now=time.time(), elapsed=20, seed=number)
            stories[name].done += 20_000 * number
            stories[name].journal = name
            return stories[name]

        return Source(name, make, read_only=name.endswith("-ro"))

    sources = [source(number, name) for number, name in enumerate(names)]
    kind = ListedApp if listed else StokerApp
    app = kind(sources, name=front, remember=remember, strict=True)
    async with app.run_test(size=size, notifications=True) as pilot:
        one = Fleet(app, pilot)
        one.stories = stories
        await one.until(lambda: len(stories) == len(names))
        yield one


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (220, 60)])
async def test_the_list_shows_each_targets_state(size: tuple[int, int]) -> None:
    """Link, run, done of all, rate, when done, alerts; also of the one that is dead."""
    async with fleet(size, kinds={"ct202": Broken}) as one:
        assert isinstance(one.app.screen, TargetsScreen)
        await one.until(lambda: "running" in one.line("ct200") and "running" in one.line("ct201"))
        await one.until(lambda: "failed" in one.line("ct202"))
        assert "5.1%" in one.line("ct200")
        assert "15.5%" in one.line("ct201")
        assert "8/8" in one.line("ct201")
        assert ("30k/193k" in one.line("ct201")) == (size[0] >= 104)
        one.stories["ct201"].alerts.append(Alert("eta", "Done only in 208 h", time.time(), "error"))
        one.stories["ct201"].servers[3].state = "failed"
        one.stories["ct201"].tell()
        await one.until(lambda: "7/8" in one.line("ct201"))
        await one.keys("j")
        await one.sees("Done only in 208 h")
        await one.keys("j")
        await one.sees("a bug in the link")
        await one.keys("k", "k")
        await one.until(lambda: one.app.target_name == "ct200")
        assert all(len(line) <= size[0] for line in one.screen().splitlines())


async def test_an_action_names_the_target_it_means_and_reaches_no_other() -> None:
    """By key in the list, and on a target's own screens."""
    async with fleet() as one:
        await one.until(lambda: all("running" in one.line(n) for n in one.stories))
        await one.keys("j", "d")
        await one.until(lambda: isinstance(one.app.screen, Confirm))
        await one.sees("Down: all 8 servers of ct201")
        assert "stoker down ct201" in one.screen()
        await one.write("down")
        await one.keys("enter")
        await one.sees("ct201: down is under way")
        await one.keys("k", "p")
        await one.sees("ct200: the run is paused")

        def sent(kind: type) -> list[str]:
            calls = {name: story.calls for name, story in one.stories.items()}
            return [name for name, done in calls.items() if any(isinstance(c, kind) for c in done)]

        assert sent(Down) == ["ct201"]
        assert sent(RunControl) == ["ct200"]
        await one.keys("j", "j", "enter")
        await one.until(lambda: isinstance(one.app.screen, FleetScreen))
        await one.sees("stoker ct202")
        await one.keys("r")
        await one.until(lambda: isinstance(one.app.screen, RestartScreen))
        await one.sees("Restart all 8 servers of ct202")
        await one.keys("enter")
        await one.sees("type restart")
        await one.write("restart")
        await one.keys("enter")
        await one.until(lambda: one.stories["ct202"].swap is not None)
        assert sent(Restart) == ["ct202"]


async def test_the_same_screen_of_the_next_target() -> None:
    """Its own numbers and logs; only what is in front is asked for its logs."""
    async with fleet(listed=False, front="ct201") as one:
        app, stories = one.app, one.stories
        await one.sees("stoker ct201")
        await one.keys("3", "l")
        await one.until(lambda: set(stories["ct201"].wanted.logs) == {"gpu3"})
        await one.keys("N")
        await one.sees("stoker ct202")
        assert isinstance(app.screen, LogsScreen)
        await one.until(lambda: len(stories["ct202"].wanted.logs) == 8)
        assert stories["ct201"].wanted.logs == {}
        await one.until(lambda: all(pane.count for pane in app.screen.query(LogPane)))
        await one.keys("N", "N")
        await one.sees("stoker ct201")
        await one.until(lambda: set(stories["ct201"].wanted.logs) == {"gpu3"})
        await one.keys("f")
        await one.sees("29,9")
        await one.keys("N")
        await one.sees("49,9")
        await one.keys("A")
        assert isinstance(app.screen, TargetsScreen)


async def test_a_broken_target_harms_no_other() -> None:
    """Its row says what is wrong; the others go on, and so do the keys."""
    async with fleet(names=("bad", "good"), kinds={"bad": Broken}) as one:
        await one.until(lambda: "running" in one.line("good"))
        await one.sees("RuntimeError: a bug in the link")
        before = one.stories["good"].seq
        await one.until(lambda: one.stories["good"].seq > before + 1)
        await one.keys("j", "enter")
        await one.sees("● connected")


async def test_what_goes_wrong_elsewhere_is_told_here() -> None:
    """With the target's name."""
    async with fleet(listed=False, front="ct200") as one:
        await one.until(lambda: one.app.watches[2].state.received is not None)
        event = Event(
            900, one.stories["ct202"].now, "server.failed", "error", "GPU 5 failed: Xid 79", 5
        )
        one.stories["ct202"].on_message(Happened(event))
        await one.sees("ct202: GPU 5 failed: Xid 79")
        assert one.app.target_name == "ct200"


async def test_a_read_only_target_refuses_beside_others_that_do_not() -> None:
    """Each by its own entry in stoker.toml."""
    async with fleet(names=("ct200", "ct201-ro")) as one:
        await one.until(lambda: "running" in one.line("ct201-ro"))
        await one.keys("j", "d")
        await one.sees("ct201-ro is only to be looked at")
        await one.keys("k", "d")
        await one.until(lambda: isinstance(one.app.screen, Confirm))


async def test_only_targets_that_were_looked_at_are_remembered_as_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row in the list is no look."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    async with fleet(remember=True) as one:
        await one.until(lambda: all("running" in one.line(n) for n in one.stories))
        await one.keys("j", "enter")
        await one.sees("stoker ct201")
    assert set(prefs.read().seen) == {"ct201"}


async def test_thirty_targets_scroll_and_each_connects() -> None:
    """The chosen one is always in sight; first connections do not come all at once."""
    names = tuple(f"ct{number}" for number in range(200, 230))
    async with fleet((80, 24), names=names) as one:
        await one.until(lambda: all(w.state.received for w in one.app.watches))
        one.burst(*["j"] * 29)
        await one.until(lambda: "▸" in one.line("ct229"))
        table = one.app.screen.query_one(TargetTable)
        assert len(painted(table)) == table.size.height
        one.burst(*["k"] * 29)
        await one.until(lambda: "▸" in one.line("ct200"))
