"""The tiny parent of one server: starts it, waits for it, writes down how it ended.

``python -S -m remote.fleet.holder FOLDER`` reads ``launch.json`` in FOLDER, detaches from whoever
started it (own session, no pipes, no terminal) and runs the server as a group of its own with
standard output and error appended to its log. It writes ``running.json`` (pid and birth) once the
server runs and ``exit.json`` when it has ended. The agent may come and go meanwhile.

The server gets the holder's own environment without what belongs to the agent's Python. Nothing
but the standard library is used: a holder lives as long as its server and must not care what is
deployed beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from remote.fleet import identity

AGENTS_OWN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PROMETHEUS_MULTIPROC_DIR")
"""Never handed to a server. With the last one set, all servers would mix their metrics."""

USER_PYTHONPATH = "STOKER_SERVER_PYTHONPATH"
"""Carries the operator's own PYTHONPATH (from the env script) past the holder's."""

SECRETS = ("SGLANG_API_KEY", "SGLANG_ADMIN_API_KEY")
"""With one of these, SGLang writes it into its log: it prints all its arguments."""

MARK = "STOKER_LAUNCH"
"""Environment variable that marks every process of one launch, orphans too."""

HOLDS = "STOKER_HOLDS"
"""The same for the launch's holder alone, which stays when the others are ended."""


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Replace a file atomically and durably, readable by its owner alone."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        json.dump(data, out, indent=1)
        out.write("\n")
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _detach() -> None:
    """Leave the starter's session and stand on our own, as daemons do."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for name in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        # A holder outlives logouts and stop signals: it ends when its server has ended.
        signal.signal(name, signal.SIG_IGN)


def _environment(launch: dict[str, Any]) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in AGENTS_OWN}
    user_path = env.pop(USER_PYTHONPATH, "")
    if user_path:
        env["PYTHONPATH"] = user_path
    env.pop(HOLDS, None)
    env[MARK] = launch["launch"]
    return env


def _restore_signals() -> None:
    for name in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)


def _open_log(path: str) -> int:
    """The log to append to; its owner's alone where a key will stand in it."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    if any(os.environ.get(name) for name in SECRETS):
        with contextlib.suppress(OSError):  # another's file: it is as private as that one made it
            os.fchmod(log, 0o600)
    return log


def hold(folder: Path) -> None:
    """Run the server that ``launch.json`` in this folder describes, to its end."""
    launch = json.loads((folder / "launch.json").read_text("utf-8"))
    own = {
        "launch": launch["launch"],
        "holder": os.getpid(),
        "holder_birth": identity.birth(os.getpid()),
        "boot": identity.boot_id(),
        "init": identity.birth(1) or "",
    }
    try:
        log = _open_log(launch["log"])
        server = subprocess.Popen(
            launch["argv"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=launch["cwd"],
            env=_environment(launch),
            start_new_session=True,
            preexec_fn=_restore_signals,
        )
        os.close(log)
    except OSError as error:
        what = error.filename or launch["argv"][0]
        text = f"could not be started: {what}: {error.strerror}"
        write_json(folder / "exit.json", {**own, "pid": None, "error": text, "ended": time.time()})
        return
    ours = {**own, "pid": server.pid, "birth": identity.birth(server.pid), "began": time.time()}
    with contextlib.suppress(OSError):  # a full disk must not end the supervision
        write_json(folder / "running.json", ours)
    status = server.wait()
    ended = {**ours, "status": status, "ended": time.time()}
    while True:
        try:
            write_json(folder / "exit.json", ended)
        except OSError:
            if not folder.is_dir():
                return
            time.sleep(5)
        else:
            return


def main() -> None:
    """Entry point; the working directory and the streams of the starter are let go."""
    folder = Path(sys.argv[1]).resolve()
    _detach()
    os.chdir("/")
    hold(folder)


if __name__ == "__main__":
    main()
