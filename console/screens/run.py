"""The run in numbers: outcomes, failures by cause, servers, batch files and uploads."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll

from console import model
from console.screens.base import StokerScreen, set_height
from console.status import disagreements
from console.text import bar, hours, number, percent, short, size, visible
from console.widgets.paint import Line, Part, Tall, clip, gpu_style, pad
from console.widgets.progress import ProgressHeader
from remote.protocol import Batches, ReadBatches

if TYPE_CHECKING:
    from console.app import StokerApp

ASK_S = 15.0
"""Seconds between two looks at the batch files, while this screen is in front."""

OUTCOMES = {
    "ok": "good",
    "length": "info",
    "looped": "warn",
    "empty": "warn",
    "bad_tool_call": "warn",
    "rejected": "bad",
    "failed": "bad",
    "quarantined": "bad",
}


def count_lines(title: str, counts: dict[str, int], width: int, tone: str = "text") -> list[Line]:
    """A heading, then a bar a name, largest first."""
    total = sum(counts.values())
    lines: list[Line] = [[(title, "bold text"), (f"  {total:,}" if total else "", "dim")]]
    for name, count in sorted(counts.items(), key=lambda c: -c[1]):
        share = count / total if total else None
        filled, rest = bar(share, max(4, min(24, width - 44)))
        lines.append(
            clip(
                [
                    (pad(f"  {visible(name)}", 24), "text"),
                    (pad(f"{count:,}", 9, ">"), "bold strong"),
                    (pad(percent(share, 1), 8, ">"), "dim"),
                    ("  ", "text"),
                    (filled, OUTCOMES.get(name, tone)),
                    (rest, "on-panel"),
                ],
                width,
            )
        )
    if not counts:
        lines.append([("  none", "dim")])
    return lines


def run_lines(state: model.State, width: int) -> list[Line]:
    """The left half."""
    progress = state.progress
    if progress is None:
        return [[("No run here yet; ", "dim"), ("s", "bold accent"), (" starts one.", "dim")]]
    lines = count_lines("Outcomes", progress.outcomes, width)
    lines += [[("", "text")], *count_lines("Given up, by cause", progress.failures, width, "bad")]
    lines += [
        [("", "text")],
        *count_lines("Attempts that were sent again, by cause", progress.retries, width, "warn"),
    ]
    return lines


def work_lines(state: model.State, width: int) -> list[Line]:
    """The right half: servers as the run sees them, files, tokens."""
    progress = state.progress
    if progress is None:
        return []
    lines: list[Line] = [
        [("Servers, as the run sees them", "bold text")],
        [(pad("  slots  in flight      done    tokens  state", 50), "dim")],
    ]
    alive = state.run.alive  # else these are the words of a process that is gone
    gpus = {str(info.port): gpu for gpu, info in state.infos.items()}
    for url, work in sorted(progress.servers.items()):
        gpu = gpus.get(url.rstrip("/").rpartition(":")[2])
        tone = "dim" if not alive else "good" if work.state == "run" else "warn"
        line: list[Part] = [
            (f"{number(gpu)} ", "dim" if gpu is None else f"bold {gpu_style(gpu)}"),
            (pad(f"{work.slots}", 5, ">"), "text"),
            (pad(number(work.in_flight if alive else None), 11, ">"), "text"),
            (pad(f"{work.completed:,}", 10, ">"), "text"),
            (pad(short(work.output_tokens), 10, ">"), "text"),
            (f"  {work.state if alive else 'not running'}", tone),
            (f"  {visible(work.problem)}" if work.problem else "", "bad"),
            (f"  {url}", "dim"),
        ]
        lines.append(clip(line, width))

    def pair(label: str, value: str, style: str = "text") -> Line:
        return clip([(pad(f"  {label}", 22), "dim"), (value, style)], width)

    run = state.run
    lines += [
        [("", "text")],
        [("Files and tokens", "bold text")],
        pair("prompts", visible(run.prompts)),
        pair("output", visible(run.output)),
        pair(
            "batches",
            f"{progress.batch_files:,} files, {progress.batch_records:,} records, "
            f"{size(progress.batch_bytes)}",
        ),
        pair(
            "in S3",
            f"{progress.s3_uploaded:,} files, {size(progress.s3_bytes)}; "
            f"{progress.not_in_s3:,} records not yet",
        ),
        pair("output tokens", f"{number(progress.total_output_tokens)}"),
        pair("input tokens", f"{number(progress.total_input_tokens)}"),
        pair("elapsed", hours(progress.elapsed_hours)),
        pair("run id", f"{progress.run_id}  pid {run.pid or '–'}", "dim"),
    ]
    if progress.message:
        lines.append(pair("it says", visible(progress.message)))
    return lines


class RunText(Tall):
    """Both halves, side by side where there is room."""

    app: StokerApp
    batches: Batches | None = None
    """What the batch files themselves say, as last asked."""

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        state = self.app.state
        lines: list[Line] = []
        for wrong in disagreements(state, self.batches):
            for index, row in enumerate(textwrap.wrap(wrong["text"], max(20, width - 2))):
                lines.append([("  " if index else "▲ ", "warn"), (row, "warn")])
        if width < 100:
            return [*lines, *run_lines(state, width), [("", "text")], *work_lines(state, width)]
        half = width // 2 - 1
        left, right = run_lines(state, half), work_lines(state, width - half - 2)
        for index in range(max(len(left), len(right))):
            one = list(left[index]) if index < len(left) else []
            used = clip(one, half)
            gap = half + 2 - sum(len(t) for t, _ in used)
            two = list(right[index]) if index < len(right) else []
            lines.append([*used, (" " * max(0, gap), "text"), *two])
        return lines


class RunScreen(StokerScreen):
    """The progress header, then every count."""

    SCREEN = "run"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "roll(-1)", show=False),
        Binding("down,j", "roll(1)", show=False),
        Binding("pageup", "roll(-10)", show=False),
        Binding("pagedown", "roll(10)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0.0
        self._laid = 0

    def body(self) -> ComposeResult:
        """See :class:`StokerScreen`."""
        yield ProgressHeader()
        with VerticalScroll():
            yield RunText()

    def show(self) -> None:
        """See :class:`StokerScreen`; the files are asked now and then."""
        super().show()
        now = self.app.now()
        if now - self._asked > ASK_S and self.app.replay is None:
            self._asked = now
            self.app.spawn(self._ask())

    async def _ask(self) -> None:
        found = await self.app.ask(ReadBatches(), quiet=True)
        if isinstance(found, Batches) and self.is_attached:
            self.query_one(RunText).batches = found
            self.query_one(RunText).show()

    def action_roll(self, by: int) -> None:
        """Scroll."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def lay_out(self) -> None:
        """See :class:`StokerScreen`."""
        set_height(self.query_one(ProgressHeader), 3)
        text = self.query_one(RunText)
        rows = text.get_content_height(self.size, self.size, max(20, self.size.width - 2))
        if rows != self._laid:
            self._laid = rows
            text.refresh(layout=True)
