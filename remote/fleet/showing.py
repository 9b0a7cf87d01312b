"""A server as others are shown it: the console's view, and the run's."""

from __future__ import annotations

import time
from typing import Literal

from remote.fleet.answers import first
from remote.fleet.server import Server
from remote.protocol import Lights, Reading, ServerInfo, ServerState, Sizes
from remote.sglang.causes import flags_mend

_FRESH = 10.0
"""A token younger than this lights the tokens light."""


def info(server: Server, sizes: Sizes | None = None) -> ServerInfo:
    """What changes only at a (re)start."""
    launch, foreign = server.launch, server.foreign
    return ServerInfo(
        gpu=server.gpu,
        port=server.port,
        pid=server.main.pid if server.main is not None and server.alive else None,
        started_at=server.started_at if server.alive else None,
        argv=launch.argv if launch else foreign.argv if foreign else [],
        flags=launch.flags if launch else foreign.flags if foreign else {},
        log=launch.log if launch else (foreign.log or "") if foreign else "",
        epoch=launch.epoch if launch else None,
        sglang=server.sglang,
        max_running=server.max_running if server.alive else None,
        max_mamba=server.max_mamba,
        kv_tokens=server.kv_tokens,
        sizes=sizes if server.alive else None,
    )


def state(server: Server, now: float) -> ServerState:
    """What moves."""
    serving = server.status in ("ready", "draining", "stalled", "foreign")
    usage = server.reader.usage if serving else None
    metrics = server.told.metrics if serving else None
    loads = server.told.loads if serving else None
    kv = first(
        loads.kv_usage if loads else None,
        metrics.kv_usage if metrics else None,
        usage.kv_usage if usage else None,
    )
    mamba = first(metrics.mamba_usage if metrics else None, usage.mamba_usage if usage else None)
    retractions = metrics.retractions if metrics else None
    silent_since = server.silent_since(now)
    return ServerState(
        gpu=server.gpu,
        state=server.status,
        lights=lights(server, now),
        phase=phase(server),
        phase_since=_phase_since(server),
        phase_usual_s=_phase_usual_s(server),
        running=server.running if serving else None,
        queued=server.queued if serving else None,
        gen_tok_s=server.gen_tok_s(now) if serving else None,
        kv_usage=kv,
        mamba_usage=mamba,
        retractions=first(retractions, server.reader.retractions) if serving else None,
        dispatch=server.dispatched if server.in_flight is not None else "",
        in_flight=server.in_flight,
        cause=server.cause.text if server.cause is not None else "",
        silent_since=silent_since,
        restart_at=_restart_at(server, silent=silent_since is not None),
        died=server.ends.known.count,
        died_lately=server.ends.lately(now),
        died_at=server.ends.known.times[-1] if server.ends.known.times else None,
        died_of=server.ends.known.why,
        given_up=_given_up(server),
        mended_by=_mended_by(server),
        steady_since=server.work.steady_since,
    )


def _restart_at(server: Server, *, silent: bool) -> float | None:
    if server.status == "failed":
        return server.again_at
    return server.restart_at if silent else None


def _given_up(server: Server) -> bool:
    launch = server.launch
    return (
        server.status == "failed"
        and launch is not None
        and (server.restarts.launch == launch.launch)
    )


def _mended_by(server: Server) -> Literal["", "start", "flags"]:
    if server.status != "failed" or server.cause is None:
        return ""
    return "flags" if flags_mend(server.cause) else "start"


def reading(server: Server) -> Reading:
    """The run's view of it."""
    known = server.done if server.told.metrics is not None or server.reader.work else None
    return Reading(
        time=time.time(),
        url=server.url,
        alive=server.status in ("ready", "draining", "foreign"),
        running=server.running,
        queued=server.queued,
        max_running=server.max_running,
        tokens=None if known is None else int(known),
    )


def lights(server: Server, now: float) -> Lights:
    """Whether its process, its HTTP and its tokens are there; None where that is not known."""
    if not server.alive:
        return Lights(process=False if server.status == "failed" else None)
    http: bool | None = None
    if server.told.loads_failing:
        http = False if server.told.loads_at is not None or server.told.loads_failing > 2 else None
    elif server.told.loads_at is not None:
        http = True
    tokens: bool | None = None
    work = server.work
    if server.status == "stalled":
        tokens = False
    elif work.moved_at is not None and now - work.moved_at < _FRESH:
        tokens = True
    elif server.busy:
        tokens = now - (work.stands_since or now) < server.timing.stall / 3
    return Lights(process=server.has_its_processes, http=http, tokens=tokens)


def phase(server: Server) -> str:
    """What it is at, in words; empty while it simply serves."""
    if server.doing:
        return server.doing
    if server.status not in ("starting", "warming"):
        return ""
    return server.starts_with


def _phase_since(server: Server) -> float | None:
    if server.status in ("starting", "warming"):
        return server.reader.phase_since or (server.launch.asked if server.launch else None)
    return None


def _phase_usual_s(server: Server) -> float | None:
    if server.before is None or server.status not in ("starting", "warming"):
        return None
    return server.before.phase_seconds.get(server.reader.phase) or None
