"""What the machine allows: open files and memory, told before anything is begun."""

from __future__ import annotations

import resource

import psutil

from remote.generate.settings import UsageError

SPARE = 128
"""Open files besides the connections: batches, locks, S3, the libraries' own."""
_MOST = 65536
_A_PROMPT = 3
"""Bytes of memory a prompt of the file costs while the run lasts: its state, and at the start
twice again to compare records with indices."""
_A_REQUEST = 256 << 10
"""Bytes of memory a request in flight costs, with its answer on its way to the disk."""
_ITSELF = 100 << 20


def sockets() -> int:
    """Requests that may be open at once; the limit of open files is raised as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return int(soft) - SPARE


def check_open_files(wanted: int) -> None:
    """Before the start, as far as it is known then how many requests there will be.

    :raises UsageError: they can't be open at once.
    """
    if wanted > (most := sockets()):
        raise UsageError(
            f"{wanted} requests at once need {wanted + SPARE} open files, the limit is "
            f"{most + SPARE}; raise it (ulimit -n) or lower --concurrency"
        )


def short_of_memory(prompts: int, requests: int) -> str:
    """A word where the run will hardly fit the memory that is free; empty where it does."""
    need = _ITSELF + _A_PROMPT * prompts + _A_REQUEST * requests
    free = psutil.virtual_memory().available
    if need <= free:
        return ""
    return (
        f"{free / 1e6:,.0f} MB of memory are free, {prompts:,} prompts with {requests:,} requests "
        f"at once need about {need / 1e6:,.0f} MB: free some, or lower --concurrency"
    )
