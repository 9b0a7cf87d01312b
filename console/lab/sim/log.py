"""SGLang's log lines, to the letter, written the way the real processes write them.

Grammar after ``srt/observability/scheduler_metrics_mixin.py`` (0.5.12) and
``srt/managers/scheduler_components/metrics_reporter.py`` (0.5.23); the prefix is that of
``srt/utils/common.py:configure_logger``.
"""

from __future__ import annotations

import contextlib
import os
import time

from console.lab.sim.work import Decode, Limits, Line, Prefill, Retract

OUT, ERR = 1, 2


def write(fd: int, text: str) -> None:
    """All of the text, at once; a reader that has gone is not our business."""
    data = text.encode("utf-8", "replace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(fd, data) :]


def stamp() -> str:
    """``[2026-05-20 10:00:01]``, local time."""
    return time.strftime("[%Y-%m-%d %H:%M:%S]")


def say(message: str) -> None:
    """One line of SGLang's own loggers (standard error)."""
    write(ERR, f"{stamp()} {message}\n")


def uvicorn(message: str, level: str = "INFO") -> None:
    """One of uvicorn's lifecycle lines (standard error)."""
    write(ERR, f"{stamp()} {level}:{' ' * (8 - len(level))} {message}\n")


_PHRASES = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def access(peer: str, method: str, path: str, status: int) -> None:
    """One of uvicorn's access lines (standard output)."""
    phrase = _PHRASES.get(status, "")
    write(OUT, f'{stamp()} INFO:     {peer} - "{method} {path} HTTP/1.1" {status} {phrase}\n')


def bar(label: str, done: int, total: int, seconds: float) -> str:
    """A progress bar as tqdm leaves it in a file: no line break, a carriage return in front."""
    share = done / total
    rate = done / seconds if seconds > 0 else 0.0
    clock = f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
    return f"\r{label}: {share:4.0%} Completed | {done}/{total} [{clock}<00:00, {rate:5.2f}it/s]"


def line(event: Line, limits: Limits) -> str:
    """The log line of a scheduler event."""
    if isinstance(event, Prefill):
        return (
            f"Prefill batch, #new-seq: {event.seqs}, #new-token: {event.new_tokens}, "
            f"#cached-token: {event.cached_tokens}, "
            f"full token usage: {event.used / limits.tokens:.2f}, "
            f"mamba usage: {event.mamba / limits.slots:.2f}, "
            f"#running-req: {event.running}, #queue-req: {event.queued}, "
            f"#pending-token: {event.pending}, cuda graph: {event.graph}, "
            f"input throughput (token/s): {event.input_rate:.2f}"
        )
    if isinstance(event, Decode):
        return (
            f"Decode batch, #running-req: {event.running}, #full token: {event.used}, "
            f"full token usage: {event.used / limits.tokens:.2f}, mamba num: {event.mamba}, "
            f"mamba usage: {event.mamba / limits.slots:.2f}, cuda graph: {event.graph}, "
            f"gen throughput (token/s): {event.rate:.2f}, #queue-req: {event.queued}"
        )
    assert isinstance(event, Retract)
    return (
        f"KV cache pool is full. Retract requests. #retracted_reqs: {event.requests}, "
        f"#new_tokens_gained: {event.tokens}, #mamba_num_gained: {event.mamba}, "
        f"#new_token_ratio: {event.ratio_before:.4f} -> {event.ratio_after:.4f}"
    )
