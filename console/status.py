"""One look at a target: what the run says, what the servers say, what the files say.

Pure functions of a snapshot's state and of the counted batch files; the text for people and the
JSON document come from the same numbers.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from console import reckon, standing
from console.model import State, told_now
from console.notices import SILENT_S
from console.text import duration, number, percent, size
from remote.protocol import Batches, Progress, TargetSpec, differing

LAG, LAG_S = 600, 15.0
"""Records by which two counts may differ while a run is on, and those of so many seconds where
that is more: they are not taken at one instant."""

FILL_S = 30.0
"""A server that was given work just now may need so long to its first tokens."""

WINDOW_S = 120.0
"""The run's own rates are means over so long: what its servers do now is held against them only
where they have done the same thing all that time."""


def rfc3339(at: float | None) -> str | None:
    """Unix seconds as RFC 3339 in UTC."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def unreachable(target: str, now: float, text: str) -> dict[str, Any]:
    """The document when there is no way to the agent."""
    return {
        "target": target,
        "time": rfc3339(now),
        "connected": False,
        "run": None,
        "servers": [],
        "epochs": [],
        "batches": None,
        "settings": [],
        "alerts": [{"code": "unreachable", "text": text}],
        "disagreements": [],
    }


def document(
    target: str,
    state: State,
    batches: Batches | None,
    problem: str = "",
    spec: TargetSpec | None = None,
) -> dict[str, Any]:
    """The JSON document of ``stoker status --json``.

    ``problem`` is what is wrong in stoker.toml, ``spec`` what it says of the target.
    """
    alerts = [{"code": alert.code, "text": alert.text} for alert in state.alerts]
    if problem:
        alerts.append({"code": "config.flags", "text": problem})
    return {
        "target": target,
        "time": rfc3339(state.time),
        "connected": True,
        "simulated": state.simulated,
        "run": _run(state),
        "servers": [_server(state, gpu) for gpu in state.numbers],
        "epochs": [
            {
                "id": epoch.id,
                "since": rfc3339(epoch.since),
                "flags": epoch.flags,
                "who": epoch.who,
                "tok_s_per_gpu": epoch.tok_s_per_gpu,
                "max_running": epoch.max_running,
            }
            for epoch in state.epochs
        ],
        "batches": msgspec.to_builtins(batches) if batches is not None else None,
        "alerts": alerts,
        "settings": settings(state, spec),
        "disagreements": disagreements(state, batches),
    }


def settings(state: State, spec: TargetSpec | None) -> list[dict[str, str]]:
    """Where the agent's settings are not those of stoker.toml, and the verb that applies each."""
    if spec is None or state.target is None:
        return []
    found = differing(state.target, spec)
    return [{"name": one.name, "verb": one.by or "stoker deploy"} for one in found]


def _run(state: State) -> dict[str, Any] | None:
    if state.progress is None:
        return None
    run: dict[str, Any] = msgspec.to_builtins(state.progress)
    run["alive"] = state.run.alive
    run["time"] = rfc3339(state.progress.time or None)
    return run


def _server(state: State, gpu: int) -> dict[str, Any]:
    info, server = state.infos.get(gpu), state.servers.get(gpu)
    lights = server.lights if server else None
    return {
        "gpu": gpu,
        "port": info.port if info else None,
        "state": server.state if server else "stopped",
        "lights": msgspec.to_builtins(lights) if lights else None,
        "running": server.running if server else None,
        "queued": server.queued if server else None,
        "max_running": info.max_running if info else None,
        "gen_tok_s": server.gen_tok_s if server else None,
        "kv_usage": server.kv_usage if server else None,
        "mamba_usage": server.mamba_usage if server else None,
        "epoch": info.epoch if info else None,
        "flags": info.flags if info else {},
        "phase": server.phase if server else "",
        "cause": server.cause if server else "",
        "silent_since": rfc3339(server.silent_since) if server else None,
    }


def observed(state: State) -> dict[str, Any]:
    """The snapshot that advice is drawn from; what is unknown is left out."""
    servers = [s for s in state.servers.values() if s.state in ("ready", "stalled")]
    infos = [state.infos[s.gpu] for s in servers if s.gpu in state.infos]
    cards = list(state.gpus.values())
    offered = sum(work.slots for work in state.progress.servers.values()) if state.progress else 0
    keys = ("running", "queued", "kv_usage", "mamba_usage", "gen_tok_s", "retractions")
    seen: dict[str, Any] = {
        "sglang": infos[0].sglang if infos else None,
        "card": cards[0].name if cards else None,
        "memory_mib": cards[0].memory_total_mib if cards else None,
        "model": _model(state),
        "flags": infos[0].flags if infos else None,
        "servers": [
            {key: getattr(server, key) for key in keys}
            | {"max_running": getattr(state.infos.get(server.gpu), "max_running", None)}
            | {"epoch": getattr(state.infos.get(server.gpu), "epoch", None)}
            | {"steady_s": server.steady_since and state.time - server.steady_since}
            for server in servers
        ],
        "offered_concurrency": offered or None,
        "epochs": [{"flags": e.flags, "tok_s_per_gpu": e.tok_s_per_gpu} for e in state.epochs],
        "sizes": msgspec.to_builtins(infos[0].sizes) if infos else None,
        "waits": reckon.waits(state.verdict, state.time) or None,
    }
    return {key: value for key, value in seen.items() if value is not None}


def _model(state: State) -> str | None:
    return state.target.fleet.model if state.target is not None else None


def disagreements(state: State, batches: Batches | None) -> list[dict[str, str]]:
    """Where progress, throughput and batch files tell different stories, and which."""
    found: list[dict[str, str]] = []
    progress = state.progress

    def say(code: str, text: str) -> None:
        found.append({"code": code, "text": text})

    if progress is None:
        return found
    live = state.run.alive
    if batches is not None:
        lag = max(LAG, LAG_S * progress.rate_per_sec) if live else 0
        if abs(batches.records - progress.completed) > lag:
            say(
                "progress_files",
                f"progress.json says {progress.completed:,} completed, the batch files hold "
                f"{batches.records:,} records",
            )
        if abs(batches.records - batches.done_lines) > lag:
            say(
                "done_files",
                f".done_indices has {batches.done_lines:,} lines, the batch files hold "
                f"{batches.records:,} records",
            )
        if progress.s3_uploaded != batches.uploaded and not live:
            say(
                "uploads",
                f"progress.json says {progress.s3_uploaded} files uploaded, the manifest "
                f"{batches.uploaded}",
            )
    if not live and progress.status in ("running", "draining"):
        say("status", f"progress.json says {progress.status}, but no such process is alive")
    _throughput(state, progress, say)
    return found


def _throughput(state: State, progress: Progress, say: Any) -> None:
    rates = [s.gen_tok_s for s in state.servers.values() if s.gen_tok_s is not None]
    if not (state.run.alive and progress.status == "running" and rates):
        return
    servers = sum(rates)
    if not _changed(state, WINDOW_S) and progress.tok_s and servers < 0.25 * progress.tok_s:
        say(
            "throughput",
            f"the run counts {progress.tok_s:,.0f} output tok/s, the servers {servers:,.0f}",
        )
    if progress.in_flight and servers == 0 and not _changed(state, FILL_S):
        say("no_tokens", f"{progress.in_flight} requests in flight, no server produces a token")


def _changed(state: State, within: float) -> bool:
    """Whether a server is coming or going, or began to work or to wait within so many seconds."""
    return any(
        server.state in ("starting", "warming", "draining")
        or (server.steady_since is not None and state.time - server.steady_since < within)
        for server in state.servers.values()
    )


def wrong(document: dict[str, Any], state: State) -> bool:
    """Whether something is wrong, and so the exit status 1: any alert is, whatever its level."""
    silent = (
        state.time - (server.silent_since or state.time) >= SILENT_S
        for server in state.servers.values()
        if reckon.silent(server)
    )
    bad = any(server["state"] in ("failed", "stalled") for server in document["servers"])
    return bool(document["disagreements"] or document["alerts"]) or bad or any(silent)


def lines(document: dict[str, Any], state: State, now: float) -> list[str]:
    """The document for people."""
    text = [f"{document['target']}" + (" (simulated hardware)" if document["simulated"] else "")]
    text += _run_lines(state, now)
    sums = reckon.fleet(state)
    text.append(f"servers   {sums.ready} of {sums.servers} ready, {number(sums.gen_tok_s)} tok/s")
    text += [_server_line(server, _sign(state, server, now)) for server in document["servers"]]
    batches = document["batches"]
    if batches is not None:
        text.append(
            f"batches   {batches['files']} files, {batches['records']:,} records, "
            f"{size(batches['bytes'])}, {batches['uploaded']} uploaded"
        )
    verbs: dict[str, list[str]] = {}
    for one in document["settings"]:
        verbs.setdefault(one["verb"], []).append(one["name"])
    text += [
        f"settings  {', '.join(names)}: the agent has others than stoker.toml; `{verb}` applies it"
        for verb, names in verbs.items()
    ]
    text += [f"ALERT     {alert['text']}" for alert in document["alerts"]]
    text += [f"DISAGREE  {each['text']}" for each in document["disagreements"]]
    return text


def _run_lines(state: State, now: float) -> list[str]:
    progress = state.progress
    if progress is None:
        return ["run       none"]
    done = f"{progress.completed:,} of {progress.total:,}" if progress.total else "?"
    share = percent(progress.completed / progress.total, 1) if progress.total else "?"
    when = _plain(standing.when(state, progress, now))
    parts = [
        when if not state.run.alive else standing.word(state, progress),
        f"{done} ({share})",
        f"{progress.failed:,} failed",
        *(f"{count:,} {name}" for name, count in standing.counts(state, progress)),
        _plain(standing.rate(state, progress)),
        when if state.run.alive else "",
    ]
    text = [f"run       {', '.join(part for part in parts if part)}"]
    if cause := standing.why(state, progress):
        text.append(f"why       {cause}")
    if progress.problem:
        text.append(f"problem   {progress.problem}")
    return text


def _plain(parts: list[standing.Part]) -> str:
    return "".join(text for text, _ in parts)


def _sign(state: State, document: dict[str, Any], now: float) -> str:
    """A server's state, and for how long one that is held to be up has given no sign of life."""
    server = state.servers.get(document["gpu"])
    if server is None or server.silent_since is None or not reckon.silent(server):
        return str(document["state"])
    return f"silent {duration(told_now(state, now) - server.silent_since)}"


def _server_line(server: dict[str, Any], sign: str) -> str:
    load = f"{number(server['running'])}/{number(server['max_running'])} running"
    parts = [
        f"  gpu {server['gpu']:<3} {sign:<9}",
        f"{load:>14}  {number(server['queued'])} queued",
        f"{number(server['gen_tok_s']):>6} tok/s",
        f"KV {percent(server['kv_usage'])}",
        f"Mamba {percent(server['mamba_usage'])}",
    ]
    tail = server["cause"] or server["phase"]
    return "  ".join(parts) + (f"  {tail}" if tail else "")
