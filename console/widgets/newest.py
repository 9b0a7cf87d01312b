"""The newest of what the run has written, a line each: answers, and what was given up on."""

from __future__ import annotations

from collections.abc import Sequence

from console.text import number, visible
from console.widgets.mix import OUTCOMES
from console.widgets.paint import Line, Part, clip, pad
from remote.protocol import Answer, BatchFile

_STATE = {
    "open": ("○ open", "info"),
    "sealed": ("● here only", "warn"),
    "uploaded": ("✔ in S3", "good"),
    "local_deleted": ("✔ only in S3", "good"),
}


def answer_line(answer: Answer, width: int) -> Line:
    """Index, outcome, source, tokens, and how it begins; of one given up on, why."""
    said = answer.reason or answer.content or answer.tool_calls or "(neither text nor call)"
    continued = f"{answer.segments} parts  " if answer.segments > 1 else ""
    line: list[Part] = [
        (pad(f"{answer.index}", 9, ">"), "dim"),
        (" ", "text"),
        (pad(visible(answer.outcome), 13), OUTCOMES.get(answer.outcome, "warn")),
        (" ", "text"),
        (pad(visible(answer.source), 12), "dim"),
        (" ", "text"),
        (pad(number(answer.completion_tokens), 6, ">") + " tok  ", "text"),
        (continued, "info"),
        (visible(" ".join(said.split()), 400), "bad" if answer.reason else "text"),
    ]
    return clip(line, width)


def newest_lines(title: str, found: Sequence[Answer], width: int, empty: str) -> list[Line]:
    """A heading and a line an answer."""
    lines: list[Line] = [[(title, "bold text")]]
    lines += [answer_line(answer, width) for answer in found]
    if not found:
        lines.append([(f"  {empty}", "dim")])
    return lines


def batch_lines(found: Sequence[BatchFile], width: int, *, uploads: bool) -> list[Line]:
    """The newest batch files with their state; without uploads, a sealed one is simply done."""
    lines: list[Line] = [[("Newest batch files", "bold text")]]
    for batch in found:
        sign, style = _STATE[batch.state]
        if batch.state == "sealed" and not uploads:
            sign, style = "✔ sealed", "good"
        at = batch.uploaded_at or batch.last_at
        line: list[Part] = [
            (pad(f"  {visible(batch.name.partition('.')[0])}", 22), "text"),
            (pad(f"{batch.records}", 5, ">"), "text"),
            (pad(f"{batch.bytes / (1 << 20):.1f} MiB", 11, ">"), "dim"),
            ("  ", "text"),
            (pad(sign, 14), style),
            (at[11:19] and f"{at[11:19]} UTC", "dim"),
        ]
        lines.append(clip(line, width))
    if not found:
        lines.append([("  none yet", "dim")])
    return lines
