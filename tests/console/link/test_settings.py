"""A stoker.toml that is edited while a console is open, on a real agent."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from console.app import StokerApp
from console.config import Target, load
from console.feed import AgentFeed, FeedError, connect_agent
from console.watch import Source
from remote.paths import Workspace
from tests.console.screen.driver import Driven
from tests.console.screen.story import Story

Write = Callable[[str], Path]


@pytest.fixture
def write(workspace: Workspace, tmp_path: Path) -> Write:
    """Writes a stoker.toml that ends with these lines."""
    path = tmp_path / "stoker.toml"

    def written(more: str) -> Path:
        path.write_text(
            f"[targets.here]\nworkspace = '{workspace.root}'\nagent_python = '{sys.executable}'\n"
            f"[fleet]\ngpus = 1\n{more}"
        )
        return path

    return written


def feed(target: Target) -> AgentFeed:
    return AgentFeed(target, lambda _: None, lambda _: None)


async def test_a_deploy_sends_what_the_file_says_by_then(write: Write) -> None:
    target = load(write("")).targets["here"]
    assert "pushed" in await feed(target).deploy()
    write("[alerts]\neta_hours_over = 5\n[run]\nmax_tokens = 99\n")
    done = await feed(target).deploy()
    assert "current" in done
    assert "; settings sent: alerts.eta_hours_over; run.max_tokens differs: " in done
    write("[alerts]\neta_hours_ovr = 5\n")
    with pytest.raises(FeedError) as failed:
        await feed(target).deploy()
    text = str(failed.value)
    assert text.startswith("here: current (")
    assert ", but the settings of stoker.toml were not sent (another deploy sends them): " in text
    assert "eta_hours_over" in text


async def test_keys_tell_what_the_agent_has_not_got(write: Write) -> None:
    """Once, and a start of the run waits for a second press; what cannot be read is told, too."""
    target = load(write("")).targets["here"]
    await feed(target).deploy()
    write("[alerts]\neta_hours_over = 5\n")
    source = Source("here", connect_agent(target), target=target)
    app = StokerApp([source], name="here", remember=False, strict=True)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        one = Driven(app, pilot, Story(lambda _: None, lambda _: None))

        def said(text: str) -> int:
            return sum(text in note.message for note in app._notifications)

        await one.until(
            lambda: said("other settings than the agent: alerts.eta_hours_over (D sends)")
        )
        write("[alerts]\neta_hours_over = 5\n[run]\nmax_tokens = 99\n")
        await one.keys("s")
        await one.until(lambda: said("not started yet: `stoker run start here --config "))
        assert said("run.max_tokens (`stoker run stop, then stoker run start`)") == 1
        assert not said("no server is up")
        await one.keys("s")
        await one.until(lambda: said("no server is up"))
        await one.keys("D")
        await one.sees("Deploy to here")
        await one.keys("y")
        await one.until(lambda: said("settings sent: alerts.eta_hours_over"))
        await one.until(
            lambda: app.state.target is not None and app.state.target.alerts.eta_hours_over == 5
        )
        await one.until(lambda: not said("alerts.eta_hours_over (D sends)"))  # it is so no more
        write("[alerts]\neta_hours_ovr = 5\n")
        await one.keys("p")
        await one.until(lambda: said("did you mean 'eta_hours_over'"))
