"""A swap as it happens, and what it brought."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console import model
from console.text import UNKNOWN, bar, duration, number, percent, visible
from console.widgets.paint import Line, Painted, Part, clip, gpu_style, pad, spread
from remote.protocol import Epoch, Swap, SwapStep

if TYPE_CHECKING:
    from console.app import StokerApp

_STEP = {
    "waiting": ("·", "faint"),
    "doing": ("◐", "bold info"),
    "done": ("✔", "good"),
    "failed": ("✖", "bold bad"),
    "skipped": ("–", "dim"),
}
_STATE = {"doing": "info", "done": "good", "failed": "bad", "rolled back": "warn"}


def _order(rows: dict[int, list[SwapStep]]) -> list[int]:
    """Failed and moving servers first, then those to come, then those that are through."""

    def rank(gpu: int) -> tuple[int, int]:
        states = {s.state for s in rows[gpu]}
        if "failed" in states:
            return 0, gpu
        if "doing" in states or {"done", "waiting"} <= states:
            return 1, gpu
        return (2, gpu) if "waiting" in states else (3, gpu)

    return sorted(rows, key=rank)


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
            said = [(f"{visible(step.text)} " if step.text else "", tone), (took, "dim")]
    if not said:
        text = next((s.text for s in reversed(steps) if s.text and s.state == "done"), "")
        said = [(visible(text), "good")]
    return clip([*line, *said], width)


def swap_lines(swap: Swap, now: float, width: int, height: int) -> list[Line]:
    """A title line with a bar, then a line a server, as many as fit."""
    took = duration((swap.ended or now) - swap.began)
    tone = _STATE[swap.state]
    share = model.swap_done(swap)
    before = UNKNOWN if swap.from_epoch is None else f"{swap.from_epoch}"
    head: list[Part] = [
        ("Swap ", "dim"),
        (f"epoch {before} → {swap.to_epoch}", "bold strong"),
        (f"  {swap.strategy}", "text"),
        (f" by {visible(swap.who)}" if swap.who else "", "dim"),
        (f"  {swap.state}", f"bold {tone}"),
        (f" {took} ", "dim"),
    ]
    filled, rest = bar(share, 16)
    tail: list[Part] = [(filled, tone), (rest, "on-panel"), (f" {percent(share):>4}", tone)]
    lines: list[Line] = [spread(head, tail, width)]
    if swap.text:
        lines.append(clip([(visible(swap.text), tone)], width))
    rows = model.step_rows(swap)
    order = _order(rows)
    room = height - len(lines)
    shown = order if len(order) <= room else order[: max(0, room - 1)]
    lines += [step_line(gpu, rows[gpu], now, width) for gpu in shown]
    if len(shown) < len(order) and room > 0:
        lines.append([(f"    and {len(order) - len(shown)} more", "dim")])
    return lines


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


class SwapPanel(Painted):
    """The steps of the swap under way; afterwards the two epochs side by side, until `esc`."""

    app: StokerApp

    def wanted(self) -> int:
        """Lines it would like to have; 0 where there is nothing to show."""
        state = self.app.state
        swap = state.swap
        if swap is None or (swap.state != "doing" and self.app.hidden_swap == swap.id):
            return 0
        pair = model.swap_pair(state)
        if swap.state == "done" and pair is not None:
            return 1 + len(pair_lines(*pair, 100))
        return 1 + bool(swap.text) + len(model.step_rows(swap))

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        state = self.app.state
        swap = state.swap
        if swap is None:
            return []
        now = model.agent_now(state, self.app.now())
        pair = model.swap_pair(state)
        if swap.state == "done" and pair is not None:
            took = duration((swap.ended or now) - swap.began)
            head = spread(
                [
                    ("✔ ", "good"),
                    (visible(swap.text) or f"epoch {swap.to_epoch} stands", "good"),
                    (f"  in {took}", "dim"),
                ],
                [("esc", "bold accent"), (" hides", "dim")],
                width,
            )
            return [head, *pair_lines(*pair, width)]
        return swap_lines(swap, now, width, height)
