"""The endpoints that generate, and the text tools beside them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import web

from console.lab.sim import answers, bodies, log, parsers, template
from console.lab.sim.answers import Style
from console.lab.sim.chat import ChatShape, reason_of, usage
from console.lab.sim.core import Core, Entry, RefusedError, Sampling
from console.lab.sim.exchange import error, field, read, reply
from console.lab.sim.tokens import tokenizer

STREAM_S = 0.05
"""How often a stream gets what was generated since: the real one sends every step."""


class Generation:
    """Handlers of one server."""

    def __init__(self, core: Core) -> None:
        self.core, self.config, self.args = core, core.config, core.config.args

    async def tokenize(self, request: web.Request) -> web.Response:
        """Text, or messages through the chat template, to ids."""
        body = await read(request, 1541, "openai_v1_tokenize")
        encode, prompt = tokenizer().encode, body.get("prompt")
        tokens: list[int] | list[list[int]]
        count: int | list[int]
        if (prompt is None) == (body.get("messages") is None):
            message = "Exactly one of 'prompt' or 'messages' must be provided."
            return error(message, 400, "Bad Request")
        if body.get("messages") is not None:
            text, before, _ = self._prompt(body)
            tokens = encode(text) + encode(before)
            count = len(tokens)
        elif isinstance(prompt, str):
            tokens = encode(prompt)
            count = len(tokens)
        elif isinstance(prompt, list):
            lists = [encode(str(one)) for one in prompt]
            tokens, count = lists, [len(ids) for ids in lists]
        else:
            return error(field("missing", "prompt", body), 400, "Bad Request")
        return reply({"tokens": tokens, "count": count, "max_model_len": self.config.context})

    async def detokenize(self, request: web.Request) -> web.Response:
        """Ids to text."""
        body = await read(request, 1559, "openai_v1_detokenize")
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
        body = await read(request, 1439, "separate_reasoning_request")
        parser = str(body.get("reasoning_parser") or "").lower()
        if not parser:
            raise RefusedError(field("missing", "reasoning_parser", body), 400, "Bad Request")
        reasoning, text = parsers.separate(
            str(body.get("text", "")), thinking=parser in parsers.FORCED
        )
        return reply({"reasoning_text": reasoning, "text": text})

    async def parse_function_call(self, request: web.Request) -> web.Response:
        """Find tool calls in a text."""
        body = await read(request, 1417, "parse_function_call_request")
        text, found = parsers.calls(
            str(body.get("text", "")),
            bodies.functions(body.get("tools")),
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
        tools = bodies.functions(body.get("tools")) if body.get("tool_choice") != "none" else []
        return template.render(messages, tools, thinking=thinking), before, thinking

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``/v1/chat/completions``."""
        body = await read(request, 1491, "openai_v1_chat_completions")
        bodies.check_chat(body, self.config)
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
        schema = bodies.schema(body.get("response_format"))
        if schema is not None:
            style = msgspec.structs.replace(style, schema=schema, tools=[])
        sampling = bodies.sampling(body)
        entries = await self._submit(body, ids, partial, style, sampling)
        shape = ChatShape(self.config, body, style, before)
        if body.get("stream"):
            return await self._stream(request, entries, shape.chunks(entries, self._progress))
        await self._wait(request, entries)
        return reply(shape.answer(entries))

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
        await core.going.wait()
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
        body = await read(request, 705, "generate_request")
        params = body.get("sampling_params") or {}
        try:
            prompts = bodies.inputs(body)
            if any(not tokenizer().valid(ids) for ids in prompts):
                raise RefusedError("The input_ids contain token ids outside the vocabulary.")
            if not all(prompts):
                raise RefusedError("The input must not be empty.")
            sampling = bodies.sampling(
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
        given = body.get("input_ids") or body.get("text")
        several = isinstance(given, list) and isinstance(given[0], list | str)
        return reply(outs if several or len(outs) > 1 else outs[0])

    def _raw(self, ids: list[int], params: dict[str, Any]) -> tuple[list[int], list[int], Style]:
        """Prompt, partial answer and style of a prompt that came as tokens."""
        where = answers.split(ids)
        schema = bodies.schema_text(params.get("json_schema"))
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
        queued = over and work.unqueued
        if not queued:
            meta.update(
                prompt_tokens=work.prompt,
                total_retractions=work.retractions,
                num_retractions=work.retractions,
                reasoning_tokens=entry.reasoning_tokens(),
                cached_tokens=work.cached,
            )
        meta["completion_tokens"] = count
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
        body = await read(request, 1500, "openai_v1_completions")
        prompt = body.get("prompt")
        if prompt is None:
            return error(field("missing", "prompt", body), 400, "Bad Request")
        ids = tokenizer().encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not tokenizer().valid(ids):
            return error("The prompt must be a string or a list of token ids.")
        base, partial, style = self._raw(ids, {})
        sampling = bodies.sampling(body, most=body.get("max_tokens", 16))
        entries = await self._submit(body, base, partial, style, sampling)
        await self._wait(request, entries)
        choices = []
        for n, entry in enumerate(entries):
            reason, matched = reason_of(entry)
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
                "usage": usage(entries, self.config),
                "metadata": {"weight_version": self.args.weight_version},
            }
        )
