"""Going from screen to screen, recordings, and the console's own matters."""

from __future__ import annotations

from typing import Final

from console.action import Action, Move

_FLEET: Final = frozenset({"fleet"})

LOOK: Final[tuple[Action, ...]] = (
    Action(
        "targets",
        "Targets",
        "Every target of stoker.toml with its state; actions mean the chosen one.",
        ("A",),
        "Look",
        footer=5,
    ),
    Action(
        "target.next",
        "Next target",
        "The same screen of the next target.",
        ("N",),
        "Look",
        footer=6,
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
    Action("fleet", "Fleet", "All servers at a glance: the home screen.", ("f",), "Look", footer=1),
    Action("logs", "Logs", "Server logs side by side, followed live.", ("l",), "Look", footer=1),
    Action(
        "config",
        "Config",
        "Every epoch with what it gave, every flag of SGLang: what runs, what is edited, its help.",
        ("c",),
        "Look",
        footer=2,
    ),
    Action(
        "run",
        "Run",
        "Outcomes by source, the mix, newest answers, failures, batch files and uploads.",
        ("g",),
        "Look",
        footer=3,
    ),
    Action(
        "events", "Events", "Everything that happened, with who did it.", ("e",), "Look", footer=4
    ),
    Action(
        "wrong",
        "What is wrong",
        "All that is wrong and worth knowing now, with the key that helps; enter shows its logs.",
        ("exclamation_mark",),
        "Look",
    ),
    Action(
        "since",
        "Since you looked",
        "What happened since you last looked: before this console, or before the link was gone.",
        ("w",),
        "Look",
    ),
    Action(
        "gpu.log",
        "Open its log",
        "The log of the chosen GPU's server.",
        ("enter",),
        "Look",
        screens=_FLEET,
    ),
    Action(
        "answers",
        "Answers",
        "Prompt, reasoning, answer and tools of what was written, newest or searched.",
        ("a",),
        "Look",
        screens=frozenset({"run", "fleet"}),
        footer=6,
    ),
    Action(
        "incident",
        "Pack a report",
        "State, events, flags, history and log ends as one file, secrets removed.",
        ("I",),
        "Look",
    ),
    Action("help", "Help", "Every key of this screen and everywhere.", ("question_mark",), "Look"),
    Action(
        "events.open",
        "Logs then",
        "The logs around the chosen event (up and down choose one), of its GPU where it has one.",
        ("enter",),
        "Look",
        screens=frozenset({"events"}),
        footer=1,
    ),
    Action(
        "events.save",
        "Save events",
        "Write the events that pass the filter to a file here, one JSON object a line.",
        ("S",),
        "Look",
        screens=frozenset({"events"}),
        footer=3,
        short="save",
    ),
)

REPLAY: Final[tuple[Action, ...]] = (
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
)

CONSOLE: Final[tuple[Action, ...]] = (
    Action(
        "line",
        "Command line",
        "The plain command lines this screen's actions equal; copy one.",
        ("y",),
        "Console",
    ),
    Action(
        "link.retry",
        "Connect now",
        "Try a lost link again now, without waiting for the next try.",
        ("ctrl+r",),
        "Console",
    ),
    Action("palette", "Palette", "Find any action by name.", ("ctrl+p", "colon"), "Console"),
    Action("theme", "Theme", "The next colour theme; kept for the next time.", ("t",), "Console"),
    Action("picture", "Save picture", "Save this screen as an SVG file.", ("P",), "Console"),
    Action("quit", "Quit", "Leave the console; servers and run go on.", ("q", "ctrl+c"), "Console"),
)

_ROWS: Final = frozenset({"targets", "config"})
_LINES: Final = frozenset({"logs", "events"})
_RUN: Final = frozenset({"run"})

MOVES: Final[tuple[Move, ...]] = (
    Move(
        tuple("0123456789"),
        "Choose a GPU",
        "Actions then mean this one; the same key or esc lets it go; a click does the same.",
        _FLEET | _LINES | _ROWS | _RUN,
    ),
    Move(
        ("up", "down", "left", "right"),
        "GPU beside",
        "Choose the GPU above, below, before or after: any of them, not only the first ten.",
        _FLEET,
    ),
    Move(("k", "j"), "GPU beside", "Choose the GPU above or below.", _FLEET),
    Move(("up", "down", "k", "j"), "Another row", "Choose the row above or below.", _ROWS),
    Move(
        ("pageup", "pagedown", "home", "end"),
        "Another row",
        "Ten rows up or down, the first one, the last one.",
        frozenset({"config"}),
    ),
    Move(("up", "down", "k", "j"), "A line", "Scroll by a line; a log then holds still.", _LINES),
    Move(
        ("pageup", "pagedown"),
        "A page",
        "Scroll by a page; above what is held, through the log's whole file in the container.",
        _LINES,
    ),
    Move(("home", "ctrl+home"), "The start", "Of what is held; of the whole file.", _LINES),
    Move(("end", "G"), "The newest", "The newest line, and follow again.", _LINES),
    Move(("left", "right"), "Sideways", "Scroll long lines.", _LINES),
    Move(("tab", "shift+tab"), "Another pane", "Which pane the keys move.", frozenset({"logs"})),
    Move(("up", "down", "k", "j"), "A line", "Scroll by a line.", _RUN),
    Move(
        ("pageup", "pagedown", "home", "end", "G"),
        "Scroll",
        "By a page, to the start, to the end.",
        _RUN,
    ),
    Move(
        ("escape",),
        "Let go",
        "Of the filter, the chosen GPU, an ended swap, an earlier window; then back to the fleet.",
        _FLEET | _LINES | _ROWS | _RUN,
    ),
)
