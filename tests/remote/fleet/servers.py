"""What tests of the fleet do to its servers and ask of them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import aiohttp

from remote.fleet.fleet import Fleet
from remote.kernel_log import Xid
from tests.remote.fleet.conftest import Site


def pid_of(fleet: Fleet, gpu: int) -> int:
    pid = next(info.pid for info in fleet.infos() if info.gpu == gpu)
    assert pid is not None
    return pid


def by_hand(site: Site, log: Path, *flags: str) -> subprocess.Popen[bytes]:
    """A server as an operator starts it in a terminal."""
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", "/models/other"]
    with log.open("wb") as out:
        return subprocess.Popen(
            [*command, "--port", str(site.base), *flags],
            cwd=site.root,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def append(log: Path, text: str) -> None:
    with log.open("a") as out:
        print(text, file=out)


async def chat(url: str, tokens: int) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json={"max_tokens": tokens}) as answer,
    ):
        body = await answer.json()
        return str(body["choices"][0]["finish_reason"])


def report(number: int) -> Xid:
    return Xid("0000:41:00", number, "of the driver", time.time())
