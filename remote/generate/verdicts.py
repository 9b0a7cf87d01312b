"""What becomes of answers: counted, held back until their server has proved itself, or undone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable

import msgspec

from remote.generate import context, requests
from remote.generate import server as servers
from remote.generate.floor import Floor
from remote.generate.job import Job
from remote.generate.keeper import pending
from remote.generate.outcomes import Answer, judge
from remote.generate.partial import Partial, Segment
from remote.generate.prompts import prompt_hash
from remote.generate.records import Outcome, Pending
from remote.generate.server import Held, Server

PAROLE_S = 600.0
"""A server that was sound at first and is stopped later may prove itself again after this."""


class Verdicts:
    """Takes answers; ``send`` is for the next turn of a conversation."""

    def __init__(
        self, floor: Floor, fit: context.Fit, send: Callable[[Server, Job, float], None]
    ) -> None:
        self._floor = floor
        self._fit = fit
        self._send = send

    def answered(
        self,
        server: Server,
        job: Job,
        answer: Answer,
        latency: float,
        process: str,
        base: Partial | None = None,
    ) -> None:
        """An answer came from that process; ``base``: what was made before this request."""
        floor = self._floor
        at = time.monotonic()
        job.partial = base
        floor.withdraw(job)
        server.answered(at, latency)
        weight = 0.02 if floor.mean_latency else 1.0
        floor.mean_latency += weight * (latency - floor.mean_latency)
        if job.talk is None:
            self._fit.learn(len(job.line), answer.usage.prompt_tokens)
        job.attempts += 1
        job.waits = 0
        job.crowded_out = None
        job.alone = False
        outcome = judge(answer, job.prompt.tools)
        calls = answer.tool_calls or msgspec.Raw(b"null")
        like = likeness(answer.content, answer.reasoning, calls)
        if process == server.process and not self.note(server, outcome, like, at):
            job.attempts -= 1
            floor.keeper.forget(job, server)
            floor.keeper.keep_rest(job, server)
            floor.again(job, at)
            return
        if job.reseeds < floor.settings.retry_outcomes.get(outcome, 0):
            job.reseeds += 1
            floor.accounts.retries[outcome] += 1
            floor.keeper.let_go(job, server)
            floor.again(job, at)
            return
        server.completed += 1
        tokens = answer.usage.completion_tokens - (base.tokens if base else 0)
        server.output_tokens += tokens
        floor.accounts.answered(server.url, server.epoch, tokens, at, latency)
        segments = _segments(server, answer, base, latency)
        floor.accounts.continued += bool(segments)
        if (talk := job.talk) is not None:
            talk.add(answer, outcome, server.url, latency, segments)
            job.partial = None
            if not talk.over:
                self.next_turn(server, job, at)
                return
            outcome = talk.outcome
        entry = requests.completion(floor.settings, server, job, answer, outcome, latency, segments)
        if server.proved or process != server.process:
            floor.outbox.put(entry)
            floor.outbox.tidy()
        else:
            self._hold_back(server, Held(job, entry, outcome, like, tokens))

    def next_turn(self, server: Server, job: Job, at: float) -> None:
        """The conversation goes on in the same slot; what it has so far is kept."""
        assert job.talk is not None
        self._floor.outbox.wait(pending(job, server))
        self._floor.outbox.tidy()
        job.rooms = None  # it was for the turns so far
        if self._floor.may_send and server.room(at) > 0:
            self._send(server, job, at)
        else:
            self._floor.again(job, at)

    def settle(self, server: Server) -> None:
        """Every answer held back goes where its own outcome says."""
        if server.held:
            for held in server.held:
                self._floor.outbox.put(held.entry)
            server.held.clear()
            self._floor.outbox.tidy(now=True)

    def stop(self, server: Server, why: str, until: float) -> None:
        """A degenerate server: nothing of it that is not in a batch counts."""
        floor = self._floor
        server.stopped, server.stopped_until = why, until
        server.problem = f"{why}: dispatch stopped; look at its flags and restart it"
        floor.say(f"{server.url}: {server.problem}")
        at = time.monotonic()
        for held in server.held:
            floor.keeper.forget(held.job, server)
            floor.keeper.keep_rest(held.job, server)
            held.job.avoid = server
            held.job.attempts = max(0, held.job.attempts - 1)
            floor.again(held.job, at)
            floor.accounts.retries["degenerate server"] += 1
            server.completed -= 1
            server.output_tokens -= held.tokens
            floor.accounts.dropped(server.url, held.entry, held.tokens)
        server.held.clear()
        floor.recall(server)
        for job in floor.work.jobs():
            if floor.keeper.forget(job, server):
                floor.keeper.keep_rest(job, server)
        for job in [job for other in floor.servers.values() for job in other.flying]:
            if floor.keeper.forget(job, server):
                floor.withdraw(job)  # it goes on from what is no more
                floor.keeper.keep_rest(job, server)
                floor.again(job, at)
        floor.outbox.tidy(now=True)

    def note(self, server: Server, outcome: Outcome, like: Hashable, at: float) -> bool:
        """Note what a server made of a prompt; False where its last sixteen are no work.

        One that was sound before may prove itself again later.
        """
        server.note(outcome, like)
        why = servers.degenerate(server.last, self._floor.settings.keep)
        if why and not server.stopped:
            self.stop(server, why, at + PAROLE_S if server.proved else math.inf)
        return not why

    def _hold_back(self, server: Server, held: Held) -> None:
        """The first answers of a server wait until they can be judged together."""
        job = held.job
        self._floor.outbox.wait(
            Pending(
                kind="answer",
                index=job.index,
                prompt=prompt_hash(job.line),
                server=server.url,
                process=server.process,
                data=msgspec.Raw(held.entry.line[:-1]),
            )
        )
        server.held.append(held)
        if len(server.held) < servers.PROBATION:
            return
        answers = [(h.outcome, h.likeness) for h in server.held]
        if why := servers.degenerate(answers, self._floor.settings.keep):
            self.stop(server, why, math.inf)
        else:
            server.proved = True
            self.settle(server)


def _segments(
    server: Server, answer: Answer, base: Partial | None, latency: float
) -> list[Segment]:
    """The parts of an answer that was continued; none of any other."""
    if base is None:
        return []
    tokens = answer.usage.completion_tokens - base.tokens
    last = requests.segment(server, tokens, "generate", latency)
    return base.segments if base.finish is not None else [*base.segments, last]


def likeness(content: str | None, reasoning: str | None, tool_calls: msgspec.Raw) -> Hashable:
    """Equal for answers that say the same."""
    return hash((content, reasoning, bytes(tool_calls)))
