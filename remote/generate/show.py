"""What the run prints: one renewed line on a terminal, a line a minute in a log, a summary.

Each line bears the time as SGLang's own do, so that both are found by it, except the log's first
ones (``Port 30000: OK`` … ``Starting generation...``), which other tools read.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from remote.generate.accounts import Shift
from remote.generate.progress import bar, duration
from remote.protocol import Progress

LOG_S = 60.0


class Show:
    """Standard output, for people; where nobody listens any more the run goes on."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._next = time.monotonic() + LOG_S
        self._early: list[str] | None = []
        """Lines that came before the log's first ones; None once those are out."""

    def begin(self, first: Iterable[str]) -> None:
        """The log's first lines, as they are; then what was said before them."""
        for text in first:
            self._print(f"{text}\n")
        self._release()

    def say(self, text: str) -> None:
        """A line, at once."""
        line = f"{time.strftime('[%Y-%m-%d %H:%M:%S]')} {text}\n"
        if self._early is None:
            self._print(line)
        else:
            self._early.append(line)

    def aside(self, text: str) -> None:
        """A line for who sits before it, on standard error: the log has its own first lines."""
        with contextlib.suppress(OSError):
            print(f"remote.generate: {text}", file=sys.stderr, flush=True)

    def tick(self, progress: Progress) -> None:
        """Once a second."""
        ended = progress.completed + progress.failed + progress.set_aside
        if self._terminal:
            self._print(f"{bar(ended, progress.total, 24)} {one_line(progress)}")
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + LOG_S
            self.say(one_line(progress))

    def summary(
        self,
        p: Progress,
        shifts: Mapping[tuple[str, int | None], Shift],
        gpu_hours: float,
        reasons: Iterable[str] = (),
    ) -> None:
        """What this process did, and where the run stands.

        ``gpu_hours``: of all its processes, at one GPU a server; ``reasons``: why prompts were
        given up.
        """
        self._release()
        if self._terminal:
            self._print("", end="\n")  # the bar stays
        say = self.say
        kinds = ", ".join(f"{count:,} {name}" for name, count in sorted(p.outcomes.items()))
        say(
            f"{'finished' if p.status == 'done' else 'left'}: {p.completed:,} of {p.total:,} done "
            f"({kinds or 'none'}), {p.failed:,} failed, {p.set_aside:,} set aside, "
            f"{p.remaining:,} left; {p.total_input_tokens:,} tokens in, "
            f"{p.total_output_tokens:,} out, {p.total_reasoning_tokens:,} of them thinking"
        )
        for text in reasons:
            say(f"  {text}")
        if p.continued or p.tokens_kept or p.tokens_lost:
            say(
                f"  {p.continued:,} answers continued where they had been broken off; of those, "
                f"{p.tokens_kept:,} tokens kept, {p.tokens_lost:,} lost"
            )
        for (url, epoch), shift in sorted(shifts.items(), key=lambda item: item[1].began):
            where = url if epoch is None else f"{url}, epoch {epoch}"
            rate = shift.tokens / max(shift.ended - shift.began, 1e-9)
            say(f"  {where}: {shift.answers:,} answers, {rate:,.0f} tok/s")
        if gpu_hours:
            text = f"  {gpu_hours:.2f} GPU hours so far at one GPU a server"
            if p.total_output_tokens:
                text += f", {gpu_hours / p.total_output_tokens * 1e6:.3g} a million output tokens"
            say(text)
        if p.not_in_s3:
            say(f"  {p.not_in_s3:,} records not yet in S3{f': {p.s3_error}' * bool(p.s3_error)}")

    def _release(self) -> None:
        early, self._early = self._early or [], None
        for line in early:
            self._print(line)

    def _print(self, text: str, end: str = "") -> None:
        if self._terminal and not end:
            text = f"\r\x1b[K{text}"  # over the bar
        with contextlib.suppress(OSError):
            print(text, end=end, flush=True)


def let_go() -> None:
    """Have what could not be printed not change the exit status.

    Python flushes standard output once more at its end, and fails where nobody reads it any more.
    """
    try:
        sys.stdout.flush()
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


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
