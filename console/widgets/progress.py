"""The progress header: how far, how fast, when done, what was lost, what lies in S3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console import model
from console.text import bar, hours, moment, number, percent, size
from console.widgets.paint import Line, Painted, Part, fit, spread, width_of

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
    alive = state.run.alive
    faded = model.stale(state, now)
    status = (
        progress.status
        if alive or progress.status in ("done", "stopped", "failed")
        else "not running"
    )
    style = "dim" if faded else _STATUS.get(status, "bad")
    share = progress.completed / progress.total if progress.total else None
    title: list[Part] = [
        (f"{progress.completed:,}", "bold strong" if not faded else "dim"),
        (f" / {progress.total:,} ", "dim"),
        (percent(share, 1), f"bold {style}"),
    ]
    word: list[Part] = [(f" {status}", style)]
    room = width - width_of(title) - width_of(word) - 3
    filled, rest = bar(share, max(4, room))
    first = [*title, ("  ", "text"), (filled, style), (rest, "on-panel"), *word]

    estimate = model.eta(state, now)
    when: list[Part] = []
    spread_of: list[Part] = []
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
                spread_of = [(f"{low.removesuffix(' h')}–{high}", "dim")]
    overall = model.overall_rate(progress)
    second = fit(
        [
            when,
            _pair("prompts/s", number(progress.rate_per_sec, 2)),
            _pair(
                "tok/s", number(progress.tok_s if progress.tok_s is not None else sums.gen_tok_s)
            ),
            spread_of,
            _pair("slots", f"{sums.running}/{sums.max_running}") if sums.max_running else [],
            _pair("overall", f"{number(overall, 2)}/s", "text") if overall else [],
            _pair("tok/answer", number(progress.avg_output_tokens), "text"),
            _pair("kW", number(sums.power_w / 1000, 1), "text") if sums.power_w else [],
        ],
        width,
    )

    failures = model.by_count(progress.failures)
    retries = model.by_count(progress.retries, 2)
    s3: list[Part] = []
    if (state.target is not None and state.target.run.s3.bucket) or progress.s3_uploaded:
        s3 = [("S3 ", "dim"), (f"{progress.s3_uploaded:,}", "text"), (" files ", "dim")]
        s3.append((size(progress.s3_bytes), "text"))
        if progress.s3_error:
            s3.append((f" {progress.s3_error}", "bad"))
        elif progress.not_in_s3:
            s3.append((f" {progress.not_in_s3:,} behind", "dim"))
    third = fit(
        [
            [
                ("failed ", "dim"),
                (f"{progress.failed:,}", "bold bad" if progress.failed else "text"),
                (f" ({failures})" if failures and width > 100 else "", "dim"),
            ],
            s3,
            _pair("set aside", f"{progress.set_aside:,}", "text") if progress.set_aside else [],
            _pair("wait for a retry", f"{progress.waiting_retry:,}", "text")
            if progress.waiting_retry
            else [],
            _pair("on probation", f"{progress.on_probation:,}", "text")
            if progress.on_probation
            else [],
            _pair("in flight", f"{progress.in_flight:,}", "text"),
            _pair("batches", f"{progress.batch_files:,}", "text"),
            [("sent again: ", "dim"), (retries, "text")] if retries else [],
            [("disk free ", "dim"), (size(state.host.disk_free), "text")]
            if state.host.disk_free
            else [],
        ],
        width,
    )
    return [spread(first, [], width), second, third]


class ProgressHeader(Painted):
    """Three lines under the top bar of the fleet screen."""

    app: StokerApp

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        return header(self.app.state, self.app.now(), width)
