"""Answers by SGLang's own endpoints: ids in, ids out, and the server's parsers on the text.

The chat endpoint gives no ids, so that an answer which began there can be continued from its text
only. Here the server renders and encodes the prompt (``/tokenize`` with messages, which goes
through the chat endpoint's own code), ``/generate`` takes and gives ids, and the text of all parts
together goes through the parsers that the chat endpoint would have used. A continued chat answer
takes this way, too, and not ``continue_final_message``: there the server's tool parser sees the new
part alone and strips the blank at the seam, and a second seam would be encoded from text again.
Paths and shapes after SGLang 0.5.12 (``entrypoints/http_server.py``), the same in 0.5.23.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from remote.generate import facts as server_facts
from remote.generate import partial as partials
from remote.generate import requests, sampling
from remote.generate.client import Client
from remote.generate.facts import Facts
from remote.generate.outcomes import Answer
from remote.generate.partial import THINK, THINK_END, Opening, Partial
from remote.generate.sampling import Asked
from remote.generate.server import Server
from remote.generate.trouble import UNREADABLE, TroubleError, hopeless, too_long

_END_IDS = 4
"""Tokens at a prompt's end that show how it leaves thinking."""
_ENDINGS = 1000
_T = TypeVar("_T", bound=Struct)


class _Meta(Struct):
    finish_reason: dict[str, Any] | None = None
    completion_tokens: int = 0


class _Generated(Struct):
    meta_info: _Meta
    text: str = ""
    output_ids: list[int] = []


class _Tokens(Struct):
    tokens: list[int]


class _Text(Struct):
    text: str


class _Separated(Struct):
    text: str
    reasoning_text: str | None = None


class _Call(Struct):
    name: str | None = None
    parameters: str = ""
    tool_index: int | None = None


class _Calls(Struct):
    normal_text: str
    calls: list[_Call] = field(default_factory=list)


class Native:
    """The native endpoints of all servers, and what is remembered of them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._openings: dict[tuple[str, tuple[int, ...]], Opening] = {}
        self._marks: dict[str, list[int]] = {}
        """The ids of ``</think>`` by identity."""

    # --- what a server is ---

    async def facts(self, url: str, request: dict[str, Any]) -> Facts | None:
        """What ``/server_info`` says; None where there is no such thing."""
        try:
            response = await self._client.get(f"{url}/server_info", 10.0)
            info = msgspec.json.decode(response.content) if response.status_code == 200 else None
        except (TroubleError, *UNREADABLE):
            return None
        if not isinstance(info, dict):
            return None
        return await asyncio.to_thread(server_facts.read, info, url, request)

    async def check(self, url: str) -> None:
        """See that the server renders messages.

        :raises TroubleError: it does not, or nothing was answered.
        """
        message = {"role": "user", "content": requests.CHECK}
        try:
            await self._post(f"{url}/tokenize", {"messages": [message]}, _Tokens)
        except TroubleError as trouble:
            if trouble.status is None or trouble.status >= 500:
                raise
            raise TroubleError(
                "denied",
                "does not render messages at /tokenize (SGLang 0.5.12 and later do): use endpoint "
                '"chat"',
            ) from None

    # --- one answer ---

    async def answer(self, server: Server, body: dict[str, Any], base: Partial | None) -> Answer:
        """The whole answer to a chat request, going on from ``base``.

        :raises TroubleError: none; its ``partial`` is what there is of it all the same.
        """
        facts = server.facts
        if facts is None or facts.why_not:
            raise TroubleError("busy", "nothing is known of its /server_info yet")
        try:
            asked = sampling.translate(body, facts.defaults or {})
        except sampling.SamplingError as error:
            raise hopeless(str(error)) from None
        prompt = base.prompt_ids if base is not None else []
        if not prompt:
            prompt = (await self._post(f"{server.url}/tokenize", asked.template, _Tokens)).tokens
        opening = await self._opening(server.url, facts, prompt)
        if base is not None and not base.parts:
            text = {"prompt": partials.raw_text(base, opening), "add_special_tokens": False}
            coded = await self._post(f"{server.url}/tokenize", text, _Tokens)
            base = partials.with_ids(base, prompt, coded.tokens)
        text_said, model = None, str(body.get("model") or "")
        if base is None or base.finish is None:
            base, text_said = await self._generate(server, facts, asked, prompt, opening, base)
        try:
            return await self._read(server.url, facts, asked, opening, base, text_said, model)
        except TroubleError as trouble:
            trouble.partial = base
            raise

    async def _generate(
        self,
        server: Server,
        facts: Facts,
        asked: Asked,
        prompt: list[int],
        opening: Opening,
        base: Partial | None,
    ) -> tuple[Partial, str | None]:
        """All parts with the last one, and the text where that is the only one."""
        limit = int(asked.params.get("max_new_tokens") or 0) - (base.tokens if base else 0)
        given = [*prompt, *base.ids] if base is not None else prompt
        if server.context is not None:
            limit = min(limit, server.context - len(given) - 1)
            if limit < 1:
                raise too_long(len(given), server.context)
        body: dict[str, Any] = {
            **asked.beside,
            "input_ids": given,
            "sampling_params": {**asked.params, "max_new_tokens": max(1, limit)},
        }
        if asked.constrained and _thinks(facts, asked, opening):
            body["require_reasoning"] = True  # the grammar begins behind the thought
        if server.breaks_off:
            raise TroubleError("abort", "not sent: the server is to be emptied")
        began = time.monotonic()
        made = await self._post(f"{server.url}/generate", body, _Generated)
        finish = made.meta_info.finish_reason or {}
        ids = made.output_ids
        if finish.get("type") == "abort" and not ids:
            raise TroubleError("abort", "the server broke the answer off", 200)
        whole = partials.grown(
            base,
            requests.segment(server, len(ids), "generate", time.monotonic() - began),
            ids,
            identity=facts.identity,
            prompt_ids=prompt,
        )
        if finish.get("type") == "abort":
            trouble = TroubleError("abort", "the server broke the answer off", 200)
            trouble.made = len(ids)
            trouble.partial = None if asked.constrained else whole
            raise trouble
        whole.finish = finish
        return whole, made.text if base is None else None

    async def _read(
        self,
        url: str,
        facts: Facts,
        asked: Asked,
        opening: Opening,
        whole: Partial,
        text: str | None,
        model: str,
    ) -> Answer:
        """What the ids say, by the server's own parsers."""
        finish = whole.finish or {}
        ids = whole.ids
        reason = str(finish.get("type") or "stop")
        if text is None:
            text, stopped = await self._text(url, asked, ids, finish.get("matched"))
            reason = "stop" if stopped else reason
        thinks = _thinks(facts, asked, opening)
        reasoning: str | None = None
        if facts.reasoning_parser:
            said = f"{THINK}{text}" if thinks and THINK not in text else text
            body = {"text": said, "reasoning_parser": facts.reasoning_parser}
            separated = await self._post(f"{url}/separate_reasoning", body, _Separated)
            reasoning, text = separated.reasoning_text, separated.text
        calls = None
        if asked.offers_tools and facts.tool_call_parser:
            found = await self._calls(url, facts, asked, text)
            if found.calls:
                text = found.normal_text
                calls = Raw(msgspec.json.encode(list(map(_call, found.calls))))
                reason = "tool_calls" if reason == "stop" else reason
        thought = await self._thought(url, facts, ids) if thinks else 0
        return Answer(
            content=text or None,
            reasoning=reasoning or None,
            tool_calls=calls,
            finish_reason=reason,
            usage=partials.usage(whole, thought),
            model=model,
        )

    async def _text(
        self, url: str, asked: Asked, ids: list[int], matched: object
    ) -> tuple[str, bool]:
        """The text of all parts without what it stopped at, and whether it did at a string.

        The string may stand across a seam, where no server could see it.
        """
        trim = not asked.params.get("no_stop_trim")
        if trim and isinstance(matched, int) and ids and ids[-1] == matched:
            ids = ids[:-1]
        body = {
            "tokens": ids,
            "skip_special_tokens": asked.params.get("skip_special_tokens", True),
        }
        text = (await self._post(f"{url}/detokenize", body, _Text)).text
        stop = asked.params.get("stop") or []
        strings = [stop] if isinstance(stop, str) else list(stop)
        at = min((text.index(string) for string in strings if string in text), default=None)
        if at is None:
            return text, False
        return (text[:at] if trim else text), True

    async def _calls(self, url: str, facts: Facts, asked: Asked, text: str) -> _Calls:
        body = {
            "text": text,
            "tools": asked.template["tools"],
            "tool_call_parser": facts.tool_call_parser,
        }
        try:
            return await self._post(f"{url}/parse_function_call", body, _Calls)
        except TroubleError as trouble:
            if trouble.status is None:
                raise
            return _Calls(text)  # chat, too, takes a call that its parser breaks on for text

    async def _thought(self, url: str, facts: Facts, ids: list[int]) -> int:
        """Tokens up to the end of the thought, its mark included."""
        mark = self._marks.get(facts.identity)
        if mark is None:
            body = {"prompt": THINK_END, "add_special_tokens": False}
            mark = (await self._post(f"{url}/tokenize", body, _Tokens)).tokens
            self._marks[facts.identity] = mark
        size = len(mark)
        at = next((n for n in range(len(ids) - size + 1) if ids[n : n + size] == mark), None)
        return len(ids) if at is None or not size else at + size

    async def _opening(self, url: str, facts: Facts, prompt: list[int]) -> Opening:
        key = facts.identity, tuple(prompt[-_END_IDS:])
        known = self._openings.get(key)
        if known is None:
            body = {"tokens": list(key[1]), "skip_special_tokens": False}
            end = (await self._post(f"{url}/detokenize", body, _Text)).text.rstrip()
            known = "free"
            if end.endswith(THINK):
                known = "open"
            elif end.endswith(THINK_END):
                known = "closed"
            if len(self._openings) >= _ENDINGS:
                self._openings.clear()
            self._openings[key] = known
        return known

    async def _post(self, url: str, body: dict[str, Any], kind: type[_T]) -> _T:
        data = await self._client.post(url, body)
        try:
            return msgspec.json.decode(data, type=kind)
        except UNREADABLE as error:
            path = url[url.rindex("/") :]
            text = f"{path} answered 200 with something else ({error})"
            raise TroubleError("garbage", text[:300], 200) from None


def _thinks(facts: Facts, asked: Asked, opening: Opening) -> bool:
    """Whether the answer begins with a thought, as the chat endpoint would take it."""
    if not facts.reasoning_parser:
        return False
    return opening == "open" or (opening == "free" and asked.thinks)


def _call(call: _Call) -> dict[str, Any]:
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "index": call.tool_index,
        "type": "function",
        "function": {"name": call.name, "arguments": call.parameters},
    }
