"""The HTTP face of a simulated server: paths, shapes and errors of ``srt/entrypoints``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from console.lab.sim import answers, log, parsers, template
from console.lab.sim import config as configs
from console.lab.sim.answers import Style
from console.lab.sim.core import Core, DroppedError, Entry, RefusedError, Sampling
from console.lab.sim.tokens import tokenizer

KEEP_ALIVE_S = 5.0
STREAM_S = 0.05
"""How often a stream gets what was generated since: the real one sends every step."""
MAX_BODY = 256 << 20

ADMIN_OPTIONAL = {
    "/flush_cache",
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
    "/configure_logging",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def reply(value: Any, status: int = 200) -> web.Response:
    """A JSON answer, with the bare content type that the real server sends."""
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def error(message: str, status: int = 400, kind: str = "BadRequestError") -> web.Response:
    """An error of the OpenAI endpoints: flat, not below a key ``error``."""
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return reply(body, status)


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
        new = self.config.new
        get, post = app.router.add_get, app.router.add_post
        for path in ("/health", "/health_generate"):
            get(path, self.health, allow_head=False)
        get("/ping", self.ping, allow_head=False)
        get("/", self.root, allow_head=False)
        for path in ("/server_info", "/get_server_info"):
            get(path, self.server_info, allow_head=False)
        for path in ("/model_info", "/get_model_info"):
            get(path, self.model_info, allow_head=False)
        get("/v1/models", self.models, allow_head=False)
        get("/v1/loads", self.loads, allow_head=False)
        if new:
            get("/ready", self.ready, allow_head=False)
            post("/freeze_gc", self.freeze_gc)
        else:
            get("/get_load", self.get_load, allow_head=False)
        if self.config.metrics:
            get("/metrics", self.metrics, allow_head=False)
        get("/flush_cache", self.flush_cache, allow_head=False)
        post("/flush_cache", self.flush_cache)
        post("/abort_request", self.abort_request)
        post("/pause_generation", self.pause)
        post("/continue_generation", self.go_on)
        post("/configure_logging", self.configure_logging)
        post("/generate", self.generate)
        app.router.add_put("/generate", self.generate)
        post("/v1/chat/completions", self.chat)
        post("/v1/completions", self.completions)
        for path in ("/tokenize", "/v1/tokenize"):
            post(path, self.tokenize)
        for path in ("/detokenize", "/v1/detokenize"):
            post(path, self.detokenize)
        post("/separate_reasoning", self.separate_reasoning)
        post("/parse_function_call", self.parse_function_call)
        return app

    # --- around every request ---

    @staticmethod
    async def _headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = "uvicorn"
        if isinstance(response, web.Response) and not response.body:  # nothing has no type
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

    async def _body(self, request: web.Request, line: int, name: str) -> dict[str, Any]:
        """The JSON object of a request; raises :class:`RefusedError` as FastAPI would."""
        data = await request.read()
        where = (
            f'  File "site-packages/sglang/srt/entrypoints/http_server.py", line {line}, in '
            f"{name}\n    {request.method} {request.path} "
        )
        kind = request.content_type
        if kind != "application/json":
            problem = (
                "[{'type': 'value_error', 'loc': ('header', 'content-type'), "
                "'msg': \"Unsupported Media Type: Only 'application/json' is allowed\"}]"
            )
            raise RefusedError(
                f"1 validation error:\n  {problem[1:-1]}\n\n{where}{problem}", 400, "Bad Request"
            )
        try:
            body = msgspec.json.decode(data)
        except msgspec.DecodeError as exc:
            problem = (
                "[{'type': 'json_invalid', 'loc': ('body', 1), 'msg': 'JSON decode error', "
                f"'input': {{}}, 'ctx': {{'error': {str(exc)!r}}}}}]"
            )
            raise RefusedError(
                f"1 validation error:\n  {problem[1:-1]}\n\n{where}{problem}", 400, "Bad Request"
            ) from None
        if not isinstance(body, dict):
            raise RefusedError(_field("model_attributes_type", "body", body), 400, "Bad Request")
        return body

    # --- looking ---

    async def health(self, request: web.Request) -> web.Response:
        """503 while starting and draining; else after one real token, or 20 s without one."""
        if self.core.draining:
            log.say("Health check request received during shutdown. Returning 503.")
            return web.Response(status=503)
        return web.Response(status=200 if await self.core.health() else 503)

    async def ready(self, request: web.Request) -> web.Response:
        """A flag only (0.5.23)."""
        core = self.core
        fine = core.status == "Up" and not core.paused and not core.draining
        return web.Response(status=200 if fine else 503)

    async def ping(self, request: web.Request) -> web.Response:
        """Always well in 0.5.12; a flag in 0.5.23."""
        fine = self.core.status == "Up" and not self.core.draining
        return web.Response(status=200 if fine or not self.config.new else 503)

    async def root(self, request: web.Request) -> web.Response:
        """A sign of life."""
        return reply("SGLang is running")

    async def models(self, request: web.Request) -> web.Response:
        """The one model."""
        name = self.config.served_name
        model = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self.config.context,
        }
        return reply({"object": "list", "data": [model]})

    async def model_info(self, request: web.Request) -> web.Response:
        """What the model is."""
        if request.path.startswith("/get_"):
            _deprecated("/get_model_info", "/model_info")
        info: dict[str, Any] = {
            "model_path": self.config.model,
            "tokenizer_path": self.args.tokenizer_path or self.config.model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": self.args.weight_version,
            "has_image_understanding": True,
            "has_audio_understanding": False,
            "model_type": "qwen3_5",
            "architectures": ["Qwen3_5ForConditionalGeneration"],
        }
        if self.config.new:
            info.update(
                served_model_name=self.config.served_name,
                load_format=self.args.load_format,
                reasoning_parser=self.args.reasoning_parser,
                tool_call_parser=self.args.tool_call_parser,
                disaggregation_mode=self.args.disaggregation_mode,
            )
        return reply(info)

    async def server_info(self, request: web.Request) -> web.Response:
        """Flags and effective numbers; asks the scheduler, one call at a time."""
        core, pools = self.core, self.core.pools
        if request.path.startswith("/get_"):
            _deprecated("/get_server_info", "/server_info")
        async with core._info_lock:
            await core.scheduler()
        core.advance()
        flags = configs.fields(self.config)
        graph = core.startup["graph_gb"]
        memory: dict[str, Any] = {
            "weight": round(pools.weights_gib, 2),
            "kvcache": round(pools.kv_gib, 2),
            "token_capacity": pools.tokens,
            "graph": graph,
        }
        if self.config.new:
            memory.update(
                startup_available=round(core.startup["available"], 2),
                token_capacity_swa=None,
                graph={"decode": graph} if graph else {},
            )
        throughput = core.engine.last_rate
        if self.config.new and self.config.metrics:
            throughput = core.metrics.gen_throughput
        state: dict[str, Any] = {
            **flags,
            "max_mamba_cache_size": pools.slots,
            "last_gen_throughput": throughput,
            "memory_usage": memory,
            "effective_max_running_requests_per_dp": pools.max_running,
        }
        info: dict[str, Any] = {
            **flags,
            "status": "ready",
            "max_total_num_tokens": pools.tokens,
            "max_req_input_len": min(self.config.context - 1, pools.tokens - 1) - 5,
        }
        if self.config.new:
            state["world_size"] = 1
            info.update(
                launch_command=" ".join(self.args._argv),
                kv_events=None,
                startup_time={
                    name: round(value, 3)
                    for name, value in core.startup.items()
                    if name not in ("available", "graph_gb")
                },
                hicache_object_layout={},
                frontend="python",
            )
        info["internal_states"] = [state]
        info["version"] = self.config.version
        return reply(info)

    def _load(self) -> dict[str, Any]:
        core, pools, engine = self.core, self.core.pools, self.core.engine
        metrics = core.metrics if self.config.metrics else None
        chunked = 1 if engine._chunked else 0
        running = len(engine.running) + len(engine._batch)
        waiting = len(engine.waiting) + chunked
        used = engine.used
        load: dict[str, Any] = {
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
            "num_used_tokens": used,
            "num_total_tokens": used + engine.pending,
            "max_total_num_tokens": pools.tokens,
            "token_usage": round(used / pools.tokens, 4),
            "gen_throughput": round(metrics.gen_throughput, 2) if metrics else 0.0,
            "cache_hit_rate": round(metrics.hit_rate, 4) if metrics else 0.0,
            "utilization": 0.0,
            "max_running_requests": pools.max_running,
            "memory": {
                "weight_gb": round(pools.weights_gib, 3),
                "kv_cache_gb": round(pools.kv_gib, 3),
                "graph_gb": core.startup["graph_gb"],
                "token_capacity": pools.tokens,
            },
            "disaggregation": {
                "mode": "null",
                "prefill_bootstrap_queue_reqs": 0,
                "prefill_inflight_queue_reqs": 0,
                "decode_prealloc_queue_reqs": 0,
                "decode_transfer_queue_reqs": 0,
                "decode_retracted_queue_reqs": 0,
                "kv_transfer_speed_gb_s": 0.0,
                "kv_transfer_latency_ms": 0.0,
            },
            "queues": {
                "waiting": waiting,
                "grammar": 0,
                "paused": 0,
                "retracted": engine.totals.retracted if metrics else 0,
            },
        }
        if not self.config.new:
            load["num_total_reqs"] = running + waiting
            return load
        totals = engine.totals
        load["queues"]["prealloc_ready"] = 0
        return {
            "timestamp": time.time(),
            "dp_rank": 0,
            **load,
            "num_waiting_uncached_tokens": engine.pending,
            "num_active_tokens": used,
            "num_prealloc_ready_tokens": 0,
            "total_prefill_uncached_tokens": totals.prefill_tokens,
            "total_prefill_busy_us": totals.prefill_steps * 20_000,
            "decode_moments": [totals.decode_steps, totals.decode_tokens],
        }

    async def loads(self, request: web.Request) -> web.Response:
        """Load now. 0.5.12 asks the scheduler; 0.5.23 reads a snapshot that may be old."""
        core, began = self.core, time.monotonic()
        core.advance()
        if not self.config.new:
            await core.scheduler()
            core.advance()
            load = self._load()
        else:
            if (delay := core.fault().slow_probe_s) > 0:
                await asyncio.sleep(delay)
            if not core.frozen or not core.snapshot:
                core.snapshot = self._load()
            load = core.snapshot
        core.metrics.loads.observe(time.monotonic() - began)
        include = request.query.get("include", "all").split(",")
        if "all" not in include:
            load = dict(load)
            for part, keys in (
                ("memory", ("memory",)),
                ("queues", ("queues",)),
                ("disagg", ("disaggregation",)),
            ):
                if part not in include:
                    for key in keys:
                        load.pop(key, None)
        if request.query.get("format") == "prometheus":
            rank = "0" if self.config.new else "None"
            lines = [
                f'sglang_{name}{{dp_rank="{rank}"}} {value}'
                for name, value in load.items()
                if isinstance(value, int | float)
            ]
            return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")
        answer: dict[str, Any] = {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": self.config.version,
        }
        if self.config.new:
            answer.update(
                accelerator="NVIDIA RTX PRO 6000 Blackwell Server Edition (simulated)",
                num_accelerators=1,
                loads=[load],
            )
            return reply(answer)
        answer.update(
            dp_rank_count=1,
            loads=[load],
            aggregate={
                "total_running_reqs": load["num_running_reqs"],
                "total_waiting_reqs": load["num_waiting_reqs"],
                "total_reqs": load["num_total_reqs"],
                "total_used_tokens": load["num_used_tokens"],
                "total_tokens": load["num_total_tokens"],
                "avg_token_usage": load["token_usage"],
                "avg_throughput": load["gen_throughput"],
                "avg_utilization": 0.0,
            },
        )
        return reply(answer)

    async def get_load(self, request: web.Request) -> web.Response:
        """The older form (0.5.12 only)."""
        _deprecated("/get_load", "/v1/loads")
        await self.core.scheduler()
        self.core.advance()
        load = self._load()
        return reply(
            [
                {
                    "dp_rank": None,
                    "num_reqs": load["num_total_reqs"],
                    "num_waiting_reqs": load["num_waiting_reqs"],
                    "num_tokens": load["num_total_tokens"],
                    "num_pending_tokens": self.core.engine.pending,
                    "ts_tic": time.perf_counter(),
                }
            ]
        )

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        if not self.core.frozen:
            self.core.advance()
        return web.Response(
            body=self.core.metrics.text().encode(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    # --- controlling ---

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Empty the prefix cache of an idle server."""
        await self.core.scheduler()
        self.core.advance()
        if self.core.engine.flush_cache():
            log.say("Cache flushed successfully!")
            return web.Response(text="Cache flushed.\nPlease check backend logs for more details.")
        log.say("Cache not flushed because there are pending requests.")
        return web.Response(text="Flush cache failed.", status=400)

    async def abort_request(self, request: web.Request) -> web.Response:
        """Abort one request, or all; always 200."""
        body = await self._body(request, 1405, "abort_request")
        rid = str(body.get("rid") or "")
        everything = bool(body.get("abort_all"))
        if rid or everything or not self.config.new:
            self.core.abort(rid, everything=everything)
        return web.Response()

    async def pause(self, request: web.Request) -> web.Response:
        """Hold generation; by default after aborting what runs."""
        body = await self._body(request, 1455, "pause_generation")
        core = self.core
        core.paused = True
        if body.get("mode", "abort") == "abort":
            core.abort(everything=True)
        core.engine.advance(core.now())
        core.engine.stalled = True
        return reply({"message": "Generation paused successfully.", "status": "ok"})

    async def go_on(self, request: web.Request) -> web.Response:
        """Let generation go on."""
        await self._body(request, 1470, "continue_generation")
        core = self.core
        core.paused = False
        core.engine.advance(core.now())
        core.engine.stalled = core.frozen
        core.advance()
        return reply({"message": "Generation continued successfully.", "status": "ok"})

    async def configure_logging(self, request: web.Request) -> web.Response:
        """Accepted; nothing of it changes a simulation."""
        await self._body(request, 1480, "configure_logging")
        return web.Response()

    async def freeze_gc(self, request: web.Request) -> web.Response:
        """Accepted (0.5.23)."""
        return web.Response(text="Garbage collection frozen.\n")

    # --- text tools ---

    async def tokenize(self, request: web.Request) -> web.Response:
        """Text, or messages through the chat template, to ids."""
        body = await self._body(request, 1541, "openai_v1_tokenize")
        encode, prompt = tokenizer().encode, body.get("prompt")
        tokens: list[int] | list[list[int]]
        count: int | list[int]
        if body.get("messages") is not None:
            text, _, _ = self._prompt(body)
            tokens = encode(text)
            count = len(tokens)
        elif isinstance(prompt, str):
            tokens = encode(prompt)
            count = len(tokens)
        elif isinstance(prompt, list):
            lists = [encode(str(one)) for one in prompt]
            tokens, count = lists, [len(ids) for ids in lists]
        else:
            return error(_field("missing", "prompt", body), 400, "Bad Request")
        return reply({"tokens": tokens, "count": count, "max_model_len": self.config.context})

    async def detokenize(self, request: web.Request) -> web.Response:
        """Ids to text."""
        body = await self._body(request, 1559, "openai_v1_detokenize")
        tokens, skip = body.get("tokens") or [], body.get("skip_special_tokens", True)
        try:
            if tokens and isinstance(tokens[0], list):
                texts = [tokenizer().decode(ids, skip_special=skip) for ids in tokens]
                return reply({"text": texts})
            return reply({"text": tokenizer().decode(tokens, skip_special=skip)})
        except (ValueError, TypeError) as exc:
            return error(str(exc))

    async def separate_reasoning(self, request: web.Request) -> web.Response:
        """Split thinking from answer with a named parser.

        ``qwen3`` sees thinking only where ``<think>`` stands in the text; ``qwen3-thinking``
        takes everything before ``</think>`` for it.
        """
        body = await self._body(request, 1439, "separate_reasoning_request")
        parser = str(body.get("reasoning_parser") or "").lower()
        if not parser:
            raise RefusedError(_field("missing", "reasoning_parser", body), 400, "Bad Request")
        reasoning, text = parsers.separate(
            str(body.get("text", "")), thinking=parser in parsers.FORCED
        )
        return reply({"reasoning_text": reasoning, "text": text})

    async def parse_function_call(self, request: web.Request) -> web.Response:
        """Find tool calls in a text."""
        body = await self._body(request, 1417, "parse_function_call_request")
        text, found = parsers.calls(
            str(body.get("text", "")),
            _functions(body.get("tools")),
            str(body.get("tool_call_parser") or "qwen3_coder"),
        )
        return reply(
            {
                "normal_text": text,
                "calls": [
                    {"tool_index": n, "name": call.name, "parameters": call.arguments}
                    for n, call in enumerate(found)
                ],
            }
        )

    # --- generating ---

    def _prompt(self, body: dict[str, Any]) -> tuple[str, str, bool]:
        """(prompt, text to continue, thinking) of a chat request's messages."""
        messages = [m for m in body["messages"] if isinstance(m, dict)]
        extra = body.get("chat_template_kwargs") or {}
        effort = body.get("reasoning_effort")
        thinking = extra.get("enable_thinking", True) is not False
        if effort == "none" and "enable_thinking" not in extra:
            thinking = False
        before = ""
        if messages and messages[-1].get("role") == "assistant":
            if body.get("continue_final_message"):
                before = template.flat(messages[-1].get("content"))
                messages = messages[:-1]
            else:  # taken for one of the user's
                messages = [*messages[:-1], {**messages[-1], "role": "user"}]
        tools = _functions(body.get("tools")) if body.get("tool_choice") != "none" else []
        return template.render(messages, tools, thinking=thinking), before, thinking

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``/v1/chat/completions``."""
        body = await self._body(request, 1491, "openai_v1_chat_completions")
        problem = self._check_chat(body)
        if problem is not None:
            return problem
        prompt, before, thinking = self._prompt(body)
        encode = tokenizer().encode
        ids, partial = encode(prompt), encode(before) if before else []
        style = answers.style_of(prompt, thinking=thinking)
        choice = body.get("tool_choice")
        if style.tools and (choice == "required" or isinstance(choice, dict)):
            tools = style.tools
            if isinstance(choice, dict):
                name = (choice.get("function") or {}).get("name")
                tools = [tool for tool in tools if tool.get("name") == name] or tools
            style = msgspec.structs.replace(style, must_call=True, tools=tools)
        schema = _schema(body.get("response_format"))
        if schema is not None:
            style = msgspec.structs.replace(style, schema=schema, tools=[])
        sampling = _sampling(body)
        entries = await self._submit(body, ids, partial, style, sampling)
        shape = _ChatShape(self, body, style, before)
        if body.get("stream"):
            return await self._stream(request, entries, shape.chunks(entries, request))
        await self._wait(request, entries)
        return reply(shape.answer(entries))

    def _check_chat(self, body: dict[str, Any]) -> web.Response | None:
        messages = body.get("messages")
        if messages is None:
            return error(_field("missing", "messages", body), 400, "Bad Request")
        if not isinstance(messages, list):
            return error(_field("list_type", "messages", messages), 400, "Bad Request")
        if not messages:
            return error("Messages cannot be empty.")
        for message in messages:
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                return error(_field("missing", "role", message), 400, "Bad Request")
        tools, choice = body.get("tools"), body.get("tool_choice")
        if choice == "required" and not tools:
            return error("Tools cannot be empty if tool choice is set to required.")
        if isinstance(choice, dict):
            name = (choice.get("function") or {}).get("name")
            if not tools:
                return error("Tools cannot be empty if tool choice is set to a specific tool.")
            if all(function.get("name") != name for function in _functions(tools)):
                return error(f"Tool '{name}' not found in tools list.")
        for n, function in enumerate(_functions(tools)):
            wrong = _bad_schema(function.get("parameters"))
            if wrong:
                return error(f"Tool {n} function has invalid 'parameters' schema: {wrong}")
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        if self.config.context_given and isinstance(most, int) and most > self.config.context:
            return error(
                f"max_completion_tokens is too large: {most}."
                f"This model supports at most {self.config.context} completion tokens."
            )
        extra = body.get("chat_template_kwargs") or {}
        trusted = getattr(self.args, "trust_request_chat_template", False)
        if self.config.new and "chat_template" in extra and not trusted:
            return error("chat_template in chat_template_kwargs is not allowed.")
        return None

    async def _submit(
        self,
        body: dict[str, Any],
        ids: list[int],
        partial: list[int],
        style: Style,
        sampling: Sampling,
        values: dict[str, Any] | None = None,
    ) -> list[Entry]:
        core, entries = self.core, list[Entry]()
        await self._unpaused()
        count = body.get("n") or 1
        rid = body.get("rid")
        try:
            for number in range(count if isinstance(count, int) else 1):
                own = f"{rid}_{number}" if rid and count > 1 else rid
                checked = core.check(
                    own, [*ids, *partial], sampling, body if values is None else values
                )
                entries.append(
                    core.submit(
                        checked, ids, partial, style, sampling,
                        stream=bool(body.get("stream")), number=number,
                    )
                )  # fmt: skip
        except RefusedError:
            for entry in entries:
                core.abort(entry.rid)
            raise
        return entries

    async def _unpaused(self) -> None:
        while self.core.paused:
            await asyncio.sleep(0.1)

    async def _wait(self, request: web.Request, entries: list[Entry]) -> None:
        def gone() -> bool:
            return request.transport is None or request.transport.is_closing()

        for entry in entries:
            await self.core.finish(entry, gone)

    async def _stream(
        self, request: web.Request, entries: list[Entry], chunks: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        response.charset = "utf-8"
        await response.prepare(request)
        try:
            async for chunk in chunks:
                await response.write(chunk)
            await response.write(b"data: [DONE]\n\n")
        except (ConnectionError, asyncio.CancelledError):
            await asyncio.sleep(2)
            for entry in entries:
                self.core.abort(entry.rid)
            raise
        with contextlib.suppress(ConnectionError):
            await response.write_eof()
        return response

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """``/generate``: text or ids in, text and ids out."""
        body = await self._body(request, 705, "generate_request")
        params = body.get("sampling_params") or {}
        try:
            prompts = _inputs(body)
            if any(not tokenizer().valid(ids) for ids in prompts):
                raise RefusedError("The input_ids contain token ids outside the vocabulary.")
            if not all(prompts):
                raise RefusedError("The input must not be empty.")
            sampling = _sampling(
                {"temperature": 1.0, **params}, most=params.get("max_new_tokens", 128)
            )
            entries = []
            for ids in prompts:
                base, partial, style = self._raw(ids, params)
                one = {**body, "n": params.get("n")}
                entries += await self._submit(one, base, partial, style, sampling, params)
            if body.get("stream"):
                return await self._stream(request, entries, self._generate_chunks(entries))
            await self._wait(request, entries)
        except RefusedError as exc:
            if exc.status != 400:
                raise
            log.say(f"[http_server] Error: {exc.message}")
            return reply({"error": {"message": exc.message}}, 400)
        outs = [self._generated(entry) for entry in entries]
        several = isinstance(body.get("input_ids") or body.get("text"), list) and isinstance(
            (body.get("input_ids") or body.get("text"))[0], list | str
        )
        return reply(outs if several or len(outs) > 1 else outs[0])

    def _raw(self, ids: list[int], params: dict[str, Any]) -> tuple[list[int], list[int], Style]:
        """Prompt, partial answer and style of a prompt that came as tokens."""
        where = answers.split(ids)
        schema = _schema_text(params.get("json_schema"))
        if where is None:
            return ids, [], Style(thinking=False, schema=schema)
        size, thinking = where
        prompt = tokenizer().decode(ids[:size], skip_special=False)
        style = answers.style_of(prompt, thinking=thinking)
        if schema is not None:
            style = msgspec.structs.replace(style, schema=schema, tools=[])
        return ids[:size], ids[size:], style

    def _generated(self, entry: Entry, made: int | None = None) -> dict[str, Any]:
        work = entry.work
        over = made is None
        count = entry.made if made is None else made
        meta: dict[str, Any] = {
            "id": entry.rid,
            "finish_reason": entry.finish if over else None,
            "weight_version": self.args.weight_version,
        }
        queued = over and entry.was_queued
        if not queued:
            meta.update(
                prompt_tokens=work.prompt,
                total_retractions=work.retractions,
                num_retractions=work.retractions,
                reasoning_tokens=entry.reasoning_tokens(),
                cached_tokens=work.cached,
            )
        meta["completion_tokens"] = 0 if queued else count
        meta["e2e_latency"] = self.core.now() - entry.created
        return {
            "text": entry.text() if over else entry.plan.text(count),
            "output_ids": entry.plan.ids(count),
            "meta_info": meta,
        }

    async def _generate_chunks(self, entries: list[Entry]) -> AsyncIterator[bytes]:
        for n, entry in enumerate(entries):
            async for made in self._progress(entry):
                out = self._generated(entry, made)
                if len(entries) > 1:
                    out["index"] = n
                yield b"data: " + msgspec.json.encode(out) + b"\n\n"
            out = self._generated(entry)
            yield b"data: " + msgspec.json.encode(out) + b"\n\n"

    async def _progress(self, entry: Entry) -> AsyncIterator[int]:
        """Token counts of a request while it runs."""
        core, sent = self.core, 0
        while not entry.future.done():
            await asyncio.wait([entry.future], timeout=STREAM_S)
            if not core.frozen:
                core.advance()
            made = core.engine.generated(entry.work)
            if made > sent and not entry.future.done():
                sent = made
                yield made

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """``/v1/completions``, not streamed."""
        body = await self._body(request, 1500, "openai_v1_completions")
        prompt = body.get("prompt")
        if prompt is None:
            return error(_field("missing", "prompt", body), 400, "Bad Request")
        ids = tokenizer().encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not tokenizer().valid(ids):
            return error("The prompt must be a string or a list of token ids.")
        base, partial, style = self._raw(ids, {})
        sampling = _sampling(body, most=body.get("max_tokens", 16))
        entries = await self._submit(body, base, partial, style, sampling)
        await self._wait(request, entries)
        choices = []
        for n, entry in enumerate(entries):
            reason, matched = _reason(entry)
            choices.append(
                {
                    "index": n,
                    "text": entry.text(),
                    "logprobs": None,
                    "finish_reason": reason,
                    "matched_stop": matched,
                }
            )
        return reply(
            {
                "id": entries[0].rid,
                "object": "text_completion",
                "created": int(time.time()),
                "model": body.get("model") or self.config.served_name,
                "choices": choices,
                "usage": self.usage(entries),
                "metadata": {"weight_version": self.args.weight_version},
            }
        )

    def usage(self, entries: list[Entry]) -> dict[str, Any]:
        """The token counts of an answer."""
        first = entries[0]
        prompt = 0 if first.was_queued else first.work.prompt
        made = sum(entry.made for entry in entries)
        reasoning = sum(entry.reasoning_tokens() for entry in entries)
        cached = first.work.cached
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + made,
            "completion_tokens": made,
            "prompt_tokens_details": (
                {"cached_tokens": cached} if self.args.enable_cache_report and cached else None
            ),
            "reasoning_tokens": reasoning,
        }
        if self.config.new:
            details = {"reasoning_tokens": reasoning} if reasoning else None
            usage["completion_tokens_details"] = details
        return usage


class _ChatShape:
    """A chat answer from what was generated."""

    def __init__(self, face: Face, body: dict[str, Any], style: Style, before: str) -> None:
        self.face, self.body, self.style, self.before = face, body, style, before
        self.created = int(time.time())
        self.model = body.get("model") or face.config.served_name
        args = face.args
        self.reasoning = (
            str(args.reasoning_parser or "") if body.get("separate_reasoning", True) else ""
        )
        self.tool_parser = str(args.tool_call_parser or "")

    def parts(self, text: str) -> tuple[str, str, list[parsers.Call]]:
        """(reasoning, content, calls) of a text."""
        reasoning = ""
        if self.reasoning:
            reasoning, text = parsers.separate(
                text, thinking=self.style.thinking, before=self.before
            )
        found: list[parsers.Call] = []
        if self.tool_parser and self.style.tools:
            text, found = parsers.calls(text, self.style.tools, self.tool_parser)
        return reasoning, text, found

    def answer(self, entries: list[Entry]) -> dict[str, Any]:
        """The whole, for a request that was not streamed."""
        choices = []
        for n, entry in enumerate(entries):
            reason, matched = _reason(entry)
            reasoning, content, found = self.parts(entry.text())
            if found and reason == "stop":
                reason, matched = "tool_calls", None
            message: dict[str, Any] = {
                "role": "assistant",
                "content": (content.strip() if found else content) or None,
                "reasoning_content": reasoning or None,
                "tool_calls": _calls(found) if found else None,
            }
            if self.face.config.new and not found:
                del message["tool_calls"]
            choices.append(
                {
                    "index": n,
                    "message": message,
                    "logprobs": None,
                    "finish_reason": reason,
                    "matched_stop": matched,
                }
            )
        return {
            "id": entries[0].rid
            if len(entries) == 1
            else entries[0].rid.rpartition("_")[0] or entries[0].rid,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": self.face.usage(entries),
            "metadata": {"weight_version": self.face.args.weight_version},
        }

    def _event(self, rid: str, choices: list[dict[str, Any]], **extra: Any) -> bytes:
        event = {
            "id": rid,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **extra,
        }
        return b"data: " + msgspec.json.encode(event) + b"\n\n"

    @staticmethod
    def _choice(
        n: int, delta: dict[str, Any], reason: str | None = None, matched: Any = None
    ) -> dict[str, Any]:
        return {
            "index": n,
            "delta": delta,
            "logprobs": None,
            "finish_reason": reason,
            "matched_stop": matched,
        }

    async def chunks(self, entries: list[Entry], request: web.Request) -> AsyncIterator[bytes]:
        """Server-sent events of a streamed request."""
        for n, entry in enumerate(entries):
            head = {"reasoning_content": None, "role": "assistant", "content": ""}
            yield self._event(entry.rid, [self._choice(n, head)])
            sent = ("", "")
            async for made in self.face._progress(entry):
                sent, delta = self._delta(sent, entry.plan.text(made))
                if delta:
                    yield self._event(entry.rid, [self._choice(n, delta)])
            if entry.future.result() in ("error", "oom"):
                problem = {
                    "object": "error",
                    "message": "Internal server error",
                    "type": "InternalServerError",
                    "param": None,
                    "code": 500,
                }
                yield b"data: " + msgspec.json.encode({"error": problem}) + b"\n\n"
                return
            reason, matched = _reason(entry)
            reasoning, content, found = self.parts(entry.text())
            sent, delta = self._delta(sent, entry.text())
            if delta:
                yield self._event(entry.rid, [self._choice(n, delta)])
            if found:
                for call in _calls(found):
                    delta = {"reasoning_content": None, "tool_calls": [call]}
                    yield self._event(entry.rid, [self._choice(n, delta)])
                reason, matched = ("tool_calls", None) if reason == "stop" else (reason, matched)
            last = self._choice(n, {"reasoning_content": None}, reason, matched)
            yield self._event(entry.rid, [last])
        options = self.body.get("stream_options") or {}
        if options.get("include_usage"):
            yield self._event(entries[0].rid, [], usage=self.face.usage(entries))

    def _delta(self, sent: tuple[str, str], text: str) -> tuple[tuple[str, str], dict[str, Any]]:
        reasoning, content, found = self.parts(text)
        if not found and self.tool_parser and self.style.tools:
            content = content.split("<tool_call>")[0]
        delta: dict[str, Any] = {}
        if len(reasoning) > len(sent[0]):
            delta["reasoning_content"] = reasoning[len(sent[0]) :]
        if len(content) > len(sent[1]):
            delta.setdefault("reasoning_content", None)
            delta["content"] = content[len(sent[1]) :]
        return (max(reasoning, sent[0], key=len), max(content, sent[1], key=len)), delta


def _calls(found: list[parsers.Call]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "index": n,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for n, call in enumerate(found)
    ]


def _reason(entry: Entry) -> tuple[str, Any]:
    finish = entry.finish
    return finish["type"], finish.get("matched")


def _functions(tools: Any) -> list[dict[str, Any]]:
    if not isinstance(tools, list):
        return []
    return [
        tool["function"]
        for tool in tools
        if isinstance(tool, dict)
        and isinstance(tool.get("function"), dict)
        and isinstance(tool["function"].get("name"), str)
    ]


_JSON_TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}


def _bad_schema(schema: Any, depth: int = 0) -> str:
    """Why this is no JSON schema; empty where it is one as far as looked."""
    if schema is None or isinstance(schema, bool) or depth > 20:
        return ""
    if not isinstance(schema, dict):
        return f"{schema!r} is not of type 'object', 'boolean'"
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    for one in kinds:
        if one is not None and one not in _JSON_TYPES:
            return f"{kind!r} is not valid under any of the given schemas"
    required = schema.get("required")
    if required is not None and not isinstance(required, list):
        return f"{required!r} is not of type 'array'"
    below = [*(schema.get("properties") or {}).values()] if isinstance(
        schema.get("properties") or {}, dict
    ) else [schema["properties"]]  # fmt: skip
    if "items" in schema:
        below.append(schema["items"])
    return next((wrong for one in below if (wrong := _bad_schema(one, depth + 1))), "")


def _sampling(body: dict[str, Any], most: Any = None) -> Sampling:
    limit = most
    if limit is None:
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        if limit is None and body.get("max_tokens") == 0:
            limit = 0
    stop = body.get("stop")
    marks = [stop] if isinstance(stop, str) else [s for s in stop or [] if isinstance(s, str)]
    temperature, top_k = body.get("temperature"), body.get("top_k")
    seed = body.get("seed", body.get("sampling_seed"))
    return Sampling(
        max_new=limit if isinstance(limit, int) else None,
        temperature=float(temperature) if isinstance(temperature, int | float) else None,
        top_k=top_k if isinstance(top_k, int) else -1,
        stop=marks,
        ignore_eos=bool(body.get("ignore_eos")),
        seed=seed if isinstance(seed, int) else None,
    )


def _schema(response_format: Any) -> dict[str, Any] | None:
    if not isinstance(response_format, dict):
        return None
    if response_format.get("type") == "json_object":
        return {"type": "object", "properties": {"answer": {"type": "string"}}}
    inner = response_format.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    return schema if isinstance(schema, dict) else None


def _schema_text(text: Any) -> dict[str, Any] | None:
    if isinstance(text, str):
        with contextlib.suppress(ValueError):
            schema = json.loads(text)
            return schema if isinstance(schema, dict) else None
    return None


def _inputs(body: dict[str, Any]) -> list[list[int]]:
    ids, text = body.get("input_ids"), body.get("text")
    if ids:
        return ids if isinstance(ids[0], list) else [ids]
    if isinstance(text, str):
        return [tokenizer().encode(text)]
    if isinstance(text, list):
        return [tokenizer().encode(str(one)) for one in text]
    raise RefusedError("Either text, input_ids or input_embeds should be provided.")


def _field(kind: str, name: str, got: Any) -> str:
    said = {"missing": "Field required", "list_type": "Input should be a valid list"}
    problem = (
        f"{{'type': '{kind}', 'loc': ('body', '{name}'), "
        f"'msg': '{said.get(kind, 'Input should be a valid dictionary')}', 'input': {got!r}}}"
    )
    return f"1 validation error:\n  {problem}\n"


def _deprecated(old: str, new: str) -> None:
    log.say(
        f"Endpoint '{old}' is deprecated and will be removed in a future version. "
        f"Please use '{new}' instead."
    )
