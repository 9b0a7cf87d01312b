"""One file that tells what happened, for a bug report: state, events, flags, versions, logs.

Secrets are removed from every text in it (:mod:`remote.redact`); what was removed leaves a mark.
What could not be had is named in ``about.txt``, with the reason.
"""

from __future__ import annotations

import asyncio
import io
import platform
import re
import shlex
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from console import __version__
from console.clocks import STAMP, stamp_at
from console.feed import FeedError
from console.logfile import Ask, LogError, between, stamp
from console.model import State
from remote import redact
from remote.protocol import (
    Event,
    Events,
    History,
    LogPart,
    Machine,
    ReadEvents,
    ReadHistory,
    ReadLog,
    ReadMachine,
    Request,
    Result,
    TargetSpec,
)

LINES: Final = 2000
"""Newest lines of each log."""

SPAN_S: Final = 3600.0
"""History in the bundle, and that before an event."""

AROUND: Final = 3
"""Newest errors of which the logs around them are in the bundle, where no event was chosen."""
BEFORE_S, AFTER_S, MOST = 120, 60, 5000
"""Seconds of each such slice before and after the event, and its lines at most."""
LATER_S: Final = 900.0
"""History behind an event."""
NEIGHBOURS: Final = 500
"""Events before and after it."""

MACHINE_S: Final = 150.0
"""For so long the machine may be looked at: its commands may each hang for a while."""
OTHERS_S: Final = 10.0
"""The same of an agent of another version: one that does not know the question says nothing."""

_WEBHOOK: Final = re.compile(
    r"""(\bwebhook["']?\s*=\s*)(\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')""",
    re.DOTALL,
)

_KINDS: Final = (
    (r"contents\.txt", "this list"),
    (
        r"about\.txt",
        "versions, when it was taken and of what, and what is missing, with the reason",
    ),
    (r"stoker\.toml", "the configuration as it was written, without secrets"),
    (r"argv\.txt", "how each server was started"),
    (r"state\.json", "what was known of servers, cards, host, run and alerts"),
    (r"epochs\.json", "every set of flags that was in use, and since when"),
    (r"events\.jsonl", "what happened, oldest first"),
    (r"history\.json", "the numbers of the last hour"),
    (r"logs/.*", f"the newest {LINES:,} lines of this log"),
    (r"around/.*-events\.jsonl", "what happened around the event of this time"),
    (r"around/.*-history\.json", "the numbers around the event of this time"),
    (r"around/.*\.log", "what was logged around the event of this time"),
    (r"machine/versions\.txt", "versions of what is installed there"),
    (r"machine/nvidia-smi.*", "what nvidia-smi says"),
)
"""Names of files, and what each is; all others are under machine/."""

Call: TypeAlias = Callable[[Request, float], Awaitable[Result | None]]
"""Asks the agent, with seconds to wait. Raises :class:`console.feed.FeedError`."""


class _Files:
    """What is gathered, and what could not be."""

    def __init__(self, call: Call, patience: float) -> None:
        self._call = call
        self._patience = patience
        """For an answer that takes long."""
        self.files: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self._why = ""

    async def ask(self, request: Request) -> Result | None:
        """The answer, None where there is none: then :meth:`lacks` knows why."""
        self._why = "no answer"
        try:
            wait = self._patience if isinstance(request, ReadMachine) else 30.0
            return await self._call(request, wait)
        except FeedError as error:
            self._why = str(error)
            return None

    def lacks(self, name: str) -> None:
        """The last answer did not come."""
        self.missing[name] = self._why

    def put(self, name: str, value: object) -> None:
        """Data, secrets removed by their names too."""
        plain = redact.plain(msgspec.to_builtins(value))
        self.files[name] = msgspec.json.format(msgspec.json.encode(plain), indent=1).decode() + "\n"

    def put_lines(self, name: str, values: Iterable[object]) -> None:
        """One JSON object a line."""
        rows = (msgspec.json.encode(redact.plain(msgspec.to_builtins(v))).decode() for v in values)
        self.files[name] = "".join(f"{row}\n" for row in rows)


async def gather(
    call: Call, state: State, chosen: Event | None = None, toml: Path | None = None
) -> dict[str, str]:
    """The files of a bundle by name. With an event chosen it tells of that one; without, of the
    newest errors. ``toml`` is the configuration. What is not to be had is left out, and said."""
    found = _Files(call, MACHINE_S if state.link.state == "connected" else OTHERS_S)
    found.put("state.json", _known(state))
    found.put("epochs.json", state.epochs)
    found.files["argv.txt"] = _command_lines(state)
    answer = await found.ask(ReadEvents(limit=5000))
    if not isinstance(answer, Events):
        found.lacks("events.jsonl but for the newest")
    events = answer.events if isinstance(answer, Events) else list(state.events)
    found.put_lines("events.jsonl", events)
    await _put_history(found, "history.json", state.time - SPAN_S, None)
    for source in [*(f"gpu{n}" for n in state.numbers), "run", "agent"]:
        part = await found.ask(ReadLog(source, lines=LINES))
        if isinstance(part, LogPart):
            found.files[f"logs/{source}.log"] = "\n".join(part.lines) + "\n"
        else:
            found.lacks(f"logs/{source}.log")
    told = [chosen] if chosen else [e for e in events if e.level == "error"][-AROUND:]
    for event in told:
        await _around(found, state, event)
    if chosen is not None:
        await _then(found, chosen)
    await _put_machine(found)
    if toml is not None:
        await _put_toml(found, toml)
    found.files["about.txt"] = _about(state, chosen, found.missing)
    found.files["contents.txt"] = contents([*found.files, "contents.txt"])
    return found.files


def contents(names: Iterable[str]) -> str:
    """A line for each file: its name, and what it is."""
    rows = sorted(names)
    wide = max(map(len, rows), default=0)
    return "".join(f"{name:<{wide}}  {_what(name)}\n" for name in rows)


def _what(name: str) -> str:
    return next((text for end, text in _KINDS if re.fullmatch(end, name)), "of the machine")


async def _put_toml(found: _Files, path: Path) -> None:
    """As it was written, but for secrets; whoever knows the webhook's address may post there."""
    try:
        text = await asyncio.to_thread(path.read_text, encoding="utf-8")
    except (OSError, ValueError) as error:
        found.missing["stoker.toml"] = str(error)
    else:
        found.files["stoker.toml"] = _WEBHOOK.sub(rf'\1"{redact.GONE}"', text)


def _known(state: State) -> dict[str, Any]:
    return {
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


def _without_address(target: TargetSpec | None) -> TargetSpec | None:
    """Whoever knows the webhook's address may post there."""
    if target is None or not target.alerts.webhook:
        return target
    return replace(target, alerts=replace(target.alerts, webhook=redact.GONE))


def _command_lines(state: State) -> str:
    """How each server was started, as one may type it."""
    lines = []
    for gpu, info in sorted(state.infos.items()):
        line = shlex.join(redact.argv(info.argv)) if info.argv else "(command line not known)"
        lines.append(f"# GPU {gpu}, epoch {info.epoch}, SGLang {info.sglang}\n{line}\n")
    return "\n".join(lines) or "(no server was ever seen)\n"


def _about(state: State, chosen: Event | None, missing: dict[str, str]) -> str:
    versions = sorted({info.sglang for info in state.infos.values() if info.sglang})
    cards = sorted({card.name for card in state.gpus.values() if card.name})
    lines = [
        f"stoker {__version__}, Python {platform.python_version()}, {platform.system()}",
        f"SGLang {', '.join(versions) or 'unknown'}",
        f"cards: {', '.join(cards) or 'unknown'}" + (" (simulated)" if state.simulated else ""),
        f"taken {_utc(state.time or time.time())}",
    ]
    if chosen is not None:
        lines.append(
            f"about event {chosen.id} of {_utc(chosen.time)}: {chosen.kind}: {chosen.text}"
            " (around/ has the logs, the events and the numbers of its time)"
        )
    lines.append("missing: " + ("" if missing else "nothing"))
    lines += [f"  {name}: {why}" for name, why in missing.items()]
    lines.append(
        "Secrets were removed from every file; look through it before you send it all the same."
    )
    return "\n".join(lines) + "\n"


def _utc(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _stem(event: Event) -> str:
    """How the files around an event begin: when it was (UTC), what, and of which GPU."""
    at = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime(event.time))
    gpu = "" if event.gpu is None else f"-gpu{event.gpu}"
    return f"around/{at}-{event.kind}{gpu}"


async def _put_history(found: _Files, name: str, since: float, until: float | None) -> None:
    history = await found.ask(ReadHistory(since, until, 360))
    if isinstance(history, History):
        found.files[name] = msgspec.json.encode(history).decode()
    else:
        found.lacks(name)


async def _put_machine(found: _Files) -> None:
    """Versions, driver, cards, kernel log and environment, as SGLang's issue form asks for them."""
    machine = await found.ask(ReadMachine())
    if not isinstance(machine, Machine):
        found.lacks("machine/ (versions, driver, nvidia-smi -q, kernel log, environment)")
        return
    facts = [f"{name}: {value}" for name, value in machine.facts.items()]
    facts += [f"{name}: not known: {why}" for name, why in machine.missing.items()]
    found.files["machine/versions.txt"] = "\n".join(facts) + "\n"
    found.files |= {f"machine/{Path(name).name}": text for name, text in machine.texts.items()}
    found.missing |= machine.missing


async def _then(found: _Files, event: Event) -> None:
    """What the journal has of an event's time."""
    before, after = event.id - NEIGHBOURS, event.id + NEIGHBOURS
    near = await found.ask(ReadEvents(after=max(0, before), limit=2 * NEIGHBOURS, before=after))
    name = f"{_stem(event)}-events.jsonl"
    if isinstance(near, Events):
        found.put_lines(name, near.events)
    else:
        found.lacks(name)
    until = event.time + LATER_S
    await _put_history(found, f"{_stem(event)}-history.json", event.time - SPAN_S, until)


async def _around(found: _Files, state: State, event: Event) -> None:
    """What server, run and agent logged around an event."""
    moment = await _logged(found.ask, state, event)
    sources = [*(() if event.gpu is None else (f"gpu{event.gpu}",)), "run", "agent"]
    if moment is None:
        why = f"what the logs' clock showed at event {event.id} is not known"
        found.missing |= {f"{_stem(event)}-{source}.log": why for source in sources}
        return
    begin, end = ((moment + timedelta(seconds=s)).strftime(STAMP) for s in (-BEFORE_S, AFTER_S))
    for source in sources:
        name = f"{_stem(event)}-{source}.log"
        lines: list[str] = []
        try:
            async for page in between(found.ask, source, begin, end):
                lines += page
                if len(lines) > MOST:
                    lines = [*lines[:MOST], f"… cut after {MOST} lines"]
                    break
        except LogError as error:
            found.missing[name] = str(error)
        if lines:
            found.files[name] = "\n".join(lines) + "\n"
        elif name not in found.missing:
            found.missing[name] = f"no line from {begin} to {end}, by the logs' clock"


async def _logged(ask: Ask, state: State, event: Event) -> datetime | None:
    """When it was by the clock that stamps the logs. Where nobody knows that clock, the agent's
    log tells: it has a line for each event as it happens."""
    east = state.host.clock_east_s
    if east is not None:
        return datetime.fromisoformat(stamp_at(event.time, east))
    words = re.escape(event.text.split("\n")[0][:80])
    part = await ask(ReadLog("agent", lines=1, grep=words))
    at = stamp(part.lines) if isinstance(part, LogPart) else None
    return None if at is None else datetime.fromisoformat(at)


def pack(files: dict[str, str], path: Path) -> None:
    """Write them as a gzipped tar, secrets removed. Takes a while. Raises OSError."""
    part = path.with_name(f".{path.name}.part")
    with tarfile.open(part, "w:gz") as tar:
        for name, text in sorted(files.items()):
            data = redact.text(text).encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            entry.size = len(data)
            entry.mtime = int(time.time())
            tar.addfile(entry, io.BytesIO(data))
    part.replace(path)


async def bundle(
    call: Call,
    state: State,
    folder: Path,
    chosen: Event | None = None,
    toml: Path | None = None,
) -> Path:
    """A bundle of what is known now, in ``folder``; about one event where it is chosen. Raises
    OSError."""
    name = state.target.name if state.target is not None else "unknown"
    when = time.strftime("%Y%m%d-%H%M%S")
    path = folder / f"stoker-incident-{re.sub(r'[^A-Za-z0-9._-]', '_', name)}-{when}.tar.gz"
    await asyncio.to_thread(pack, await gather(call, state, chosen, toml), path)
    return path
