"""Standard input and output ↔ the agent's socket: what the hop runs.

Nothing but the standard library is imported, so that it starts in a few hundredths of a second.
It first prints a line with the marker it was given: whatever a login shell printed before that
line is noise, and the console drops it. It leaves when either side ends, and after
``--silence`` seconds without a byte from the console: sshd does not tell a command that its
client's link is half open, and a bridge that waits for ever holds a channel for ever.

Exit status: 0 the console ended it, 3 no agent (one line of failure was written), 4 the agent
ended, 5 silence.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from remote import unit
from remote.paths import Workspace

NO_AGENT, AGENT_ENDED, SILENT = 3, 4, 5
CHUNK = 1 << 16
HELD = 7
"""Exit status of an agent that found another one at work: that one's socket is the one to take."""


def main(argv: list[str] | None = None) -> int:
    """Run the bridge to its end; returns its exit status."""
    parser = argparse.ArgumentParser(prog="remote.bridge", description=__doc__)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--marker", required=True, help="first line on standard output")
    parser.add_argument("--silence", type=float, default=60.0, help="seconds")
    parser.add_argument("--start", action="store_true", help="start the agent where none is alive")
    args = parser.parse_args(argv)
    _write(1, args.marker.encode("ascii") + b"\n")
    workspace = Workspace(args.workspace)
    try:
        link = connect(workspace, start=args.start)
    except (OSError, TimeoutError) as error:
        _fail(str(error), code="no-agent")
        return NO_AGENT
    threading.Thread(target=_down, args=(link,), daemon=True).start()
    return _up(link, args.silence)


def connect(workspace: Workspace, *, start: bool = False, patience: float = 20.0) -> socket.socket:
    """A connection to the workspace's agent, which is started first where asked.

    Raises OSError or TimeoutError with one line for people.
    """
    try:
        return _dial(workspace.socket)
    except (FileNotFoundError, ConnectionRefusedError):
        if not start:
            raise OSError(
                f"no agent runs for {workspace.root}: `stoker deploy` starts one"
            ) from None
    process = start_agent(workspace)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            return _dial(workspace.socket)
        if process is not None and process.poll() not in (None, 0, HELD):
            raise OSError(f"the agent did not start: {last_line(workspace.agent_log)}")
        time.sleep(0.05)
    raise TimeoutError(f"the agent did not open its socket: see {workspace.agent_log}")


def start_agent(workspace: Workspace) -> subprocess.Popen[bytes] | None:
    """Start an agent of this very code: as a systemd unit where that can be (None comes back),
    else detached: own session, no pipe, working folder its own.

    A second agent of the same workspace leaves by itself (flock), so a race does no harm.
    """
    workspace.stoker.mkdir(parents=True, exist_ok=True)
    code = Path(__file__).resolve().parent.parent
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "VIRTUAL_ENV")}
    current = workspace.code / "current"
    # By the name that a deploy changes: a unit that starts anew then starts the newest code.
    environ["PYTHONPATH"] = str(current if current.resolve() == code else code)
    environ["PYTHONSAFEPATH"] = "1"
    argv = [sys.executable, "-m", "remote.agent", "--workspace", str(workspace.root)]
    if unit.start(workspace.root, argv, workspace.agent_log, environ):
        return None
    with workspace.agent_log.open("ab") as log:
        return subprocess.Popen(
            argv,
            cwd=workspace.stoker,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _dial(path: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.connect(str(path))
    except BaseException:
        link.close()
        raise
    return link


def _down(link: socket.socket) -> None:
    """Agent → console, until the agent ends. Blocks while the console does not read."""
    try:
        while data := link.recv(CHUNK):
            _write(1, data)
    except OSError:
        pass
    os._exit(AGENT_ENDED)


def _up(link: socket.socket, silence: float) -> int:
    """Console → agent, until the console ends or is silent for too long."""
    while True:
        if not select.select([0], [], [], silence)[0]:
            return SILENT
        data = memoryview(os.read(0, CHUNK))
        if not data:
            return 0
        while data:
            if not select.select([], [link], [], silence)[1]:
                return SILENT
            try:
                data = data[link.send(data, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                continue
            except OSError:
                return AGENT_ENDED


def _fail(text: str, *, code: str) -> None:
    line = json.dumps({"type": "failure", "id": 0, "text": text, "code": code})
    _write(1, line.encode("ascii") + b"\n")


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def last_line(path: Path) -> str:
    """The last line of a log that says something, for an error message."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
        lines = file.read().decode("utf-8", "replace").splitlines()
        for line in reversed(lines):
            if line.strip():
                return line.strip()[:400]
    return f"see {path}"


if __name__ == "__main__":
    status = main()
    # The copying thread may sit in a write that no one reads: leave without waiting for it.
    os._exit(status)
