"""A real OpenSSH server on loopback with keys of its own; the user's are never looked at."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import ports

SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if Path("/usr/sbin/sshd").exists() else "")


class Sshd:
    """One server, started; ``config`` is a client configuration that reaches it as ``box``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o700)
        self.log = folder / "sshd.log"
        for name in ("host_key", "id"):
            self.keygen(name)
        (folder / "authorized_keys").write_text((folder / "id.pub").read_text())
        self.port = ports.free()
        self.know()
        (folder / "sshd_config").write_text(
            "\n".join(
                (
                    "ListenAddress 127.0.0.1",
                    f"Port {self.port}",
                    f"HostKey {folder}/host_key",
                    f"AuthorizedKeysFile {folder}/authorized_keys",
                    f"PidFile {folder}/sshd.pid",
                    "StrictModes no",
                    "PermitRootLogin prohibit-password",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    "UsePAM no",
                    "LogLevel VERBOSE",
                    "",
                )
            )
        )
        self.config = folder / "config"
        self.write_config()

    def keygen(self, name: str) -> None:
        """A fresh key pair."""
        for path in (self.folder / name, self.folder / f"{name}.pub"):
            path.unlink(missing_ok=True)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)],
            check=True,
        )

    def know(self) -> None:
        """Write the present host key into known_hosts."""
        kind, key, *_ = (self.folder / "host_key.pub").read_text().split()
        line = f"[127.0.0.1]:{self.port} {kind} {key}\n"
        (self.folder / "known_hosts").write_text(line)

    def write_config(self, more: str = "", identity: str = "id") -> None:
        """The client's configuration."""
        self.config.write_text(
            f"Host box hop1 hop2\n  HostName 127.0.0.1\n  Port {self.port}\n"
            f"Host *\n  User {getpass.getuser()}\n  IdentityFile {self.folder}/{identity}\n"
            "  IdentitiesOnly yes\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {self.folder}/known_hosts\n"
            f"  GlobalKnownHostsFile /dev/null\n{more}"
        )

    def start(self) -> None:
        """Start it and wait until it listens."""
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        command = [SSHD, "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.log)]
        self.process = subprocess.Popen(command)
        deadline = time.monotonic() + 10
        while "listening" not in (self.log.read_text() if self.log.exists() else ""):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def sessions(self) -> list[psutil.Process]:
        """The server's processes for connections that are open."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=False)
        return []

    def cut(self) -> None:
        """Kill every connection's process: the client sees its connection go."""
        for session in self.sessions():
            below: list[psutil.Process] = []
            with contextlib.suppress(psutil.NoSuchProcess):
                below = session.children()
            for process in (*below, session):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.name().startswith("sshd"):
                        process.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        """End it and its connections."""
        self.cut()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    """A running server; skipped where OpenSSH is not installed."""
    if not SSHD or not shutil.which("ssh-keygen"):
        pytest.skip("no OpenSSH server here")
    folder = tmp_path / "ssh"
    folder.mkdir()
    server = Sshd(folder)
    server.start()
    yield server
    server.stop()
