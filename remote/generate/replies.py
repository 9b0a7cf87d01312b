"""What servers' answers mean: completions, and refusals in every engine's words."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from remote.generate.outcomes import Answer
from remote.generate.records import Usage
from remote.generate.trouble import UNREADABLE, TroubleError


class _Message(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # vLLM's name for it
    tool_calls: Raw | UnsetType = UNSET  # msgspec takes no array for `Raw | None`


class _Choice(Struct):
    message: _Message
    finish_reason: str | None = None


class _Details(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None  # SGLang 0.5.12 has it here
    completion_tokens_details: _Details | None = None


class _Chat(Struct):
    choices: list[_Choice]
    usage: _Usage | None = None
    model: str = ""


_chat = msgspec.json.Decoder(_Chat).decode


def read_answer(data: bytes) -> Answer:
    """The answer in the body of a 200.

    :raises TroubleError: it is none, or was broken off.
    """
    try:
        chat = _chat(data)
        choice = chat.choices[0]
        data.decode()
    except (*UNREADABLE, IndexError) as error:
        text = f"answered 200 with no completion ({error})"
        raise TroubleError("garbage", text[:300], 200) from None
    message = choice.message
    calls = message.tool_calls
    usage = Usage()
    if (said := chat.usage) is not None:
        details = said.completion_tokens_details
        reasoning = said.reasoning_tokens
        if reasoning is None and details is not None:
            reasoning = details.reasoning_tokens
        usage = Usage(said.prompt_tokens or 0, said.completion_tokens or 0, reasoning or 0)
    answer = Answer(
        content=message.content,
        reasoning=message.reasoning_content or message.reasoning,
        tool_calls=None if calls is UNSET or bytes(calls) in (b"null", b"[]") else calls.copy(),
        finish_reason=choice.finish_reason,
        usage=usage,
        model=chat.model,
    )
    if answer.finish_reason == "abort":
        trouble = TroubleError("abort", "the server broke the answer off", 200)
        trouble.answer = answer
        trouble.made = usage.completion_tokens
        raise trouble
    return answer


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> TroubleError:
    """What a status other than 200 means."""
    text = message_of(body) or f"HTTP {status}"
    if status in (408, 409, 425, 429, 503):
        return TroubleError("busy", text, status, retry_after(headers.get("retry-after")))
    if status in (401, 403, 404, 405):
        return TroubleError("denied", text, status)
    if status == 400 and text.startswith("Duplicate request ID"):
        return TroubleError("busy", text, status)
    if 400 <= status < 500:
        return TroubleError("rejected", text, status)
    return TroubleError("server", text, status)


def message_of(body: bytes) -> str:
    """The message in an error body: SGLang's flat one, OpenAI's nested one, or a bare string."""
    try:
        document = msgspec.json.decode(body)
    except UNREADABLE:
        return body[:200].decode("utf-8", "replace").strip()
    if isinstance(document, dict):
        inner = document.get("error", document)
        if isinstance(inner, str):
            return inner
        if isinstance(inner, dict):
            return str(inner.get("message") or inner.get("detail") or "")[:1000]
    return str(document)[:200]


def retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, given as seconds or as an HTTP date."""
    if not value:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(value)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
