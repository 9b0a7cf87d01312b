"""A restart before it is done: the difference, what it should bring, the ways and their costs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from console import mixed, model
from console.model import State
from console.proposal import MODES, STRATEGIES, WITHIN, Field, How
from console.text import number, short, visible
from console.widgets.paint import Line, Part, clip, cut, pad
from remote.protocol import Flags, Plan

_STRATEGY: Final = {
    "rolling": "servers one after the other; the rest go on generating",
    "canary": "one GPU first; the rest follow unless it does worse",
    "all": "all at once; nothing generates until they are ready again",
}
_MODE: Final = {
    "continue": "broken off, kept, and gone on with elsewhere",
    "drain": "they may end within the drain's bound; what is left is continued",
    "redo": "broken off and generated again from nothing",
}
LABEL: Final = 16


def reload_cost(plan: Plan | None) -> str:
    """What the reloads of a plan take, in words."""
    return plan.costs[0] if plan is not None and plan.costs else ""


def mode_costs(plan: Plan | None) -> dict[str, str]:
    """What becomes of the answers under way, by mode, in words."""
    found: dict[str, str] = {}
    for line in plan.costs if plan is not None else ():
        mode, colon, text = line.partition(": ")
        if colon and mode in MODES:
            found[mode] = text
    return found


def change_lines(changes: Sequence[model.FlagChange], width: int) -> list[Line]:
    """The difference, a line a flag."""
    if not changes:
        return [[("No flag changes: a plain restart.", "text")]]
    wide = max(LABEL, max(len(change.name) for change in changes) + 2)
    return [
        clip(
            [
                (pad(visible(change.name), wide), "bold text"),
                (f"{visible(model.flag_text(change.before))} ", "dim"),
                ("→ ", "accent"),
                (visible(model.flag_text(change.after)), "bold warn"),
            ],
            width,
        )
        for change in changes
    ]


def difference_lines(
    state: State,
    plan: Plan | None,
    gpus: Sequence[int],
    before: Flags,
    after: Flags,
    width: int,
) -> list[Line]:
    """What changes for these servers; each part of them by itself where they run different
    flags, and those that the plan leaves alone."""
    alone = plan.goes_on if plan is not None else []
    found = [
        (shown, part)
        for part in (mixed.parts(state) if len(gpus) > 1 else [])
        if (shown := [gpu for gpu in part.gpus if gpu in gpus and gpu not in alone])
    ]
    if len(found) < (1 if alone else 2):
        return change_lines(model.flag_changes(before, after), width)
    lines: list[Line] = []
    for shown, part in found:
        changes = model.flag_changes(part.epoch.flags, after)
        head = f"GPU {mixed.ranges(shown)}, on epoch {part.epoch.id}:"
        lines.append([(head, "dim"), ("" if changes else " no flag changes", "text")])
        lines += change_lines(changes, width) if changes else []
    if alone:
        lines.append([(mixed.going_on(plan), "good")])
    return lines


def predicted_lines(state: State, plan: Plan | None, gpus: Sequence[int], width: int) -> list[Line]:
    """Slots and memory, as the servers have them now and as the capacity model says."""
    if plan is None or plan.predicted_max_running is None:
        return []
    infos = [state.infos[g] for g in gpus if g in state.infos]
    new = plan.predicted_max_running
    slots = sorted({i.max_running for i in infos if i.max_running})
    now = "–".join(map(str, dict.fromkeys([*slots[:1], *slots[-1:]]))) or "?"
    better = bool(slots) and new > slots[-1]
    line: list[Part] = [
        (pad("slots a server", LABEL), "dim"),
        (f"{now} → ", "dim"),
        (f"{number(new)} predicted", "bold good" if better else "bold text"),
    ]
    if slots:
        line.append((f"  ×{new / slots[-1]:.2f}", "good" if better else "dim"))
    told = plan.predicted
    if told is None:
        return [clip(line, width)]
    line.append((f"  bound by {told.bound_by}", "dim"))
    kv = max((i.kv_tokens or 0 for i in infos), default=0)
    mamba = max((i.max_mamba or 0 for i in infos), default=0)
    parts = [f"{told.pools_gib:.1f} GiB of pools, {told.left_gib:.1f} GiB left"]
    parts.append(f"KV {f'{short(kv)} → ' if kv else ''}{short(told.kv_tokens)} tokens")
    if told.max_mamba is not None:
        parts.append(f"{f'{mamba} → ' if mamba else ''}{told.max_mamba} state slots")
    tight = told.left_gib < 2
    text = "; ".join([*parts, "little is left"] if tight else parts)
    return [clip(line, width), *entry("memory", text, "warn" if tight else "text", width)]


def wrapped(text: str, width: int, most: int) -> list[str]:
    """The text in at most so many rows, with an ellipsis where it would take more."""
    rows = textwrap.wrap(text, width)
    if len(rows) <= most:
        return rows
    return [*rows[: most - 1], cut(" ".join(rows[most - 1 :]), width)]


def _options(
    label: str,
    options: Sequence[str],
    chosen: str,
    texts: Mapping[str, str],
    at_work: bool,
    width: int,
    *,
    brief: bool,
) -> list[Line]:
    """A choice: every option with its text, or in brief the options in a row and the chosen
    one's text below."""
    mark = ("▸ ", "bold accent") if at_work else ("  ", "text")
    tone = "reverse accent bold" if at_work else "bold accent"
    head: list[Part] = [(pad(label, LABEL - 2), "dim"), mark]
    if brief:
        row: list[Part] = list(head)
        row += [(f" {option} ", tone if option == chosen else "dim") for option in options]
        texts_of = wrapped(texts.get(chosen, ""), max(20, width - LABEL), 3)
        return [clip(row, width), *([(" " * LABEL, "text"), (t, "text")] for t in texts_of)]
    wide = max(len(option) for option in options) + 3
    lines: list[Line] = []
    for index, option in enumerate(options):
        style = tone if option == chosen else "dim"
        most = 3 if option == chosen else 1
        rows = wrapped(texts.get(option, ""), max(20, width - LABEL - wide), most) or [""]
        front: list[Part] = head if not index else [(" " * LABEL, "text")]
        name = f" {option} "
        lines.append(
            clip(
                [
                    *front,
                    (name, style),
                    (" " * (wide - len(name)), "text"),
                    (rows[0], "text" if option == chosen else "dim"),
                ],
                width,
            )
        )
        lines += [[(" " * (LABEL + wide), "text"), (more, "text")] for more in rows[1:]]
    return lines


def how_lines(
    how: How,
    field: Field,
    plans: Mapping[str, Plan],
    servers: int,
    width: int,
    *,
    brief: bool,
) -> list[Line]:
    """The ways that can be chosen, with the cost of each as far as the agent has told it."""
    lines: list[Line] = []
    shown = how.fields(servers)
    chosen = plans.get(how.strategy)
    if "strategy" in shown:
        texts: dict[str, str] = {}
        for strategy in STRATEGIES:
            cost = reload_cost(plans.get(strategy))
            texts[strategy] = f"{cost}; {_STRATEGY[strategy]}" if cost else _STRATEGY[strategy]
        lines += _options(
            "how", STRATEGIES, how.strategy, texts, field == "strategy", width, brief=brief
        )
    elif reload_cost(chosen):
        lines += entry("cost", reload_cost(chosen), "text", width)
    costs = mode_costs(chosen)
    modes: dict[str, str] = {mode: costs.get(mode) or _MODE[mode] for mode in MODES}
    lines += _options(
        "answers", MODES, how.in_flight, modes, field == "in_flight", width, brief=brief
    )
    if "at_once" in shown:
        counts = [str(n) for n in range(1, servers)]
        whose = "after the canary, " if how.strategy == "canary" else ""
        text = {str(how.at_once): f"{whose}{how.at_once} of {servers} out of service together"}
        lines += _options(
            "at once", counts, str(how.at_once), text, field == "at_once", width, brief=True
        )[: 1 if brief else 2]
    words = ["never" if minutes is None else f"{minutes:g} min" for minutes in WITHIN]
    now = words[WITHIN.index(how.within)]
    within = {
        now: "the new flags stay"
        if how.within is None
        else f"unless K keeps them within {now} and they do no worse, the old flags come back"
    }
    lines += _options("confirm", words, now, within, field == "within", width, brief=True)[
        : 1 if brief and how.within is None else 2
    ]
    return lines


def entry(label: str, text: str, style: str, width: int) -> list[Line]:
    """A text wrapped beside its label."""
    rows = textwrap.wrap(text, max(20, width - LABEL)) or [""]
    return [
        [(pad("" if index else label, LABEL), "dim"), (row, style)]
        for index, row in enumerate(rows)
    ]
