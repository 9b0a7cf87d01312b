"""The agent as a systemd unit, where there is a systemd to ask. Standard library only.

A transient unit (nothing is written to ``/etc``) starts the agent again when it dies, and keeps
it out of the login session that deployed it, whose processes logind may end. It leaves the
agent's children alone in every way that systemd has of ending them: ``KillMode=process`` when the
unit stops, ``OOMPolicy=continue`` when the kernel kills one of them; and it allows as many threads
as eight servers have. (systemd.service(5), systemd.kill(5), systemd.resource-control(5).)
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

PROPERTIES = {
    "KillMode": "process",
    "OOMPolicy": "continue",
    "TasksMax": "infinity",
    "LimitMEMLOCK": "infinity",
    "Restart": "on-failure",
    "RestartSec": "2",
    "SuccessExitStatus": "7",
    "Description": "Stoker's agent",
}
"""Exit status 7 says that another agent is at work already."""

HANDED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")
HANDED_ON_PREFIXES = ("LC_", "STOKER_", "CUDA_", "NVIDIA_")
"""What of the environment goes on; secrets do not: ``systemctl show`` would tell them."""


def name(workspace: Path) -> str:
    """The unit of a workspace's agent; a later one has a time behind this."""
    return f"stoker-agent-{hashlib.sha256(str(workspace).encode()).hexdigest()[:12]}"


def manager() -> list[str] | None:
    """How to address the systemd that outlives this login: ``[]`` the machine's, for root;
    ``["--user"]`` the user's own where it lingers; None where there is none."""
    if not Path("/run/systemd/system").is_dir() or shutil.which("systemd-run") is None:
        return None
    if os.getuid() == 0:
        return []
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None
    return ["--user"] if Path("/var/lib/systemd/linger", user).exists() else None


def command(
    which: list[str], unit: str, argv: list[str], log: Path, environ: Mapping[str, str]
) -> list[str]:
    """The ``systemd-run`` call that starts ``argv`` as a unit."""
    properties = {
        **PROPERTIES,
        "WorkingDirectory": str(log.parent),
        "StandardOutput": f"append:{log}",
        "StandardError": f"append:{log}",
    }
    handed = {
        key: value
        for key, value in environ.items()
        if key in HANDED_ON or key.startswith(HANDED_ON_PREFIXES) or key.startswith("PYTHON")
    }
    return [
        "systemd-run",
        *which,
        "--quiet",
        "--collect",
        f"--unit={unit}",
        *(f"--property={key}={value}" for key, value in properties.items()),
        *(f"--setenv={key}={value}" for key, value in sorted(handed.items())),
        "--",
        *argv,
    ]


def start(workspace: Path, argv: list[str], log: Path, environ: Mapping[str, str]) -> bool:
    """Start ``argv`` as the workspace's unit; False where that is not possible."""
    which = manager()
    if which is None:
        return False
    env = dict(os.environ)
    if which:
        env.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    base = name(workspace)
    state = ["systemctl", *which, "show", "--value", "--property=ActiveState", f"{base}.service"]
    if _run(state, env) in ("active", "activating", "reloading"):
        return True  # it has died a moment ago and systemd starts it again, or it is coming up
    # While servers of a unit that was stopped live on, its name is taken.
    for unit in (base, f"{base}-{time.time():.0f}"):
        # One that gave up after many failures still has its name.
        _run(["systemctl", *which, "reset-failed", f"{unit}.service"], env)
        if _run(command(which, unit, argv, log, environ), env) is not None:
            return True
    return False


def _run(argv: list[str], env: dict[str, str]) -> str | None:
    """What a command said; None where it failed."""
    try:
        done = subprocess.run(argv, env=env, capture_output=True, timeout=15, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None
