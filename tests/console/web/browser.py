"""A headless Chromium, spoken to over its own debugging protocol: for looking at one page."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import shutil
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def found() -> str | None:
    """The browser's program, where there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


async def eventually(true: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.1)


class Browser:
    """One page. ``errors`` is what the page complained of, ``painted`` the newest of what came to
    it over WebSockets, as text."""

    def __init__(self, program: str, profile: Path, size: tuple[int, int] = (1400, 900)) -> None:
        self.program = program
        self.profile = profile
        self.size = size
        self.errors: list[str] = []
        self.painted = ""
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Browser:
        self._process = await asyncio.create_subprocess_exec(
            self.program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-port=0",
            f"--user-data-dir={self.profile}",
            f"--window-size={self.size[0]},{self.size[1]}",
            "about:blank",
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
        told = self.profile / "DevToolsActivePort"
        await eventually(lambda: told.exists() and "\n" in told.read_text())
        port = told.read_text().split()[0]
        self._http = aiohttp.ClientSession()
        async with asyncio.timeout(30):
            while True:
                async with self._http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [p for p in await answer.json() if p["type"] == "page"]
                if pages:
                    break
                await asyncio.sleep(0.1)
        self._socket = await self._http.ws_connect(
            pages[0]["webSocketDebuggerUrl"], max_msg_size=1 << 26
        )
        self._reader = asyncio.create_task(self._read())
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.do(f"{domain}.enable")
        await self.do("Emulation.setFocusEmulationEnabled", enabled=True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await self._http.close()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), 10)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                answer = self._answers.pop(told["id"], None)
                if answer is not None and not answer.done():
                    answer.set_result(told)
            elif told["method"] == "Network.webSocketFrameReceived":
                frame = told["params"]["response"]
                if frame["opcode"] == 2:
                    text = base64.b64decode(frame["payloadData"]).decode("utf-8", "replace")
                    self.painted = (self.painted + _CODES.sub("", text))[-200_000:]
            elif told["method"] == "Log.entryAdded":
                entry = told["params"]["entry"]
                if entry["level"] == "error":
                    self.errors.append(f"{entry['text']} {entry.get('url', '')}")

    async def do(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        number = next(self._ids)
        answer = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self._socket.send_json({"id": number, "method": method, "params": params})
        told = await asyncio.wait_for(answer, 60)
        assert "error" not in told, told
        result: dict[str, Any] = told["result"]
        return result

    async def open(self, url: str) -> None:
        """Go there."""
        await self.do("Page.navigate", url=url)

    async def value(self, script: str) -> Any:
        """What a script comes to on the page."""
        told = await self.do("Runtime.evaluate", expression=script, returnByValue=True)
        return told["result"].get("value")

    async def until(self, script: str, seconds: float = 60) -> None:
        """Wait until a script is true on the page."""
        end = time.monotonic() + seconds
        while not await self.value(script):
            assert time.monotonic() < end, f"{script} did not come true in time"
            await asyncio.sleep(0.2)

    async def key(self, text: str) -> None:
        """Press a key that types a letter."""
        await self.do("Input.dispatchKeyEvent", type="keyDown", text=text, key=text)
        await self.do("Input.dispatchKeyEvent", type="keyUp", key=text)

    async def picture(self) -> bytes:
        """What is to be seen, as a PNG."""
        told = await self.do("Page.captureScreenshot", format="png")
        return base64.b64decode(told["data"])
