"""What is wrong now: pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from remote.agent.diff import Picture
from remote.protocol import Alert

HOT_C, TOO_HOT_C = 87.0, 92.0
"""Blackwell workstation cards begin to slow down a few degrees above the first."""
DISK_BYTES, DISK_LOW_BYTES, DISK_SHARE = 2 << 30, 10 << 30, 0.05


class Wrong(NamedTuple):
    """An alert without its beginning."""

    code: str
    text: str
    level: Literal["warning", "error"] = "warning"


def wrong(now: Picture, journal: str = "") -> list[Wrong]:
    """Everything a person should know of that one look shows; :mod:`remote.agent.eta` needs more
    than one."""
    found = [*_servers(now), *_run(now), *_host(now)]
    if journal:
        found.append(Wrong("journal", journal))
    return found


def since(old: Iterable[Alert], found: Iterable[Wrong], time: float) -> list[Alert]:
    """Alerts with their beginnings: what was wrong before keeps its own."""
    began = {alert.code: alert.since for alert in old}
    return [Alert(w.code, w.text, began.get(w.code, time), w.level) for w in found]


def over(alert: Alert, now: Picture) -> str:
    """That an alert has ended, with the number now where it was about one."""
    free = now.host.disk_free
    if alert.code == "disk" and free is not None:
        return f"disk: {free / 1e9:.1f} GB free in the workspace, no longer short"
    if alert.code == "s3":
        return "S3: no error any more"
    if alert.code == "gpu.missing":
        return "GPU: all are seen by the driver again"
    if alert.code == "run.failed":
        return f"{alert.text}; it is at work again"
    heat = {f"hot.{card.gpu}": card for card in now.gpus}.get(alert.code)
    if heat is not None and heat.temperature_c is not None:
        return f"GPU {heat.gpu}: {heat.temperature_c:.0f} °C, no longer hot"
    return f"over: {alert.text}"


def card(alert: Alert) -> int | None:
    """The GPU that it is about, where it is one."""
    kind, _, number = alert.code.rpartition(".")
    return int(number) if kind.startswith(("server.", "hot")) and number.isdecimal() else None


def _servers(now: Picture) -> Iterable[Wrong]:
    for server in now.servers:
        if server.state in ("failed", "stalled"):
            cause = f": {server.cause}" if server.cause else ""
            text = f"GPU {server.gpu}: {server.state}{cause}"
            yield Wrong(f"server.{server.state}.{server.gpu}", text, "error")
    if now.target is not None and now.gpus and len(now.gpus) < now.target.fleet.gpus:
        seen = {card.gpu for card in now.gpus}
        gone = [str(g) for g in range(now.target.fleet.gpus) if g not in seen]
        yield Wrong("gpu.missing", f"GPU {', '.join(gone)}: not seen by the driver", "error")


def _run(now: Picture) -> Iterable[Wrong]:
    run, progress = now.run, now.run.progress
    if not run.alive and run.exit is not None and run.exit not in (0, 1, 130):
        yield Wrong("run.failed", f"the run ended with exit status {run.exit}", "error")
    if progress is None:
        return
    if run.alive and progress.problem:
        yield Wrong("run.problem", progress.problem, "error")
    if run.alive and progress.s3_error:
        yield Wrong("s3", f"S3: {progress.s3_error}")


def _host(now: Picture) -> Iterable[Wrong]:
    for card in now.gpus:
        if card.temperature_c is not None and card.temperature_c >= HOT_C:
            level: Literal["warning", "error"] = (
                "error" if card.temperature_c >= TOO_HOT_C else "warning"
            )
            yield Wrong(f"hot.{card.gpu}", f"GPU {card.gpu}: {card.temperature_c:.0f} °C", level)
    free, total = now.host.disk_free, now.host.disk_total
    if free is not None and total:
        low = free < DISK_LOW_BYTES and free < DISK_SHARE * total
        if free < DISK_BYTES or low:
            yield Wrong(
                "disk",
                f"disk: {free / 1e9:.1f} GB free in the workspace",
                "error" if free < DISK_BYTES / 4 else "warning",
            )
