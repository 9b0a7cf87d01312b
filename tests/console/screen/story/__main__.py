"""The console on the story, in this terminal."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from console.app import StokerApp
from console.model import Link
from remote.protocol import Alert, Message
from tests.console.screen.story.feed import Story


def main() -> None:
    """Open it, and leave with the app's own status."""
    parser = argparse.ArgumentParser(prog="python -m tests.console.screen.story")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--trouble", action="store_true")
    parser.add_argument("--call", type=float, default=0.0, help="an alert after so many seconds")
    given = parser.parse_args()

    class Alerting(Story):
        def advance(self, seconds: float) -> None:
            super().advance(seconds)
            if given.call and self.seq >= given.call and not self.alerts:
                self.alerts.append(Alert("hot.1", "GPU 1: 91 °C", self.now))
                self.say("alert", "GPU 1: 91 °C", level="warning")

    def make(on_message: Callable[[Message], None], on_link: Callable[[Link], None]) -> Story:
        story = Alerting(
            on_message, on_link, gpus=given.gpus, rate=given.rate, now=time.time(), elapsed=60
        )
        if given.trouble:
            trouble(story)
        return story

    app = StokerApp(make, name="ct200", read_only=given.read_only)
    app.run()
    sys.exit(app.return_code)


def trouble(story: Story) -> None:
    """One server failed, one is slow and hot, and the run would last too long."""
    story.servers[3].state = "failed"
    story.servers[3].cause = "CUDA out of memory: tried to allocate 2.41 GiB (exit 1)"
    story.servers[5].speed, story.servers[5].heat = 0.6, 24
    text = "Done only in 208 h, over the 48 h of alerts.eta_hours_over"
    story.alerts.append(Alert("eta", text, story.now, "error"))


if __name__ == "__main__":
    main()
