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


def chat_body(settings: Settings, server: Server, job: Job, session: str) -> dict[str, Any]:
    """The chat request of a prompt; the prompt's own ``params`` win over the run's."""
    prompt = job.prompt
    limit = prompt.max_tokens or settings.max_tokens
    body: dict[str, Any] = {
        "model": settings.model or server.model or "default",
        "messages": prompt.messages if job.talk is None else job.talk.messages(),
        "max_tokens": limit if job.limit is None else min(limit, job.limit),
    }
    if (tools := prompt.tools) is not None:
        body["tools"] = tools
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if not settings.thinking:
        body["chat_template_kwargs"] = {"enable_thinking": False}
    for fields in (settings.request, prompt.params or {}):
        for name, value in fields.items():
            if name == "chat_template_kwargs" and isinstance(value, dict):
                body[name] = {**body.get(name, {}), **value}
            else:
                body[name] = value
    if job.reseeds:
        body["seed"] = int(body.get("seed") or 0) + job.reseeds
    body.pop("stream", None)
    if server.engine == "sglang":
        body["rid"] = rid(job, session)
    return body


def rid(job: Job, session: str) -> str:
    """The id of the job's latest request.

    Of one width, since SGLang aborts by prefix; with the send, since an abort must not meet a later
    one; with the session, since a killed run's may still be at work.
    """
    return f"{session}-{job.index:010d}-{job.sends:04d}"


def check_body(settings: Settings, server: Server, rid: str) -> dict[str, Any]:
    """A short real completion that shows whether a server works."""
    body: dict[str, Any] = {
        "model": settings.model or server.model or "default",
        "messages": [{"role": "user", "content": CHECK}],
        "max_tokens": 8,
    }
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
