"""The run by source: planned against finished, and what became of each source's prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from console.text import UNKNOWN, number, percent, short, visible
from console.widgets.paint import Line, Part, clip, pad, spread
from remote.protocol import Mix, SourceMix

OUTCOMES: Mapping[str, str] = {
    "ok": "good",
    "length": "info",
    "looped": "warn",
    "empty": "warn",
    "bad_tool_call": "warn",
    "rejected": "bad",
    "failed": "bad",
    "quarantined": "bad",
}
"""Every outcome there is, with its colour, in the order of their columns."""

WAITING = "to retry"
"""The column of prompts that have no outcome yet and are to be sent again."""

APART = 0.05
"""So far may a source's share of what is finished lie from its planned one."""

ENOUGH = 0.02
"""Before so much of the run is done, shares say nothing yet."""


def share_bar(share: float | None, plan: float | None, width: int, style: str) -> list[Part]:
    """A bar of what is, with a mark where it was planned to be."""
    full = 0 if share is None else min(width, round(share * width))
    if share and not full:
        full = 1
    cells = ["█"] * full + [" "] * (width - full)
    mark = None if plan is None else min(width - 1, round(plan * width))
    parts: list[Part] = []
    for at, cell in enumerate(cells):
        tone = style if cell != " " else "on-panel"
        if at == mark:
            cell, tone = "┃", "bold strong on-panel"
        if parts and parts[-1][1] == tone:
            parts[-1] = (parts[-1][0] + cell, tone)
        else:
            parts.append((cell, tone))
    return parts


def _name(source: str) -> str:
    return visible(source) or "(none named)"


def _sum(values: list[int | None]) -> int | None:
    """Of what is known; None where one is not."""
    return None if any(v is None for v in values) else sum(v for v in values if v is not None)


def _of(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def mix_lines(mix: Mix, width: int) -> list[Line]:
    """A heading, a line a source, and the sum."""
    if not mix.sources:
        text = "the prompts are being counted …" if mix.counting else "no prompts file is known"
        return [[("Mix", "bold text"), (f"  {text}", "dim")]]
    rows = mix.sources
    plan = _sum([r.planned for r in rows])
    plan_tokens = _sum([0 if r.planned == 0 else r.planned_output_tokens for r in rows])
    done = sum(r.done for r in rows)
    tokens = _sum([r.output_tokens for r in rows])
    settled = plan is not None and done >= ENOUGH * plan
    by = "counting the prompts …" if mix.counting else f"plan: {visible(mix.planned_by)}"
    title: list[Part] = [("Mix, planned against finished", "bold text")]
    lines: list[Line] = [
        spread(title, [(by if mix.counting or mix.planned_by else "", "dim")], width)
    ]
    label = min(24, max(8, *(len(_name(r.source)) for r in rows)) + 1)
    room = width - 2 - label - 27
    shares = room >= 24
    weights = room >= 48 and tokens is not None
    bars = min(24, room - 22 - (24 if weights else 0)) if shares else 0
    head = pad("", label + 2) + pad("planned", 9, ">") + pad("done", 10, ">") + pad("", 8)
    if shares:
        head += pad("share of prompts", 22 + max(0, bars))
    if weights:
        head += "share of output tokens"
    lines.append(clip([(head, "dim")], width))
    for row in rows:
        planned = _of(row.planned, plan)
        is_now = _of(row.done, done)
        apart = planned is not None and is_now is not None and abs(is_now - planned) > APART
        ended = row.done + row.failed + row.set_aside
        line: list[Part] = [
            (pad(f"  {_name(row.source)}", label + 2), "text"),
            (pad(number(row.planned), 9, ">"), "dim"),
            (pad(f"{row.done:,}", 10, ">"), "bold strong"),
            (pad(percent(_of(ended, row.planned), 1), 8, ">"), "dim"),
        ]
        if shares:
            tone = "warn" if apart and settled else "text"
            line.append((f"  {pad(percent(planned, 1), 6, '>')} → ", "dim"))
            line.append((pad(percent(is_now, 1), 6), f"bold {tone}"))
            line.append((" ", "text"))
            if bars > 3:
                line += share_bar(is_now, planned, bars, "warn" if tone == "warn" else "info")
            line.append(("   ", "text"))
        if weights:
            wanted = _of(row.planned_output_tokens, plan_tokens)
            line.append((f"{pad(percent(wanted, 1), 6, '>')} → ", "dim"))
            line.append((pad(percent(_of(row.output_tokens, tokens), 1), 6), "text"))
            line.append((f" {short(row.output_tokens)}", "dim"))
        lines.append(clip(line, width))
    if len(rows) > 1:
        ended = sum(r.done + r.failed + r.set_aside for r in rows)
        sums: list[Part] = [
            (pad("  all", label + 2), "dim"),
            (pad(number(plan), 9, ">"), "dim"),
            (pad(f"{done:,}", 10, ">"), "text"),
            (pad(percent(_of(ended, plan), 1), 8, ">"), "dim"),
            (f"   {short(tokens)} output tokens" if tokens else "", "dim"),
        ]
        lines.append(clip(sums, width))
    return lines


def outcome_lines(rows: list[SourceMix], width: int, waiting: Mapping[str, int]) -> list[Line]:
    """Outcomes × sources: a column an outcome that occurs, a line a source, and the sum; last those
    ``waiting`` to be sent again."""
    counted = [dict(row.outcomes) for row in rows]
    for row, counts in zip(rows, counted, strict=True):
        if again := waiting.get(row.source):
            counts[WAITING] = again
    sums: Counter[str] = Counter()
    for counts in counted:
        sums.update(counts)
    names = [n for n in OUTCOMES if sums[n]] + sorted(
        (n for n in sums if n not in OUTCOMES), key=lambda n: (n == WAITING, n)
    )
    if not names or len(rows) < 2:
        return []
    label = min(24, max(17, *(len(_name(r.source)) for r in rows)) + 1)
    wide = {n: max(9, len(n) + 2) for n in names}
    heading: list[Part] = [(pad("Outcomes by source", label + 2), "bold text")]
    heading += [
        (pad("not told" if n == "?" else n, max(wide[n], 10 if n == "?" else 0), ">"), "dim")
        for n in names
    ]
    lines: list[Line] = [clip(heading, width)]
    named = zip((_name(row.source) for row in rows), counted, strict=True)
    everything = [*named, ("all", dict(sums))]
    for name, counts in everything:
        line: list[Part] = [(pad(f"  {name}", label + 2), "dim" if name == "all" else "text")]
        for outcome in names:
            count = counts.get(outcome, 0)
            tone = OUTCOMES.get(outcome, "dim") if count else "faint"
            text = f"{count:,}" if count else UNKNOWN if name == "all" else "·"
            line.append((pad(text, max(wide[outcome], 10 if outcome == "?" else 0), ">"), tone))
        lines.append(clip(line, width))
    return lines
