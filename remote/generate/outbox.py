"""Between the event loop and the writer: what is under way to disk, and what only waits there."""

from __future__ import annotations

from remote.generate.ledger import Entry
from remote.generate.records import Pending, line
from remote.generate.writer import Writer

_STALE = 200


class Outbox:
    """Counts what is not yet durable and keeps ``pending.jsonl`` short."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.unacked = 0
        """Final lines handed to the writer that are not yet durable."""
        self._waiting: dict[int, bytes] = {}
        self._stale = 0

    @property
    def waiting(self) -> int:
        """Prompts with a line in ``pending.jsonl`` that still counts."""
        return len(self._waiting)

    def put(self, entry: Entry) -> None:
        """Hand over a prompt's final line; nothing is decided about it any more."""
        self.unacked += 1
        self.writer.put(entry)
        self.drop(entry.index)

    def wait(self, pending: Pending) -> Entry:
        """Keep something of an unfinished prompt; replaces what was kept of it before.

        :returns: the line, as it will be told to be durable.
        """
        self.drop(pending.index)
        self._waiting[pending.index] = data = line(pending)
        entry = Entry("pending", pending.index, data)
        self.writer.put(entry)
        return entry

    def known(self, pending: Pending) -> None:
        """Such a line stands in the file already."""
        self._waiting[pending.index] = line(pending)

    def drop(self, index: int) -> None:
        """What was kept of this prompt no longer counts."""
        if self._waiting.pop(index, None) is not None:
            self._stale += 1

    def tidy(self, *, now: bool = False) -> None:
        """Rewrite the file without what no longer counts, where that is worth it."""
        if self._stale and (now or self._stale > _STALE + len(self._waiting)):
            self._stale = 0
            self.writer.replace_pending(list(self._waiting.values()))
