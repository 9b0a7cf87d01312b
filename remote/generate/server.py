"""One server as the dispatcher sees it: slots, breaker, probation, signs of life.

Nothing here does I/O; times are ``time.monotonic()`` seconds given by the caller.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Literal

from remote.generate.breaker import Breaker
from remote.generate.control import Dispatch
from remote.generate.facts import Facts
from remote.generate.job import Job
from remote.generate.ledger import Entry
from remote.generate.outcomes import KEPT
from remote.generate.pace import Pace, Reach

PROBATION = 16
"""First answers of a server process that wait until all of them can be judged together."""
MARGIN = 4
"""Requests above what a server runs at once, so that its queue never runs dry."""
UNKNOWN = 32
"""Slots of a server that does not say what it runs, to begin with."""
LONGEST_REST_S = 120.0
"""However long a pause a server asks for: it is asked again after this."""
SLOWEST = 10.0
"""Tokens a second that an answer comes with at least, where nothing is known of its server."""
DOUBTS = 16
"""Refusals in a row after which a server is tried with a prompt of our own."""


@dataclass(slots=True)
class Held:
    """An answer that waits for the end of its server's probation."""

    job: Job
    entry: Entry
    outcome: str
    likeness: Hashable
    tokens: int = 0
    """That this process has counted of it; 0 of what an earlier one left."""


@dataclass(slots=True)
class Doubt:
    """A refusal that may be the prompt's fault or the server's."""

    job: Job
    key: str
    """Of the server process."""
    text: str
    status: int | None
    sent_at: float
    last: bool
    """No other server is asked any more."""


@dataclass(eq=False)
class Server:
    """State of one server; ``url`` is its identity."""

    url: str
    gpu: int | None = None
    epoch: int | None = None
    process: str = ""
    """Identity of the server process where the agent knows it, else made up by the run."""
    dispatch: Dispatch = "run"
    wanted: int | Literal["auto"] = "auto"
    engine: str = ""
    model: str = ""
    context: int | None = None

    pace: Pace = field(default_factory=Pace)
    reach: Reach = field(default_factory=Reach)
    breaker: Breaker = field(default_factory=Breaker)
    facts: Facts | None = None
    """What its ``/server_info`` says, where it has one."""
    flying: dict[Job, asyncio.Task[None]] = field(default_factory=dict)
    """Jobs in flight → their tasks."""
    keeping: int = 0
    """Partial answers of it that are not durable yet."""
    said: int | None = None
    """What it says it runs at once."""
    ceiling: int | None = None
    """Fewer slots than that, while it cannot keep up."""
    rest_until: float = 0.0
    """No new request before this (it asked for a pause)."""
    crowded: int = 0
    regained: int = 0
    tokens: int | None = None
    queued: int | None = None
    sign_at: float = 0.0
    """Last sign of life: an answer, its token counter moving, or the first request in flight."""
    has_counter: bool = False
    slowest: float = 0.0
    """Longest time an answer of it took, s."""
    silences: int = 0
    """Times in a row that it was taken for dead."""

    proved: bool = False
    held: list[Held] = field(default_factory=list)
    last: deque[tuple[str, Hashable]] = field(default_factory=lambda: deque(maxlen=PROBATION))
    stopped: str = ""
    """Why nothing more is sent to it, until another process stands there."""
    stopped_until: float = 0.0
    looked_at: float = 0.0
    """When it was last seen whether it is still there, while it is stopped."""
    vouched: bool = False
    """The agent has just had a completion of this process; its first trial needs none."""

    refusals: int = 0
    """Prompts that it would not have, since it answered anything."""
    proof: float = 0.0
    """When the latest request was sent that it answered."""
    emptying: int = 0
    """What is in flight has been asked to come back unfinished, so many times at once."""
    doubted: list[Doubt] = field(default_factory=list)
    """Refusals that nobody can confirm but an answer of this server to something else."""
    unsure: dict[Job, None] = field(default_factory=dict)
    """Prompts that it told to come back later more than once, lately: is it they or the server?"""
    witnessing: bool = False
    """It is being asked another prompt to find that out."""
    crashed: list[Job] = field(default_factory=list)
    """Whose connections broke since the last trial that was answered."""
    guest: Job | None = None
    """A suspect that gets the server to itself."""

    completed: int = 0
    output_tokens: int = 0
    problem: str = ""
    incarnation: int = 0

    @property
    def key(self) -> str:
        """This process of the server, as far as it is told from others."""
        return f"{self.url} {self.process}"

    @property
    def slots(self) -> int:
        """Requests it should have in flight."""
        if self.wanted == "auto":
            base = round(UNKNOWN * self.reach.factor) if self.said is None else self.said
            slots = base + MARGIN
        else:
            slots = self.wanted
        if self.ceiling is not None:
            slots = min(slots, self.ceiling)
        if self.pace.share < 1.0:
            slots = round(slots * self.pace.share)
        return max(1, slots)

    @property
    def in_flight(self) -> int:
        """Requests that it still owes something to: an answer, or the partial one on disk."""
        return len(self.flying) + self.keeping

    @property
    def identity(self) -> str:
        """What an interrupted answer of it can go on with; empty where it cannot."""
        return self.facts.identity if self.facts is not None else ""

    def goes_on(self, job: Job) -> bool:
        """Whether it would go on with the job's partial answer as with its own."""
        return job.partial is not None and job.partial.identity == self.identity

    @property
    def whole(self) -> str:
        """Why an interrupted answer of it can only be made anew; empty where it is continued."""
        if self.facts is not None:
            return self.facts.why_not
        if self.breaker.is_open or not self.engine:
            return ""  # not tried yet, or not since it was restarted
        if self.engine != "sglang":
            return f"{self.engine} has no way to continue an answer"
        return "nothing is known of its /server_info"

    @property
    def breaks_off(self) -> bool:
        """What is in flight is to come back unfinished."""
        return self.dispatch in ("abort", "redo")

    @property
    def usable(self) -> bool:
        """Whether it may get work at all."""
        return self.dispatch == "run" and not self.breaker.is_open and not self.stopped

    def room(self, now: float) -> int:
        """Slots that may be filled now."""
        if not self.usable or self.guest is not None or now < self.rest_until:
            return 0
        return self.slots - len(self.flying)

    @property
    def state(self) -> str:
        """One word for people and progress.json."""
        if self.dispatch != "run":
            return self.dispatch
        if self.stopped:
            return "stopped"
        if self.breaker.is_open:
            return "open"
        return "run" if self.proved else "probation"

    def silence_window(self, patience: float, max_tokens: int) -> float:
        """Seconds without a sign of life after which what is in flight is given up.

        Without a counter an answer is the only sign: the first one may take as long as
        ``max_tokens`` do, and where nothing came in vain twice as long is waited the next time.
        """
        if self.has_counter:
            return patience
        window = max(7.5 * patience, 3.0 * self.slowest, max_tokens / SLOWEST)
        return window * float(2 ** min(self.silences, 6))

    def heard(
        self,
        now: float,
        *,
        running: int | None,
        queued: int | None,
        max_running: int | None,
        tokens: int | None,
    ) -> None:
        """Take one sample of its numbers."""
        self.queued = queued
        if max_running:
            self.said = max_running
        if tokens is not None:
            if tokens != self.tokens:
                self.sign_at = now
                self.has_counter = self.has_counter or self.tokens is not None
            self.tokens = tokens
        self._fit(now, running, queued)

    def _fit(self, now: float, running: int | None, queued: int | None) -> None:
        """Fewer slots while more requests queue there than ``auto`` adds, more when they don't.

        A number that was asked for comes back by and by whatever queues.
        """
        if self.wanted != "auto":
            if self.ceiling is not None and now >= self.rest_until:
                self._raise_ceiling(self.wanted)
            return
        if running is None or queued is None:
            return
        if queued > 2 * MARGIN:
            self.crowded += 1
            if self.crowded >= 3:
                self.ceiling = max(1, running + MARGIN)
        else:
            self.crowded = 0
            if queued <= MARGIN:
                self._raise_ceiling((UNKNOWN if self.said is None else self.said) + MARGIN)
            if self.said is None and queued == 0 and len(self.flying) >= self.slots:
                self.said = running + MARGIN  # it runs all it gets: try more

    def tick(self, now: float, *, sending: bool) -> None:
        """Once a second: see whether it does what it used to with full slots, or could do more."""
        if self.wanted != "auto" or not self.usable:
            return
        full = len(self.flying) >= 0.9 * self.slots
        self.pace.tick(now, self.output_tokens, full=full)
        free = self.ceiling is None and self.pace.share == 1.0
        if self.said is None and self.queued is None and free:
            self.reach.tick(
                now,
                self.output_tokens,
                self.completed,
                slots=self.slots,
                full=full and sending,
            )

    def refused_work(self, now: float, after: float | None) -> None:
        """It answered 429 or 503: a short rest, and fewer slots for a while."""
        rest = random.uniform(0.5, 1.5) if after is None else min(after, LONGEST_REST_S)
        self.rest_until = now + rest
        self.ceiling = max(1, min(self.slots, len(self.flying)))

    def _raise_ceiling(self, full: int) -> None:
        if self.ceiling is not None:
            self.ceiling += MARGIN
            if self.ceiling >= full:
                self.ceiling = None

    def answered(self, now: float, latency: float) -> None:
        """A request was answered, after so many seconds."""
        self.breaker.succeeded()
        self.sign_at = now
        self.silences = self.refusals = 0
        self.proof = max(self.proof, now - latency)
        self.slowest = max(self.slowest, latency)
        self.problem = ""
        self.grow()

    def grow(self) -> None:
        """An answer came: where it keeps up again, give a slot back."""
        if self.ceiling is not None and self.queued is None:
            self.regained += 1
            if self.regained >= self.ceiling:
                self.regained = 0
                self.ceiling += 1

    def new_process(self, process: str) -> None:
        """Another process stands there: it has to prove itself, and nothing is known of it."""
        self.process = process
        self.proved = False
        self.stopped = ""
        self.last.clear()
        self.facts = None
        self.ceiling = None
        self.rest_until = 0.0
        self.silences = self.refusals = 0
        self.pace.reset()
        self.reach = Reach()
        self.tokens = None

    def note(self, outcome: str, likeness: Hashable) -> None:
        """Remember an answer for :func:`degenerate`."""
        self.last.append((outcome, likeness))


def degenerate(answers: Collection[tuple[str, Hashable]], keep: Collection[str] = KEPT) -> str:
    """Why sixteen answers (outcome, likeness) are no work of a sound server.

    Empty where they may be, or are fewer. ``keep`` are the outcomes that the run accepts.
    """
    if len(answers) < PROBATION:
        return ""
    if len({likeness for _, likeness in answers}) == 1:
        return f"its last {len(answers)} answers, to different prompts, are all alike"
    bad = [outcome for outcome, _ in answers if outcome not in keep]
    if 2 * len(bad) > len(answers):
        worst = max(set(bad), key=bad.count)
        return f"{len(bad)} of its last {len(answers)} answers are no good (mostly {worst})"
    return ""
