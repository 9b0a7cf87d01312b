"""``python -m remote.generate`` on a disk that is slow, or killed at one of its system calls.

    python -m tests.remote.generate.faulty FAULT [arguments of remote.generate]

FAULT is a JSON object: ``{"slow": SECONDS}`` a sync takes so long; ``{"die": CALL, "name": FILE,
"text": TEXT, "after": BOOL}`` SIGKILL before (or right after) the first such call on that file,
with that text in what is written.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remote.generate.command import main
from remote.generate.disk import Disk


def breaking(fault: dict[str, Any], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, with the fault."""

    def made(self: Disk, *arguments: Any) -> Any:
        path = next(one for one in arguments if isinstance(one, Path))
        data = bytes(arguments[-1]) if name == "write" else b""
        here = fault.get("die") == name and path.name == fault["name"]
        dies = here and fault.get("text", "").encode() in data
        if name == "sync":
            time.sleep(fault.get("slow", 0.0))
        if dies and not fault.get("after"):
            os.kill(os.getpid(), signal.SIGKILL)
        done = call(self, *arguments)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    return made


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    for method in ("write", "sync", "rename", "unlink"):
        setattr(Disk, method, breaking(wanted, method, getattr(Disk, method)))
    sys.exit(main(sys.argv[2:]))
