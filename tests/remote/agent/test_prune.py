"""Old code goes only when nothing runs from it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from remote.agent import prune


def test_unused() -> None:
    processes = ["python -S -m remote.fleet.holder /w /w/.stoker/code/bbb", "python x /code/ddd/y"]
    assert prune.unused(["aaa", "bbb", "ccc", "ddd"], ["ccc"], processes) == ["aaa"]


def test_a_version_that_a_process_was_started_from_stays(tmp_path: Path) -> None:
    for name in ("old", "used", "current-one", "fresh"):
        (tmp_path / "code" / name).mkdir(parents=True)
        (tmp_path / "code" / name / "x.py").write_text("")
    code = tmp_path / "code"
    (code / "current").symlink_to("current-one")
    long_ago = time.time() - 2 * prune.YOUNG_S
    for name in ("old", "used", "current-one"):
        os.utime(code / name, (long_ago, long_ago))
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env={**os.environ, "PYTHONPATH": str(code / "used")},
    )
    try:
        assert prune.prune(code, "own") == ["old"]
        left = sorted(p.name for p in code.iterdir())
        assert left == ["current", "current-one", "fresh", "used"]
    finally:
        sleeper.kill()
        sleeper.wait()
    assert prune.prune(code, "own") == ["used"]
