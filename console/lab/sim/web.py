"""The HTTP face of a simulated server: paths of ``srt/entrypoints/http_server.py``, and what
happens around every request (keys, access lines, counters, errors)."""

from __future__ import annotations

import asyncio
import os

from aiohttp import web

from console.lab.sim import failures, log
from console.lab.sim.core import Core
from console.lab.sim.exchange import Handler, error, read_object, reply
from console.lab.sim.generation import Generation
from console.lab.sim.looking import Looking
from console.lab.sim.refusals import (
    BrokenError,
    DroppedError,
    InvalidError,
    RefusedError,
    not_one_of,
    text,
)
from console.lab.sim.texttools import TextTools

KEEP_ALIVE_S = float(os.environ.get("SGLANG_TIMEOUT_KEEP_ALIVE") or 5)
MAX_BODY = 256 << 20

ADMIN_OPTIONAL = {
    "/flush_cache",
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
    "/configure_logging",
}

FLUSHED = (
    b"Cache flushed.\nPlease check backend logs for more details. "
    b"(When there are running or waiting requests, the operation will not be performed.)\n"
)


class Face:
    """The handlers of one server."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.config = core.config
        self.args = core.config.args
        self.quiet = tuple(self.args.uvicorn_access_log_exclude_prefixes or ())
        self.access = (self.args.log_level_http or self.args.log_level) in (
            "info",
            "debug",
            "trace",
        )

    def app(self) -> web.Application:
        """The application with this dialect's paths."""
        app = web.Application(middlewares=[self._around], client_max_size=MAX_BODY)
        app.on_response_prepare.append(self._headers)
        look, make, tools = Looking(self.core), Generation(self.core), TextTools(self.config)
        new = self.config.new
        get, post = app.router.add_get, app.router.add_post
        for path in ("/health", "/health_generate"):
            get(path, look.health, allow_head=False)
        get("/ping", look.ping, allow_head=False)
        get("/", look.root, allow_head=False)
        for path in ("/server_info", "/get_server_info"):
            get(path, look.server_info, allow_head=False)
        for path in ("/model_info", "/get_model_info"):
            get(path, look.model_info, allow_head=False)
        get("/v1/models", look.models, allow_head=False)
        get("/v1/models/{name:.+}", look.model, allow_head=False)
        get("/v1/loads", look.loads, allow_head=False)
        if new:
            get("/ready", look.ready, allow_head=False)
            post("/freeze_gc", self.freeze_gc)
        else:
            get("/get_load", look.get_load, allow_head=False)
        if self.config.metrics:
            get("/metrics", look.metrics, allow_head=False)
        get("/flush_cache", self.flush_cache, allow_head=False)
        post("/flush_cache", self.flush_cache)
        post("/abort_request", self.abort_request)
        post("/pause_generation", self.pause)
        post("/continue_generation", self.go_on)
        post("/configure_logging", self.configure_logging)
        post("/generate", make.generate)
        app.router.add_put("/generate", make.generate)
        post("/v1/chat/completions", make.chat)
        post("/v1/completions", make.completions)
        for path in ("/tokenize", "/v1/tokenize"):
            post(path, tools.tokenize)
        for path in ("/detokenize", "/v1/detokenize"):
            post(path, tools.detokenize)
        post("/separate_reasoning", tools.separate_reasoning)
        post("/parse_function_call", tools.parse_function_call)
        return app

    # --- around every request ---

    @staticmethod
    async def _headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = "uvicorn"
        if response.headers.get("Content-Type") in (None, "application/octet-stream"):
            response.headers.pop("Content-Type", None)

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        path, method, counts = request.path, request.method, self.core.metrics
        route = (path, method)
        counts.http_requests[route] += 1
        counts.http_active[route] += 1
        response: web.StreamResponse
        try:
            refused = self._unauthorized(request)
            response = refused if refused is not None else await handler(request)
        except web.HTTPException as exc:
            response = reply({"detail": exc.reason}, exc.status)
        except RefusedError as exc:
            response = error(exc.message, exc.status, exc.kind)
        except InvalidError as exc:
            line, name = request["endpoint"]
            said = text(exc.problems, line, name, method, path)
            response = error(said, 400, "Bad Request")
        except BrokenError as exc:
            log.uvicorn(
                f"Exception in ASGI application\n{failures.traceback(str(exc), 'http')}", "ERROR"
            )
            response = web.Response(status=500, text="Internal Server Error")
            response.force_close()
        except DroppedError:
            if request.transport is not None:
                request.transport.abort()
            response = web.Response(status=500)
            raise asyncio.CancelledError from None
        finally:
            counts.http_active[route] -= 1
        counts.http_responses[path, method, str(response.status)] += 1
        if self.access and not (self.quiet and request.rel_url.path.startswith(self.quiet)):
            peer = request.transport.get_extra_info("peername") if request.transport else None
            address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "-"
            log.access(address, method, request.raw_path, response.status)
        return response

    def _unauthorized(self, request: web.Request) -> web.Response | None:
        key, admin = self.args.api_key, self.args.admin_api_key
        path = request.path
        free = ("/health", "/metrics", "/ready") if self.config.new else ("/health", "/metrics")
        if not (key or admin) or path.startswith(free):
            return None
        needed = admin if admin and path in ADMIN_OPTIONAL else key
        if needed and request.headers.get("Authorization") != f"Bearer {needed}":
            return reply({"error": "Unauthorized"}, 401)
        return None

    # --- controlling ---

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Empty the prefix cache of an idle server."""
        await self.core.scheduler()
        self.core.advance()
        if self.core.engine.flush_cache():
            log.say("Cache flushed successfully!")
            return web.Response(body=FLUSHED)
        log.say("Cache not flushed because there are pending requests.")
        return web.Response(body=b"Flush cache failed.\n", status=400)

    async def abort_request(self, request: web.Request) -> web.Response:
        """Abort one request, or all; always 200."""
        body = await read_object(request, 1403, "abort_request")
        rid = str(body.get("rid") or "")
        everything = bool(body.get("abort_all"))
        if rid or everything or not self.config.new:
            self.core.abort(rid, everything=everything)
        return web.Response()

    async def pause(self, request: web.Request) -> web.Response:
        """Hold generation; by default after aborting what runs."""
        body = await read_object(request, 1458, "pause_generation")
        mode = body.get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            raise InvalidError(not_one_of(("mode",), "'abort', 'retract' or 'in_place'", mode))
        if mode == "abort":
            self.core.abort(everything=True)
        self.core.pause(True)
        return reply({"message": "Generation paused successfully.", "status": "ok"})

    async def go_on(self, request: web.Request) -> web.Response:
        """Let generation go on."""
        await read_object(request, 1469, "continue_generation")
        self.core.pause(False)
        return reply({"message": "Generation continued successfully.", "status": "ok"})

    async def configure_logging(self, request: web.Request) -> web.Response:
        """Accepted; nothing of it changes a simulation."""
        await read_object(request, 1480, "configure_logging")
        return web.Response()

    async def freeze_gc(self, request: web.Request) -> web.Response:
        """Accepted (0.5.23)."""
        return web.Response(text="Garbage collection frozen.\n")
