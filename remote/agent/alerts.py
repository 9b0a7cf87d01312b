"""What is wrong now: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple

from remote.agent.diff import Picture
from remote.protocol import Alert
from remote.verdict import duration

HOT_C, TOO_HOT_C = 87.0, 92.0
"""Blackwell workstation cards begin to slow down a few degrees above the first."""
DISK_BYTES, DISK_LOW_BYTES, DISK_SHARE = 2 << 30, 10 << 30, 0.05


class Wrong(NamedTuple):
    """An alert without its beginning."""

    code: str
    text: str
    level: Literal["warning", "error"] = "warning"


ETA_OVER = 0.95
"""An alert about the ETA is over below this share of the limit: near it, it would come and go."""


def wrong(now: Picture, journal: str = "", standing: Collection[str] = ()) -> list[Wrong]:
    """Everything a person should know of; ``standing`` are the codes of what was wrong before."""
    found = [*_servers(now), *_run(now), *_eta(now, standing), *_host(now)]
    if journal:
        found.append(Wrong("journal", journal))
    return found


def since(old: Iterable[Alert], found: Iterable[Wrong], time: float) -> list[Alert]:
    """Alerts with their beginnings: what was wrong before keeps its own."""
    began = {alert.code: alert.since for alert in old}
    return [Alert(w.code, w.text, began.get(w.code, time), w.level) for w in found]


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


def _eta(now: Picture, standing: Collection[str]) -> Iterable[Wrong]:
    """From the run's own rate once it has one, until then from the verdict on these flags."""
    progress, verdict = now.run.progress, now.verdict
    limit = now.target.alerts.eta_hours_over if now.target is not None else None
    changing = now.swap is not None and now.swap.state == "doing"
    if limit is None or progress is None or not now.run.alive or changing:
        return
    if verdict is not None and now.epochs and verdict.time < now.epochs[-1].since:
        verdict = None  # on other flags
    eta = verdict.eta_hours if verdict is not None else None
    # A process that has just taken up a run of many finished prompts has no rate of its own yet.
    here = sum(work.completed for work in progress.servers.values())
    done = here if progress.servers else progress.completed
    if progress.rate_per_sec and done >= 3 * max(progress.in_flight, 1):
        eta = progress.eta_hours if progress.eta_hours is not None else eta
    if eta is not None and eta > limit * (ETA_OVER if "eta" in standing else 1.0):
        why = f": {verdict.bound_by}" if verdict is not None and verdict.bound_by else ""
        yield Wrong("eta", f"ETA {duration(eta)}, over the {duration(limit)} allowed{why}", "error")


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
