"""Memory of the console over the messages of a day: ``python -m tests.bench.tui_day``.

The real app without a terminal, on a feed that brings what an agent brings in 24 hours as fast as
the app takes it in: a snapshot a second with eight GPUs, lines of eight logs, events, and now and
then another screen. One JSON line: resident memory after the first hour and after the last.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys

import psutil

from console.app import StokerApp
from console.model import Link
from remote.protocol import Event, Happened, LogPart
from tests.bench.terminal import COLUMNS, ROWS
from tests.console.screen.story import Story

HOUR = 3600
SCREENS = ("f", "l", "c", "g", "e", "l")
"""Gone through, a quarter of an hour each."""


class Day(Story):
    """The story, told by whoever drives the app."""

    async def run(self) -> None:
        """Connect, and wait for the end."""
        self.on_link(Link("connected", "a day"))
        self.tell()
        await self._closed.wait()

    def second(self, number: int) -> None:
        """One second of the target."""
        self.now += 1
        self.on_message(self.snapshot(full=False))
        for gpu in range(8):
            lines = [f"[{number}] Decode batch, #running-req: 37, line of GPU {gpu} " * 2] * 2
            self.on_message(LogPart(f"gpu{gpu}", 1, number * 100, number * 100 + 100, lines))
        if number % 150 == 0:  # five hundred records at three prompts a second and a bit
            event = Event(100 + number, self.now, "s3.uploaded", text="a batch of 500 records")
            self.on_message(Happened(event))


async def day(hours: int) -> dict[str, float]:
    """The measurement."""
    made: list[Day] = []

    def connect(on_message: object, on_link: object) -> Day:
        made.append(Day(on_message, on_link))  # type: ignore[arg-type]
        return made[-1]

    app = StokerApp(connect, name="day", remember=False, strict=True)
    process = psutil.Process()
    marks: list[float] = []
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        while not made or app.state.received is None:
            await pilot.pause(0.05)
        for number in range(hours * HOUR):
            made[0].second(number)
            if number % 4 == 0:
                app.show()  # on the real clock this is once a second; a quarter of it will do
                await asyncio.sleep(0)
            if number % 900 == 0:
                await pilot.press(SCREENS[number // 900 % len(SCREENS)])
                await pilot.pause()
            if number + 1 in (HOUR, hours * HOUR):
                await pilot.pause(0.5)
                gc.collect()
                marks.append(process.memory_info().rss / (1 << 20))
    first, last = marks[0], marks[-1]
    return {
        "hours": hours,
        "hour_1_mb": round(first, 1),
        "last_mb": round(last, 1),
        "growth_percent": round(100 * (last - first) / first, 1),
    }


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tui_day", description=__doc__)
    parser.add_argument("--hours", type=int, default=24)
    found = asyncio.run(day(parser.parse_args().hours))
    print(json.dumps(found), file=sys.__stdout__)


if __name__ == "__main__":
    main()
