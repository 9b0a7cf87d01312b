"""Logs, the filter of every list, and the plots over time."""

from __future__ import annotations

from typing import Final

from console.action import Action

_FLEET: Final = frozenset({"fleet"})
_LOGS: Final = frozenset({"logs"})
_LISTS: Final = frozenset({"logs", "events", "config"})

CHART: Final[tuple[Action, ...]] = (
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
        "Show a longer window.",
        ("minus",),
        "Chart",
        screens=_FLEET,
    ),
    Action(
        "chart.whole",
        "Whole run",
        "The window from the run's begin to now or to its end; the same key leads back.",
        ("W",),
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
        footer=7,
        short="plot",
    ),
)

LOGS: Final[tuple[Action, ...]] = (
    Action(
        "logs.pause",
        "Follow/hold",
        "Hold the panes still, or follow again.",
        ("space",),
        "Logs",
        screens=_LOGS,
        footer=1,
        short="hold",
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
        footer=8,
        short="noise",
    ),
    Action(
        "logs.panes",
        "Panes",
        "One, two, four or eight panes.",
        ("v",),
        "Logs",
        screens=_LOGS,
        footer=7,
    ),
    Action(
        "logs.choose",
        "Choose logs",
        "Which servers' logs the panes show, the run's and the agent's too: type to find, space "
        "marks; kept for each target while the console runs.",
        ("L",),
        "Logs",
        screens=_LOGS,
        footer=6,
        short="choose",
    ),
    Action(
        "logs.next",
        "Other sources",
        "The next panes of the logs that are chosen, or of all there are.",
        ("n",),
        "Logs",
        screens=_LOGS,
        footer=9,
        short="others",
    ),
    Action(
        "logs.merge",
        "Merge",
        "The logs in one, by time, also back through their files; again: side by side.",
        ("M",),
        "Logs",
        screens=_LOGS,
        footer=4,
    ),
    Action(
        "logs.time",
        "Go to a time",
        "Show every pane from a time on, from the files themselves.",
        ("T",),
        "Logs",
        screens=_LOGS,
        footer=5,
        short="time",
    ),
    Action(
        "logs.save",
        "Save lines",
        "Write what the chosen pane holds, or a span of its whole log (of all, merged), to a file "
        "here.",
        ("S",),
        "Logs",
        screens=_LOGS,
        footer=10,
        short="save",
    ),
    Action(
        "logs.copy",
        "Copy lines",
        "Copy the lines on the chosen pane; a selection: ctrl+c.",
        ("Y",),
        "Logs",
        screens=_LOGS,
        footer=11,
        short="copy",
    ),
    Action(
        "logs.error",
        "Next error",
        "Jump to the next line that tells of an error, or matches what F looks for, in the whole "
        "file.",
        ("E", "right_square_bracket"),
        "Logs",
        screens=_LOGS,
        footer=3,
        short="error",
    ),
    Action(
        "logs.before",
        "Error before",
        "The same the other way.",
        ("left_square_bracket",),
        "Logs",
        screens=_LOGS,
    ),
    Action(
        "logs.find",
        "Find",
        "Mark what matches a regular expression and jump to it; nothing is hidden.",
        ("F",),
        "Logs",
        screens=_LOGS,
    ),
    Action(
        "logs.raw",
        "Raw lines",
        "Lines as they stand in the file, or in this clock and with batch lines in short.",
        ("V",),
        "Logs",
        screens=_LOGS,
    ),
)
