"""Bring up and take down a real LXC container and a real OpenSSH server in a folder.

The container borrows the machine's ``/usr`` read-only and sees, at the same paths, this project's
source, its virtual environment and that environment's base interpreter. It has a loopback of its
own and no other network. Needs root, LXC, OpenSSH's server and a static busybox (Debian:
``lxc openssh-server busybox-static``).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from console.lab import host_files
from tests import ports

ROOT = Path(__file__).resolve().parents[2]
NEEDS = {
    "lxc-start": "lxc",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "busybox": "busybox-static",
    "unshare": "util-linux",
}


def lacking() -> str:
    """Why the pair cannot be brought up on this machine; empty where it can."""
    if os.geteuid() != 0:
        return "needs root"
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    missing = [package for name, package in NEEDS.items() if not shutil.which(name, path=path)]
    return f"needs apt-get install {' '.join(missing)}" if missing else ""


@dataclass(frozen=True)
class Pair:
    """A container and the host before it, both in one folder."""

    folder: Path
    vmid: int = 200

    @property
    def layout(self) -> host_files.Layout:
        """Where keys, the client's configuration and ``pct`` lie."""
        return host_files.Layout(self.folder)

    @property
    def inside(self) -> Path:
        """A folder that the container may write, at the same path in it."""
        return self.folder / "inside"

    @property
    def rootfs(self) -> Path:
        """The container's own files, as the machine sees them."""
        return self.folder / "ct" / str(self.vmid) / "rootfs"

    def up(self) -> None:
        """Both; ``layout.config`` then names the host."""
        self.start_container()
        self.start_sshd()

    def down(self) -> None:
        """End both, and everything in the container."""
        self.cut()
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.layout.ssh / "sshd.pid").read_text()), signal.SIGTERM)
        self.lxc("stop", "-k")

    # --- The container ---

    def lxc(self, what: str, *options: str) -> subprocess.CompletedProcess[str]:
        """``lxc-WHAT`` on the container."""
        command = [f"lxc-{what}", "-P", str(self.folder / "ct"), "-n", str(self.vmid), *options]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    def start_container(self) -> None:
        """Make it where it is not there, and start it."""
        root = self.rootfs
        if not root.exists():
            self._make_rootfs()
        log = root.parent / "start.log"
        started = self.lxc("start", "-d", "-o", str(log), "-l", "INFO")
        awaited = self.lxc("wait", "-s", "RUNNING", "-t", "10")
        if started.returncode or awaited.returncode:
            tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            raise RuntimeError(f"lxc-start: {started.stderr}{tail}")

    def _make_rootfs(self) -> None:
        root = self.rootfs
        for name in ("dev", "proc", "sys", "root", "run", "usr", "opt", "etc", "sbin"):
            (root / name).mkdir(parents=True)
        for name in ("tmp", "var/tmp"):
            (root / name).mkdir(parents=True)
            (root / name).chmod(0o1777)
        for name in ("bin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        for name in ("ld.so.cache", "alternatives"):
            if Path("/etc", name).exists():
                subprocess.run(["cp", "-a", f"/etc/{name}", root / "etc"], check=True)
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
        (root / "etc/group").write_text("root:x:0:\n")
        (root / "etc/hosts").write_text(f"127.0.0.1 localhost ct{self.vmid}\n")
        (root / "etc/inittab").write_text("::sysinit:/bin/busybox ip link set lo up\n")
        lines = [
            f"lxc.uts.name = ct{self.vmid}",
            f"lxc.rootfs.path = dir:{root}",
            "lxc.init.cmd = /bin/busybox init",
            "lxc.net.0.type = empty",
            "lxc.mount.auto = proc:mixed sys:ro",
            "lxc.autodev = 1",
            "lxc.pty.max = 64",
            "lxc.tty.max = 0",
            "lxc.environment = TERM=linux",
            "lxc.environment = STOKER_SIMULATED=1",
            "lxc.apparmor.profile = unconfined",
            "lxc.signal.halt = SIGUSR1",
            "lxc.mount.entry = /usr usr none ro,bind 0 0",
        ]
        self.inside.mkdir(exist_ok=True)
        for place, mode in [*((place, "ro") for place in _shared()), (self.inside, "rw")]:
            (root / place.relative_to("/")).mkdir(parents=True, exist_ok=True)
            lines.append(f"lxc.mount.entry = {place} {str(place)[1:]} none {mode},bind 0 0")
        (root.parent / "config").write_text("\n".join(lines) + "\n")

    def attach(self, *argv: str) -> subprocess.Popen[bytes]:
        """A command inside with pipes of its own, not by way of SSH."""
        base = str(self.folder / "ct")
        command = ["lxc-attach", "-P", base, "-n", str(self.vmid), "--clear-env", "--", *argv]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def stop_container(self) -> None:
        """As a power cut of the container."""
        self.lxc("stop", "-k")

    # --- The host ---

    def start_sshd(self) -> None:
        """sshd on a free loopback port, with keys of its own, without root's start-up files."""
        layout = self.layout
        host_files.make_keys(layout.ssh)
        layout.bin.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-I", "-S", str(ROOT / "tests/lxc/pct.py"), str(self.folder)]
        pct = layout.bin / "pct"
        pct.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        pct.chmod(0o755)
        port = ports.free()
        ssh = layout.ssh
        path = f"{layout.bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        config = [
            "ListenAddress 127.0.0.1",
            f"Port {port}",
            f"HostKey {ssh}/host_key",
            f"AuthorizedKeysFile {ssh}/authorized_keys",
            f"PidFile {ssh}/sshd.pid",
            "StrictModes no",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "PrintMotd no",
            f"SetEnv PATH={path}",
            "AcceptEnv LANG LC_*",
            "LogLevel VERBOSE",
        ]
        (ssh / "sshd_config").write_text("\n".join(config) + "\n")
        Path("/run/sshd").mkdir(exist_ok=True)
        (ssh / "sshd.pid").unlink(missing_ok=True)
        script = (
            "for f in ~root/.bashrc ~root/.profile ~root/.bash_profile; do "
            '[ ! -e "$f" ] || mount --bind /dev/null "$f"; done; '
            "exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "
            '/usr/sbin/sshd -f "$1/sshd_config" -E "$1/sshd.log"'
        )
        subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", ssh], check=True)
        deadline = time.monotonic() + 10
        while not ((ssh / "sshd.pid").exists() and _answers(port)):
            if time.monotonic() > deadline:
                raise RuntimeError((ssh / "sshd.log").read_text())
            time.sleep(0.02)
        host_files.write_client_config(ssh, port)

    def cut(self) -> int:
        """Kill sshd's process of every connection; what runs is told nothing. How many."""
        import psutil

        try:
            server = psutil.Process(int((self.layout.ssh / "sshd.pid").read_text()))
        except (OSError, ValueError, psutil.Error):
            return 0
        connections = server.children()
        for connection in connections:
            with contextlib.suppress(psutil.Error):
                connection.kill()
        return len(connections)


def _shared() -> list[Path]:
    """What the container sees of this machine beside /usr, outermost folders only."""
    wanted = {ROOT, Path(sys.prefix), Path(sys.base_prefix), Path(sys.base_prefix).resolve()}
    wanted = {place for place in wanted if not place.is_relative_to("/usr")}
    return sorted(p for p in wanted if not any(p != q and p.is_relative_to(q) for q in wanted))


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
