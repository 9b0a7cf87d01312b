"""A swap as it happens, and what it brought."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from console import mixed, model
from console.actions import BY_NAME, key_name
from console.text import UNKNOWN, bar, duration, number, percent, visible
from console.widgets.paint import Line, Painted, Part, clip, cut, gpu_style, pad, spread, width_of
from remote.protocol import Epoch, Swap, SwapStep

if TYPE_CHECKING:
    from console.app import StokerApp

SMALL = 30
"""Terminal rows under which an ended swap is told in two lines."""

_STEP = {
    "waiting": ("·", "faint"),
    "doing": ("◐", "bold info"),
    "done": ("✔", "good"),
    "failed": ("✖", "bold bad"),
    "skipped": ("–", "dim"),
}
_STATE = {"doing": "info", "done": "good", "failed": "bad", "rolled back": "warn"}


def _stage(steps: list[SwapStep]) -> int:
    """0 failed, 1 under way, 2 waiting, 3 through."""
    states = {s.state for s in steps}
    if "failed" in states:
        return 0
    if "doing" in states or ({"done", "skipped"} & states and "waiting" in states):
        return 1
    return 2 if "waiting" in states else 3


def step_line(gpu: int, steps: list[SwapStep], now: float, width: int) -> Line:
    """Every step of one server, the one under way with its words and its time."""
    line: list[Part] = [(f"{gpu:>3} ", f"bold {gpu_style(gpu)}")]
    said: list[Part] = []
    for step in steps:
        sign, style = _STEP[step.state]
        line += [(sign, style), (f" {step.name}  ", "text" if step.state == "doing" else "dim")]
        if step.state in ("doing", "failed") and step.began is not None:
            took = duration((step.ended or now) - step.began)
            tone = "info" if step.state == "doing" else "bad"
            text = step.text if step.state == "doing" else ""  # a failure's stands below in full
            said = [(f"{visible(text)} " if text else "", tone), (took, "dim")]
    if not said:
        text = next((s.text for s in reversed(steps) if s.text and s.state == "done"), "")
        said = [(visible(text), "good")]
    return clip([*line, *said], width)


def swap_lines(swap: Swap, now: float, width: int, height: int) -> list[Line]:
    """A title line with a bar, then a line a server, as many as fit."""
    took = duration((swap.ended or now) - swap.began)
    tone = _STATE[swap.state]
    half = mixed.halfway(swap)
    share = len(mixed.moved(swap)) / len(swap.gpus) if half else model.swap_done(swap)
    before = UNKNOWN if swap.from_epoch is None else f"{swap.from_epoch}"
    head: list[Part] = [
        ("Swap ", "dim"),
        (f"epoch {before} → {swap.to_epoch}", "bold strong"),
        (f"  {swap.strategy}", "text"),
        (f" by {visible(swap.who)}" if swap.who else "", "dim"),
        (f"  {'under way' if swap.state == 'doing' else mixed.ended(swap)}", f"bold {tone}"),
        (f" {took} ", "dim"),
    ]
    filled, rest = bar(share, 16)
    tail: list[Part] = [(filled, tone), (rest, "on-panel"), (f" {percent(share):>4}", tone)]
    lines: list[Line] = [spread(head, tail, width)]
    keys = _decision_keys() if model.awaits_decision(swap) else []
    if swap.state != "doing":
        keys = [("  esc", "bold accent"), (" hides", "dim")]
    said = ". ".join(part for part in (mixed.left(swap), swap.text) if part)
    lines += said_lines(said, tone, keys, width)
    rows = model.step_rows(swap)
    stages = {gpu: _stage(steps) for gpu, steps in rows.items()}
    if swap.state != "doing":
        stages |= dict.fromkeys(mixed.untouched(swap), 2)
    moving = sorted((gpu for gpu in rows if stages[gpu] < 2), key=lambda g: (stages[g], g))
    waits = "wait" if swap.state == "doing" else "not touched"
    groups = [
        _group([g for g in rows if stages[g] == 2], waits, "dim", width),
        _group([g for g in rows if stages[g] == 3], _through(rows, stages), "good", width),
    ]
    tails = [g for g in groups if g]
    room = max(0, height - len(lines) - len(tails))
    shown = moving if len(moving) <= room else moving[: max(0, room - 1)]
    lines += [line for gpu in shown for line in _row_lines(gpu, rows[gpu], now, width)]
    if len(shown) < len(moving) and room > 0:
        lines.append([(f"    and {len(moving) - len(shown)} more", "dim")])
    return (lines + tails)[:height]


def said_lines(text: str, tone: str, keys: list[Part], width: int) -> list[Line]:
    """What a swap says of itself, as long as it is, with the keys that help now."""
    rows = textwrap.wrap(visible(text), max(20, width - width_of(keys) - 1))
    if not rows:
        return [spread([], keys, width)] if keys else []
    return [spread([(rows[0], tone)], keys, width), *([(row, tone)] for row in rows[1:])]


def _row_lines(gpu: int, steps: list[SwapStep], now: float, width: int) -> list[Line]:
    """One server's steps; why one failed stands below in full, as it is what has to be mended."""
    line = step_line(gpu, steps, now, width)
    why = next((s.text for s in steps if s.state == "failed" and s.text), "")
    if not why:
        return [line]
    rows = textwrap.wrap(visible(why), max(20, width - 6))[:4]
    return [line, *([("      ", "text"), (row, "bad")] for row in rows)]


def _decision_keys() -> list[Part]:
    """What may be decided now, with its keys."""
    parts: list[Part] = []
    for action in (BY_NAME["keep"], BY_NAME["take_back"]):
        parts.append((f"  {key_name(action.keys[0])}", "bold accent"))
        parts.append((f" {action.title.lower()}", "dim"))
    return parts


def _through(rows: dict[int, list[SwapStep]], stages: dict[int, int]) -> str:
    """What the servers that are through said last, where they all said the same."""
    said = {
        next((s.text for s in reversed(rows[gpu]) if s.text), "")
        for gpu, stage in stages.items()
        if stage == 3
    }
    return f"through: {visible(said.pop())}" if len(said) == 1 and said != {""} else "through"


def _group(gpus: list[int], word: str, style: str, width: int) -> Line:
    if not gpus:
        return []
    line: list[Part] = [("    " if style == "dim" else "  ✔ ", style)]
    line += [(f"{gpu} ", f"bold {gpu_style(gpu)}") for gpu in gpus]
    return clip([*line, (f" {word}", style)], width)


def _ratio(before: float | None, after: float | None) -> Part:
    if not before or after is None:
        return "", "dim"
    ratio = after / before
    return f"×{ratio:.2f}", "good" if ratio > 1.02 else "bad" if ratio < 0.98 else "dim"


def pair_lines(before: Epoch, after: Epoch, width: int) -> list[Line]:
    """Two epochs side by side: what was measured, then which flags differ."""
    rows: list[tuple[str, str, str, Part]] = [
        (
            "tok/s per GPU",
            number(before.tok_s_per_gpu),
            number(after.tok_s_per_gpu) if after.tok_s_per_gpu is not None else "measuring",
            _ratio(before.tok_s_per_gpu, after.tok_s_per_gpu),
        ),
        (
            "slots a server",
            number(before.max_running),
            number(after.max_running),
            _ratio(before.max_running, after.max_running),
        ),
        (
            "Mamba state in use",
            percent(before.mamba_usage),
            percent(after.mamba_usage),
            ("", "dim"),
        ),
        ("KV cache in use", percent(before.kv_usage), percent(after.kv_usage), ("", "dim")),
    ]
    flags = model.flag_changes(before.flags, after.flags)
    lines: list[Line] = [
        [
            (pad("", 20), "dim"),
            (pad(f"epoch {before.id}", 11, ">"), "dim"),
            (pad(f"epoch {after.id}", 11, ">"), "bold strong"),
            ("          ", "dim"),
            ("what was changed" if flags and width > 90 else "", "dim"),
        ]
    ]
    for index, (label, old, new, ratio) in enumerate(rows):
        line: list[Part] = [
            (pad(label, 20), "dim"),
            (pad(old, 11, ">"), "text"),
            (pad(new, 11, ">"), "bold strong"),
            ("  ", "text"),
            (pad(ratio[0], 8), f"bold {ratio[1]}"),
        ]
        if index < len(flags) and width > 90:
            line.append((flags[index].text, "text"))
        lines.append(clip(line, width))
    return lines


def done_lines(swap: Swap, pair: tuple[Epoch, Epoch], width: int) -> list[Line]:
    """What a swap has come to, then its two epochs side by side."""
    took = duration((swap.ended or swap.began) - swap.began)
    text = f"✔ {swap.text or f'epoch {swap.to_epoch} stands'}  in {took}"
    keys: list[Part] = [("  esc", "bold accent"), (" hides", "dim")]
    return [*said_lines(text, "good", keys, width), *pair_lines(*pair, width)]


def brief_lines(swap: Swap, pair: tuple[Epoch, Epoch] | None, width: int) -> list[Line]:
    """An ended swap where rows are few: what it came to, and what it brought."""
    sign = "✔ " if swap.state == "done" else ""
    took = duration((swap.ended or swap.began) - swap.began)
    keys: list[Part] = [("  esc", "bold accent"), (" hides", "dim")]
    said = mixed.left(swap) or visible(swap.text) or f"epoch {swap.to_epoch} {swap.state}"
    room = max(10, width - width_of(keys) - 1 - len(f"{sign}  in {took}"))
    text = f"{sign}{cut(said, room)}  in {took}"
    lines: list[Line] = [spread([(text, _STATE[swap.state])], keys, width)]
    if pair is not None and swap.state == "done":
        before, after = pair
        new = "measuring" if after.tok_s_per_gpu is None else number(after.tok_s_per_gpu)
        ratio = _ratio(before.tok_s_per_gpu, after.tok_s_per_gpu)
        slots = f"; slots {number(before.max_running)} → {number(after.max_running)}"
        more = _ratio(before.max_running, after.max_running)
        brought: Line = [
            (f"  tok/s per GPU {number(before.tok_s_per_gpu)} → ", "dim"),
            (f"{new} ", "bold strong"),
            (ratio[0], f"bold {ratio[1]}"),
            (slots, "dim"),
            (f" {more[0]}", f"bold {more[1]}"),
        ]
        lines.append(clip(brought, width))
    return lines


def _lines(app: StokerApp, swap: Swap, width: int, height: int) -> list[Line]:
    """As much of a swap as the terminal has room for; why one failed stands there in full."""
    pair = model.swap_pair(app.state)
    if app.size.height < SMALL and swap.state in ("done", "rolled back"):
        return brief_lines(swap, pair, width)
    if swap.state == "done" and pair is not None:
        return done_lines(swap, pair, width)
    return swap_lines(swap, model.told_now(app.state, app.now()), width, height)


class SwapPanel(Painted):
    """The steps of the swap under way; afterwards the two epochs side by side, until `esc`."""

    app: StokerApp

    def wanted(self) -> int:
        """Lines it would like to have; 0 where there is nothing to show."""
        state = self.app.state
        swap = state.swap
        if swap is None or (swap.state != "doing" and self.app.hidden_swap == swap.id):
            return 0
        return len(_lines(self.app, swap, max(20, self.app.size.width - 2), 99))

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        swap = self.app.state.swap
        return [] if swap is None else _lines(self.app, swap, width, height)
