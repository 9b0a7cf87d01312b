"""The bridge: marker first, bytes both ways, and it leaves when it should."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote import bridge
from remote.paths import Workspace


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """Stands where the agent's socket is."""
    workspace = Workspace(tmp_path)
    workspace.stoker.mkdir()
    place = tmp_path / "s"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(place))
    server.listen()
    workspace.agent_lock.write_text(json.dumps({"socket": str(place)}))
    yield server
    server.close()


def start(workspace: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "remote.bridge", "--workspace", str(workspace)]
    return subprocess.Popen(
        [*command, "--marker", "MARK", *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_bytes_both_ways_and_end_of_input(tmp_path: Path, listener: socket.socket) -> None:
    process = start(tmp_path)
    assert process.stdin and process.stdout
    link, _ = listener.accept()
    assert process.stdout.readline() == b"MARK\n"
    data = os.urandom(3_000_000)
    echoed = bytearray()

    def echo() -> None:
        while block := link.recv(1 << 16):
            link.sendall(block)

    def collect() -> None:
        assert process.stdout
        while len(echoed) < len(data) and (block := os.read(process.stdout.fileno(), 1 << 16)):
            echoed.extend(block)

    threads = [threading.Thread(target=t, daemon=True) for t in (echo, collect)]
    for thread in threads:
        thread.start()
    process.stdin.write(data)
    process.stdin.flush()
    threads[1].join(20)
    assert bytes(echoed) == data
    process.stdin.close()
    assert process.wait(10) == 0
    link.close()


def test_silence_ends_it(tmp_path: Path, listener: socket.socket) -> None:
    process = start(tmp_path, "--silence", "0.5")
    began = time.monotonic()
    assert process.wait(10) == bridge.SILENT
    assert time.monotonic() - began < 8


def test_silence_ends_it_even_while_the_console_does_not_read(
    tmp_path: Path, listener: socket.socket
) -> None:
    """A half-open link: nothing is read any more, so the copying thread sits in a write."""
    process = start(tmp_path, "--silence", "1.0")
    link, _ = listener.accept()
    link.setblocking(False)
    deadline = time.monotonic() + 0.8
    while time.monotonic() < deadline:
        try:
            link.send(b"x" * 65536)
        except BlockingIOError:
            time.sleep(0.05)
    assert process.wait(10) == bridge.SILENT
    link.close()


def test_the_agents_end_ends_it(tmp_path: Path, listener: socket.socket) -> None:
    process = start(tmp_path)
    link, _ = listener.accept()
    link.close()
    assert process.wait(10) == bridge.AGENT_ENDED


def test_no_agent_is_one_line(tmp_path: Path) -> None:
    process = start(tmp_path)
    out, errors = process.communicate(timeout=20)
    marker, line = out.splitlines()
    assert marker == b"MARK"
    message = json.loads(line)
    assert message["type"] == "failure"
    assert "stoker deploy" in message["text"]
    assert process.returncode == bridge.NO_AGENT
    assert errors == b""


def test_an_agent_that_cannot_start_says_why(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.stoker.mkdir()
    workspace.agent_lock.mkdir()  # no agent can open this as its lock
    process = start(tmp_path, "--start")
    out, _ = process.communicate(timeout=30)
    assert b"did not start" in out
    assert b"irectory" in out
    assert process.returncode == bridge.NO_AGENT


def test_it_starts_with_the_standard_library_alone() -> None:
    code = (
        "import sys; sys.path.insert(0, '.'); import remote.bridge;"
        "print([m for m in sys.modules if m.split('.')[0] in ('msgspec', 'asyncio', 'psutil')])"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", code],
        cwd=Path(bridge.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
