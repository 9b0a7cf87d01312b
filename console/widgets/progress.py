"""The progress header: how far, how fast, when done, what was lost, what lies in S3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console import model, reckon, standing
from console.text import bar, duration, number, percent, size, visible
from console.widgets.paint import Line, Painted, Part, faded, fit, spread, width_of
from remote.protocol import HostState, Progress

if TYPE_CHECKING:
    from console.app import StokerApp

GIB = 1 << 30
GAP = "   "
"""Between two groups of numbers."""

FIRST = ("set aside", "wait for a retry", "suspects")
"""Counts that are seen at every width."""

BRIEF_BELOW = 100
"""Cells under which units are cut, so that no number has to be."""

STUCK_S = 1800.0
"""After so long without another file in S3, while there are records for one, it is said."""


def _pair(label: str, value: str, style: str = "strong") -> list[Part]:
    return [(value, style), (f" {label}", "dim")]


def header(state: model.State, now: float, width: int) -> list[Line]:
    """Three lines that fit ``width``; what does not fit is left out from the end. Grey where they
    are no longer so."""
    lines = _lines(state, now, width)
    return faded(lines) if model.stale(state, now) else lines


def _lines(state: model.State, now: float, width: int) -> list[Line]:
    progress = state.progress
    if state.received is None:
        return [[("waiting for the first look at the target …", "dim")]]
    sums = reckon.fleet(state)
    if progress is None and state.link.state == "replay":
        return [
            [
                (
                    "A recording of the servers; the run's own counts are not in it"
                    + (" yet." if state.link.run_later else "."),
                    "dim",
                )
            ],
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
        spread(_how_far(state, progress, width), [], width),
        fit(_how_fast(state, progress, sums, now, width), width),
        fit(_what_else(state, progress, width), width),
    ]


def _how_far(state: model.State, progress: Progress, width: int) -> Line:
    """Done of all, a bar, and whether anything is at work."""
    status = standing.word(state, progress)
    style = standing.STYLE.get(status, "bad")
    share = progress.completed / progress.total if progress.total else None
    title: list[Part] = [
        (f"{progress.completed:,}", "bold strong"),
        (f" / {progress.total:,} ", "dim"),
        (percent(share, 1), f"bold {style}"),
    ]
    word: list[Part] = [(f" {status}", style)]
    filled, rest = bar(share, max(4, width - width_of(title) - width_of(word) - 3))
    return [*title, ("  ", "text"), (filled, style), (rest, "on-panel"), *word]


def _how_fast(
    state: model.State, progress: Progress, sums: reckon.Fleet, now: float, width: int
) -> list[list[Part]]:
    """When done, and the rates; those of a run that is not alive were another time's."""
    alive = state.run.alive
    moving = alive and progress.status not in standing.HELD  # else a mean of what was
    # The run counts tokens with their answers: until the first one ends only the servers know.
    speed = progress.tok_s if moving and progress.tok_s else sums.gen_tok_s
    answer = progress.avg_output_tokens
    return [
        standing.when(state, progress, now),
        standing.rate(state, progress, brief=width < BRIEF_BELOW),
        _pair("tok/s", number(speed)),
        _pair("slots", f"{sums.running}/{sums.max_running}") if sums.max_running else [],
        _pair("tok/answer", number(answer), "text") if answer else [],
        _pair("kW", number(sums.power_w / 1000, 1), "text") if sums.power_w else [],
    ]


def _what_else(state: model.State, progress: Progress, width: int) -> list[list[Part]]:
    """What was lost, what lies in S3, what is still open; of a run that is not alive nothing is
    in flight."""

    lost: list[Part] = [
        ("failed ", "dim"),
        (f"{progress.failed:,}", "bold bad" if progress.failed else "text"),
    ]
    counts = dict(standing.counts(state, progress))
    open_ends = [_pair(name, f"{counts.pop(name):,}", "text") for name in FIRST if name in counts]
    s3 = _in_s3(state, progress, width)
    room = width - sum(width_of(group) + len(GAP) for group in (lost, *open_ends, s3))
    causes = reckon.by_count(progress.failures, 4 if width > 100 else 2)
    if causes and len(causes) + 3 <= room:  # no count gives way to its causes
        lost.append((f" ({causes})", "dim"))
        room -= len(causes) + 3
    if progress.s3_error:
        reason = f": {visible(progress.s3_error)}"  # a notice has it whole
        if len(reason) > room:
            reason = f"{reason[: room - 1]}…" if room > 12 else " ✖"
        s3.append((reason, "bad"))
    retries = reckon.by_count(progress.retries, 2)
    return [
        lost,
        *open_ends,
        s3,
        *(_pair(name, f"{count:,}", "text") for name, count in counts.items()),
        _pair("batches", f"{progress.batch_files:,}", "text"),
        [("sent again: ", "dim"), (retries, "text")] if retries else [],
        *_host(state.host),
    ]


def _in_s3(state: model.State, progress: Progress, width: int) -> list[Part]:
    """What lies there and what waits for it."""
    wanted = state.target is not None and state.target.run.s3.bucket
    if not wanted and not progress.s3_uploaded:
        return []
    parts: list[Part] = [("S3 ", "dim"), (f"{progress.s3_uploaded:,}", "text")]
    parts.append((" file" if progress.s3_uploaded == 1 else " files", "dim"))
    parts.append((f" {size(progress.s3_bytes)}" if width > 100 else "", "text"))
    if progress.not_in_s3:
        parts.append((f", {progress.not_in_s3:,} records wait", "dim"))
        still = state.time - state.uploads[1]
        if state.run.alive and still > STUCK_S and not progress.s3_error:
            parts.append((f", no file for {duration(still)}", "warn"))
    return parts


def _host(host: HostState) -> list[list[Part]]:
    """What the container has left."""
    used, whole = host.memory_used, host.memory_total
    memory: list[Part] = []
    if used is not None and whole:
        tone = "bad" if used > 0.95 * whole else "warn" if used > 0.85 * whole else "text"
        memory = [("RAM ", "dim"), (f"{used / GIB:,.0f}/{whole / GIB:,.0f} GiB", tone)]
    disk: list[Part] = [("disk free ", "dim"), (size(host.disk_free), "text")]
    cpu: list[Part] = [("CPU ", "dim"), (percent(host.cpu), "text")]
    if host.load_1m is not None:
        cpu += [(" load ", "dim"), (number(host.load_1m, 1), "text")]
    return [memory, disk if host.disk_free else [], cpu if host.cpu is not None else []]


class ProgressHeader(Painted):
    """Three lines under the top bar of the fleet screen."""

    app: StokerApp

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        return header(self.app.state, self.app.now(), width)
