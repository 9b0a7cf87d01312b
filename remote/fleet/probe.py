"""HTTP questions to one server. Each kind has at most one request open at a time."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from remote.sglang.loads import Loads, ServerFacts, read_loads, read_server_info
from remote.sglang.metrics import Metrics
from remote.sglang.metrics import read as read_metrics


@dataclass
class Probe:
    """Asks one server; every method answers None (or False) instead of raising."""

    session: aiohttp.ClientSession
    url: str
    api_key: str = ""
    metrics_off: bool = False
    """The server answered 404: it runs without ``enable-metrics``."""
    problem: str = ""
    """Why the last question got no answer."""
    needs_key: bool = False
    """Asked for its load, it said that the key is wrong, or that none was given."""
    answered_at: float = 0.0
    """When any question was last answered, Unix seconds."""
    missed: int = 0
    """Questions without an answer since."""
    _open: set[str] = field(default_factory=set)

    async def _ask(
        self, kind: str, method: str, path: str, seconds: float, body: Any = None
    ) -> tuple[int, bytes] | None:
        if kind in self._open:
            return None
        self._open.add(kind)
        try:
            async with self.session.request(
                method,
                self.url + path,
                json=body,
                headers={"Authorization": f"Bearer {self.api_key}"} if self.api_key else None,
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as answer:
                data = await answer.read()
                if kind == "loads":  # others may need none
                    self.needs_key = answer.status == 401
                self.problem = "" if answer.status < 400 else f"{path} answers {answer.status}"
                self.answered_at, self.missed = time.time(), 0
                return answer.status, data
        except TimeoutError:
            self.problem = f"{path} gave no answer within {seconds:.0f} s"
            self.missed += 1
        except (aiohttp.ClientError, OSError) as error:
            self.problem = f"{path}: {type(error).__name__}"
            self.missed += 1
        finally:
            self._open.discard(kind)
        return None

    async def _json(self, kind: str, path: str, seconds: float) -> Any:
        answer = await self._ask(kind, "GET", path, seconds)
        if answer is None or answer[0] != 200:
            return None
        try:
            return json.loads(answer[1])
        except ValueError:
            self.problem = f"{path} answers no JSON"
            return None

    async def loads(self, seconds: float = 3.0) -> Loads | None:
        """What it does right now."""
        return read_loads(await self._json("loads", "/v1/loads?include=core", seconds))

    async def server_info(self, seconds: float = 30.0) -> ServerFacts | None:
        """What it is; goes through its scheduler, so a hung one does not answer."""
        return read_server_info(await self._json("info", "/server_info", seconds))

    async def metrics(self, seconds: float = 3.0) -> Metrics | None:
        """Its counters and gauges, where ``enable-metrics`` is on."""
        answer = await self._ask("metrics", "GET", "/metrics", seconds)
        if answer is None:
            return None
        if answer[0] == 404:
            self.metrics_off = True
        if answer[0] != 200:
            return None
        return await asyncio.to_thread(read_metrics, answer[1].decode("utf-8", "replace"))

    async def healthy(self, seconds: float) -> bool:
        """``/health``; on an idle server this makes it generate one token."""
        answer = await self._ask("health", "GET", "/health", seconds)
        return answer is not None and answer[0] == 200

    async def completes(self, seconds: float) -> bool:
        """One short real answer to a chat request."""
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": "Say yes."}],
            "max_tokens": 8,
            "temperature": 0,
        }
        answer = await self._ask("completion", "POST", "/v1/chat/completions", seconds, body)
        if answer is None or answer[0] != 200:
            return False
        try:
            document = json.loads(answer[1])
            return bool(
                document["choices"][0]["finish_reason"] in ("stop", "length")
                and document["usage"]["completion_tokens"] > 0
            )
        except (ValueError, LookupError, TypeError):
            self.problem = "its answer to a chat request is none"
            return False

    async def abort_all(self, seconds: float = 5.0) -> bool:
        """End everything it runs; who waits for an answer gets what there is of it."""
        answer = await self._ask(
            "abort", "POST", "/abort_request", seconds, {"rid": "", "abort_all": True}
        )
        return answer is not None and answer[0] == 200
