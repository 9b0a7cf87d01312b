"""Where things lie in a workspace, and the agent's socket outside it."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from remote import STOKER_DIR


@dataclass(frozen=True)
class Workspace:
    """The layout below one workspace folder; nothing is created by asking."""

    root: Path

    @property
    def stoker(self) -> Path:
        """Everything that is Stoker's own."""
        return self.root / STOKER_DIR

    @property
    def code(self) -> Path:
        """``code/<hash>/remote``: deployed versions."""
        return self.stoker / "code"

    @property
    def journal(self) -> Path:
        """The SQLite journal."""
        return self.stoker / "journal.db"

    @property
    def agent_log(self) -> Path:
        """What the agent logs."""
        return self.stoker / "agent.log"

    @property
    def agent_lock(self) -> Path:
        """flock of the one agent; holds its pid, code and socket as JSON."""
        return self.stoker / "agent.lock"

    @property
    def spec(self) -> Path:
        """The last target spec an action brought (JSON of ``TargetSpec``)."""
        return self.stoker / "spec.json"

    @property
    def run(self) -> Path:
        """``run``: argv, pid, start time, ``exit.json`` of the generation, like a server's."""
        return self.stoker / "run"

    @property
    def run_log(self) -> Path:
        """Standard output and error of the generation."""
        return self.stoker / "run.log"

    def server(self, gpu: int) -> Path:
        """``servers/<gpu>``: argv, pid, start time, ``exit.json`` of one server."""
        return self.stoker / "servers" / str(gpu)

    @property
    def socket(self) -> Path:
        """The agent's Unix socket: short (sun_path holds 104 bytes) and private to the user.

        Where an agent has said in its lock file which one it took, that one: ``/run/user`` comes
        and goes with logins, and agent, bridge and run must agree.
        """
        try:
            said = Path(json.loads(self.agent_lock.read_bytes())["socket"])
            if said.parent.is_dir():
                return said
        except (OSError, ValueError, LookupError, TypeError):
            pass
        return self.fresh_socket

    @property
    def fresh_socket(self) -> Path:
        """Where a first agent would listen now."""
        import hashlib  # OpenSSL is slow to load, and the console paints its first frame without

        name = hashlib.sha256(str(self.root.resolve()).encode()).hexdigest()[:12]
        runtime = Path(f"/run/user/{os.getuid()}")
        base = runtime if runtime.is_dir() and os.access(runtime, os.W_OK) else None
        if base is None:
            base = Path(tempfile.gettempdir()) / f"stoker-{os.getuid()}"
        else:
            base = base / "stoker"
        return base / f"{name}.sock"
