"""Old code versions: which may go, and their removal."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

YOUNG_S = 600.0
"""A version that came a moment ago may be about to become the current one."""


def unused(versions: Iterable[str], keep: Iterable[str], processes: Iterable[str]) -> list[str]:
    """Versions that are neither kept nor named by any process (its command line and search path):
    a holder started from an old version still reads its files."""
    kept, texts = set(keep), list(processes)
    return [
        version
        for version in versions
        if version not in kept and not any(f"/code/{version}" in text for text in texts)
    ]


def prune(code: Path, own: str) -> list[str]:
    """Remove what no live process was started from; returns the versions removed. Blocking."""
    if not code.is_dir():
        return []
    now = time.time()
    old = [
        path.name
        for path in code.iterdir()
        if path.is_dir()
        and not path.is_symlink()
        and not path.name.endswith(".part")
        and now - path.stat().st_mtime > YOUNG_S
    ]
    current = code / "current"
    keep = [own, *([current.readlink().name] if current.is_symlink() else [])]
    gone = unused(old, keep, _processes()) if set(old) - set(keep) else []
    for version in gone:
        shutil.rmtree(code / version, ignore_errors=True)
    return gone


def _processes() -> list[str]:
    """Command line and module search path of every process that we may look at."""
    texts = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real == os.getuid():
                line = " ".join(process.cmdline())
                texts.append(f"{line} {process.environ().get('PYTHONPATH', '')}")
    return texts
