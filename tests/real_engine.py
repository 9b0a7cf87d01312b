"""The real SGLang, where whoever runs the tests has one.

    STOKER_REAL_SGLANG=/path/to/venv/bin/python STOKER_REAL_MODEL=/path/to/model \\
    STOKER_REAL_ENV=/path/to/env.sh pytest tests/remote/fleet/test_real_engine.py …

Without a GPU the env script exports what SGLang needs then (``SGLANG_USE_CPU_ENGINE=1`` and what
stands in for the GPU libraries on ``PYTHONPATH``), and a tiny model will do.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.protocol import Flags
from tests import ports

PYTHON = os.environ.get("STOKER_REAL_SGLANG", "")
MODEL = os.environ.get("STOKER_REAL_MODEL", "")
ENV = os.environ.get("STOKER_REAL_ENV", "")

needed = [
    pytest.mark.skipif(not PYTHON, reason="STOKER_REAL_SGLANG names no Python with SGLang"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("the real engine"),
]
"""Marks of a test that needs it."""

FLAGS: Flags = {
    "served-model-name": "tiny",
    "device": "cpu",
    "attention-backend": "torch_native",
    "sampling-backend": "pytorch",
    "disable-cuda-graph": True,
    "dtype": "float32",
    "max-total-tokens": 65536,
    "max-running-requests": 16,
    "context-length": 4096,
    "enable-metrics": True,
    "reasoning-parser": "qwen3",
    "tool-call-parser": "qwen",
    "sleep-on-idle": True,
}
START_S = 240.0


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """One that is ready; its URL. All of it is gone afterwards."""
    port = ports.free()
    words = [PYTHON, "-m", "sglang.launch_server", "--model-path", MODEL, "--port", str(port)]
    for name, value in FLAGS.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    script = f'[ -z "{ENV}" ] || . "{ENV}"; exec "$@"'
    log = folder / "sglang.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while not _healthy(url):
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, "not ready in time"
            time.sleep(0.5)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError):
        return False
