"""What the run prints: one renewed line on a terminal, a line a minute in a log, a summary."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from remote.generate.accounts import Shift
from remote.generate.progress import bar, duration
from remote.protocol import Progress

LOG_S = 60.0


class Show:
    """Standard output, for people."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._next = time.monotonic() + LOG_S

    def tick(self, progress: Progress) -> None:
        """Once a second."""
        ended = progress.completed + progress.failed + progress.set_aside
        if self._terminal:
            text = f"\r{bar(ended, progress.total, 24)} {one_line(progress)}\x1b[K"
            with contextlib.suppress(OSError):
                print(text, end="", flush=True)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + LOG_S
            say(one_line(progress))

    def summary(self, p: Progress, shifts: Mapping[tuple[str, int | None], Shift]) -> None:
        """What this process did, and where the run stands."""
        if self._terminal:
            print()
        kinds = ", ".join(f"{count:,} {name}" for name, count in sorted(p.outcomes.items()))
        say(
            f"{'finished' if p.status == 'done' else 'left'}: {p.completed:,} of {p.total:,} done "
            f"({kinds or 'none'}), {p.failed:,} failed, {p.set_aside:,} set aside, "
            f"{p.remaining:,} left; {p.total_input_tokens:,} tokens in, "
            f"{p.total_output_tokens:,} out, {p.total_reasoning_tokens:,} of them thinking"
        )
        if p.continued or p.tokens_kept or p.tokens_lost:
            say(
                f"  {p.continued:,} answers continued where they had been broken off; of those, "
                f"{p.tokens_kept:,} tokens kept, {p.tokens_lost:,} lost"
            )
        for (url, epoch), shift in sorted(shifts.items(), key=lambda item: item[1].began):
            where = url if epoch is None else f"{url}, epoch {epoch}"
            rate = shift.tokens / max(shift.ended - shift.began, 1e-9)
            say(f"  {where}: {shift.answers:,} answers, {rate:,.0f} tok/s")
        if worked := len({url for url, _ in shifts}):
            hours = p.elapsed_hours * worked
            text = f"  {hours:.2f} GPU hours so far at one GPU a server"
            if p.total_output_tokens:
                text += f", {hours / p.total_output_tokens * 1e6:.3g} a million output tokens"
            say(text)
        if p.not_in_s3:
            say(f"  {p.not_in_s3:,} records not yet in S3{f': {p.s3_error}' * bool(p.s3_error)}")


def one_line(p: Progress) -> str:
    """Where the run stands."""
    ended = p.completed + p.failed + p.set_aside
    text = (
        f"{ended:,}/{p.total:,} {p.rate_per_sec:.2f}/s {p.tok_s or 0:,.0f} tok/s "
        f"ETA {duration(p.eta_hours)}, {p.in_flight} in flight"
    )
    if p.failed or p.set_aside:
        text += f", {p.failed} failed, {p.set_aside} set aside"
    return f"{text} [{p.problem}]" if p.problem else text


def port(url: str) -> int:
    """The TCP port of a server's URL."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def say(text: str) -> None:
    """A line for people, at once; where nobody listens any more the run goes on."""
    with contextlib.suppress(OSError):
        print(text, flush=True)
