"""What the run has done, by what is durable."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from remote.generate.ledger import Entry
from remote.generate.opening import Opened
from remote.generate.progress import Meter
from remote.generate.reasons import Reasons
from remote.generate.records import Batch
from remote.generate.recovery import ASIDE, DONE, FAILED
from remote.protocol import Progress


@dataclass
class Sums:
    """Of some batches; kept, since a long run has thousands of them and tells these each second."""

    files: int = 0
    records: int = 0
    bytes: int = 0

    def add(self, batch: Batch, sign: int) -> None:
        """Count a batch, or with ``sign`` -1 no longer."""
        self.files += sign
        self.records += sign * batch.records
        self.bytes += sign * batch.bytes


@dataclass
class Shift:
    """The answers of one server in one epoch."""

    began: float
    """When the first of them was asked for (``time.monotonic()``)."""
    ended: float
    answers: int = 0
    tokens: int = 0


class Accounts:
    """Counts over the whole run, and rates of this process."""

    def __init__(self, opened: Opened) -> None:
        self._status = opened.recovered.status
        self.total = len(opened.prompts)
        self.totals = opened.totals
        self.failures = opened.recovered.failures
        self.aside = opened.recovered.aside
        self.batches: dict[str, Batch] = {}
        """By name; changed by :meth:`enter` alone, which keeps their sums."""
        self.sealed = Sums()
        """Of all of them."""
        self.uploaded = Sums()
        """Of those that are in S3."""
        for batch in opened.recovered.books.batches.values():
            self.enter(batch)
        self.retries: Counter[str] = Counter()
        """Attempts that gave no answer that counts, by cause."""
        self.reasons = Reasons()
        """Why this process gave prompts up."""
        self.continued = 0
        """Answers that were interrupted and went on."""
        self.tokens_kept = 0
        self.tokens_lost = 0
        self.shifts: dict[tuple[str, int | None], Shift] = {}
        """What each server did in each epoch, in this process."""
        self.own = 0
        self.own_tokens = 0
        self.own_ended = 0
        """Prompts that this process has finished for good, whatever their outcome."""
        self.began = time.monotonic()
        self.meter = Meter(self.began)

    def durable(self, acked: Iterable[Entry]) -> int:
        """These lines are on disk: now they count. How many prompts that ends."""
        ended = 0
        for entry in acked:
            seen = entry.seen
            if entry.kind == "pending" or seen is None:
                continue
            ended += 1
            self.own_ended += 1
            if entry.kind == "batch":
                self._status[entry.index] = DONE
                self.totals.completed += 1
                self.totals.outcomes[seen.outcome] += 1
                self.own += 1
                if seen.usage is not None:
                    self.totals.prompt_tokens += seen.usage.prompt_tokens
                    self.totals.completion_tokens += seen.usage.completion_tokens
                    self.totals.reasoning_tokens += seen.usage.reasoning_tokens
                    self.own_tokens += seen.usage.completion_tokens
            elif entry.kind == "failed":
                self._status[entry.index] = FAILED
                self.failures[seen.outcome] += 1
            else:
                self._status[entry.index] = ASIDE
                self.aside[seen.outcome] += 1
        return ended

    def answered(
        self, server: str, epoch: int | None, tokens: int, at: float, latency: float
    ) -> None:
        """An answer has come and counts."""
        shift = self.shifts.get((server, epoch))
        if shift is None:
            shift = self.shifts[server, epoch] = Shift(at - latency, at)
        shift.ended = at
        shift.answers += 1
        shift.tokens += tokens

    def dropped(self, server: str, entry: Entry, tokens: int) -> None:
        """An answer that counted turned out to be no work of a sound server."""
        shift = self.shifts.get((server, entry.seen.epoch if entry.seen else None))
        if shift is not None:
            shift.answers -= 1
            shift.tokens -= tokens

    def enter(self, batch: Batch) -> None:
        """Take a batch's newest line of the manifest."""
        before = self.batches.get(batch.name)
        self.batches[batch.name] = batch
        for one, sign in ((before, -1), (batch, 1)):
            if one is not None:
                self.sealed.add(one, sign)
                if one.state != "sealed":
                    self.uploaded.add(one, sign)

    @property
    def remaining(self) -> int:
        """Prompts that are not done, given up or set aside."""
        ended = self.totals.completed + self.failures.total() + self.aside.total()
        return self.total - ended

    def tick(self, at: float) -> None:
        """Once a second, for the moving rates."""
        self.meter.tick(at, self.own, self.own_tokens, self.own_ended)

    def progress(self) -> Progress:
        """All of progress.json that is counted here."""
        totals = self.totals
        rate, tokens, pace = self.meter.rates()
        average = totals.completion_tokens / totals.completed if totals.completed else 0.0
        return Progress(
            total=self.total,
            completed=totals.completed,
            failed=self.failures.total(),
            set_aside=self.aside.total(),
            remaining=self.remaining,
            rate_per_sec=round(rate, 4),
            tok_s=round(tokens, 1),
            eta_hours=round(self.remaining / pace / 3600, 4) if pace > 0 else None,
            total_input_tokens=totals.prompt_tokens,
            total_output_tokens=totals.completion_tokens,
            total_reasoning_tokens=totals.reasoning_tokens,
            avg_output_tokens=round(average, 1),
            s3_uploaded=self.uploaded.files,
            s3_bytes=self.uploaded.bytes,
            outcomes=dict(totals.outcomes),
            failures=dict(self.failures),
            retries=dict(self.retries),
            continued=self.continued,
            tokens_kept=self.tokens_kept,
            tokens_lost=self.tokens_lost,
            batch_files=self.sealed.files,
            batch_records=self.sealed.records,
            batch_bytes=self.sealed.bytes,
            time=time.time(),
        )
