"""The progress header: how far, how fast, when done, what was lost, what lies in S3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console import model
from console.text import bar, hours, moment, number, percent, size
from console.widgets.paint import Line, Painted, Part, fit, spread, width_of
from remote.protocol import Progress

if TYPE_CHECKING:
    from console.app import StokerApp

_STATUS = {
    "running": "good",
    "paused": "warn",
    "draining": "warn",
    "done": "good",
    "stopped": "warn",
    "failed": "bad",
}


def _pair(label: str, value: str, style: str = "strong") -> list[Part]:
    return [(value, style), (f" {label}", "dim")]


def header(state: model.State, now: float, width: int) -> list[Line]:
    """Three lines that fit ``width``; what does not fit is left out from the end."""
    progress = state.progress
    if state.received is None:
        return [[("waiting for the first look at the target …", "dim")]]
    sums = model.fleet(state)
    if progress is None and state.link.state == "replay":
        return [
            [("A recording of the servers; the run's own counts are not in it.", "dim")],
            fit(
                [
                    _pair("servers ready", f"{sums.ready}/{sums.servers}"),
                    _pair("tok/s", number(sums.gen_tok_s)),
                    _pair("slots", f"{sums.running}/{sums.max_running}")
                    if sums.max_running
                    else [],
                    _pair("kW", number(sums.power_w / 1000, 1)) if sums.power_w else [],
                ],
                width,
            ),
        ]
    if progress is None:
        return [
            [("No run here yet.  ", "strong"), ("s", "bold accent"), (" starts one", "dim")],
            fit([_pair("servers ready", f"{sums.ready}/{sums.servers}")], width),
        ]
    return [
        spread(_how_far(state, progress, now, width), [], width),
        fit(_how_fast(state, progress, sums, now), width),
        fit(_what_else(state, progress, width), width),
    ]


def _how_far(state: model.State, progress: Progress, now: float, width: int) -> Line:
    """Done of all, a bar, and whether anything is at work."""
    faded = model.stale(state, now)
    ended = progress.status in ("done", "stopped", "failed")
    status = progress.status if state.run.alive or ended else "not running"
    style = "dim" if faded else _STATUS.get(status, "bad")
    share = progress.completed / progress.total if progress.total else None
    title: list[Part] = [
        (f"{progress.completed:,}", "bold strong" if not faded else "dim"),
        (f" / {progress.total:,} ", "dim"),
        (percent(share, 1), f"bold {style}"),
    ]
    word: list[Part] = [(f" {status}", style)]
    filled, rest = bar(share, max(4, width - width_of(title) - width_of(word) - 3))
    return [*title, ("  ", "text"), (filled, style), (rest, "on-panel"), *word]


def _how_fast(
    state: model.State, progress: Progress, sums: model.Fleet, now: float
) -> list[list[Part]]:
    """When done, and the rates; those of a run that is not alive were another time's."""
    when: list[Part] = []
    between: list[Part] = []
    estimate = model.eta(state, now)
    alive = state.run.alive
    if progress.status == "done":
        when = [("done", "bold good"), (f" in {hours(progress.elapsed_hours)}", "dim")]
    elif estimate.hours is not None and alive:
        over = state.target.alerts.eta_hours_over if state.target else None
        tone = "bold bad" if over is not None and estimate.hours > over else "bold strong"
        when = [
            ("done ", "dim"),
            (moment(estimate.at, now), tone),
            (" in ", "dim"),
            (hours(estimate.hours), tone),
        ]
        if estimate.low is not None and estimate.high is not None:
            low, high = hours(estimate.low), hours(estimate.high)
            if low != high:
                between = [(f"{low.removesuffix(' h')}–{high}", "dim")]
    speed = progress.tok_s if alive and progress.tok_s is not None else sums.gen_tok_s
    overall = model.overall_rate(progress)
    return [
        when,
        _pair("prompts/s", number(progress.rate_per_sec, 2)) if alive else [],
        _pair("tok/s", number(speed)),
        between,
        _pair("slots", f"{sums.running}/{sums.max_running}") if sums.max_running else [],
        _pair("overall", f"{number(overall, 2)}/s", "text") if overall else [],
        _pair("tok/answer", number(progress.avg_output_tokens), "text"),
        _pair("kW", number(sums.power_w / 1000, 1), "text") if sums.power_w else [],
    ]


def _what_else(state: model.State, progress: Progress, width: int) -> list[list[Part]]:
    """What was lost, what lies in S3, what is still open; of a run that is not alive nothing is
    in flight."""

    def count(label: str, value: int) -> list[Part]:
        return _pair(label, f"{value:,}", "text") if value else []

    failures = model.by_count(progress.failures)
    retries = model.by_count(progress.retries, 2)
    lost: list[Part] = [
        ("failed ", "dim"),
        (f"{progress.failed:,}", "bold bad" if progress.failed else "text"),
        (f" ({failures})" if failures and width > 100 else "", "dim"),
    ]
    s3: list[Part] = []
    if (state.target is not None and state.target.run.s3.bucket) or progress.s3_uploaded:
        s3 = [("S3 ", "dim"), (f"{progress.s3_uploaded:,}", "text"), (" files ", "dim")]
        s3.append((size(progress.s3_bytes), "text"))
        if progress.s3_error:
            s3.append((f" {progress.s3_error}", "bad"))
        elif progress.not_in_s3:
            s3.append((f" {progress.not_in_s3:,} behind", "dim"))
    alive = state.run.alive
    disk = state.host.disk_free
    return [
        lost,
        s3,
        count("set aside", progress.set_aside),
        count("wait for a retry", progress.waiting_retry) if alive else [],
        count("on probation", progress.on_probation),
        _pair("in flight", f"{progress.in_flight:,}", "text") if alive else [],
        _pair("batches", f"{progress.batch_files:,}", "text"),
        [("sent again: ", "dim"), (retries, "text")] if retries else [],
        [("disk free ", "dim"), (size(disk), "text")] if disk else [],
    ]


class ProgressHeader(Painted):
    """Three lines under the top bar of the fleet screen."""

    app: StokerApp

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        return header(self.app.state, self.app.now(), width)
