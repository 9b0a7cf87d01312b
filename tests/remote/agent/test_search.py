"""A search that hangs ends with the agent that asked for it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from remote.fleet import identity

REPOSITORY = Path(__file__).resolve().parents[3]
ASK = """
import asyncio, sys
from pathlib import Path
from remote.agent.search import search
from remote.protocol import ReadLog
asyncio.run(search(ReadLog(source="run", grep="(a+)+$"), Path(sys.argv[1]), 600))
"""


def within(what: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def test_a_search_ends_with_who_asked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a" * 60 + "b\n")
    asker = subprocess.Popen([sys.executable, "-c", ASK, str(log)], cwd=REPOSITORY)
    try:
        parent = psutil.Process(asker.pid)
        within(lambda: any(c.cpu_times().user > 0.5 for c in parent.children()), 30)
        (child,) = parent.children()
        asker.kill()
        within(lambda: identity.birth(child.pid) is None, 5)
    finally:
        asker.kill()
        asker.wait()
