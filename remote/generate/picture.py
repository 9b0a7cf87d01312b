"""What ``progress.json`` says of the queue and of the servers, and what is wrong with them."""

from __future__ import annotations

from collections import Counter

from remote.generate import limits
from remote.generate.dispatch import Dispatcher
from remote.protocol import Progress, ServerWork


def queue_and_servers(progress: Progress, dispatcher: Dispatcher) -> None:
    """Fill in what waits, what is in flight, and each server."""
    progress.waiting_retry = dispatcher.work.waiting_retry
    sources = Counter(job.prompt.source or "" for job in dispatcher.work.jobs())
    progress.waiting_by_source = dict(sources)
    progress.in_flight = dispatcher.in_flight
    progress.partial = dispatcher.partial
    progress.on_probation = sum(len(s.held) for s in dispatcher.servers.values())
    progress.suspects = dispatcher.suspected
    progress.servers = {
        server.url: ServerWork(
            slots=server.slots,
            in_flight=server.in_flight,
            completed=server.completed,
            output_tokens=server.output_tokens,
            state=server.state,
            problem=server.problem,
            alone=server.guest is not None,
            whole=server.whole,
        )
        for server in dispatcher.servers.values()
    }


def problem(dispatcher: Dispatcher, *, leaving: bool) -> str:
    """Why nothing, or not more, can be sent, and what to do; empty where all is well."""
    servers = dispatcher.servers.values()
    if not servers:
        return "no servers: give --server, or start them (stoker up)"
    able = [server for server in servers if server.dispatch == "run"]
    first = next((server for server in able if server.problem), None)
    # One whose trial is still under way has no problem yet.
    if first is not None and not leaving and not any(s.usable for s in able):
        return f"no server answers ({first.url}: {first.problem}): waiting for one"
    if (most := dispatcher.most) <= dispatcher.in_flight:
        return (
            f"no more than {most} requests at once: the limit of open files is "
            f"{most + limits.SPARE}; raise it (ulimit -n) and start again"
        )
    return ""
