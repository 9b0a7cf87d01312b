"""A small OpenAI-compatible server with faults to order, in a process of its own.

``POST /_set`` changes its behaviour while it runs, ``GET /_seen`` tells what it got.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
from typing import Any

from aiohttp import web


class Engine:
    """Behaviour and memory of one server."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.delay = 0.0
        self.mode = "ok"
        self.share = 1.0
        """Share of the requests that ``mode`` applies to."""
        self.size = 200
        self.max_running = 16
        self.limit = 0
        """More than so many at once get a 503; 0 is no limit."""
        self.engine = "sglang"
        self.model = "tiny"
        self.poison = ""
        """A prompt with this in it kills the process."""
        self.context = 8192
        self.faulty: list[int] | None = None
        """Prompts that ``mode`` applies to; None is all."""
        self.slow: list[int] = []
        """Prompts that take ten times as long."""
        self.key = ""
        self.tokens = 0
        self.running = 0
        self.peak = 0
        self.seen: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.keep_bodies = False
        self.checks = False
        """Keep the bodies of our own short completions, too."""
        self.aborting: dict[asyncio.Event, str] = {}
        self.picky = False
        """The mode applies to our own short completion, too."""
        self.template = 0
        """Tokens that the chat template adds to every prompt."""
        self.odd = False
        """Numbers of its load that are none."""
        self.negative = False
        """Say what is wrong with max_tokens below 1, in SGLang's words."""
        self.random = random.Random(1)
        self.change(settings)

    def change(self, settings: dict[str, Any]) -> None:
        """Set attributes."""
        for name, value in settings.items():
            assert hasattr(self, name), name
            setattr(self, name, value)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """One completion, or the fault of the hour."""
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        body = await request.json()
        text = str(body["messages"][-1].get("content"))
        check = text.startswith("Reply with the word")
        if not check:
            self.seen.append(int(text.split()[1]) if text.startswith("prompt ") else -1)
        if self.keep_bodies and (self.checks or not check):
            self.bodies.append(body)
        mode = self.mode if self.random.random() < self.share else "ok"
        if self.faulty is not None and (check or self.seen[-1] not in self.faulty):
            mode = "ok"
        spared = self.share < 1 or mode not in ("500", "503", "hang", "reset")
        if check and spared and not self.picky:
            mode = "ok"
        if self.negative and (most := int(body.get("max_tokens") or 1)) < 1:
            message = f"max_tokens must be at least 1, got {most}."
            return web.json_response({"object": "error", "message": message}, status=400)
        tokens = len(text) // 4 + self.template
        if not check and tokens + int(body.get("max_tokens") or 0) > self.context:
            return self.too_long(tokens, int(body["max_tokens"]))
        if self.poison and self.poison in text:
            os._exit(9)
        if self.limit and self.running >= self.limit:
            mode = "503"
        self.running += 1
        self.peak = max(self.peak, self.running)
        broken_off = asyncio.Event()
        self.aborting[broken_off] = str(body.get("rid"))
        try:
            if self.delay and not check:
                try:
                    wait = self.delay * self.random.uniform(0.5, 1.5)
                    if self.seen and self.seen[-1] in self.slow:
                        wait *= 10
                    await asyncio.wait_for(broken_off.wait(), wait)
                except TimeoutError:
                    pass
            if mode == "hang":
                await broken_off.wait() if not check else await asyncio.sleep(3600)
            if broken_off.is_set():
                mode = "abort"
            return self.answer(request, body, text, mode)
        finally:
            self.running -= 1
            del self.aborting[broken_off]

    def too_long(self, tokens: int, wanted: int) -> web.Response:
        """SGLang's words."""
        message = (
            f"Requested token count exceeds the model's maximum context length of {self.context} "
            f"tokens. You requested a total of {tokens + wanted} tokens: {tokens} tokens from the "
            f"input messages and {wanted} tokens for the completion."
        )
        return web.json_response({"object": "error", "message": message, "code": 400}, status=400)

    def answer(
        self, request: web.Request, body: dict[str, Any], text: str, mode: str
    ) -> web.StreamResponse:
        """The response of one mode."""
        if mode == "reset":
            if request.transport is not None:  # the client may have gone first
                request.transport.abort()
            return web.Response()
        if mode == "garbage":
            return web.Response(text="<html>gateway</html>", content_type="text/html")
        if mode in ("400", "404", "409", "422", "429", "500", "503"):
            message = {
                "400": "The input (9000 tokens) is longer than the model's context length",
                "404": "The model `other` does not exist.",
                "409": "conflict with another request",
                "422": "Tool 0 function has invalid 'parameters' schema",
                "429": "slow down",
                "500": "Internal server error: boom",
                "503": "The request queue is full.",
            }[mode]
            headers = {"retry-after": "0.2"} if mode in ("409", "429") else {}
            error = {"object": "error", "message": message, "type": mode, "code": int(mode)}
            return web.json_response(error, status=int(mode), headers=headers)
        digest = hashlib.sha256(text.encode()).hexdigest()
        content: str | None = (
            f"answer to {text[:40]}: {digest} "
            + "lorem ipsum é " * (self.size // 15)
            + digest[::-1]
        )
        if mode == "nested":  # not even JSON's own nesting is bounded
            text = '{"choices": [{"message": {"tool_calls": ' + "[" * 5000 + "]" * 5000 + "}}]}"
            return web.Response(text=text, content_type="application/json")
        reasoning: str | None = f"thinking {digest[:8]}"
        finish = "stop"
        if mode == "same":
            content, reasoning = "I am a teapot.", None
        elif mode == "loop":
            content = "and so on " * 300
        elif mode == "empty":
            content = None
        elif mode == "length":
            finish = "length"
        elif mode == "abort":
            content, finish = "half an", "abort"
        elif mode == "unmade":
            content, reasoning, finish = None, None, "abort"
        calls: list[dict[str, Any]] | None = None
        if mode == "brackets":
            content, finish = None, "length"
            function = {"name": "f", "arguments": '{"a": ' + "[" * 5000}
            calls = [{"id": "1", "type": "function", "function": function}]
        tokens = 0 if mode == "empty" else len(content or "") // 4
        self.tokens += tokens
        message_out = {
            "role": "assistant",
            "content": content,
            "reasoning_content": reasoning,
            "tool_calls": calls,
        }
        return web.json_response(
            {
                "id": body.get("rid", "x"),
                "object": "chat.completion",
                "model": self.model,
                "choices": [{"index": 0, "message": message_out, "finish_reason": finish}],
                "usage": {
                    "prompt_tokens": max(11, len(text) // 4),
                    "completion_tokens": tokens,
                    "total_tokens": tokens + 11,
                    "reasoning_tokens": 3,
                },
            }
        )

    async def loads(self, _: web.Request) -> web.Response:
        """``/v1/loads`` as SGLang 0.5.12 answers it, cut short."""
        running = min(self.running, self.max_running)
        load: dict[str, Any] = {
            "num_running_reqs": running,
            "num_waiting_reqs": self.running - running,
            "num_used_tokens": self.tokens + (0 if self.mode == "hang" else self.running),
            "max_running_requests": self.max_running,
        }
        if self.odd:
            load = {name: [{}, "many", "x", 10**9][at] for at, name in enumerate(load)}
        return web.json_response({"version": "0.5.12", "loads": [load]})

    async def models(self, _: web.Request) -> web.Response:
        """``/v1/models``."""
        model = {"id": self.model, "owned_by": self.engine, "max_model_len": self.context}
        return web.json_response({"object": "list", "data": [model]})

    async def tokenize(self, request: web.Request) -> web.Response:
        """``/tokenize``: a token is four characters here."""
        body = await request.json()
        if "prompt" not in body:  # an SGLang that renders no messages
            return web.json_response({"object": "error", "message": "prompt: missing"}, status=400)
        return web.json_response({"count": len(body["prompt"]) // 4})

    async def abort(self, request: web.Request) -> web.Response:
        """``/abort_request``: what is named comes back unfinished, or everything."""
        body = await request.json()
        for event, rid in list(self.aborting.items()):
            if body.get("abort_all") or rid == body.get("rid"):
                event.set()
        return web.Response()

    async def set(self, request: web.Request) -> web.Response:
        """Change the behaviour."""
        self.change(await request.json())
        return web.Response()

    async def told(self, _: web.Request) -> web.Response:
        """What came in so far."""
        return web.json_response(
            {"seen": self.seen, "peak": self.peak, "running": self.running, "bodies": self.bodies}
        )


def main() -> None:
    """Serve until killed; the first line of standard output is the port."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--settings", default="{}")
    chosen = parser.parse_args()
    engine = Engine(json.loads(chosen.settings))
    app = web.Application(client_max_size=1 << 26)
    app.add_routes(
        [
            web.post("/v1/chat/completions", engine.chat),
            web.get("/v1/loads", engine.loads),
            web.get("/v1/models", engine.models),
            web.post("/abort_request", engine.abort),
            web.post("/tokenize", engine.tokenize),
            web.post("/_set", engine.set),
            web.get("/_seen", engine.told),
        ]
    )

    async def serve() -> None:
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=5.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", chosen.port, reuse_address=True)
        await site.start()
        assert site._server is not None
        print(site._server.sockets[0].getsockname()[1], flush=True)  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
