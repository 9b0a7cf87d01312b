"""One file that tells what happened, for a bug report: state, events, flags, history, log ends.

Secrets are removed from every text in it (:func:`redact`); what was removed leaves a mark.
"""

from __future__ import annotations

import asyncio
import io
import platform
import re
import tarfile
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from console import __version__
from console.logfile import Ask, LogError, between, stamp
from console.model import State
from remote.protocol import (
    Event,
    Events,
    History,
    LogPart,
    ReadEvents,
    ReadHistory,
    ReadLog,
    Request,
    Result,
    TargetSpec,
)

LINES: Final = 2000
"""Newest lines of each log."""

SPAN_S: Final = 3600.0
"""History in the bundle."""

AROUND: Final = 3
"""Newest errors of which the logs around them are in the bundle."""
BEFORE_S, AFTER_S, MOST = 120, 60, 5000
"""Seconds of each such slice before and after the event, and its lines at most."""

GONE: Final = "‹removed›"

# No name is longer, and a word of a megabyte must not be tried to its end from each of its letters.
_NAME = r"(?:api[_-]?key|secret|token(?!s|ize|_)|passw(?:or)?d|authorization)[\w.\-]{0,100}+"
_NO_SECRET = r"(?!\s*(?:[\[{]|(?:\d+(?:\.\d+)?|None|null|true|false)\b))"
_SECRETS: Final = (
    # name=value, name: value, 'name': 'value', --name value; but not counts of tokens
    (
        re.compile(
            rf"""(?i)({_NAME}["']?\s*[=:]\s*){_NO_SECRET}"""
            r"""(["']?)(?:Bearer\s+)?[^\s"',;)}\]]+"""
        ),
        rf"\1\2{GONE}",
    ),
    (re.compile(r"(?i)(STOKER_WEBHOOK\s*=\s*)\S+"), rf"\1{GONE}"),
    (re.compile(r"(https://hooks\.[^/\s]+/)\S+"), rf"\1{GONE}"),
    (re.compile(r"(?i)(--(?:admin-)?api-key\s+)\S+"), rf"\1{GONE}"),
    (re.compile(r"(?i)\b(Bearer\s+)[A-Za-z0-9._~+/\-]{8,}=*"), rf"\1{GONE}"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), GONE),
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}\b"), GONE),
    (re.compile(r"\bsk-[A-Za-z0-9_\-]{16,}\b"), GONE),
    (re.compile(r"(://)[^/\s:@]+:[^/\s@]+@"), rf"\1{GONE}@"),
    (
        re.compile(r"(?i)([?&](?:X-Amz-Signature|X-Amz-Credential|Signature|sig)=)[^&\s\"']+"),
        rf"\1{GONE}",
    ),
)


def redact(text: str) -> str:
    """The text without what looks like a secret: keys, tokens, passwords, signed URLs."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def _without_address(target: TargetSpec | None) -> TargetSpec | None:
    """Whoever knows the webhook's address may post there."""
    if target is None or not target.alerts.webhook:
        return target
    return replace(target, alerts=replace(target.alerts, webhook=GONE))


async def gather(
    ask: Callable[[Request], Awaitable[Result | None]], state: State
) -> dict[str, str]:
    """The files of a bundle by name, as they are. What the agent does not give is left out, and
    said."""
    missing: list[str] = []
    files: dict[str, str] = {}

    def encode(value: object) -> str:
        return msgspec.json.format(msgspec.json.encode(value), indent=1).decode()

    files["state.json"] = encode(
        {
            "time": state.time,
            "link": [state.link.state, state.link.text],
            "target": _without_address(state.target),
            "infos": list(state.infos.values()),
            "servers": list(state.servers.values()),
            "gpus": list(state.gpus.values()),
            "host": state.host,
            "run": state.run,
            "swap": state.swap,
            "alerts": state.alerts,
            "verdict": state.verdict,
        }
    )
    files["epochs.json"] = encode(state.epochs)
    found = await ask(ReadEvents(limit=5000))
    events = found.events if isinstance(found, Events) else list(state.events)
    files["events.jsonl"] = "".join(msgspec.json.encode(e).decode() + "\n" for e in events)
    history = await ask(ReadHistory(state.time - SPAN_S, None, 360))
    if isinstance(history, History):
        files["history.json"] = msgspec.json.encode(history).decode()
    else:
        missing.append("history.json")
    for source in [*(f"gpu{n}" for n in state.numbers), "run", "agent"]:
        part = await ask(ReadLog(source, lines=LINES))
        if isinstance(part, LogPart):
            files[f"logs/{source}.log"] = "\n".join(part.lines) + "\n"
        else:
            missing.append(f"logs/{source}.log")
    for event in [e for e in events if e.level == "error"][-AROUND:]:
        files |= await around(ask, event)
    versions = sorted({info.sglang for info in state.infos.values() if info.sglang})
    cards = sorted({card.name for card in state.gpus.values() if card.name})
    about = [
        f"stoker {__version__}, Python {platform.python_version()}, {platform.system()}",
        f"SGLang {', '.join(versions) or 'unknown'}",
        f"cards: {', '.join(cards) or 'unknown'}" + (" (simulated)" if state.simulated else ""),
        f"taken {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(state.time or time.time()))}",
        f"missing: {', '.join(missing) or 'nothing'}",
        "Secrets were removed from every file; look through it before you send it all the same.",
    ]
    files["about.txt"] = "\n".join(about) + "\n"
    return files


async def around(ask: Ask, event: Event) -> dict[str, str]:
    """What server, run and agent logged around an event. The agent logs each event as it happens:
    that line tells the time of the logs' own clock."""
    words = re.escape(event.text.split("\n")[0][:80])
    part = await ask(ReadLog("agent", lines=1, grep=words))
    at = stamp(part.lines) if isinstance(part, LogPart) else None
    if at is None:
        return {}
    moment = datetime.fromisoformat(at)
    begin, end = (
        (moment + timedelta(seconds=s)).strftime("%Y-%m-%d %H:%M:%S") for s in (-BEFORE_S, AFTER_S)
    )
    files: dict[str, str] = {}
    for source in (*(() if event.gpu is None else (f"gpu{event.gpu}",)), "agent"):
        lines: list[str] = []
        try:
            async for page in between(ask, source, begin, end):
                lines += page
                if len(lines) > MOST:
                    lines = [*lines[:MOST], f"… cut after {MOST} lines"]
                    break
        except LogError as error:
            lines.append(f"… incomplete: {error}")
        if lines:
            files[f"around/{event.id}-{source}.log"] = "\n".join(lines) + "\n"
    return files


def pack(files: dict[str, str], path: Path) -> None:
    """Write them as a gzipped tar, secrets removed. Takes a while. Raises OSError."""
    part = path.with_name(f".{path.name}.part")
    with tarfile.open(part, "w:gz") as tar:
        for name, text in sorted(files.items()):
            data = redact(text).encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            entry.size = len(data)
            entry.mtime = int(time.time())
            tar.addfile(entry, io.BytesIO(data))
    part.replace(path)


async def bundle(
    ask: Callable[[Request], Awaitable[Result | None]],
    state: State,
    folder: Path,
) -> Path:
    """A bundle of what is known now, in ``folder``. Raises OSError."""
    name = state.target.name if state.target is not None else "unknown"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = folder / f"stoker-incident-{re.sub(r'[^A-Za-z0-9._-]', '_', name)}-{stamp}.tar.gz"
    await asyncio.to_thread(pack, await gather(ask, state), path)
    return path
