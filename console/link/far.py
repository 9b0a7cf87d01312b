"""What deploy and push run on the far side: its source goes there over standard input.

Standard library only, any Python from 3.11 on. The first line of its input is a JSON object that
says what to do; for some, bytes follow. It answers with one JSON object: ``{"ok": …}`` or
``{"error": "one line"}``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import io
import json
import os
import shutil
import signal
import socket
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

BLOCK = 1 << 20


class FarError(Exception):
    """One line for people."""


def probe(ask: dict[str, Any], _: BinaryIO) -> dict[str, Any]:
    """What is there: the Python and what it lacks, deployed versions, the agent that runs."""
    if sys.version_info < (3, 11):  # noqa: UP036 - it runs on whatever is there
        version = sys.version.split()[0]
        raise FarError(f"agent_python is Python {version}; 3.11 or newer is needed")
    workspace = Path(ask["workspace"])
    if not workspace.is_dir():
        raise FarError(f"workspace {workspace} does not exist there: create it, or correct it")
    stoker = workspace / ask["folder"]
    code = stoker / "code"
    versions = sorted(p.name for p in code.iterdir() if p.is_dir()) if code.is_dir() else []
    current = code / "current"
    return {
        "missing": [name for name in ask["modules"] if importlib.util.find_spec(name) is None],
        "versions": [name for name in versions if not name.endswith(".part") and name != "current"],
        "current": current.resolve().name if current.exists() else "",
        "agent": running(stoker),
    }


def install(ask: dict[str, Any], data: BinaryIO) -> dict[str, Any]:
    """Unpack one version of the code beside the others; in place only once it is whole."""
    stoker = Path(ask["workspace"]) / ask["folder"]
    code = stoker / "code"
    code.mkdir(parents=True, exist_ok=True)
    raw = data.read(ask["size"])
    if len(raw) != ask["size"] or hashlib.sha256(raw).hexdigest() != ask["sha256"]:
        raise FarError("the code did not arrive whole: try again")
    final, part = code / ask["version"], code / f"{ask['version']}.part"
    with alone(stoker):
        for leftover in code.glob("*.part"):
            shutil.rmtree(leftover, ignore_errors=True)
        if final.exists():
            return {}
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(part, filter="data")
            else:  # an older Python: the hash says that these are our own files
                tar.extractall(part)
        part.replace(final)
    return {}


def switch(ask: dict[str, Any], _: BinaryIO) -> dict[str, Any]:
    """Make a version the current one: end another one's agent, start this one's."""
    workspace = Path(ask["workspace"])
    stoker = workspace / ask["folder"]
    version = ask["version"]
    with alone(stoker):
        link, fresh = stoker / "code" / "current", stoker / "code" / f"current.{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(version)
        fresh.replace(link)
        did = []
        agent = running(stoker)
        if agent is not None and agent.get("code") != version:
            did.append(f"ended the agent {str(agent.get('code'))[:12]} ({end(stoker, agent)})")
            agent = None
        if agent is None:
            sys.path.insert(0, str(stoker / "code" / version))
            bridge = importlib.import_module("remote.bridge")
            paths = importlib.import_module("remote.paths")
            try:
                bridge.connect(paths.Workspace(workspace), start=True).close()
            except OSError as error:
                raise FarError(str(error)) from None
            did.append("started the agent")
        agent = running(stoker)
        if agent is None or agent.get("code") != version:
            raise FarError(f"the agent did not come up: see {stoker}/agent.log")
    return {"did": did, "pid": agent.get("pid")}


@contextlib.contextmanager
def alone(stoker: Path) -> Iterator[None]:
    """One deploy at a time; a second one waits for the first."""
    with (stoker / "deploy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def running(stoker: Path, patience: float = 15.0) -> dict[str, Any] | None:
    """What the live agent wrote into its lock file; None where none holds it.

    One that has only just taken the lock is given time to say who it is.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            lock = os.open(stoker / "agent.lock", os.O_RDWR)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            with contextlib.suppress(ValueError):
                said = json.loads(os.pread(lock, 4096, 0))
                if isinstance(said, dict):
                    return said
        else:
            return None
        finally:
            os.close(lock)
        if time.monotonic() > deadline:
            return {}
        time.sleep(0.05)


def end(stoker: Path, agent: dict[str, Any]) -> str:
    """End an agent: ask over its socket, then by signal. Servers and run are not its children's
    keepers: they go on."""
    with contextlib.suppress(OSError, KeyError):
        ask(agent["socket"])
        if gone(stoker, 15):
            return "asked"
    for number in (signal.SIGTERM, signal.SIGKILL):
        agent = running(stoker) or {}
        if not agent:
            return "gone"
        with contextlib.suppress(OSError, KeyError):
            os.kill(agent["pid"], number)
        if gone(stoker, 10):
            return number.name
    raise FarError(f"the old agent (pid {agent.get('pid')}) does not end")


def ask(path: str) -> None:
    """Send the agent a hello and a shutdown."""
    hello = {"type": "hello", "version": 1, "code": "", "role": "console", "who": "deploy"}
    call = {"type": "call", "id": 1, "request": {"type": "shutdown"}}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(15)
        link.connect(path)
        link.sendall(b"".join(json.dumps(m).encode() + b"\n" for m in (hello, call)))
        while link.recv(1 << 16):
            pass


def gone(stoker: Path, seconds: float) -> bool:
    """Whether no agent holds the lock any more, within a time."""
    deadline = time.monotonic() + seconds
    while running(stoker, 0.0) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def receive(ask: dict[str, Any], data: BinaryIO) -> dict[str, Any]:
    """Write the bytes that follow to a file: beside it first, synced, hashed, then renamed."""
    path = Path(ask["path"])
    if path.is_dir():
        raise FarError(f"{path} is a folder")
    if not path.parent.is_dir():
        raise FarError(f"{path.parent} does not exist there: create it first")
    part = path.with_name(f"{path.name}.part")
    total, digest = 0, hashlib.sha256()
    try:
        with part.open("wb") as out:
            while block := data.read(min(BLOCK, ask["size"] - total)):
                out.write(block)
                digest.update(block)
                total += len(block)
            out.flush()
            os.fsync(out.fileno())
        if total != ask["size"]:
            raise FarError(f"{path}: {total} of {ask['size']} bytes came: try again")
        trailer = data.readline().decode("ascii", "replace").strip()
        if digest.hexdigest() != trailer:
            raise FarError(f"{path}: what came is not what was sent (sha256): try again")
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return {"sha256": digest.hexdigest()}


def digest(ask: dict[str, Any], _: BinaryIO) -> dict[str, Any]:
    """sha256 and size of a file there, or nothing where it does not exist."""
    path = Path(ask["path"])
    if not path.is_file():
        return {"size": None, "sha256": None}
    size = path.stat().st_size
    if size != ask["size"]:
        return {"size": size, "sha256": None}
    with path.open("rb") as file:
        return {"size": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def main(data: BinaryIO) -> None:
    """Do the one thing that the first line of the input asks for."""
    try:
        order = json.loads(data.readline())
        work = {f.__name__: f for f in (probe, install, switch, receive, digest)}[order["do"]]
        answer: dict[str, Any] = {"ok": work(order, data)}
    except FarError as error:
        answer = {"error": str(error)}
    except OSError as error:
        answer = {"error": f"{error.filename or 'there'}: {error.strerror or error}"}
    # Whatever an imported module printed stands before this line.
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    sys.stdout.flush()


# The loader puts the rest of standard input here; on this side nothing is run.
if "STOKER_INPUT" in globals():
    main(globals()["STOKER_INPUT"])
