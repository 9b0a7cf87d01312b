"""Series over time, drawn by plotext in another process; the last picture stands meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console import model
from console.text import clock, duration, moment, same_day, short
from console.trend import Trend, nice_top, shrink, steps_of
from console.widgets.marks import apart, mark_line, spread_parts
from console.widgets.paint import (
    GPU_COLOURS,
    Line,
    Painted,
    Part,
    clip,
    gpu_style,
    spread,
    width_of,
)
from console.widgets.plot_worker import AXES, MARKS, TICKS

if TYPE_CHECKING:
    from console.app import StokerApp

FIRST_COLOUR = 16
"""GPU *i* is colour ``16 + i % 8`` on the way to plotext and back."""

DRAW_S, IDLE_S = 3.0, 10.0
"""Seconds between two pictures of the newest data at least, and while no server has a request:
then they only slide."""

LEAST_MARKED = 10
"""Rows of a chart that has a line of marks."""

PATIENCE = 3
"""After so many failures in a row drawing is tried only now and then."""

AGAIN_S = 60.0

_CODES = {AXES: "faint", TICKS: "dim", MARKS: "accent"}


class Plotter:
    """The drawing process: one, started when first needed, started again should it die."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._id = 0
        self._failures = 0
        self._failed_at = 0.0
        self.problem = ""
        """Why the last picture could not be drawn; empty once one was."""

    @property
    def due(self) -> bool:
        """Whether what could not be drawn is to be tried again."""
        return bool(self.problem) and time.monotonic() - self._failed_at >= AGAIN_S

    async def draw(self, ask: dict[str, Any]) -> list[list[tuple[str, int | None]]] | None:
        """Rows of coloured runs, or None where it could not be drawn (``problem`` says why)."""
        async with self._lock:
            if self._failures >= PATIENCE and not self.due:
                return None
            try:
                answer = await asyncio.wait_for(self._ask(ask), 20)
            except (OSError, ValueError, TimeoutError) as error:
                self._fail()
                self.problem = f"plots: {error or 'the drawing process does not answer'}"
                await self._end()
                return None
            if "error" in answer:
                self._fail()
                self.problem = f"plots: {answer['error']}"
                return None
            self._failures, self.problem = 0, ""
            return [[(str(t), c) for t, c in row] for row in answer["rows"]]

    def _fail(self) -> None:
        self._failures += 1
        self._failed_at = time.monotonic()

    async def _ask(self, ask: dict[str, Any]) -> dict[str, Any]:
        if self._process is None or self._process.returncode is not None:
            script = Path(__file__).with_name("plot_worker.py")
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # this folder's modules must not shadow the library's
                str(script),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=8 << 20,
                start_new_session=True,  # the terminal's ctrl+c is the console's alone
            )
        self._id += 1
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({**ask, "id": self._id}).encode() + b"\n")
        await stdin.drain()
        line = await stdout.readline()
        if not line:
            raise OSError("the drawing process ended")
        answer: dict[str, Any] = json.loads(line)
        if answer.get("id") != self._id:
            raise ValueError("the drawing process answered something else")
        return answer

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def close(self) -> None:
        """End the process."""
        await self._end()


@dataclass(frozen=True)
class Metric:
    """One series name, and how it is drawn."""

    name: str
    label: str = ""


@dataclass(frozen=True)
class Plot:
    """What one chart shows."""

    title: str
    metrics: tuple[Metric, ...]
    unit: str = ""
    top: float | None = None
    """Fixed scale limit; None rounds the largest value up."""
    least: float = 1.0


THROUGHPUT = Plot("tok/s per GPU", (Metric("gen_tok_s"),), least=100)
MAMBA = Plot("Mamba state in use", (Metric("mamba_usage"),), "%", 1.0)
KV = Plot("KV cache in use", (Metric("kv_usage"),), "%", 1.0)
CACHE = Plot("cache in use", (Metric("mamba_usage", "mamba"), Metric("kv_usage", "kv")), "%", 1.0)
RUNNING = Plot("running requests", (Metric("running"),), least=8)
QUEUED = Plot("queued requests", (Metric("queued"),), least=8)
HEAT = Plot("temperature °C", (Metric("temperature_c"),), least=100)
POWER = Plot("power W", (Metric("power_w"),), least=100)
BUSY = Plot("GPU busy", (Metric("utilization"),), "%", 1.0)

SETS: tuple[tuple[tuple[Plot, ...], tuple[Plot, ...]], ...] = (
    ((THROUGHPUT, MAMBA, KV), (THROUGHPUT, CACHE)),
    ((RUNNING, QUEUED), (RUNNING, QUEUED)),
    ((HEAT, POWER, BUSY), (HEAT, POWER)),
)
"""What `m` goes through: for a wide screen, and for a narrow one."""


def _value(plot: Plot, value: float) -> str:
    return f"{value * 100:.0f}%" if plot.unit == "%" else short(value)


def _points(trend: Trend, width: int) -> int:
    """Dots side by side in a chart of so many cells."""
    return min(trend.points, max(16, (width - 6) * 2))


def request(
    plot: Plot,
    trend: Trend,
    until: float,
    width: int,
    height: int,
    marks: Sequence[float],
    focus: int | None,
    odd: Collection[int] = (),
    now: float | None = None,
) -> dict[str, Any]:
    """What to ask of the drawing process for this window; ``now`` where it ends earlier."""
    points = _points(trend, width)
    chosen: list[dict[str, Any]] = []
    labels: list[list[Any]] = []
    top = plot.top or 0.0
    for metric in plot.metrics:
        early: list[float] = []
        for gpu in trend.gpus(metric.name):
            values = shrink(trend.column(metric.name, gpu, until), points)
            known = [v for v in values if v is not None]
            if not known:
                continue
            if plot.top is None:
                top = max(top, *known)
            early += [v for v in values[: points // 8] if v is not None]
            code = FIRST_COLOUR + gpu % GPU_COLOURS
            if focus is not None and gpu != focus:
                code = AXES
            series = {
                "color": code,
                "values": [None if v is None else round(v, 4) for v in values],
                "focus": gpu == focus or (focus is None and gpu in odd),
            }
            chosen.append(series)
        if metric.label and early:
            middle = sum(early) / len(early)
            labels.append([points * 0.02, min(0.97, middle + 0.09), metric.label, TICKS])
    if plot.top is None:
        top = nice_top(max(top, plot.least))
    chosen.sort(key=lambda s: bool(s.pop("focus")))
    start = until - trend.span
    positions, words = _time_ticks(start, until, points, width, now)
    steps = steps_of(top) if height >= 10 else 2
    heights = [top * i / steps for i in range(steps + 1)]
    return {
        "width": width,
        "height": height,
        "points": points,
        "series": chosen,
        "top": top,
        "x": [positions, words],
        "y": [heights, [_value(plot, v) for v in heights]],
        "marks": [
            round((m - start) / trend.span * (points - 1), 1) for m in marks if start < m < until
        ],
        "labels": labels,
    }


def _time_ticks(
    start: float, until: float, points: int, width: int, now: float | None
) -> tuple[list[float], list[str]]:
    """A window that follows says how long ago, an earlier one when."""
    count = 2 if width < 40 else 3 if width < 70 else 5
    long = until - start > 20 * 3600
    other = now is not None and not same_day(start, now)
    positions, words = [], []
    for i in range(count):
        at = start + (until - start) * i / (count - 1)
        positions.append(round((points - 1) * i / (count - 1), 1))
        if now is not None and (long or other):
            words.append(moment(at, now))
        elif long:
            words.append("now" if i == count - 1 else f"{duration(until - at)} ago")
        else:
            words.append(clock(at)[:5])
    return positions, words


def _axis(row: list[tuple[str, int | None]]) -> int:
    """Cells of a drawn row up to the end of its axis."""
    wide = 0
    for text, code in row:
        wide += len(text)
        if code == AXES:
            return wide
    return 0


class Chart(Painted):
    """One plot under its title line."""

    app: StokerApp

    def __init__(self, plot: Plot) -> None:
        super().__init__()
        self.plot = plot
        self._rows: list[list[tuple[str, int | None]]] = []
        self._drawn: tuple[object, ...] = ()
        self._drawing: asyncio.Task[None] | None = None

    def set_plot(self, plot: Plot) -> None:
        """Show something else."""
        if plot is not self.plot:
            self.plot = plot
            self._rows = []
            self._drawn = ()
            self.show()

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        app = self.app
        marks = height >= LEAST_MARKED
        self._ask(width, height - 1 - marks)
        problem = app.plotter.problem
        faded = bool(problem) or model.stale(app.state, app.now())
        lines: list[Line] = [self._title(width, faded, problem)]
        if not self._rows:
            lines.append([("  " + (problem or "drawing …"), "bad" if problem else "dim")])
            return lines
        if marks:
            left = _axis(self._rows[0])
            end = app.lookback.end
            start = end - app.lookback.window.span
            marked = mark_line(
                app.state, start, end, left, width, app.focus_gpu, app.lookback.events
            )
            lines.append(marked)
        lines += [
            [(text, self._style(code, faded)) for text, code in row]
            for row in self._rows[: height - len(lines)]
        ]
        return lines

    def _title(self, width: int, faded: bool, problem: str) -> Line:
        """What it is, of which time, the ends of what is now, and which colour is which GPU; over
        a picture that is not drawn any more, why."""
        app = self.app
        state, numbers = app.state, app.state.numbers
        metric = self.plot.metrics[0].name
        odd = apart(state, metric)
        legend: list[Part] = []
        if width >= 44 and len(numbers) <= GPU_COLOURS:
            for gpu in numbers:
                style = "dim" if faded else "reverse warn" if gpu in odd else gpu_style(gpu)
                legend += [(f"{gpu}", style), (" ", "text")]
        title: list[Part] = [
            (f" {self.plot.title}", "bold text"),
            (f"  {app.lookback.text}  ", "dim"),
        ]
        if app.lookback.loaded and not app.lookback.window.gpus(metric):
            title.append(("nothing recorded", "warn"))
        if problem and self._rows:
            return clip([*title, (problem, "bad")], width)
        ends: list[Part] = []
        if not faded and app.lookback.until is None:
            ends = spread_parts(state, metric, share=self.plot.unit == "%")
        room = width - width_of(title) - width_of(legend) - 3
        for shown in (ends, ends[:-1]):
            if shown and width_of(shown) <= room:
                title += shown
                break
        return spread(title, legend, width)

    @staticmethod
    def _style(code: int | None, faded: bool) -> str:
        if code is None:
            return "text"
        if code in _CODES:
            return _CODES[code]
        return "dim" if faded else gpu_style(code - FIRST_COLOUR)

    def _ask(self, width: int, height: int) -> None:
        """Have it drawn where the picture would differ from the last one by a dot."""
        app = self.app
        if width < 24 or height < 4 or (self._drawing is not None and not self._drawing.done()):
            return
        trend, until = app.lookback.window, app.lookback.end
        marks = [e.since for e in app.state.epochs]
        if app.state.swap is not None:
            marks.append(app.state.swap.ended or 0.0)
        at_work = any(server.running for server in app.state.servers.values())
        step = max(trend.span / _points(trend, width), DRAW_S if at_work else IDLE_S)
        key = (self.plot, width, height, int(until / step), trend.loads, app.focus_gpu, len(marks))
        if key == self._drawn and not app.plotter.due:
            return
        self._drawn = key
        odd = apart(app.state, self.plot.metrics[0].name)
        ended = app.state.time if app.lookback.until is not None else None
        ask = request(self.plot, trend, until, width, height, marks, app.focus_gpu, odd, ended)
        self._drawing = asyncio.create_task(self._draw(ask))

    async def _draw(self, ask: dict[str, Any]) -> None:
        rows = await self.app.plotter.draw(ask)
        if rows is not None:
            self._rows = rows
        if self.is_attached:
            self.show()

    def on_unmount(self) -> None:
        """Nothing is drawn for a chart that is gone."""
        if self._drawing is not None:
            self._drawing.cancel()
