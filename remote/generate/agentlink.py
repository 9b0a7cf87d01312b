"""The run's line to the agent: server readings come in, nothing else is needed.

The agent may die and come back, or never be there: the run goes on with the last
``control.json`` and polls the servers itself until readings come again.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from remote.protocol import (
    HEARTBEAT_S,
    MAX_LINE,
    VERSION,
    Call,
    Decoder,
    Heartbeat,
    Hello,
    Reading,
    Subscribe,
    encode,
)


async def follow(socket: Path, on_reading: Callable[[Reading], None]) -> None:
    """Subscribe to the agent's readings, reconnecting with jittered pauses, for ever."""
    pause = 0.5
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(str(socket), limit=2 * MAX_LINE)
        except OSError:
            await asyncio.sleep(pause * random.uniform(0.7, 1.3))
            pause = min(pause * 2, 10.0)
            continue
        beat = asyncio.create_task(_speak(writer))
        try:
            decoder = Decoder()
            while line := await reader.readline():
                pause = 0.5
                message = decoder.feed(line)
                if isinstance(message, Reading):
                    on_reading(message)
        except (OSError, ValueError):
            pass
        finally:
            beat.cancel()
            writer.close()
        await asyncio.sleep(pause * random.uniform(0.7, 1.3))


async def _speak(writer: asyncio.StreamWriter) -> None:
    hello = Hello(VERSION, "", "run", who="run", pid=os.getpid())
    writer.write(encode(hello))
    writer.write(encode(Call(1, Subscribe(snapshots=False, readings=True))))
    try:
        while True:
            await writer.drain()
            await asyncio.sleep(HEARTBEAT_S)
            writer.write(encode(Heartbeat(time.time())))
    except OSError:
        return
