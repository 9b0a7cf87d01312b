"""Waiting for what comes to pass by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(true: Callable[[], object], seconds: float = 30.0, what: str = "") -> None:
    """Wait until ``true()`` is; fail when that takes too long."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what or f"not within {seconds} s"
        await asyncio.sleep(0.02)
