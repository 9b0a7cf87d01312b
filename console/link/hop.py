"""From the machine that SSH reaches into the container: argv in, argv or command line out.

This is the one place that quotes. SSH carries a single string which the host's shell parses, so
an argv is joined once, with :func:`shlex.join`. ``pct`` decodes its arguments in the host's
locale, which may be C: an argv is ASCII, and everything else travels over standard input.
"""

from __future__ import annotations

import shlex

from console.config import Hop
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
