"""What the tests of SGLang's log share."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote.sglang.loglines import LogReader

REAL = Path(__file__).parents[4] / "shared" / "fixtures" / "real-engines" / "sglang" / "logs"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real engine's logs are not here")

TS = "[2026-05-20 10:00:03]"


def read(*lines: str) -> LogReader:
    reader = LogReader()
    for line in lines:
        reader.line(line, 100.0)
    return reader
