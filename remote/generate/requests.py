"""What is sent for a prompt, and what is written down of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from remote.generate.job import Job
from remote.generate.ledger import Entry, Kind
from remote.generate.outcomes import Answer
from remote.generate.partial import Segment
from remote.generate.records import Completion, GivenUp, Outcome, Seen, line, now
from remote.generate.server import Server
from remote.generate.settings import Settings
from remote.generate.talk import as_raw

CHECK = "Reply with the word ready."
_CHECK_TOKENS = 8
_LIMITS = ("max_completion_tokens", "max_tokens")
"""The first one that is set counts."""


def chat_body(settings: Settings, server: Server, job: Job, session: str) -> dict[str, Any]:
    """The chat request of a prompt; the prompt's own ``params`` win over the run's.

    :raises ValueError: a field of them is of no use.
    """
    prompt = job.prompt
    body: dict[str, Any] = {
        "model": settings.model or server.model or "default",
        "messages": prompt.messages if job.talk is None else job.talk.messages(),
        "max_tokens": prompt.max_tokens or settings.max_tokens,
    }
    if (tools := prompt.tools) is not None:
        body["tools"] = tools
    _add_fields(body, settings, prompt.params)
    if job.reseeds:
        seed = body.get("seed") or 0
        if not isinstance(seed, int):
            raise ValueError(f"seed = {seed!r} is no whole number")
        body["seed"] = seed + job.reseeds
    if server.engine == "sglang":
        body["rid"] = rid(job, session)
    return body


def _add_fields(body: dict[str, Any], settings: Settings, own: dict[str, Any] | None) -> None:
    """What the run asks every answer with, and then what one prompt asks."""
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if not settings.thinking:
        body["chat_template_kwargs"] = {"enable_thinking": False}
    for fields in (settings.request, own or {}):
        for name, value in fields.items():
            before = body.get(name)
            if name == "chat_template_kwargs" and isinstance(value, dict):
                body[name] = {**(before if isinstance(before, dict) else {}), **value}
            else:
                body[name] = value
    body.pop("stream", None)


def wanted(body: dict[str, Any]) -> int | None:
    """Tokens that the answer may have, as servers read it; None where that is left open."""
    for name in _LIMITS:
        if body.get(name):
            return body[name] if isinstance(body[name], int) else None
    return None


def narrow(body: dict[str, Any], room: int) -> None:
    """Ask for no more than so many tokens, whoever had asked for more."""
    for name in _LIMITS:
        if isinstance(body.get(name), int):
            body[name] = min(body[name], room)


def shorten(body: dict[str, Any]) -> None:
    """Ask for a few tokens: it is only to be seen whether it is answered."""
    narrow(body, _CHECK_TOKENS)
    body.pop("min_tokens", None)  # may be more than that


def rid(job: Job, session: str, *, before: int = 0) -> str:
    """The id of the job's latest request, or of one so many sends before it.

    Of one width, since SGLang aborts by prefix; with the send, since an abort must not meet a later
    one; with the session, since a killed run's may still be at work.
    """
    return f"{session}-{job.index:010d}-{job.sends - before:04d}"


def check_body(settings: Settings, server: Server, rid: str) -> dict[str, Any]:
    """A short real completion that shows whether a server works, and takes the run's fields."""
    body: dict[str, Any] = {
        "model": settings.model or server.model or "default",
        "messages": [{"role": "user", "content": CHECK}],
        "max_tokens": _CHECK_TOKENS,
    }
    _add_fields(body, settings, None)
    shorten(body)
    if "tools" not in body:
        body.pop("tool_choice", None)  # vLLM takes none without tools
    if server.engine == "sglang":
        body["rid"] = rid
    return body


def completion(
    settings: Settings,
    server: Server,
    job: Job,
    answer: Answer,
    outcome: Outcome,
    latency: float,
    segments: Sequence[Segment] = (),
) -> Entry:
    """The record of a finished prompt, for the file that its outcome says."""
    if segments:
        latency = sum(segment.latency_s for segment in segments)
    prompt, talk = job.prompt, job.talk
    tools = prompt.tools
    record = Completion(
        index=job.index,
        id=prompt.id,
        source=prompt.source,
        messages=prompt.messages if talk is None else as_raw(talk.messages(last=True)),
        tools=UNSET if tools is None else tools,
        content=answer.content,
        reasoning_content=answer.reasoning,
        tool_calls=answer.tool_calls,
        finish_reason=answer.finish_reason,
        outcome=outcome,
        usage=answer.usage if talk is None else talk.usage(),
        model=answer.model,
        server=server.url,
        epoch=server.epoch,
        attempts=job.attempts,
        latency_s=round(latency, 3) if talk is None else talk.latency(),
        finished_at=now(),
    )
    if talk is not None:
        record.turns = talk.turns
    elif segments:
        record.segments = msgspec.to_builtins(segments)
    kind: Kind = "batch" if outcome in settings.keep else "set_aside"
    seen = Seen(job.index, prompt.source, outcome, record.usage, server.epoch, record.finished_at)
    return Entry(kind, job.index, line(record), seen)


def segment(
    server: Server, tokens: int, endpoint: Literal["chat", "generate"], latency: float
) -> Segment:
    """One part of an answer, made just now."""
    return Segment(server.url, server.epoch, tokens, endpoint, round(latency, 3), now())


def given_up(job: Job, server: str, outcome: Outcome, reason: str, status: int | None) -> Entry:
    """The line of a prompt that is given up on."""
    record = GivenUp(
        index=job.index,
        id=job.prompt.id,
        outcome=outcome,
        reason=reason,
        status=status,
        attempts=job.attempts,
        server=server,
        time=now(),
        source=job.prompt.source,
    )
    return Entry("failed", job.index, line(record), Seen(job.index, outcome=outcome))
