"""What runs already: servers of earlier agents, and servers that somebody else started."""

from __future__ import annotations

import time

from remote.fleet import identity, processes
from remote.fleet.foreign import Foreign
from remote.fleet.launcher import describe, one_line
from remote.fleet.processes import Identity
from remote.fleet.records import Launch
from remote.fleet.server import Server
from remote.sglang import flags as sglang_flags
from remote.sglang.catalogue import Catalogue


def take_up(server: Server, launch: Launch) -> bool:
    """Observe a launch of an earlier agent; whether its process lives (or is still to come).

    Blocking.
    """
    server.restarts.read_back()
    server.listens(launch.port, launch.flags)
    server.begin(launch, adopted=True)
    server.read_log()
    if server.main is None:
        server.exit = server.folder.exit(launch.launch)
        coming = time.time() - launch.asked < server.timing.holder + 5
        return server.exit is None and coming and launch.wanted == "up"
    table = identity.table()
    tree = processes.members(server.main, table)
    if tree and tree[0].pid == server.main.pid:
        if server.status == "ready":
            server.note_core(table)
        return True
    server.exit = server.folder.exit(launch.launch)
    return False


def who_serves(ports: list[int]) -> dict[int, int | None]:
    """Who has each of these ports, or is an SGLang server that will have it once it is loaded.

    Blocking.
    """
    if not ports:
        return {}
    loading = {
        sglang_flags.model_and_port(argv)[1]: pid
        for pid, argv in processes.commands(sglang_flags.is_server_argv).items()
    }
    return merged({p: loading[p] for p in ports if p in loading}, processes.listeners(ports))


def merged(named: dict[int, int], listening: dict[int, int | None]) -> dict[int, int | None]:
    """Who has each port: who listens there, or, where one may not see who does, the server whose
    command line names it."""
    seen = {port: pid for port, pid in listening.items() if pid is not None or port not in named}
    return {**named, **seen}


def look_at(main: Identity, catalogue: Catalogue | None) -> Foreign:
    """A foreign server, as its process shows it. Blocking; changes nothing."""
    argv = processes.command(main.pid)
    model, _ = sglang_flags.model_and_port(argv)
    key = sglang_flags.given_key(argv) or processes.environ(main.pid, "SGLANG_API_KEY")
    return Foreign(
        argv=sglang_flags.masked(argv),
        owner=processes.owner(main.pid),
        flags=sglang_flags.own_flags(argv, catalogue),
        model=model,
        log=processes.log_file(main.pid),
        is_sglang=sglang_flags.is_server_argv(argv),
        started_at=processes.started_at(main.pid),
        api_key=key,
    )


def describe_foreign(server: Server) -> str:
    """A line on the foreign server of this port."""
    about = server.foreign
    assert about is not None
    what = f"SGLang with {one_line(about.model or '?')}" if about.is_sglang else "no SGLang server"
    pid = server.main.pid if server.main is not None else None
    return (
        f"GPU {server.gpu}: port {server.port} belongs to {describe(pid)}, {what}, "
        "not started by Stoker"
    )
