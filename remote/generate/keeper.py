"""What is kept on disk of unfinished prompts, and what is lost of them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from remote.generate import partial as partials
from remote.generate.accounts import Accounts
from remote.generate.job import Job
from remote.generate.ledger import Entry
from remote.generate.outbox import Outbox
from remote.generate.partial import Partial
from remote.generate.prompts import prompt_hash
from remote.generate.records import Pending
from remote.generate.server import Server


class Keeper:
    """Partial answers and the turns of conversations, in ``pending.jsonl``."""

    def __init__(self, outbox: Outbox, accounts: Accounts) -> None:
        self._outbox = outbox
        self._accounts = accounts
        self._on_the_way: dict[int, tuple[Entry, Server]] = {}
        """Lines that are not durable yet, by the identity of the object."""

    def keep(self, server: Server, job: Job, kept: Partial) -> None:
        """Make a partial answer durable; the server owes it until then."""
        self._accounts.tokens_kept += kept.tokens - (job.partial.tokens if job.partial else 0)
        job.partial = kept
        entry = self._outbox.wait(pending(job, server))
        server.keeping += 1
        self._on_the_way[id(entry)] = (entry, server)
        if server.breaks_off and not server.flying:  # the last one: it can be stopped then
            self._outbox.writer.hurry()

    def durable(self, acked: Iterable[Entry]) -> list[Server]:
        """These lines are on disk.

        :returns: servers that owe nothing any more since then.
        """
        free = []
        for entry in acked:
            if entry.kind != "pending":
                continue
            if (found := self._on_the_way.pop(id(entry), None)) is not None:
                server = found[1]
                server.keeping -= 1
                if not server.in_flight:
                    free.append(server)
        return free

    def keep_rest(self, job: Job, server: Server) -> None:
        """Have the file hold what is still known of an unfinished prompt, and no more."""
        if job.partial is not None or (job.talk is not None and job.talk.turns):
            self._outbox.wait(pending(job, server))
        else:
            self._outbox.drop(job.index)

    def lose(self, job: Job, server: Server) -> None:
        """The partial answer is of no use any more: the prompt is answered anew."""
        if job.partial is not None:
            self.count_lost(job.partial, None)
            self.let_go(job, server)

    def let_go(self, job: Job, server: Server) -> None:
        """The partial answer is done with, whatever became of it."""
        if job.partial is not None:
            job.partial = None
            self.keep_rest(job, server)

    def forget(self, job: Job, server: Server) -> bool:
        """Drop what a degenerate server made of an unfinished answer, and all that followed.

        :returns: whether there was any.
        """
        before = job.partial
        if job.talk is not None and job.talk.forget(server.url):
            job.partial = None
            self.count_lost(before, None)
            return True
        if before is not None:
            job.partial = partials.without(before, server.url)
            self.count_lost(before, job.partial)
        return job.partial is not before

    def count_lost(self, before: Partial | None, after: Partial | None) -> None:
        """Of a partial answer only ``after`` is left."""
        if before is not None:
            self._accounts.tokens_lost += before.tokens - (after.tokens if after else 0)


def pending(job: Job, server: Server) -> Pending:
    """The line that keeps a prompt's partial answer, or its conversation's turns."""
    turns = job.talk.turns if job.talk is not None else []
    if job.partial is not None:
        data = partials.encode(job.partial, turns)
    else:
        data = msgspec.Raw(msgspec.json.encode(turns))
    return Pending(
        kind="turns" if job.partial is None else "partial",
        index=job.index,
        prompt=prompt_hash(job.line),
        server=server.url,
        process=server.process,
        data=data,
    )
