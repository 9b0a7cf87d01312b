"""The least agent: adopts, brings up what is not up, watches. Made to be killed.

``python -m tests.remote.fleet.little_agent WORKSPACE SPEC.json``
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import msgspec

from remote.fleet.fleet import Fleet
from remote.paths import Workspace
from remote.protocol import Epoch, TargetSpec
from tests.remote.fleet.conftest import FAST, Events, FakeRun


async def main(workspace: Path, spec: TargetSpec) -> None:
    events = Events()
    fleet = Fleet(Workspace(workspace), spec, run=FakeRun(), emit=events, timing=FAST)
    await fleet.adopt()
    watching = asyncio.create_task(fleet.watch())
    await fleet.up(None, epoch=Epoch(id=1, since=time.time(), flags=spec.fleet.flags), who="it")
    await watching


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    asyncio.run(main(folder, msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=TargetSpec)))
