"""Draws charts with plotext in a process of its own: one JSON object a line in, one out.

plotext takes tens of milliseconds for eight series, half a second to import, and draws in native
code: none of that may hold up a key press or end the console. Run as a script, it imports only
plotext.

Request: ``id``, ``width``, ``height``, ``points`` (of every series), ``series`` (list of
``{"color": code, "values": [...]}``,
oldest first, ``null`` for a hole), ``top``, ``x`` and ``y`` (tick positions and labels), ``marks``
(positions on the x axis), ``labels`` (``[x, y, text, code]``). Answer: ``id`` and ``rows``, each a
list of ``[text, code]``, where ``code`` is the colour code that went in, or ``null``.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

AXES, TICKS, MARKS = 240, 241, 242
"""Colour codes of the frame, its labels, and marks on the time axis."""

_SGR = re.compile(r"\x1b\[([0-9;]*)m")


def parse(text: str) -> list[list[tuple[str, int | None]]]:
    """Rows of ANSI text → runs of (text, 256-colour foreground code)."""
    rows: list[list[tuple[str, int | None]]] = []
    for line in text.split("\n"):
        runs: list[tuple[str, int | None]] = []
        code: int | None = None
        pieces = _SGR.split(line)
        for index, piece in enumerate(pieces):
            if index % 2:
                words = piece.split(";")
                if words[:2] == ["38", "5"] and len(words) > 2:
                    code = int(words[2])
                elif words in ([""], ["0"]):
                    code = None
            elif piece:
                if runs and runs[-1][1] == code:
                    runs[-1] = (runs[-1][0] + piece, code)
                else:
                    runs.append((piece, code))
        rows.append(runs)
    while rows and not rows[-1]:
        rows.pop()
    return rows


def draw(ask: dict[str, Any]) -> list[list[tuple[str, int | None]]]:
    """One chart as rows of coloured runs."""
    import plotext  # type: ignore[import-untyped]

    plotext.terminal.limit(False, False)  # there is none here: it would take it for 80×24
    figure = plotext.figure
    figure.clear.all()
    figure.plot_size(ask["width"], ask["height"])
    figure.canvas("default")
    bare = plotext.pixel(AXES)
    figure.axes(True, pixel=bare)
    figure.axes(False, axis=0, side=1)
    figure.axes(False, axis=1, side=1)
    x, y = figure.ruler(0, 0), figure.ruler(1, 0)
    for ruler in (x, y):
        ruler.pixel(plotext.pixel(TICKS))
    x.lim(0, max(1, ask["points"] - 1))
    y.lim(0, ask["top"])
    x.ticks(ask["x"][0], ask["x"][1])
    y.ticks(ask["y"][0], ask["y"][1])
    for mark in ask["marks"]:
        line = figure.signal(
            [mark, mark], [0, ask["top"]], marker=plotext.marker("┊", plotext.pixel(MARKS))
        )
        figure.draw(line.lines(True))
    for series in ask["series"]:
        points = [(i, v) for i, v in enumerate(series["values"]) if v is not None]
        if not points:
            continue
        marker = plotext.marker("braille", plotext.pixel(series["color"]))
        line = figure.signal([p[0] for p in points], [p[1] for p in points], marker=marker)
        line.lines(True)
        for index in range(1, len(points)):
            if points[index][0] - points[index - 1][0] > 2:  # a hole stays a hole
                line.line(index, False)
        figure.draw(line)
    for at, value, text, code in ask["labels"]:
        label = plotext.colorize(text).fill(plotext.pixel(code))
        figure.draw(figure.text(at, value, label))
    return parse(figure.build().string())


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            answer = {"id": ask["id"], "rows": draw(ask)}
        except Exception as error:  # the native kernel's and plotext's own errors have no base
            answer = {"id": ask["id"], "error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
