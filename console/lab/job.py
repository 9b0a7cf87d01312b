"""The lab's job, started as an operator starts one: deploy, servers, prompts, run."""

from __future__ import annotations

from collections.abc import Callable

from console.lab.lab import Lab
from console.link.deploy import deploy
from console.link.errors import LinkError
from console.link.push import push_file
from console.session import session
from console.verbs.fleet import wait_up
from remote.protocol import Done, RunStart, Up


async def begin(lab: Lab, say: Callable[[str], None]) -> None:
    """Agent deployed, servers starting, prompts in the container. Raises LinkError."""
    say(await deploy(lab.target))
    await _load(lab, say)


async def _load(lab: Lab, say: Callable[[str], None]) -> None:
    target = lab.target
    async with session(target) as here:
        done = await here.call(Up(spec=target.spec), timeout=60)
        assert isinstance(done, Done)
        say(done.text or "servers starting")
    digest = await push_file(target, lab.prompts, target.spec.run.prompts)
    say(f"{lab.prompts.name}: {lab.prompts.stat().st_size / 1e6:.1f} MB, sha256 {digest[:12]}…")


async def start(lab: Lab, say: Callable[[str], None]) -> int:
    """Once every server is ready or has failed, start the run; 1 where none is ready."""
    async with session(lab.target) as here:
        await here.follow(events_after=0)
        await wait_up(here, None)
        servers = here.state.servers.values()
        if not any(server.state == "ready" for server in servers):
            return 1
        done = await here.call(RunStart(spec=lab.target.spec), timeout=120)
        assert isinstance(done, Done)
        say(done.text or "run started")
    return 0


async def go_on(lab: Lab, complain: Callable[[str], None]) -> None:
    """What follows the deployment, beside a console that is open and shows how it goes.

    ``complain`` gets a line where it breaks off: nobody waits for this.
    """

    def quiet(_: str) -> None:
        pass

    try:
        await _load(lab, quiet)
        if await start(lab, quiet):
            complain("the lab's job: no server came up, so the run was not started")
    except TimeoutError:
        complain("the lab's job: the agent gave no answer in time")
    except (LinkError, OSError) as error:
        complain(f"the lab's job: {error}")
    except Exception as error:  # nobody awaits this task, so that it would go unseen
        complain(f"the lab's job: {type(error).__name__}: {error} (a mistake of ours)")
