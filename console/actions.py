"""The one registry of what an operator can do.

Key bindings, footer, help, command palette, read-only mode and the verbs of the command line are
all made from :data:`ACTIONS`; nothing here knows of a screen.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, TypeAlias

from remote.protocol import (
    Down,
    Flags,
    FlagValue,
    Request,
    RetryFailed,
    Rollback,
    RunControl,
    TargetSpec,
    Up,
)

Group: TypeAlias = Literal["Look", "Fleet", "Run", "Chart", "Logs", "Replay", "Console"]
Danger: TypeAlias = Literal["none", "key", "word"]
"""How an action asks before it is done: not at all, with one key, or with a typed word."""

Build: TypeAlias = Callable[[TargetSpec, "list[int] | None"], Request]


@dataclass(frozen=True)
class Action:
    """Something an operator can do, in one place for everything that offers it."""

    name: str
    title: str
    """Two or three words, for footer and palette."""
    help: str
    """One sentence: what it does and what it costs."""
    keys: tuple[str, ...]
    group: Group
    danger: Danger = "none"
    """At its smallest blast radius; :func:`danger` raises it with the number of GPUs."""
    changes: bool = False
    """Whether it changes anything on the target: such actions are off in read-only mode."""
    verb: str = ""
    """The command-line verb that does the same, without target and options."""
    word: str = ""
    """What has to be typed where ``danger`` is ``word``."""
    loses: str = ""
    """What is lost or held up by it, for the question."""
    screens: frozenset[str] = frozenset()
    """Screens it works on; empty for everywhere."""
    footer: int = 0
    """Rank in the footer, 1 first; 0 keeps it out."""
    request: Build | None = None
    """Builds its request from the spec and the chosen GPUs, where that is all it takes."""


_FLEET: Final = frozenset({"fleet"})
_LOGS: Final = frozenset({"logs"})
_LISTS: Final = frozenset({"logs", "events", "config"})

ACTIONS: Final[tuple[Action, ...]] = (
    # Look
    Action(
        "targets",
        "Targets",
        "Every target of stoker.toml with its state; actions mean the chosen one.",
        ("A",),
        "Look",
        footer=12,
    ),
    Action(
        "target.next",
        "Next target",
        "The same screen of the next target.",
        ("N",),
        "Look",
        footer=13,
    ),
    Action(
        "target.open",
        "Open",
        "The chosen target's own screens.",
        ("enter",),
        "Look",
        screens=frozenset({"targets"}),
        footer=1,
    ),
    Action("fleet", "Fleet", "All servers at a glance: the home screen.", ("f",), "Look", footer=6),
    Action("logs", "Logs", "Server logs side by side, followed live.", ("l",), "Look", footer=6),
    Action(
        "config",
        "Config",
        "Every epoch with what it gave, every flag of SGLang: what runs, what is edited, its help.",
        ("c",),
        "Look",
        footer=7,
    ),
    Action(
        "run",
        "Run",
        "Outcomes by source, the mix, newest answers, failures, batch files and uploads.",
        ("g",),
        "Look",
        footer=8,
    ),
    Action(
        "events", "Events", "Everything that happened, with who did it.", ("e",), "Look", footer=9
    ),
    Action(
        "since",
        "Since you looked",
        "What happened since this console was last open.",
        ("w",),
        "Look",
    ),
    Action(
        "answers",
        "Answers",
        "Prompt, reasoning, answer and tools of what was written, newest or searched.",
        ("a",),
        "Look",
        screens=frozenset({"run", "fleet"}),
        footer=11,
    ),
    Action(
        "incident",
        "Pack a report",
        "State, events, flags, history and log ends as one file, secrets removed.",
        ("I",),
        "Look",
    ),
    Action("help", "Help", "Every key of this screen and everywhere.", ("question_mark",), "Look"),
    # Fleet
    Action(
        "restart",
        "Restart",
        "Restart servers with changed flags: edit, see the difference, choose how, confirm.",
        ("r",),
        "Fleet",
        danger="key",
        changes=True,
        verb="restart",
        word="restart",
        footer=1,
    ),
    Action(
        "rollback",
        "Roll back",
        "Swap back to the flags of the epoch before this one.",
        ("b",),
        "Fleet",
        danger="key",
        changes=True,
        verb="rollback",
        word="rollback",
        loses="servers restart one after the other; answers in flight are continued elsewhere.",
        request=lambda spec, gpus: Rollback(spec=spec),
    ),
    Action(
        "deploy",
        "Deploy",
        "Bring the agent to the target, or to this version; servers and run go on.",
        ("D",),
        "Fleet",
        danger="key",
        changes=True,
        verb="deploy",
        loses="nothing: a new agent takes over what runs. It does nothing where it is current.",
    ),
    Action(
        "keep",
        "Keep new flags",
        "Promote the canary of the swap under way, or confirm its new flags.",
        ("K",),
        "Fleet",
        danger="key",
        changes=True,
        verb="confirm",
        loses="nothing: a canary's flags go to the other servers, one after the other.",
    ),
    Action(
        "take_back",
        "Take back",
        "Put the old flags back on every server that has the new ones of the swap under way.",
        ("B",),
        "Fleet",
        danger="key",
        changes=True,
        verb="confirm --back",
        loses="those servers restart; answers in flight on them are continued elsewhere.",
    ),
    Action(
        "up",
        "Up",
        "Start servers that are not up, with the flags of the newest epoch.",
        ("u",),
        "Fleet",
        danger="key",
        changes=True,
        verb="up",
        footer=2,
        loses="nothing: servers that are up are left alone.",
        request=lambda spec, gpus: Up(spec=spec, gpus=gpus),
    ),
    Action(
        "down",
        "Down",
        "Stop servers; answers in flight are kept and continued later.",
        ("d",),
        "Fleet",
        danger="key",
        changes=True,
        verb="down",
        word="down",
        footer=3,
        loses="nothing: answers in flight are broken off, kept, and continued later.",
        request=lambda spec, gpus: Down(gpus=gpus),
    ),
    # Run
    Action(
        "run.go",
        "Start",
        "Start the generation, resume it where it stopped, or lift a pause.",
        ("s",),
        "Run",
        changes=True,
        verb="run start",
        footer=4,
    ),
    Action(
        "run.pause",
        "Pause",
        "Send nothing new; what is in flight ends and is kept.",
        ("p",),
        "Run",
        changes=True,
        verb="run pause",
        footer=5,
        request=lambda spec, gpus: RunControl(do="pause"),
    ),
    Action(
        "run.stop",
        "Stop run",
        "Let what is in flight end, then leave; starting again resumes.",
        ("x",),
        "Run",
        danger="key",
        changes=True,
        verb="run stop",
        loses="nothing: what is in flight ends first, and `start` resumes. GPUs idle meanwhile.",
        request=lambda spec, gpus: RunControl(do="drain"),
    ),
    Action(
        "run.retry",
        "Retry failed",
        "Give prompts that were given up on another life.",
        ("R",),
        "Run",
        danger="key",
        changes=True,
        verb="run retry-failed",
        loses="failed.jsonl is renamed, not deleted; those prompts count as not done again.",
        request=lambda spec, gpus: RetryFailed(),
    ),
    Action(
        "run.retry_aside",
        "Retry set aside",
        "Give prompts that were given up on, and those whose answer was set aside, another life.",
        ("U",),
        "Run",
        danger="key",
        changes=True,
        verb="run retry-failed --set-aside",
        loses="failed.jsonl and set_aside.jsonl are renamed, not deleted; those prompts count as "
        "not done again.",
        request=lambda spec, gpus: RetryFailed(set_aside=True),
        screens=frozenset({"run"}),
    ),
    Action(
        "run.concurrency",
        "Requests at once",
        "How many requests may be in flight on each server, or auto; the running run obeys.",
        ("C",),
        "Run",
        changes=True,
        verb="run resume --concurrency auto",
        screens=frozenset({"run"}),
        footer=14,
    ),
    # Chart
    Action(
        "chart.in",
        "Zoom in",
        "Show a shorter window.",
        ("plus", "equals_sign"),
        "Chart",
        screens=_FLEET,
    ),
    Action(
        "chart.out",
        "Zoom out",
        "Show a longer window, up to the whole run.",
        ("minus",),
        "Chart",
        screens=_FLEET,
    ),
    Action(
        "chart.back",
        "Earlier",
        "Move the window back by half its length.",
        ("left_square_bracket",),
        "Chart",
        screens=_FLEET,
    ),
    Action(
        "chart.forward",
        "Later",
        "Move the window towards now.",
        ("right_square_bracket",),
        "Chart",
        screens=_FLEET,
    ),
    Action(
        "chart.metric",
        "Other plot",
        "Throughput and cache, then running and queue, then temperature and power.",
        ("m",),
        "Chart",
        screens=_FLEET,
        footer=10,
    ),
    Action(
        "config.take",
        "Take/edit",
        "The chosen starting point or flag, into the restart dialog; nothing is done yet.",
        ("enter",),
        "Fleet",
        changes=True,
        verb="restart",
        screens=frozenset({"config"}),
        footer=1,
    ),
    Action(
        "config.table",
        "Other table",
        "From the starting points to the flags and back.",
        ("tab",),
        "Fleet",
        screens=frozenset({"config"}),
        footer=2,
    ),
    Action(
        "config.drop",
        "Drop edits",
        "Forget flags that were edited and not restarted with.",
        ("backspace",),
        "Fleet",
        screens=frozenset({"config"}),
        footer=4,
    ),
    Action(
        "config.save",
        "Save edits",
        "Keep the edited flags under a name, as a starting point of your own on every target.",
        ("S",),
        "Fleet",
        screens=frozenset({"config"}),
        footer=5,
    ),
    Action(
        "config.remove",
        "Remove yours",
        "Delete the chosen starting point, where you saved it; asks for the key once more.",
        ("X",),
        "Fleet",
        screens=frozenset({"config"}),
    ),
    # Logs
    Action(
        "logs.pause",
        "Follow/hold",
        "Hold the panes still, or follow again.",
        ("space",),
        "Logs",
        screens=_LOGS,
        footer=1,
    ),
    Action(
        "filter",
        "Filter",
        "Show only lines that match a regular expression (! in front inverts), or flags by words.",
        ("slash",),
        "Logs",
        screens=_LISTS,
        footer=2,
    ),
    Action(
        "logs.noise",
        "Hide noise",
        "Hide health checks, then every access line, then show all.",
        ("o",),
        "Logs",
        screens=_LOGS,
        footer=4,
    ),
    Action(
        "logs.panes",
        "Panes",
        "One, two, four or eight panes.",
        ("v",),
        "Logs",
        screens=_LOGS,
        footer=3,
    ),
    Action(
        "logs.next",
        "Other sources",
        "Show the next servers, the run and the agent.",
        ("n",),
        "Logs",
        screens=_LOGS,
        footer=5,
    ),
    Action(
        "logs.merge",
        "Merge",
        "All logs in one, by time; again: side by side.",
        ("M",),
        "Logs",
        screens=_LOGS,
        footer=9,
    ),
    Action(
        "logs.time",
        "Go to a time",
        "Show every pane from a time on, from the files themselves.",
        ("T",),
        "Logs",
        screens=_LOGS,
        footer=10,
    ),
    Action(
        "logs.save",
        "Save lines",
        "Write what the chosen pane holds, or a span of its whole log, to a file here.",
        ("S",),
        "Logs",
        screens=_LOGS,
    ),
    Action(
        "events.save",
        "Save events",
        "Write the events that pass the filter to a file here, one JSON object a line.",
        ("S",),
        "Look",
        screens=frozenset({"events"}),
        footer=3,
    ),
    Action(
        "logs.copy",
        "Copy lines",
        "Copy the lines on the chosen pane; a selection: ctrl+c.",
        ("Y",),
        "Logs",
        screens=_LOGS,
    ),
    Action(
        "logs.error",
        "Next error",
        "Jump to the next line that tells of an error.",
        ("E",),
        "Logs",
        screens=_LOGS,
    ),
    # Replay
    Action(
        "replay.pause",
        "Play/pause",
        "Stop the recording's clock, or let it go on.",
        ("z",),
        "Replay",
        footer=1,
    ),
    Action(
        "replay.back",
        "Earlier",
        "Go back by a fiftieth of the recording.",
        ("comma",),
        "Replay",
        footer=2,
    ),
    Action(
        "replay.on",
        "Later",
        "Go on by a fiftieth of the recording.",
        ("full_stop",),
        "Replay",
        footer=3,
    ),
    Action("replay.faster", "Faster", "Play faster.", ("greater_than_sign",), "Replay", footer=4),
    Action("replay.slower", "Slower", "Play slower.", ("less_than_sign",), "Replay", footer=5),
    # Console
    Action(
        "line",
        "Command line",
        "The plain command lines this screen's actions equal; copy one.",
        ("y",),
        "Console",
    ),
    Action("palette", "Palette", "Find any action by name.", ("ctrl+p", "colon"), "Console"),
    Action("theme", "Theme", "The next colour theme; kept for the next time.", ("t",), "Console"),
    Action("picture", "Save picture", "Save this screen as an SVG file.", ("P",), "Console"),
    Action("quit", "Quit", "Leave the console; servers and run go on.", ("q", "ctrl+c"), "Console"),
)

BY_NAME: Final = {action.name: action for action in ACTIONS}


@cache
def by_key() -> dict[str, list[Action]]:
    """What each key does; several actions only where they are for different screens."""
    keys: dict[str, list[Action]] = {}
    for action in ACTIONS:
        for key in action.keys:
            keys.setdefault(key, []).append(action)
    return keys


def danger(action: Action, gpus: int, total: int) -> Danger:
    """How the action asks when it meets ``gpus`` of ``total``: a typed word for a whole fleet."""
    if action.danger == "key" and action.word and gpus >= total > 1:
        return "word"
    return action.danger


def flag_option(name: str, value: FlagValue) -> list[str]:
    """``--set`` options of the command line for one flag; an absent flag is ``--unset``."""
    if value is False:
        return ["--unset", name]
    if value is True:
        return ["--set", f"{name}=true"]
    if isinstance(value, list):
        return ["--set", f"{name}={' '.join(map(str, value))}"]
    return ["--set", f"{name}={value}"]


def command_line(
    action: Action,
    target: str,
    *,
    gpus: Sequence[int] | None = None,
    set_flags: Flags | None = None,
    unset_flags: Sequence[str] = (),
    more: Sequence[str] = (),
) -> str:
    """The `stoker` line that does the same; empty where there is none."""
    if not action.verb:
        return ""
    words = ["stoker", *action.verb.split(), target]
    for name, value in (set_flags or {}).items():
        words += flag_option(name, value)
    for name in unset_flags:
        words += ["--unset", name]
    words += more
    for gpu in gpus or ():
        words += ["--gpu", str(gpu)]
    return shlex.join(words)


def key_name(key: str) -> str:
    """A key as it stands on a keyboard: ``?``, ``space``, ``^p``."""
    return _KEYS.get(key, key.replace("ctrl+", "^"))


_KEYS: Final = {
    "question_mark": "?",
    "slash": "/",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "colon": ":",
    "comma": ",",
    "full_stop": ".",
    "greater_than_sign": ">",
    "less_than_sign": "<",
    "enter": "⏎",
    "backspace": "⌫",
    "escape": "esc",
}
