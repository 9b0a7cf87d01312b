"""What an earlier process of the run left: answers without a verdict, unfinished ones, turns."""

from __future__ import annotations

import time
from collections.abc import Hashable

import msgspec

from remote.generate import partial as partials
from remote.generate.floor import Floor
from remote.generate.job import Job
from remote.generate.ledger import Entry, Kind
from remote.generate.prompts import Prompts, decode, prompt_hash
from remote.generate.records import Pending, Seen
from remote.generate.recovery import TAKEN, TODO
from remote.generate.server import Held
from remote.generate.verdicts import likeness


def take_back(floor: Floor, prompts: Prompts, status: bytearray, entries: list[Pending]) -> None:
    """Go on with what stands in ``pending.jsonl``."""
    at = time.monotonic()
    for entry in entries:
        text = prompts.line(entry.index)
        if status[entry.index] != TODO or prompt_hash(text) != entry.prompt:
            continue
        job = Job(entry.index, text, decode(text))
        if entry.kind == "partial":
            job.partial = partials.decode(entry.data)
            if job.talk is not None and job.partial is not None:
                job.talk.turns = job.partial.turns
        elif entry.kind == "turns" and job.talk is not None:
            job.talk.turns = msgspec.json.decode(entry.data)
        elif entry.kind != "answer":
            continue
        status[entry.index] = TAKEN
        floor.outbox.known(entry)
        if entry.kind == "answer":
            _take_back_answer(floor, entry, job)
        else:
            floor.work.again(job, at, wait=False)
    floor.outbox.tidy(now=True)


def _take_back_answer(floor: Floor, entry: Pending, job: Job) -> None:
    seen = msgspec.json.decode(entry.data, type=Seen)
    kind: Kind = "batch" if seen.outcome in floor.settings.keep else "set_aside"
    record = Entry(kind, entry.index, bytes(entry.data) + b"\n", seen)
    server = floor.servers.get(entry.server)
    if server is not None and server.process == entry.process and server.process:
        answer = msgspec.json.decode(entry.data, type=_Said)
        server.completed += 1
        server.held.append(Held(job, record, seen.outcome, answer.likeness()))
    else:
        floor.outbox.put(record)


class _Said(msgspec.Struct):
    """What a record's answer says."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"null")

    def likeness(self) -> Hashable:
        return likeness(self.content, self.reasoning_content, self.tool_calls)
