"""Processes of this container that the kernel ended because its memory ran out.

The kernel counts them in the container's control group (``memory.events``, or in the older
hierarchy ``memory.oom_control``). Where neither can be read nothing is known, and that is no
trouble.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

ENVIRON = "STOKER_CGROUP"
"""Names another folder than the system's to read: the tests have one of their own."""

_SYSTEM = "/sys/fs/cgroup"
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def _own(root: Path) -> Path:
    """The control group of this process, as the unified hierarchy names it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                return root / line[4:]
    return root


class OomKills:
    """How many there have been since the first look, and when the last one was seen."""

    def __init__(self) -> None:
        root = Path(os.environ.get(ENVIRON) or _SYSTEM)
        # A container sees its own group as the root; on a bare host the root counts nothing.
        self._files = (
            root / "memory.events",
            _own(root) / "memory.events",
            root / "memory" / "memory.oom_control",
        )
        self._count = self._read()
        self.last: float | None = None
        """Unix seconds."""

    def look(self, now: float) -> int:
        """How many were ended since the last look, taken at ``now``."""
        before, self._count = self._count, self._read()
        if before is None or self._count is None or self._count <= before:
            return 0
        self.last = now
        return self._count - before

    def _read(self) -> int | None:
        for file in self._files:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                if found := _COUNT.search(file.read_text()):
                    return int(found[1])
        return None
