"""Who gets what, and what becomes of it: every server's slots full, every prompt once.

All decisions fall here, in the event loop and without waiting. A failure charges the server (its
breaker) or the prompt (its attempts), by what it shows; back-off happens in the queue, never in a
slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import secrets
import time
from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from remote.generate import context, requests, sampling
from remote.generate import partial as partials
from remote.generate import server as servers
from remote.generate.accounts import Accounts
from remote.generate.client import Client, TroubleError
from remote.generate.deaths import Deaths
from remote.generate.job import Job
from remote.generate.keeper import Keeper, pending
from remote.generate.ledger import Entry, Kind
from remote.generate.native import Native
from remote.generate.outbox import Outbox
from remote.generate.outcomes import Answer, judge, tool_names
from remote.generate.partial import Partial, Segment
from remote.generate.prompts import Prompts, PromptsError, decode, prompt_hash
from remote.generate.records import Outcome, Pending, Seen
from remote.generate.recovery import TAKEN, TODO
from remote.generate.server import Held, Server
from remote.generate.settings import Settings
from remote.generate.trials import Trials
from remote.generate.work import Work, check_line
from remote.protocol import Reading

BACKLOG = 64 << 20
"""Bytes of finished answers not yet on disk beyond which no new prompt is sent."""
FREE = 8
"""Failures of a prompt that do not count, at most; then they do."""
PAROLE_S = 600.0
"""A server that was sound at first and is stopped later may prove itself again after this."""
QUEUE_S = 4.0
"""How long a server's own queue may take to run empty before what runs is broken off."""
RETURN_S = 5.0
"""How long what was broken off may take to come back."""
POLL_S = 0.1
STRAGGLER = 1.5
"""An answer that takes so many times the mean is sent to a second server at the end."""


class Dispatcher:
    """The servers, the queue, and the way between them."""

    def __init__(
        self,
        settings: Settings,
        params: dict[str, Any],
        client: Client,
        prompts: Prompts,
        status: bytearray,
        outbox: Outbox,
        accounts: Accounts,
        *,
        spawn: Callable[[Any], asyncio.Task[None]],
        changed: Callable[[], None],
        learned: Callable[[], None],
        say: Callable[[str], None],
        broken: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.servers: dict[str, Server] = {
            url: Server(url, wanted=settings.concurrency) for url in settings.servers
        }
        self.work = Work(status)
        self.sending = False
        """New requests may be sent (not before the start, not while paused or leaving)."""
        self.most = 1 << 16
        """Requests that may be open at once on all servers together."""
        self._client = client
        self._prompts = prompts
        self._status = status
        self._outbox = outbox
        self._accounts = accounts
        self._spawn = spawn
        self._changed = changed
        self._say = say
        self._broken = broken
        self._session = secrets.token_hex(4)
        """Begins every request id, so that a killed run's requests are not in the way."""
        self._deaths = Deaths()
        self._suspects: set[Job] = set()
        """Prompts of a server that may have died of them: neither queued nor in flight."""
        self._fit = context.Fit()
        self._mean_latency = 0.0
        self._native = Native(client)
        self._keeper = Keeper(outbox, accounts)
        self.trials = Trials(
            settings,
            params,
            client,
            self._native,
            self.servers,
            self._session,
            spawn=spawn,
            learned=learned,
            lost=self._lost,
            survived=self._survived,
            pump=self.pump,
        )

    # --- what others ask ---

    @property
    def in_flight(self) -> int:
        """Requests that are open, or whose partial answer is not durable yet."""
        return sum(server.in_flight for server in self.servers.values())

    @property
    def partial(self) -> int:
        """Interrupted answers that wait to be continued."""
        return sum(job.partial is not None for job in self.work.jobs())

    @property
    def idle(self) -> bool:
        """Nothing to send now or later, nothing in flight."""
        return self.work.idle and not self._suspects and not self.in_flight

    # --- sending ---

    def pump(self) -> None:
        """Fill every slot that may be filled."""
        writer = self._outbox.writer
        if not self.sending or writer.stuck or writer.backlog > BACKLOG:
            return
        at = time.monotonic()
        if self.work.lonely:
            self._seat_guests(at)
        free = [server for server in self.servers.values() if server.room(at) > 0]
        left = self.most - self.in_flight
        while free and left > 0:
            server = min(free, key=_fullness) if len(free) > 1 else free[0]
            fits = functools.partial(self._fits, server)
            job = self.work.take(at, server, alone=self._only(server), fits=fits)
            if job is None:
                free.remove(server)
                continue
            if job.sends == 0 and job.talk is None and (why := check_line(job.line)):
                self._give_up(job, server, "rejected", why, None)
                continue
            self._send(server, job, at)
            left -= 1
            if server.room(at) <= 0:
                free.remove(server)
        if not self.work.reading:
            ahead = max(64, sum(server.slots for server in self.servers.values()))
            if indices := self.work.wanted(ahead):
                self.work.reading = True
                self._spawn(self._read(indices))
        if self.settings.hedge and self.work.idle and not self._suspects:
            self._hedge(at)

    def _only(self, server: Server) -> bool:
        return not any(o is not server and o.usable for o in self.servers.values())

    async def _read(self, indices: list[int]) -> None:
        try:
            self.work.feed(await asyncio.to_thread(self._prompts.lines, indices))
        except (PromptsError, OSError) as error:
            self._broken(str(error))
        finally:
            self.work.reading = False
        self.pump()
        self._changed()

    def _send(self, server: Server, job: Job, at: float) -> None:
        if not server.flying:
            server.sign_at = at
        if job.partial is not None and not self._goes_on(server, job):
            self._keeper.lose(job, server)
        job.sends += 1
        job.sent_at = at
        server.flying[job] = self._spawn(self._ask(server, job, job.partial))

    async def _ask(self, server: Server, job: Job, base: Partial | None) -> None:
        began = time.monotonic()
        process = server.process
        try:
            answer = await self._get(server, job, base)
        except TroubleError as trouble:
            alone = server.guest is job
            if self._landed(server, job):
                latency = time.monotonic() - began
                if trouble.cause == "abort":
                    self._interrupted(server, job, base, trouble, latency, process)
                else:
                    self._trouble(server, job, trouble, alone=alone, base=base)
        else:
            if answer is not None and self._landed(server, job):
                latency = time.monotonic() - began
                self._answered(server, job, answer, latency, process, base)
        self.pump()
        self._changed()

    async def _get(self, server: Server, job: Job, base: Partial | None) -> Answer | None:
        """The whole answer; None where the prompt was given up instead."""
        if base is None and self.settings.endpoint == "chat":
            if await self._too_long(server, job):
                return None
            if server.breaks_off:
                raise TroubleError("abort", "not sent: the server is to be emptied")
            body = requests.chat_body(self.settings, server, job, self._session)
            return await self._client.chat(server.url, body)
        body = requests.chat_body(self.settings, server, job, self._session)
        return await self._native.answer(server, body, base)

    def _landed(self, server: Server, job: Job) -> bool:
        """Take the job out of the air; False where it was taken back in the meantime."""
        if server.flying.get(job) is not asyncio.current_task():
            return False
        del server.flying[job]
        if server.guest is job:
            server.guest = None
        return True

    def recall(self, server: Server) -> None:
        """Take back what is in flight; none of it counts as an attempt.

        The jobs are queued again here and not by their tasks, since a task that is cancelled
        before its first step never runs.
        """
        at = time.monotonic()
        flying, server.flying = server.flying, {}
        if server.guest is not None and server.guest not in flying:
            self.work.lonely.appendleft(server.guest)
        server.guest = None
        for job, task in flying.items():
            job.avoid = server
            self._again(job, at)
            task.cancel()

    def _again(self, job: Job, at: float, *, wait: bool = False) -> None:
        """Back into the queue, unless another server is at it as well."""
        if not self._elsewhere(job):
            self.work.again(job, at, wait=wait)

    def _elsewhere(self, job: Job) -> bool:
        return any(job in server.flying for server in self.servers.values())

    def _hedge(self, at: float) -> None:
        """Nothing is left to send: stragglers get a second server; the first answer counts."""
        for server in self.servers.values():
            late = [
                job
                for job in server.flying
                if not (job.hedged or job.alone)
                and at - job.sent_at > STRAGGLER * self._mean_latency > 0
            ]
            for job in sorted(late, key=lambda job: job.sent_at):
                others = [
                    o
                    for o in self.servers.values()
                    if o is not server
                    and o.room(at) > 0
                    and (job.partial is None or self._goes_on(o, job))
                ]
                if not others:
                    return
                job.hedged = True
                began = job.sent_at
                self._send(min(others, key=_fullness), job, at)
                job.sent_at = began
                self._accounts.retries["hedged"] += 1

    def _seat_guests(self, at: float) -> None:
        """A suspect waits until one server is empty, and then has it to itself."""
        if not any(server.guest for server in self.servers.values()):
            able = [server for server in self.servers.values() if server.room(at) > 0]
            if able:
                emptiest = min(able, key=lambda server: len(server.flying))
                emptiest.guest = self.work.lonely.popleft()
        for server in self.servers.values():
            if server.guest is not None and server.usable and not server.flying:
                self._send(server, server.guest, at)

    # --- prompts that are too long ---

    async def _too_long(self, server: Server, job: Job) -> bool:
        """Foresee what the server would refuse: less room for the answer, or none at all."""
        wanted = job.prompt.max_tokens or self.settings.max_tokens
        size = len(job.line)
        if server.context is None or self._fit.surely(size, wanted, server.context):
            return False
        if job.limit is not None or job.talk is not None:
            return False
        tokens = await self._client.count_tokens(
            server.url, server.engine, server.model, job.prompt.messages, job.prompt.tools
        )
        if tokens is None:
            return False
        limit = context.room(tokens, server.context)
        if limit < 1:
            if self._landed(server, job):
                why = f"its {tokens} tokens leave no room in a context of {server.context}"
                self._give_up(job, server, "rejected", why, None)
            self.pump()
            self._changed()
            return True
        if limit < wanted:
            job.limit = limit
        return False

    # --- answers ---

    def _answered(
        self,
        server: Server,
        job: Job,
        answer: Answer,
        latency: float,
        process: str,
        base: Partial | None = None,
    ) -> None:
        """``base``: what of the answer was made before this request."""
        at = time.monotonic()
        job.partial = base
        self._withdraw(job)
        server.breaker.succeeded()
        server.sign_at = at
        server.slowest = max(server.slowest, latency)
        server.problem = ""
        server.grow()
        weight = 0.02 if self._mean_latency else 1.0
        self._mean_latency += weight * (latency - self._mean_latency)
        if job.talk is None:
            self._fit.learn(len(job.line), answer.usage.prompt_tokens)
        job.attempts += 1
        job.alone = False
        outcome = judge(answer, tool_names(job.prompt.tools))
        calls = answer.tool_calls or msgspec.Raw(b"null")
        like = likeness(answer.content, answer.reasoning, calls)
        if not self._still_sound(server, process, outcome, like, at):
            self._keeper.forget(job, server)
            self._keeper.keep_rest(job, server)
            self._again(job, at)
            return
        if job.reseeds < self.settings.retry_outcomes.get(outcome, 0):
            job.reseeds += 1
            self._accounts.retries[outcome] += 1
            self._keeper.let_go(job, server)
            self._again(job, at)
            return
        server.completed += 1
        tokens = answer.usage.completion_tokens - (base.tokens if base else 0)
        server.output_tokens += tokens
        self._accounts.answered(server.url, server.epoch, tokens, at, latency)
        segments = self._segments(server, answer, base, latency)
        self._accounts.continued += bool(segments)
        if (talk := job.talk) is not None:
            talk.add(answer, outcome, server.url, latency, segments)
            job.partial = None
            if not talk.over:
                self._next_turn(server, job, at)
                return
            outcome = talk.outcome
        entry = requests.completion(self.settings, server, job, answer, outcome, latency, segments)
        if server.proved or process != server.process:
            self._outbox.put(entry)
            self._outbox.tidy()
        else:
            self._hold_back(server, Held(job, entry, outcome, like))

    def _still_sound(
        self, server: Server, process: str, outcome: Outcome, like: Hashable, at: float
    ) -> bool:
        """Note an answer; False where the last sixteen of a proved server are no work."""
        if process != server.process:
            return True
        server.note(outcome, like)
        if server.proved and (why := servers.degenerate(server.last, self.settings.keep)):
            self._stop(server, why, at + PAROLE_S)
            return False
        return True

    def _next_turn(self, server: Server, job: Job, at: float) -> None:
        """The conversation goes on in the same slot; what it has so far is kept."""
        assert job.talk is not None
        self._outbox.wait(pending(job, server))
        self._outbox.tidy()
        if self.sending and server.usable:
            self._send(server, job, at)
        else:
            self._again(job, at)

    def _hold_back(self, server: Server, held: Held) -> None:
        """The first answers of a server wait until they can be judged together."""
        job = held.job
        self._outbox.wait(
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
        if why := servers.degenerate(answers, self.settings.keep):
            self._stop(server, why, math.inf)
        else:
            server.proved = True
            self.settle(server)

    def settle(self, server: Server) -> None:
        """Every answer held back goes where its own outcome says."""
        if server.held:
            for held in server.held:
                self._outbox.put(held.entry)
            server.held.clear()
            self._outbox.tidy(now=True)

    def _stop(self, server: Server, why: str, until: float) -> None:
        """A degenerate server: nothing of it that is not in a batch counts."""
        server.stopped, server.stopped_until = why, until
        server.problem = f"{why}: dispatch stopped; look at its flags and restart it"
        self._say(f"{server.url}: {server.problem}")
        at = time.monotonic()
        for held in server.held:
            self._keeper.forget(held.job, server)
            self._keeper.keep_rest(held.job, server)
            held.job.avoid = server
            held.job.attempts = max(0, held.job.attempts - 1)
            self._again(held.job, at)
            self._accounts.retries["degenerate server"] += 1
            server.completed -= 1
        server.held.clear()
        self.recall(server)
        for job in self.work.jobs():
            if self._keeper.forget(job, server):
                self._keeper.keep_rest(job, server)
        for job in [job for other in self.servers.values() for job in other.flying]:
            if self._keeper.forget(job, server):
                self._withdraw(job)  # it goes on from what is no more
                self._keeper.keep_rest(job, server)
                self._again(job, at)
        self._outbox.tidy(now=True)

    def _withdraw(self, job: Job) -> None:
        """Where it is still in flight, its answer is no longer wanted."""
        for server in self.servers.values():
            if (task := server.flying.pop(job, None)) is not None:
                task.cancel()
                if server.guest is job:
                    server.guest = None

    # --- failures ---

    def _trouble(
        self,
        server: Server,
        job: Job,
        trouble: TroubleError,
        *,
        alone: bool,
        base: Partial | None = None,
    ) -> None:
        """``alone``: nothing else was in flight there; ``base``: it was to go on from there."""
        at = time.monotonic()
        cause = trouble.cause
        self._accounts.retries[cause] += 1
        if trouble.partial is not None and not self._elsewhere(job):
            self._keeper.keep(server, job, trouble.partial)
        if cause == "rejected" and base is not None:
            server.sign_at = at
            self._keeper.lose(job, server)
            self._again(job, at)
            return
        if cause == "rejected":
            server.sign_at = at
            if (limit := context.room_said(trouble.text)) is not None and job.limit is None:
                job.limit = limit
                self._again(job, at)
                return
            job.attempts += 1
            self._give_up(job, server, "rejected", trouble.text, trouble.status)
            return
        server.problem = trouble.text
        job.avoid = server
        gone = cause in ("refused", "reset", "timeout", "denied")
        server.breaker.failed(at, gone=gone)
        if gone:
            self.trials.try_due()  # at once: whether it died is seen only until it is back
        if cause == "refused":
            self._lost(server)
        if cause == "busy":
            server.refused_work(at, trouble.after)
        if cause == "reset" and server.dispatch == "run":
            server.crashed.append(job)
            if alone:
                self._suspects.add(job)  # until a trial shows whether the server died of it
                return
        if (gone or cause == "busy" or server.breaker.is_open) and job.free < FREE:
            if cause in ("reset", "timeout", "server", "garbage"):
                job.free += 1
            self._again(job, at, wait=not gone)
            return
        job.attempts += 1
        if base is not None and trouble.partial is None:
            self._keeper.lose(job, server)  # it may be the cause
        if job.attempts > self.settings.retries:
            self._give_up(job, server, "failed", trouble.text, trouble.status)
        else:
            self._again(job, at, wait=True)

    def _give_up(
        self, job: Job, server: Server, outcome: Outcome, reason: str, status: int | None
    ) -> None:
        """For good: an answer that is still under way elsewhere comes too late."""
        self._withdraw(job)
        self._keeper.count_lost(job.partial, None)
        self._outbox.put(requests.given_up(job, server.url, outcome, reason, status))

    # --- what was interrupted ---

    def _goes_on(self, server: Server, job: Job) -> bool:
        """Whether this server would go on with the job's partial answer as with its own."""
        return job.partial is not None and job.partial.identity == server.identity

    def _fits(self, server: Server, job: Job) -> bool:
        """Whether the job may be this server's: no other one could go on with it instead."""
        if job.partial is None or self._goes_on(server, job):
            return True
        return not any(o.usable and self._goes_on(o, job) for o in self.servers.values())

    def _interrupted(
        self,
        server: Server,
        job: Job,
        base: Partial | None,
        trouble: TroubleError,
        latency: float,
        process: str,
    ) -> None:
        """The server broke an answer off: keep what it had, and let it go on from there."""
        server.sign_at = time.monotonic()
        kept = trouble.partial
        known = bool(server.identity) and process == server.process
        if (answer := trouble.answer) is not None and known and not self._why_whole(server, job):
            segment = requests.segment(server, trouble.made, "chat", latency)
            kept = partials.from_chat(answer, segment, server.identity)
        unwanted = server.dispatch == "redo" or server.stopped or self._elsewhere(job)
        if kept is not None and not unwanted:
            self._accounts.retries["continued"] += 1
            self._keeper.keep(server, job, kept)
        else:
            self._accounts.retries["abort"] += 1
            self._accounts.tokens_lost += trouble.made
        self._again(job, time.monotonic())

    def _why_whole(self, server: Server, job: Job) -> str:
        """Why this prompt's answer can only be made in one piece; empty where it need not."""
        assert server.facts is not None
        if server.facts.why_not:
            return server.facts.why_not
        body = requests.chat_body(self.settings, server, job, self._session)
        try:
            asked = sampling.translate(body, server.facts.defaults or {})
        except sampling.SamplingError as error:
            return str(error)
        return asked.constrained

    def _segments(
        self, server: Server, answer: Answer, base: Partial | None, latency: float
    ) -> list[Segment]:
        """The parts of an answer that was continued; none of any other."""
        if base is None:
            return []
        tokens = answer.usage.completion_tokens - base.tokens
        last = requests.segment(server, tokens, "generate", latency)
        return base.segments if base.finish is not None else [*base.segments, last]

    def durable(self, acked: list[Entry]) -> bool:
        """These lines are on disk; whether a server that was to be emptied is empty now."""
        return any(server.breaks_off for server in self._keeper.durable(acked))

    def _lost(self, server: Server) -> None:
        """Nobody listens there: what comes back is another process (the agent knows it itself)."""
        if server.crashed:
            self._died(server)
        known = server.proved or server.held or server.stopped
        if not self.settings.agent and known:
            self.settle(server)
            server.incarnation += 1
            server.new_process(f"{self._session}.{server.incarnation}")

    def _died(self, server: Server) -> None:
        """A server died by itself: what was in flight is remembered for it."""
        at = time.monotonic()
        crashed, server.crashed = server.crashed, []
        ordinary = []
        for job in crashed:
            if job in self._suspects:
                self._suspects.remove(job)
                reason = "three servers died with it in flight, the last one with nothing else"
                self._give_up(job, server, "quarantined", reason, None)
            else:
                ordinary.append(job)
        for job in self._deaths.died(at, server.url, ordinary):
            job.alone = True
            self._keeper.lose(job, server)  # it may be the cause
        self._changed()

    def _survived(self, server: Server) -> None:
        """The connections broke, but the server lives: no death to count."""
        at = time.monotonic()
        crashed, server.crashed = server.crashed, []
        for job in crashed:
            if job in self._suspects:
                self._suspects.remove(job)
                self._again(job, at)

    # --- signs of life ---

    def heard(self, reading: Reading) -> None:
        """A reading of the agent."""
        at = self.trials.read_at = time.monotonic()
        server = self.servers.get(reading.url.rstrip("/"))
        if server is None:
            return
        if not reading.alive:
            if server.flying and server.dispatch == "run":
                server.problem = "its process has ended"
                server.breaker.open(at)
                server.crashed += server.flying
                if (guest := server.guest) is not None and guest in server.flying:
                    self._suspects.add(guest)
                    self._withdraw(guest)
                self._died(server)
                self.recall(server)
            return
        server.heard(
            at,
            running=reading.running,
            queued=reading.queued,
            max_running=reading.max_running,
            tokens=reading.tokens,
        )
        self.pump()

    def check_silence(self) -> None:
        """Servers that gave no sign of life for too long lose what they have in flight."""
        at = time.monotonic()
        for server in self.servers.values():
            window = server.silence_window(self.settings.patience)
            if server.flying and at - server.sign_at > window:
                server.problem = f"no sign of life for {window:.0f} s with requests in flight"
                self._say(f"{server.url}: {server.problem}; they go elsewhere")
                self._accounts.retries["silence"] += len(server.flying)
                server.breaker.open(at)
                server.sign_at = at
                self._spawn(self._give_back(server))

    def pace(self) -> None:
        """Once a second: see whether a full server does what it used to, or could do more."""
        at = time.monotonic()
        for server in self.servers.values():
            if server.wanted == "auto" and server.usable:
                full = len(server.flying) >= 0.9 * server.slots
                server.pace.tick(at, server.output_tokens, full=full)
                free = server.ceiling is None and server.pace.share == 1.0
                if server.said is None and server.queued is None and free:
                    server.reach.tick(
                        at,
                        server.output_tokens,
                        server.completed,
                        slots=server.slots,
                        full=full and self.sending,
                    )

    # --- the agent's wishes ---

    def replaced(self, server: Server, process: str, *, vouched: bool) -> None:
        """Another process stands behind a URL; ``vouched``: the agent has just tried it."""
        self.settle(server)
        server.new_process(process)
        server.vouched = vouched
        self._survived(server)  # if it died, it was by Stoker's will
        server.breaker.open(time.monotonic())
        self.recall(server)

    async def break_off(self, server: Server, wanted: Callable[[], bool]) -> None:
        """Have the server return what it has; what does not come back in time is taken back.

        Ends early where it is no longer ``wanted``.
        """
        if server.engine == "sglang":
            if not server.breaker.is_open:
                await self._empty_queue(server, wanted)
            end = time.monotonic() + RETURN_S
            asked = -math.inf
            while wanted() and server.flying and time.monotonic() < end:
                if time.monotonic() - asked >= 1.0:  # some may not have been there yet
                    asked = time.monotonic()
                    with contextlib.suppress(TroubleError):
                        await self._client.abort(server.url)
                await asyncio.sleep(POLL_S)
        if wanted():
            self.recall(server)
            self._changed()

    async def _give_back(self, server: Server) -> None:
        """A silent server may still hand over what it has, unless it is well again meanwhile."""
        await self.break_off(server, lambda: server.breaker.is_open)

    async def _empty_queue(self, server: Server, wanted: Callable[[], bool]) -> None:
        """Make room for what waits in the server's own queue by breaking off its oldest requests.

        An aborted request that was still queued leaves an entry in SGLang 0.5.12 that no later
        SIGTERM gets past (``managers/tokenizer_manager.py``).
        """
        end = time.monotonic() + QUEUE_S
        asked: set[Job] = set()
        while wanted() and server.flying and time.monotonic() < end:
            with contextlib.suppress(TroubleError):
                waiting = (await self._client.sample(server.url, server.engine)).queued
                if not waiting:
                    return
                running = [job for job in server.flying if job not in asked]  # oldest first
                for job in running[: max(0, min(waiting, len(running) - waiting))]:
                    asked.add(job)
                    await self._client.abort(server.url, requests.rid(job, self._session))
            await asyncio.sleep(POLL_S)

    # --- what an earlier process left ---

    def take_back(self, entries: list[Pending]) -> None:
        """Answers that waited for a verdict, and conversations that were under way."""
        at = time.monotonic()
        for entry in entries:
            text = self._prompts.line(entry.index)
            if self._status[entry.index] != TODO or prompt_hash(text) != entry.prompt:
                continue
            job = Job(entry.index, text, decode(text))
            if entry.kind == "partial":
                job.partial = partials.decode(entry.data)
                if job.talk is not None and job.partial is not None:
                    job.talk.turns = job.partial.turns
                self._status[entry.index] = TAKEN
                self._outbox.known(entry)
                self.work.again(job, at, wait=False)
            elif entry.kind == "turns" and job.talk is not None:
                job.talk.turns = msgspec.json.decode(entry.data)
                self._status[entry.index] = TAKEN
                self._outbox.known(entry)
                self.work.again(job, at, wait=False)
            elif entry.kind == "answer":
                self._status[entry.index] = TAKEN
                self._outbox.known(entry)
                self._take_back_answer(entry, job)
        self._outbox.tidy(now=True)

    def _take_back_answer(self, entry: Pending, job: Job) -> None:
        seen = msgspec.json.decode(entry.data, type=Seen)
        kind: Kind = "batch" if seen.outcome in self.settings.keep else "set_aside"
        record = Entry(kind, entry.index, bytes(entry.data) + b"\n", seen)
        server = self.servers.get(entry.server)
        if server is not None and server.process == entry.process and server.process:
            answer = msgspec.json.decode(entry.data, type=_Said)
            server.completed += 1
            server.held.append(Held(job, record, seen.outcome, answer.likeness()))
        else:
            self._outbox.put(record)


def _fullness(server: Server) -> float:
    return len(server.flying) / server.slots


def likeness(content: str | None, reasoning: str | None, tool_calls: msgspec.Raw) -> Hashable:
    """Equal for answers that say the same."""
    return hash((content, reasoning, bytes(tool_calls)))


class _Said(msgspec.Struct):
    """What a record's answer says."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"null")

    def likeness(self) -> Hashable:
        return likeness(self.content, self.reasoning_content, self.tool_calls)
