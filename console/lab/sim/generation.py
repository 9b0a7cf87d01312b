"""The endpoints that generate."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import web

from console.lab.sim import answers, bodies, log
from console.lab.sim.answers import Style
from console.lab.sim.chat import ChatShape, reason_of, usage
from console.lab.sim.core import Core
from console.lab.sim.entry import Entry, Sampling
from console.lab.sim.exchange import read_object, reply
from console.lab.sim.refusals import (
    BrokenError,
    RefusedError,
)
from console.lab.sim.tokens import tokenizer

STREAM_S = 0.05
"""How often a stream gets what was generated since: the real one sends every step."""

COUNTS = (
    "prompt_tokens",
    "num_retractions",
    "reasoning_tokens",
    "cached_tokens",
    "cached_tokens_details",
    "dp_rank",
)
"""Members of ``meta_info`` that a request aborted out of the queue lacks."""
TIMINGS = (
    "queue_time",
    "request_received_ts",
    "api_server_dispatch_finish_ts",
    "request_finished_ts",
    "decode_throughput",
)
"""Members that are there only with ``--enable-metrics``."""


class Generation:
    """Handlers of one server."""

    def __init__(self, core: Core) -> None:
        self.core, self.config, self.args = core, core.config, core.config.args

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``/v1/chat/completions``."""
        body = await read_object(request, 1491, "openai_v1_chat_completions", strict=True)
        bodies.check_chat(body, self.config)
        prompt, before, thinking = bodies.chat_prompt(body, new=self.config.new)
        encode = tokenizer().encode
        ids, partial = encode(prompt), encode(before) if before else []
        style = answers.style_of(prompt, thinking=thinking)
        choice = body.get("tool_choice")
        if style.tools and (choice == "required" or isinstance(choice, dict)):
            style = msgspec.structs.replace(style, must_call=True)
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
            for number in range(count):
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
        body = await read_object(request, 700, "generate_request")
        params = body.get("sampling_params") or {}
        if not isinstance(params, dict):
            raise BrokenError("TypeError: list indices must be integers or slices, not str")
        if text := next((n for n in bodies.REAL if isinstance(params.get(n), str)), None):
            raise BrokenError(f"TypeError: '<' not supported between 'float' and 'str' ({text})")
        if unknown := sorted(set(params) - bodies.SAMPLING):
            said = f"SamplingParams.__init__() got an unexpected keyword argument {unknown[0]!r}"
            raise BrokenError(f"TypeError: {said}")
        try:
            prompts, batch = bodies.inputs(body)
            entries = await self._generating(body, prompts, params)
            if not body.get("stream"):
                await self._wait(request, entries)
        except RefusedError as exc:
            if exc.status != 400:
                raise
            log.say(f"[http_server] Error: {exc.message}")
            problem = {"error": {"message": exc.message}}
            if not body.get("stream"):
                return reply(problem, 400)
            return await self._stream(request, [], _only(problem))
        if body.get("stream"):
            return await self._stream(request, entries, self._generate_chunks(entries))
        outs = [self._generated(entry) for entry in entries]
        return reply(outs if batch or len(outs) > 1 else outs[0])

    async def _generating(
        self, body: dict[str, Any], prompts: list[list[int]], params: dict[str, Any]
    ) -> list[Entry]:
        """Submit the prompts of one ``/generate`` request."""
        if not all(tokenizer().valid(ids) for ids in prompts):
            # The embedding is indexed with whatever came: on the card that is an assertion, and
            # the scheduler does not survive it.
            self.core.crash("RuntimeError: CUDA error: device-side assert triggered")
        sampling = bodies.sampling(
            {"temperature": 1.0, **params}, most=params.get("max_new_tokens", 128)
        )
        rid = body.get("rid")
        entries: list[Entry] = []
        for n, ids in enumerate(prompts):
            base, partial, style = self._raw(ids, params)
            own = f"{rid}_{n}" if isinstance(rid, str) and len(prompts) > 1 else rid
            if isinstance(rid, list):
                own = rid[n]
            one = {**body, "rid": own, "n": params.get("n")}
            entries += await self._submit(one, base, partial, style, sampling, params)
        return entries

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
        count = entry.made if made is None else made
        now, took = time.time(), self.core.now() - entry.created
        timed = self.config.metrics and not work.unqueued
        hidden: set[str] = set() if timed else set(TIMINGS)
        if work.unqueued:
            hidden |= set(COUNTS)
        if not count:
            hidden.add("decode_throughput")
        meta: dict[str, Any] = {
            "id": entry.rid,
            "finish_reason": entry.finish if made is None else None,
            "prompt_tokens": work.prompt,
            "weight_version": self.args.weight_version,
            "num_retractions": work.retractions,
            "queue_time": (work.began or work.arrived) - work.arrived,
            "reasoning_tokens": entry.reasoning_tokens(),
            "completion_tokens": count,
            "cached_tokens": work.cached,
            "cached_tokens_details": {"device": work.cached, "host": 0} if work.cached else None,
            "dp_rank": None,
            "e2e_latency": took,
            "request_received_ts": now - took,
            "api_server_dispatch_finish_ts": now - took,
            "request_finished_ts": now,
            "decode_throughput": count / took if took > 0 else 0.0,
            "response_sent_to_client_ts": now,
        }
        return {
            "text": entry.text() if made is None else entry.plan.text(count),
            "output_ids": entry.plan.ids(count),
            "meta_info": {name: value for name, value in meta.items() if name not in hidden},
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
        """``/v1/completions``."""
        body = await read_object(request, 1483, "openai_v1_completions", strict=True)
        bodies.needs(body, "prompt")
        prompts = _completion_prompts(body["prompt"])
        sampling = bodies.sampling(body, most=body.get("max_tokens", 16))
        entries: list[Entry] = []
        for ids in prompts:
            base, partial, style = self._raw(ids, {})
            entries += await self._submit({**body, "rid": None}, base, partial, style, sampling)
        head = {
            "id": entries[0].rid,
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.get("model") or "default",
        }
        if body.get("stream"):
            return await self._stream(request, entries, self._completion_chunks(entries, head))
        await self._wait(request, entries)
        choices = []
        for n, entry in enumerate(entries):
            text = entry.text()
            if body.get("echo"):
                text = tokenizer().decode(entry.prompt) + text
            choices.append(_completion(n, text, *reason_of(entry)))
        counts = usage(entries, self.config)
        if len(prompts) > 1:
            counts["prompt_tokens"] = sum(map(len, prompts))
            counts["total_tokens"] = counts["prompt_tokens"] + counts["completion_tokens"]
        weights = {"weight_version": self.args.weight_version}
        return reply({**head, "choices": choices, "usage": counts, "metadata": weights})

    async def _completion_chunks(
        self, entries: list[Entry], head: dict[str, Any]
    ) -> AsyncIterator[bytes]:
        for n, entry in enumerate(entries):
            sent = ""
            async for made in self._progress(entry):
                text = entry.plan.text(made)
                event = {**head, "choices": [_completion(n, text[len(sent) :], None, None)]}
                yield b"data: " + msgspec.json.encode({**event, "usage": None}) + b"\n\n"
                sent = text
            rest = entry.text()[len(sent) :]
            event = {**head, "choices": [_completion(n, rest, *reason_of(entry))], "usage": None}
            yield b"data: " + msgspec.json.encode(event) + b"\n\n"


def _completion_prompts(prompt: Any) -> list[list[int]]:
    encode, valid = tokenizer().encode, tokenizer().valid
    if isinstance(prompt, str):
        return [encode(prompt)]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(one, str) for one in prompt):
            return [encode(one) for one in prompt]
        several = prompt if isinstance(prompt[0], list) else [prompt]
        if all(valid(ids) for ids in several):
            return several
    raise RefusedError("The prompt must be text, token ids, or a list of either.")


def _completion(n: int, text: str, reason: str | None, matched: Any) -> dict[str, Any]:
    return {
        "index": n,
        "text": text,
        "logprobs": None,
        "finish_reason": reason,
        "matched_stop": matched,
    }


async def _only(event: dict[str, Any]) -> AsyncIterator[bytes]:
    yield b"data: " + msgspec.json.encode(event) + b"\n\n"
