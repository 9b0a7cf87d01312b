"""The run in numbers and in words: outcomes by source, the mix, the newest answers, files."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import msgspec
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll

from console import model
from console.screens.base import StokerScreen, set_height
from console.status import disagreements
from console.text import bar, hours, number, percent, short, size, visible
from console.widgets.mix import OUTCOMES, mix_lines, outcome_lines
from console.widgets.newest import batch_lines, newest_lines
from console.widgets.paint import Line, Part, Tall, clip, faded, gpu_style, pad
from console.widgets.progress import ProgressHeader
from remote.protocol import (
    Answer,
    Answers,
    Batches,
    Mix,
    Progress,
    ReadAnswers,
    ReadBatches,
    ReadMix,
)

if TYPE_CHECKING:
    from console.app import StokerApp

FILES_S = 15.0
"""Seconds between two looks at the batch files and the mix, while this screen is in front."""
ANSWERS_S = 4.0
"""Seconds between two looks at the newest answers."""
CHARS = 240
"""Of each text of an answer: a line is shown."""


@dataclass
class Told:
    """What the far side told when it was last asked; None before."""

    batches: Batches | None = None
    completed: int = 0
    """What progress.json said when ``batches`` were told: numbers of one moment are compared."""
    mix: Mix | None = None
    newest: Sequence[Answer] | None = None
    failed: Sequence[Answer] | None = None


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


def aside_why(progress: Progress) -> str:
    """``looped 30, empty 12``: why answers were set aside, where the outcomes tell it."""
    why = {name: progress.outcomes.get(name, 0) for name in ("looped", "empty", "bad_tool_call")}
    if sum(why.values()) != progress.set_aside:
        return "answers of no use, not among the results"
    return ", ".join(f"{n} {c:,}" for n, c in sorted(why.items(), key=lambda one: -one[1]) if c)


def run_lines(state: model.State, width: int) -> list[Line]:
    """The left half: how prompts ended, and what had to be sent again."""
    progress = state.progress
    if progress is None:
        return []
    lines = count_lines("Outcomes", progress.outcomes, width)
    lines += [[], *count_lines("Given up, by cause", progress.failures, width, "bad")]
    lines += [
        [],
        *count_lines("Attempts that were sent again, by cause", progress.retries, width, "warn"),
    ]

    def pair(label: str, value: str, style: str = "text") -> Line:
        return clip([(pad(f"  {label}", 24), "dim"), (value, style)], width)

    lines += [[], [("Open ends", "bold text")]]
    if progress.set_aside:
        lines.append(pair("set aside", f"{progress.set_aside:,}: {aside_why(progress)}", "warn"))
    waits = f"{progress.waiting_retry:,} for a retry, {progress.on_probation:,} on probation"
    lines.append(pair("waiting", waits))
    if progress.suspects and state.run.alive:
        each = "each is tried alone on a server"
        lines.append(pair("suspects", f"{progress.suspects:,} may kill servers: {each}", "warn"))
    kept, lost = progress.tokens_kept, progress.tokens_lost
    interrupted = f"{progress.partial:,} to be continued, {progress.continued:,} continued"
    lines.append(pair("interrupted answers", interrupted))
    if kept or lost:
        share = kept / (kept + lost)
        text = f"{short(kept)} tokens kept, {short(lost)} lost ({percent(share)} kept)"
        lines.append(pair("", text, "good" if lost <= kept else "warn"))
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
        doing = "a suspect alone" if work.alone else work.state
        tone = "dim" if not alive else "good" if doing == "run" else "warn"
        line: list[Part] = [
            (f"{number(gpu)} ", "dim" if gpu is None else f"bold {gpu_style(gpu)}"),
            (pad(f"{work.slots}", 5, ">"), "text"),
            (pad(number(work.in_flight if alive else None), 11, ">"), "text"),
            (pad(f"{work.completed:,}", 10, ">"), "text"),
            (pad(short(work.output_tokens), 10, ">"), "text"),
            (f"  {doing if alive else 'not running'}", tone),
            (f"  {visible(work.problem)}" if work.problem else "", "bad"),
            (f"  {url}", "dim"),
        ]
        lines.append(clip(line, width))

    def pair(label: str, value: str, style: str = "text") -> Line:
        return clip([(pad(f"  {label}", 22), "dim"), (value, style)], width)

    run = state.run
    lines += [
        [],
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


def _side_by_side(left: list[Line], right: list[Line], width: int) -> list[Line]:
    half = width // 2 - 1
    lines: list[Line] = []
    for index in range(max(len(left), len(right))):
        used = clip(left[index] if index < len(left) else [], half)
        gap = half + 2 - sum(len(text) for text, _ in used)
        two = right[index] if index < len(right) else []
        lines.append([*used, (" " * max(0, gap), "text"), *two])
    return lines


def shares_lines(told: Told, waiting: Mapping[str, int], width: int) -> list[Line]:
    """The mix, and outcomes by source."""
    mix = told.mix
    if mix is None or not (mix.sources or mix.counting):
        return []
    table = outcome_lines(mix.sources, width, waiting)
    return [*mix_lines(mix, width), [], *table, *([[]] if table else [])]


def live_lines(told: Told, width: int, rows: int) -> list[Line]:
    """The newest answers, and the newest that were given up on."""
    lines: list[Line] = []
    if told.newest is not None:
        lines += [*newest_lines("Newest answers", told.newest[:rows], width, "none yet"), []]
    if told.failed:
        failed = told.failed[: max(3, rows // 2)]
        lines += [*newest_lines("Newest that were given up", failed, width, ""), []]
    return lines


class RunText(Tall):
    """Everything under the header; halves stand side by side where there is room."""

    app: StokerApp

    def __init__(self) -> None:
        super().__init__()
        self.told = Told()

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`; grey where it is no longer so."""
        lines = self._said(width)
        return faded(lines) if model.stale(self.app.state, self.app.now()) else lines

    def _said(self, width: int) -> list[Line]:
        state, told = self.app.state, self.told
        if state.progress is None:
            return [[("No run here yet; ", "dim"), ("s", "bold accent"), (" starts one.", "dim")]]
        lines: list[Line] = []
        waiting = state.progress.waiting_by_source if state.run.alive else {}
        then = msgspec.structs.replace(state.progress, completed=told.completed)
        run = msgspec.structs.replace(state.run, progress=then)
        for wrong in disagreements(replace(state, run=run), told.batches):
            for index, row in enumerate(textwrap.wrap(wrong["text"], max(20, width - 2))):
                lines.append([("  " if index else "▲ ", "warn"), (row, "warn")])
        wide, widest = width >= 100, width >= 190
        tall = self.app.size.height
        files: list[Line] = []
        if told.batches is not None and told.batches.newest:
            spec = state.target.run.s3 if state.target is not None else None
            count = 12 if tall >= 50 else 5
            uploads = spec is not None and bool(spec.bucket)
            files = batch_lines(
                told.batches.newest[:count], width // 2 - 1 if wide else width, uploads=uploads
            )
        rows = 10 if tall >= 50 else 5
        if not wide:
            own = [*run_lines(state, width), [], *work_lines(state, width), [], *files]
            return [
                *lines,
                *shares_lines(told, waiting, width),
                *live_lines(told, width, rows),
                *own,
            ]
        half = width // 2 - 1
        if widest:
            live = live_lines(told, width - half - 2, rows)
            lines += _side_by_side(shares_lines(told, waiting, half), live, width)
        else:
            lines += [*shares_lines(told, waiting, width), *live_lines(told, width, rows)]
        left = run_lines(state, half)
        right = work_lines(state, width - half - 2)
        if files:
            shorter = left if len(left) <= len(right) else right
            shorter += [[], *files]
        return [*lines, *_side_by_side(left, right, width)]


class RunScreen(StokerScreen):
    """The progress header, then every count and the newest of what was written."""

    SCREEN = "run"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "roll(-1)", show=False),
        Binding("down,j", "roll(1)", show=False),
        Binding("pageup", "roll(-10)", show=False),
        Binding("pagedown", "roll(10)", show=False),
        Binding("home", "roll(-100000)", show=False),
        Binding("end,G", "roll(100000)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._files_at = self._answers_at = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._laid = 0

    def body(self) -> ComposeResult:
        """See :class:`StokerScreen`."""
        yield ProgressHeader()
        with VerticalScroll(can_focus=False):
            yield RunText()

    def show(self) -> None:
        """See :class:`StokerScreen`; the files are asked now and then, one question at a time."""
        super().show()
        busy = self._asking is not None and not self._asking.done()
        if not busy and self.app.state.received is not None and self.is_current:
            self._asking = self.app.spawn(self._ask())

    async def _ask(self) -> None:
        now = self.app.now()
        if now - self._answers_at > ANSWERS_S:
            self._answers_at = now
            await self._look(ReadAnswers(limit=10, chars=CHARS))
            await self._look(ReadAnswers(kind="failed", limit=5, chars=CHARS))
        if now - self._files_at > FILES_S:
            self._files_at = now
            await self._look(ReadBatches())
            await self._look(ReadMix())

    async def _look(self, request: ReadAnswers | ReadBatches | ReadMix) -> None:
        found = await self.app.outbox.ask(request, quiet=True)
        if not self.is_attached:
            return
        told = self.query_one(RunText).told
        match found:
            case Batches():
                told.batches = found
                progress = self.app.state.progress
                told.completed = progress.completed if progress is not None else 0
            case Mix():
                told.mix = found
                if found.counting:
                    self._files_at = self.app.now() - FILES_S + 1
            case Answers() if isinstance(request, ReadAnswers):
                if request.kind == "failed":
                    told.failed = found.answers
                else:
                    told.newest = found.answers
            case _:
                return
        super().show()

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
