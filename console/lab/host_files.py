"""What the stand-in host keeps below a lab's folder: keys, the client's configuration, ``pct``."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from console.lab import pct

ALIAS = "lab"
"""How the client configuration names the host."""


@dataclass(frozen=True)
class Layout:
    """Where the host's things lie below a lab's folder."""

    lab: Path

    @property
    def ssh(self) -> Path:
        """Keys and the client's configuration; 0700."""
        return self.lab / "ssh"

    @property
    def config(self) -> Path:
        """Client configuration with one ``Host lab``."""
        return self.ssh / "config"

    @property
    def home(self) -> Path:
        """Root's home on the host."""
        return self.lab / "host" / "root"

    @property
    def bin(self) -> Path:
        """First on the host's PATH; holds ``pct``."""
        return self.lab / "host" / "bin"


def make_keys(ssh: Path) -> None:
    """Host key ``host_key``, client key ``id`` and ``authorized_keys``; those there are kept."""
    ssh.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("host_key", "id"):
        if not (ssh / name).exists():
            key = asyncssh.generate_private_key("ssh-ed25519", comment=f"stoker-lab {name}")
            part = ssh / f"{name}.part"
            part.unlink(missing_ok=True)  # one that is there keeps its mode
            with open(part, "wb", opener=private) as out:
                out.write(key.export_private_key())
            key.write_public_key(str(ssh / f"{name}.pub"))
            part.replace(ssh / name)  # last: a key that is there is whole, and has the other half
    (ssh / "authorized_keys").write_bytes((ssh / "id.pub").read_bytes())


def write_client_config(ssh: Path, port: int, alias: str = ALIAS) -> None:
    """``config`` and ``known_hosts`` for OpenSSH and asyncssh alike, from these keys alone."""
    kind, key = (ssh / "host_key.pub").read_text().split()[:2]
    (ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    lines = [
        f"Host {alias}",
        "  HostName 127.0.0.1",
        f"  Port {port}",
        "  User root",
        f'  IdentityFile "{ssh / "id"}"',
        "  IdentitiesOnly yes",
        "  IdentityAgent none",
        f'  UserKnownHostsFile "{ssh / "known_hosts"}"',
        "  GlobalKnownHostsFile none",
        "  StrictHostKeyChecking yes",
        "  PreferredAuthentications publickey",
    ]
    (ssh / "config").write_text("\n".join(lines) + "\n")


def install_pct(layout: Layout) -> None:
    """``pct`` on the host's PATH, by this interpreter."""
    layout.bin.mkdir(parents=True, exist_ok=True)
    layout.home.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-I", "-S", str(Path(pct.__file__).resolve()), str(layout.lab)]
    program = layout.bin / "pct"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)


def private(path: str, flags: int) -> int:
    """An opener for files that only their owner may read."""
    return os.open(path, flags, 0o600)
