"""From the machine that SSH reaches into the container: argv in, argv or command line out.

This is the one place that quotes. SSH carries a single string which the host's shell parses, so
an argv is joined once, with :func:`shlex.join`. ``pct`` decodes its arguments in the host's
locale, which may be C: an argv is ASCII, and everything else travels over standard input.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from console.config import Hop, Target
from console.link.errors import LinkError

MAX_LINE = 100_000
"""Bytes of a command line; Linux takes 131,071 for one argument, and the line is one."""


class HopError(LinkError):
    """An argv that can't travel."""


def wrap(hop: Hop, argv: list[str]) -> list[str]:
    """The argv to run on the machine that SSH reaches so that ``argv`` runs in the container.

    No terminal is ever asked for: a terminal merges standard error in and rewrites newlines.
    ``docker exec`` and ``podman exec`` close standard input without ``-i``.
    """
    check(argv)
    match hop.kind:
        case "pct":
            inner = ["pct", "exec", hop.name, "--", *argv]
        case "docker" | "podman":
            inner = [hop.kind, "exec", "-i", hop.name, *argv]
        case "incus":
            inner = ["incus", "exec", "-T", hop.name, "--", *argv]
        case "none":
            inner = list(argv)
    # -n: never ask for a password, there is nobody to type it.
    wrapped = ["sudo", "-n", *inner] if hop.sudo else inner
    check(wrapped)
    return wrapped


def status(hop: Hop) -> list[str] | None:
    """The argv that asks for the container's state; None where there is no container."""
    argv = {
        "pct": ["pct", "status", hop.name],
        "docker": ["docker", "inspect", "-f", "{{.State.Status}}", hop.name],
        "podman": ["podman", "inspect", "-f", "{{.State.Status}}", hop.name],
        "incus": ["incus", "list", "-f", "csv", "-c", "s", f"^{hop.name}$"],
    }.get(hop.kind)
    if argv is None:
        return None
    return ["sudo", "-n", *argv] if hop.sudo else argv


def line(argv: list[str]) -> str:
    """The command line that a POSIX shell splits into exactly this argv."""
    check(argv)
    text = shlex.join(argv)
    if len(text) > MAX_LINE:
        raise HopError(f"a command line of {len(text)} bytes: {MAX_LINE} are possible; use stdin")
    return text


def plain(target: Target, argv: list[str]) -> str:
    """The line that a person types on this machine so that ``argv`` runs in the container.

    Raises HopError.
    """
    wrapped = wrap(target.hop, argv)
    if not target.ssh:
        return line(wrapped)
    user, host, port = destination(target.ssh)
    words = ["ssh"]
    words += ["-F", str(target.ssh_config)] if target.ssh_config is not None else []
    words += ["-p", str(port)] if port else []
    return shlex.join([*words, f"{user}@{host}" if user else host, line(wrapped)])


def in_background(
    argv: list[str], *, folder: str, log: str, env: Mapping[str, str], script: str = ""
) -> list[str]:
    """The argv that starts another one in a folder and leaves it to itself, its output appended
    to ``log``. ``script`` is sourced before, the variables of ``env`` are set last.
    """
    steps = [f"cd {shlex.quote(folder)}"]
    steps += [f"set -a && . {shlex.quote(script)}"] if script else []
    words = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    words += ["nohup", "setsid", shlex.join(argv), ">>", shlex.quote(log), "2>&1 < /dev/null &"]
    return ["bash", "-c", " && ".join([*steps, " ".join(words)])]


def destination(where: str) -> tuple[str, str, int]:
    """``user@host``, a Host alias, or ``ssh://user@host:port`` → user, host, port (0: default)."""
    text = where.removeprefix("ssh://").rstrip("/") if where.startswith("ssh://") else where
    user, _, rest = text.rpartition("@")
    host, colon, port = rest.rpartition(":")
    # A colon is a port only behind one name or a bracketed address, not inside an IPv6 one.
    if colon and port.isdigit() and (":" not in host or host.endswith("]")):
        return user, host.strip("[]"), int(port)
    return user, rest.strip("[]"), 0


def check(argv: list[str]) -> None:
    """Raise HopError for what no command line can carry."""
    if not argv:
        raise HopError("an empty command")
    for argument in argv:
        if not argument.isascii():
            raise HopError(f"{argument!r}: only ASCII travels in a command; use stdin")
        if "\0" in argument:
            raise HopError(f"{argument!r}: a NUL can't be in a command")


def name(hop: Hop) -> str:
    """What people call it: ``container 200``; empty where there is no hop."""
    return "" if hop.kind == "none" else f"container {hop.name}"
