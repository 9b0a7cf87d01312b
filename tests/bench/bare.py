"""The same requests by aiohttp alone, nothing kept: what any client costs at least.

python -m tests.bench.bare PROMPTS URL …
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import aiohttp

from tests.bench.tools import SLOTS


async def loop(data: bytes, urls: list[str]) -> None:
    """Every line once, so many at a time on each server."""
    lines = iter(data.splitlines())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def worker(url: str) -> None:
            for line in lines:
                body = {"model": "m", "messages": json.loads(line)["messages"], "max_tokens": 4096}
                async with session.post(url + "/v1/chat/completions", json=body) as response:
                    json.loads(await response.read())

        await asyncio.gather(*(worker(url) for url in urls for _ in range(SLOTS)))


if __name__ == "__main__":
    asyncio.run(loop(Path(sys.argv[1]).read_bytes(), sys.argv[2:]))
