"""The run itself: one event loop that keeps every server's slots full until no prompt is left.

Decisions are made here, in one thread and without waiting: what to send where, what an answer is
worth, what a failure means. Files belong to the writer's thread, S3 to the uploader's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET

from remote.generate import agentlink, control, layout
from remote.generate import server as servers
from remote.generate.client import Client, TroubleError
from remote.generate.job import Job
from remote.generate.ledger import Entry, Kind, Writer
from remote.generate.opening import Opened, check_limits, elapsed_hours, encode_run
from remote.generate.outcomes import Answer, judge, tool_names
from remote.generate.progress import Meter, bar, duration
from remote.generate.prompts import PromptsError, decode, prompt_hash
from remote.generate.records import Batch, Completion, GivenUp, Pending, Seen, line, now
from remote.generate.recovery import ASIDE, DONE, FAILED, TAKEN, TODO
from remote.generate.server import Held, Server
from remote.generate.settings import Settings
from remote.generate.upload import Uploader
from remote.generate.work import Work, check_line
from remote.protocol import Progress, Reading, RunStatus, ServerWork

TICK_S = 0.25
BACKLOG = 64 << 20
"""Bytes of finished answers not yet on disk beyond which no new prompt is sent."""
CHECK_S = 20.0
"""How long a trial completion may take."""
SHOW_S = 60.0
"""How often a line goes to a log that is no terminal."""
POLL_S = 3.0
UPLOAD_S = 600.0
"""How long uploads may go on after the last prompt."""
PAROLE_S = 600.0
"""A server that was sound at first and is stopped later may prove itself again after this."""
FREE = 8
"""Failures of a prompt that do not count, at most; then they do."""


class Run:
    """A run from its opened directory to its exit code."""

    def __init__(
        self,
        settings: Settings,
        opened: Opened,
        headers: dict[str, str],
        credentials: Callable[[], Mapping[str, str]],
    ) -> None:
        self.settings = settings
        self._opened = opened
        self._folder = settings.output
        self._run = opened.run
        self._prompts = opened.prompts
        self._status = opened.recovered.status
        self._total = len(opened.prompts)
        self._totals = opened.totals
        self._failures = opened.recovered.failures
        self._aside = opened.recovered.aside
        self._work = Work(self._status)
        self._client = Client(headers)
        self._session = secrets.token_hex(4)
        """Begins every request id, so that a killed run's requests are not in the way."""
        self._servers: dict[str, Server] = {
            url: Server(url, wanted=settings.concurrency) for url in settings.servers
        }
        self._control: control.Control | None = None
        self._control_stamp = self._stamp()
        self._mode: RunStatus = "running"
        self._hold = ""
        """Run-level dispatch of control.json: pause."""
        self._leave = 0
        """1: drain and leave; 2: leave now."""
        self._seal = False
        self._failed = ""
        self._started = False
        self._over = asyncio.Event()
        self._unacked = 0
        self._pending: dict[int, bytes] = {}
        """Lines of pending.jsonl that still count."""
        self._retries: Counter[str] = Counter()
        self._disk_problem = ""
        self._message = ""
        self._began = time.monotonic()
        self._own = 0
        self._own_tokens = 0
        self._meter = Meter(self._began)
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading_at = 0.0
        self._shown_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._writer = Writer(
            opened.ledger,
            on_durable=self._from_thread(self._durable),
            on_problem=self._from_thread(self._set_disk_problem),
            on_broken=self._from_thread(self._broken),
        )
        self._batches = dict(opened.recovered.books.batches)
        self._uploader: Uploader | None = None
        if settings.s3.bucket:
            self._uploader = Uploader(
                settings.output,
                settings.s3,
                self._run.run_id,
                credentials=credentials,
                on_uploaded=self._from_thread(self._uploaded),
            )
            self._uploader.start(self._batches.values())

    def _from_thread(self, call: Any) -> Any:
        def deliver(*args: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                self._loop.call_soon_threadsafe(call, *args)

        return deliver

    # --- life ---

    async def main(self) -> int:
        """Run to the end, or until told to leave; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._asked_to_leave)
        with contextlib.suppress(ValueError, OSError):
            self._loop.add_signal_handler(signal.SIGHUP, lambda: None)
        try:
            self._obey(first=True)
            check_limits(sum(s.slots for s in self._servers.values()))
            if self.settings.agent is not None:
                self._spawn(agentlink.follow(self.settings.agent, self._heard))
            self._take_back_pending()
            await self._check_all()
            self._announce()
            self._started = True
            self._spawn(self._tick_for_ever())
            self._pump()
            await self._over.wait()
        finally:
            code = await self._end()
        return code

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(f"{type(error).__name__}: {error}")
            self._loop.call_exception_handler({"message": "a task failed", "exception": error})

    def _asked_to_leave(self) -> None:
        self._leave += 1
        if self._leave == 1:
            say("draining: what is in flight may end (again to stop now)")
        self._look_for_end()

    def _broken(self, text: str) -> None:
        self._failed = self._failed or text
        self._over.set()

    def _set_disk_problem(self, text: str) -> None:
        self._disk_problem = text
        say(text or "there is space again: going on")
        self._pump()

    async def _end(self) -> int:
        over = self._is_over()
        for server in self._servers.values():
            self._recall(server)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()
        if over or self._seal:
            self._writer.seal()
        if self._uploader is not None and not self._failed:
            await self._finish_uploads(self._uploader, over)
        if self._failed:
            self._mode = "failed"
        elif over:
            self._mode = "done"
        else:
            self._mode = "stopped"
        if self._uploader is not None:
            await asyncio.to_thread(self._uploader.close)
        await asyncio.to_thread(self._writer.close, 30.0)
        await asyncio.sleep(0)  # what the writer's thread has just told
        for name, data in (
            (layout.RUN, encode_run(self._run_now())),
            (layout.PROGRESS, self._progress()),
        ):
            with contextlib.suppress(OSError):
                self._replace(name, data)
        self._summary(over)
        self._prompts.close()
        self._opened.lock.release()
        if self._failed:
            return 1
        if not over:
            return 130
        lost = self._uploader is not None and bool(self._uploader.lost)
        return 1 if self._failures or self._aside or self._not_uploaded() or lost else 0

    async def _finish_uploads(self, uploader: Uploader, over: bool) -> None:
        """The last batches have ten minutes, a drain ten seconds; the next start does the rest."""
        await asyncio.to_thread(self._writer.flush, 30.0)
        await asyncio.sleep(0)
        end = time.monotonic() + (UPLOAD_S if over else 10.0)
        leave = self._leave
        while not uploader.done and time.monotonic() < end and self._leave == leave:
            self._writer.file(layout.PROGRESS, self._progress())
            await asyncio.sleep(TICK_S)

    def _not_uploaded(self) -> int:
        """Records that should be in S3 and are not, the open batch's too."""
        if self._uploader is None:
            return 0
        sealed = sum(batch.records for batch in self._batches.values())
        return self._uploader.records_waiting + self._totals.completed - sealed

    def _uploaded(self, batch: Batch) -> None:
        self._batches[batch.name] = batch
        self._writer.list_batch(batch)

    def _replace(self, name: str, data: bytes) -> None:
        path = self._folder / name
        temporary = path.with_name(f".{name}.tmp")
        temporary.write_bytes(data)
        temporary.replace(path)

    # --- start ---

    async def _check_all(self) -> None:
        """One real completion from every server that may work; what is down is tried later."""
        wanted = [s for s in self._servers.values() if s.dispatch == "run"]
        trials = [self._spawn(self._try(server)) for server in wanted]
        if trials:
            await asyncio.wait(trials, timeout=CHECK_S + 2)

    def _announce(self) -> None:
        healthy = [s for s in self._servers.values() if not s.breaker.is_open]
        for server in healthy:
            say(f"Port {port(server.url)}: OK")
        say("Starting generation...")
        recovered = self._opened.recovered
        count = len(self._servers)
        self._message = (
            f"{self._totals.completed} done, {recovered.repaired} repaired, "
            f"{len(healthy)}/{count} healthy"
        )
        say(self._message)
        for note in recovered.notes:
            say(f"mended: {note}")
        for server in self._servers.values():
            if server.breaker.is_open and server.dispatch == "run":
                say(f"Port {port(server.url)}: not ready: {server.problem or 'no answer yet'}")
        if not healthy:
            say("no server answers: start them (stoker up); waiting for them")

    def _take_back_pending(self) -> None:
        """Answers that waited for their server's probation when the last process ended."""
        for entry in self._opened.recovered.pending:
            if entry.kind != "answer" or self._status[entry.index] != TODO:
                continue
            text = self._prompts.line(entry.index)
            if prompt_hash(text) != entry.prompt:
                continue
            seen = msgspec.json.decode(entry.data, type=Seen)
            self._status[entry.index] = TAKEN
            kind: Kind = "batch" if seen.outcome in self.settings.keep else "set_aside"
            job = Job(entry.index, text, decode(text))
            record = Entry(kind, entry.index, bytes(entry.data) + b"\n", seen)
            self._pending[entry.index] = line(entry)
            server = self._servers.get(entry.server)
            if server is not None and server.process == entry.process and server.process:
                like = hashlib.sha256(bytes(entry.data)).digest()
                server.held.append(Held(job, record, seen.outcome, like))
            else:
                self._put(record)
                self._pending.pop(entry.index)

    # --- dispatch ---

    def _pump(self) -> None:
        """Fill every slot that may be filled."""
        if (
            not self._started
            or self._leave
            or self._hold
            or self._over.is_set()
            or self._writer.stuck
            or self._writer.backlog > BACKLOG
        ):
            return
        at = time.monotonic()
        free = [s for s in self._servers.values() if s.room(at) > 0]
        while free:
            server = min(free, key=_fullness) if len(free) > 1 else free[0]
            job = self._work.take(at, server, alone=self._alone(server))
            if job is None:
                free.remove(server)
                continue
            if why := check_line(job.line) if job.sends == 0 else "":
                self._give_up(job, server, "rejected", why, None)
                continue
            self._send(server, job, at)
            if server.room(at) <= 0:
                free.remove(server)
        self._read_ahead()

    def _alone(self, server: Server) -> bool:
        return not any(
            other is not server
            and other.dispatch == "run"
            and not other.breaker.is_open
            and not other.stopped
            for other in self._servers.values()
        )

    def _read_ahead(self) -> None:
        if self._work.reading:
            return
        ahead = max(64, sum(s.slots for s in self._servers.values()))
        if indices := self._work.wanted(ahead):
            self._work.reading = True
            self._spawn(self._read(indices))

    async def _read(self, indices: list[int]) -> None:
        try:
            self._work.feed(await asyncio.to_thread(self._prompts.lines, indices))
        except (PromptsError, OSError) as error:
            self._broken(str(error))
        finally:
            self._work.reading = False
        self._pump()
        self._look_for_end()

    def _send(self, server: Server, job: Job, at: float) -> None:
        if not server.flying:
            server.sign_at = at
        job.sends += 1
        server.flying[job] = self._spawn(self._ask(server, job))

    async def _ask(self, server: Server, job: Job) -> None:
        began = time.monotonic()
        process = server.process
        try:
            answer = await self._client.chat(server.url, self._body(server, job))
        except TroubleError as trouble:
            if self._landed(server, job):
                self._trouble(server, job, trouble)
        else:
            if self._landed(server, job):
                self._answered(server, job, answer, time.monotonic() - began, process)
        self._pump()
        self._look_for_end()

    def _landed(self, server: Server, job: Job) -> bool:
        """Take the job out of the air; False where it was taken back in the meantime."""
        if server.flying.get(job) is not asyncio.current_task():
            return False
        del server.flying[job]
        return True

    def _body(self, server: Server, job: Job) -> dict[str, Any]:
        prompt, settings = job.prompt, self.settings
        body: dict[str, Any] = {
            "model": settings.model or server.model or "default",
            "messages": prompt.messages,
            "max_tokens": prompt.max_tokens or settings.max_tokens,
        }
        if prompt.tools is not None:
            body["tools"] = prompt.tools
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if not settings.thinking:
            body["chat_template_kwargs"] = {"enable_thinking": False}
        for fields in (settings.request, prompt.params or {}):
            for name, value in fields.items():
                if name == "chat_template_kwargs" and isinstance(value, dict):
                    value = {**body.get(name, {}), **value}
                body[name] = value
        if job.reseeds:
            body["seed"] = int(body.get("seed") or 0) + job.reseeds
        body.pop("stream", None)
        if server.engine == "sglang":
            body["rid"] = f"{self._session}-{job.index:010d}-{job.sends:04d}"
        return body

    # --- answers ---

    def _answered(
        self, server: Server, job: Job, answer: Answer, latency: float, process: str
    ) -> None:
        at = time.monotonic()
        server.breaker.succeeded()
        server.sign_at = at
        server.slowest = max(server.slowest, latency)
        server.problem = ""
        server.grow()
        job.attempts += 1
        outcome = judge(answer, tool_names(job.prompt.tools))
        like = _likeness(answer)
        if process == server.process:
            server.note(outcome, like)
            if server.proved and (why := server.degenerate()):
                self._stop_server(server, why, at + PAROLE_S)
                self._work.again(job, at, wait=False)
                return
        if job.reseeds < self.settings.retry_outcomes.get(outcome, 0):
            job.reseeds += 1
            self._retries[outcome] += 1
            self._work.again(job, at, wait=False)
            return
        server.completed += 1
        server.output_tokens += answer.usage.completion_tokens
        server.seconds += latency
        entry = self._entry(server, job, answer, outcome, latency)
        if server.proved or process != server.process:
            self._put(entry)
        else:
            self._hold_back(server, Held(job, entry, outcome, like))

    def _entry(
        self, server: Server, job: Job, answer: Answer, outcome: Any, latency: float
    ) -> Entry:
        prompt = job.prompt
        record = Completion(
            index=job.index,
            id=prompt.id,
            source=prompt.source,
            messages=prompt.messages,
            tools=UNSET if prompt.tools is None else prompt.tools,
            content=answer.content,
            reasoning_content=answer.reasoning,
            tool_calls=answer.tool_calls,
            finish_reason=answer.finish_reason,
            outcome=outcome,
            usage=answer.usage,
            model=answer.model,
            server=server.url,
            epoch=server.epoch,
            attempts=job.attempts,
            latency_s=round(latency, 3),
            finished_at=now(),
        )
        seen = Seen(
            job.index, prompt.source, outcome, answer.usage, server.epoch, record.finished_at
        )
        kind: Kind = "batch" if outcome in self.settings.keep else "set_aside"
        return Entry(kind, job.index, line(record), seen)

    def _put(self, entry: Entry) -> None:
        self._unacked += 1
        self._writer.put(entry)

    def _hold_back(self, server: Server, held: Held) -> None:
        """The first answers of a server wait until they can be judged together."""
        job = held.job
        entry = Pending(
            kind="answer",
            index=job.index,
            prompt=prompt_hash(job.line),
            server=server.url,
            process=server.process,
            data=msgspec.Raw(held.entry.line[:-1]),
        )
        self._pending[job.index] = data = line(entry)
        self._writer.put(Entry("pending", job.index, data))
        server.held.append(held)
        if len(server.held) < servers.PROBATION:
            return
        why = servers.degenerate([(h.outcome, h.likeness) for h in server.held])
        if why:
            self._stop_server(server, why, math.inf)
        else:
            server.proved = True
            self._settle(server)

    def _settle(self, server: Server) -> None:
        """Every answer held back goes where its own outcome says."""
        if not server.held:
            return
        for held in server.held:
            self._put(held.entry)
            self._pending.pop(held.job.index, None)
        server.held.clear()
        self._writer.replace_pending(list(self._pending.values()))

    def _stop_server(self, server: Server, why: str, until: float) -> None:
        """A degenerate server: nothing of it that is not in a batch counts."""
        server.stopped, server.stopped_until = why, until
        server.problem = f"{why}: dispatch stopped; look at its flags and restart it"
        say(f"{server.url}: {server.problem}")
        at = time.monotonic()
        for held in server.held:
            self._pending.pop(held.job.index, None)
            held.job.avoid = server
            held.job.attempts = max(0, held.job.attempts - 1)
            self._work.again(held.job, at, wait=False)
            self._retries["degenerate server"] += 1
            server.completed -= 1
        if server.held:
            server.held.clear()
            self._writer.replace_pending(list(self._pending.values()))
        self._recall(server)

    def _recall(self, server: Server) -> None:
        """Take back what is in flight; none of it counts as an attempt.

        The jobs are queued again here and not by their tasks, since a task that is cancelled
        before its first step never runs.
        """
        at = time.monotonic()
        flying, server.flying = server.flying, {}
        for job, task in flying.items():
            job.avoid = server
            self._work.again(job, at, wait=False)
            task.cancel()

    # --- failures ---

    def _trouble(self, server: Server, job: Job, trouble: TroubleError) -> None:
        at = time.monotonic()
        cause = trouble.cause
        self._retries[cause] += 1
        if cause == "rejected":
            server.sign_at = at
            job.attempts += 1
            self._give_up(job, server, "rejected", trouble.text, trouble.status)
            return
        if cause == "abort":
            self._work.again(job, at, wait=False)
            return
        server.problem = trouble.text
        job.avoid = server
        gone = cause in ("refused", "reset", "timeout", "denied")
        server.breaker.failed(at, gone=gone)
        if cause == "refused":
            self._lost(server)
        if cause == "busy":
            server.refused_work(at, trouble.after)
        if (gone or cause == "busy" or server.breaker.is_open) and job.free < FREE:
            if cause != "refused" and not (cause == "busy" or cause == "denied"):
                job.free += 1
            self._work.again(job, at, wait=not gone)
            return
        job.attempts += 1
        if job.attempts > self.settings.retries:
            self._give_up(job, server, "failed", trouble.text, trouble.status)
        else:
            self._work.again(job, at, wait=True)

    def _lost(self, server: Server) -> None:
        """Nobody listens there: what comes back is another process (the agent knows it itself)."""
        if not self.settings.agent and server.proved:
            self._settle(server)
            server.incarnation += 1
            server.new_process(f"{self._session}.{server.incarnation}")

    def _give_up(
        self, job: Job, server: Server, outcome: str, reason: str, status: int | None
    ) -> None:
        record = GivenUp(
            index=job.index,
            id=job.prompt.id,
            outcome=outcome,
            reason=reason,
            status=status,
            attempts=job.attempts,
            server=server.url,
            time=now(),
        )
        self._put(Entry("failed", job.index, line(record), Seen(job.index, outcome=outcome)))

    # --- trials, polls, silence ---

    async def _try(self, server: Server) -> None:
        """One short real completion; if it is answered the server gets work."""
        breaker = server.breaker
        breaker.trying = True
        try:
            async with asyncio.timeout(CHECK_S):
                identity = await self._client.identify(server.url)
                if identity.model:
                    server.engine, server.model = identity.engine, identity.model
                    server.context = identity.context
                self._same_model(server)
                if not self._fed():
                    await self._sample(server)
                await self._client.chat(server.url, self._trial(server))
        except (TroubleError, TimeoutError) as error:
            if isinstance(error, TroubleError):
                server.problem = error.text
                if error.cause == "refused":
                    self._lost(server)
            else:
                server.problem = f"no answer to a short completion within {CHECK_S:.0f} s"
            breaker.trial_failed(time.monotonic())
        else:
            server.problem = ""
            server.sign_at = time.monotonic()
            breaker.close(server.sign_at)
        finally:
            server.checked = True
            breaker.trying = False
        self._pump()

    def _trial(self, server: Server) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.settings.model or server.model or "default",
            "messages": [{"role": "user", "content": "Reply with the word ready."}],
            "max_tokens": 8,
        }
        if server.engine == "sglang":
            body["rid"] = f"{self._session}-check-{secrets.token_hex(4)}"
        return body

    def _same_model(self, server: Server) -> None:
        """All answers of a run come from one model."""
        params = self._run.params
        if not params.get("model") and server.model:
            params["model"] = server.model
        if (
            server.model
            and params.get("model") not in ("", server.model)
            and not (self.settings.model or self.settings.accept_params)
        ):
            raise TroubleError(
                "denied",
                f"serves {server.model}, but this run is of {params['model']}: restart it with "
                "that model, or add --accept-params",
            )

    def _fed(self) -> bool:
        """Readings come from the agent, so that nobody polls twice."""
        return time.monotonic() - self._reading_at < 15.0 and self._reading_at > 0

    async def _sample(self, server: Server) -> None:
        try:
            sample = await self._client.sample(server.url, server.engine)
        except TroubleError:
            return
        server.heard(
            time.monotonic(),
            running=sample.running,
            queued=sample.queued,
            max_running=sample.max_running,
            tokens=sample.tokens,
        )

    def _heard(self, reading: Reading) -> None:
        """A reading of the agent."""
        self._reading_at = time.monotonic()
        server = self._servers.get(reading.url.rstrip("/"))
        if server is None:
            return
        if not reading.alive and server.flying:
            server.problem = "its process has ended"
            server.breaker.open(self._reading_at)
            self._recall(server)
            return
        server.heard(
            self._reading_at,
            running=reading.running,
            queued=reading.queued,
            max_running=reading.max_running,
            tokens=reading.tokens,
        )
        self._pump()

    def _silent(self, at: float) -> None:
        """Servers that gave no sign of life for too long lose what they have in flight."""
        for server in self._servers.values():
            if not server.flying:
                continue
            window = server.silence_window(self.settings.patience)
            if at - server.sign_at > window:
                server.problem = f"no sign of life for {window:.0f} s with requests in flight"
                say(f"{server.url}: {server.problem}; they go elsewhere")
                self._retries["silence"] += len(server.flying)
                server.breaker.open(at)
                self._recall(server)

    # --- the agent's wishes ---

    def _stamp(self) -> tuple[int, int] | None:
        try:
            stat = (self._folder / control.NAME).stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino

    def _obey(self, *, first: bool = False) -> None:
        """Take over ``control.json`` when it changed. Alone, what stood there at the start is
        some earlier agent's word and does not count."""
        stamp = self._stamp()
        if stamp == self._control_stamp and not (first and self.settings.agent):
            return
        self._control_stamp = stamp
        wish = control.read(self._folder)
        if wish is None:
            return
        self._control = wish
        for want in wish.servers:
            self._obey_server(want, wish)
        if wish.servers:
            for url in set(self._servers) - {want.url.rstrip("/") for want in wish.servers}:
                self._servers[url].dispatch = "pause"
        if not wish.servers:
            for server in self._servers.values():
                server.wanted = wish.concurrency
        self._seal = wish.seal
        self._hold = "pause" if wish.dispatch == "pause" else ""
        if wish.dispatch == "drain":
            self._leave = max(self._leave, 1)
        elif wish.dispatch == "stop":
            self._leave = max(self._leave, 2)

    def _obey_server(self, want: control.ServerControl, wish: control.Control) -> None:
        url = want.url.rstrip("/")
        server = self._servers.get(url)
        if server is None:
            server = self._servers[url] = Server(url)
        server.gpu, server.epoch = want.gpu, want.epoch
        server.wanted = wish.concurrency
        if want.process != server.process:
            self._settle(server)
            server.new_process(want.process)
            server.breaker.open(time.monotonic())
            self._recall(server)
        if want.max_running:
            server.said = want.max_running
        before, server.dispatch = server.dispatch, want.dispatch
        if want.dispatch == "abort" and before != "abort" and server.flying:
            self._spawn(self._break_off(server))

    async def _break_off(self, server: Server) -> None:
        """Have the server return what it has; what does not come back in time is taken back."""
        if server.engine == "sglang":
            with contextlib.suppress(TroubleError):
                await self._client.abort_all(server.url)
            for _ in range(20):
                if not server.flying:
                    return
                await asyncio.sleep(TICK_S)
        self._recall(server)

    # --- the clock ---

    async def _tick_for_ever(self) -> None:
        ticks = 0
        while True:
            at = time.monotonic()
            for server in self._servers.values():
                if server.stopped and at >= server.stopped_until:
                    server.new_process(server.process)
                    server.breaker.open(at)
                breaker = server.breaker
                due = breaker.is_open and not breaker.trying and at >= breaker.retry_at
                if due and server.dispatch == "run" and not self._leave and not server.stopped:
                    breaker.trying = True
                    self._spawn(self._try(server))
            if ticks % 4 == 0:
                self._obey()
                self._silent(at)
                self._meter.tick(at, self._own, self._own_tokens)
                self._writer.file(layout.PROGRESS, self._progress())
                self._show(at)
            if ticks % round(POLL_S / TICK_S) == 0 and not self._fed():
                for server in self._servers.values():
                    if server.engine and not server.breaker.is_open:
                        self._spawn(self._sample(server))
            if ticks % round(30 / TICK_S) == 0:
                self._writer.file(layout.RUN, encode_run(self._run_now()), durable=True)
            self._pump()
            self._look_for_end()
            ticks += 1
            await asyncio.sleep(TICK_S)

    def _run_now(self) -> Any:
        self._run.sessions[-1].end = time.time()
        return self._run

    def _in_flight(self) -> int:
        return sum(len(s.flying) for s in self._servers.values())

    def _look_for_end(self) -> None:
        """Whether it is time to leave; at the end of a pass nothing waits for more answers."""
        if self._leave >= 2 or (self._leave and not self._in_flight()):
            if self._leave >= 2 or not self._unacked:
                self._over.set()
            return
        if not self._work.idle or self._in_flight():
            return
        for server in self._servers.values():
            self._settle(server)
        if not self._unacked:
            self._over.set()

    def _is_over(self) -> bool:
        """Every prompt is done, given up or set aside, and that is on disk."""
        return (
            not self._failed
            and self._work.idle
            and not self._in_flight()
            and not self._unacked
            and not self._pending
        )

    # --- accounts ---

    def _durable(self, acked: list[Entry], sealed: list[Batch]) -> None:
        """The writer has made these lines durable: now they count."""
        for entry in acked:
            seen = entry.seen
            if entry.kind == "pending" or seen is None:
                continue
            self._unacked -= 1
            if entry.kind == "batch":
                self._status[entry.index] = DONE
                self._totals.completed += 1
                self._totals.outcomes[seen.outcome] += 1
                self._own += 1
                if seen.usage is not None:
                    self._totals.prompt_tokens += seen.usage.prompt_tokens
                    self._totals.completion_tokens += seen.usage.completion_tokens
                    self._own_tokens += seen.usage.completion_tokens
            elif entry.kind == "failed":
                self._status[entry.index] = FAILED
                self._failures[seen.outcome] += 1
            else:
                self._status[entry.index] = ASIDE
                self._aside[seen.outcome] += 1
        for batch in sealed:
            self._batches[batch.name] = batch
            if self._uploader is not None:
                self._uploader.offer(batch)
        self._look_for_end()

    def _problem(self) -> str:
        if self._failed:
            return self._failed
        if self._disk_problem:
            return self._disk_problem
        if not self._servers:
            return "no servers: give --server, or start them (stoker up)"
        able = [s for s in self._servers.values() if s.dispatch == "run"]
        first = next((s for s in able if s.problem), None)
        # One whose trial is still under way has no problem yet.
        closed = all(s.breaker.is_open or s.stopped for s in able)
        if first is not None and closed and not self._leave:
            return f"no server answers ({first.url}: {first.problem}): waiting for one"
        return ""

    def _progress(self) -> bytes:
        return msgspec.json.encode(self.progress())

    def progress(self) -> Progress:
        """The run as of now."""
        totals = self._totals
        failed, aside = sum(self._failures.values()), sum(self._aside.values())
        rate, tokens = self._meter.rates()
        remaining = self._total - totals.completed - failed - aside
        mode = self._mode
        if mode == "running" and self._leave:
            mode = "draining"
        elif mode == "running" and self._hold:
            mode = "paused"
        return Progress(
            total=self._total,
            completed=totals.completed,
            failed=failed,
            rate_per_sec=round(rate, 4),
            eta_hours=round(remaining / rate / 3600, 4) if rate > 0 else None,
            total_input_tokens=totals.prompt_tokens,
            total_output_tokens=totals.completion_tokens,
            avg_output_tokens=(
                round(totals.completion_tokens / totals.completed, 1) if totals.completed else 0.0
            ),
            elapsed_hours=round(elapsed_hours(self._run_now()), 4),
            status=mode,
            time=time.time(),
            pid=os.getpid(),
            run_id=self._run.run_id,
            tok_s=round(tokens, 1),
            set_aside=aside,
            waiting_retry=self._work.waiting_retry,
            on_probation=sum(len(s.held) for s in self._servers.values()),
            in_flight=self._in_flight(),
            remaining=remaining,
            outcomes=dict(totals.outcomes),
            failures=dict(self._failures),
            retries=dict(self._retries),
            servers={
                server.url: ServerWork(
                    slots=server.slots,
                    in_flight=len(server.flying),
                    completed=server.completed,
                    output_tokens=server.output_tokens,
                    state=server.state,
                    problem=server.problem,
                )
                for server in self._servers.values()
            },
            batch_files=len(self._batches),
            batch_records=sum(b.records for b in self._batches.values()),
            batch_bytes=sum(b.bytes for b in self._batches.values()),
            not_in_s3=self._not_uploaded(),
            s3_uploaded=self._uploader.files if self._uploader else 0,
            s3_bytes=self._uploader.bytes if self._uploader else 0,
            s3_error=self._uploader.error if self._uploader else "",
            message=self._message,
            problem=self._problem(),
        )

    def _show(self, at: float) -> None:
        """One line on a terminal, renewed; elsewhere a line a minute."""
        terminal = sys.stdout.isatty()
        if not terminal and at - self._shown_at < SHOW_S:
            return
        if not terminal and self._shown_at == 0.0:
            self._shown_at = at
            return
        self._shown_at = at
        p = self.progress()
        done = p.completed + p.failed + p.set_aside
        text = (
            f"{done:,}/{p.total:,} {p.rate_per_sec:.2f}/s {p.tok_s or 0:,.0f} tok/s "
            f"ETA {duration(p.eta_hours)}, {p.in_flight} in flight"
        )
        if p.failed or p.set_aside:
            text += f", {p.failed} failed, {p.set_aside} set aside"
        if p.problem:
            text += f" [{p.problem}]"
        if terminal:
            print(f"\r{bar(done, p.total, 24)} {text}\x1b[K", end="", flush=True)
        else:
            say(text)

    def _summary(self, over: bool) -> None:
        if sys.stdout.isatty():
            print()
        p = self.progress()
        say(
            f"{'finished' if over else 'left'}: {p.completed:,} of {p.total:,} done"
            f" ({', '.join(f'{v:,} {k}' for k, v in sorted(p.outcomes.items())) or 'none'})"
            f", {p.failed:,} failed, {p.set_aside:,} set aside, {p.remaining:,} left"
        )
        spent = time.monotonic() - self._began
        for server in self._servers.values():
            if server.completed:
                say(
                    f"  {server.url}: {server.completed:,} answers, "
                    f"{server.output_tokens / spent:,.0f} tok/s"
                )
        if waiting := p.not_in_s3:
            why = f": {p.s3_error}" if p.s3_error else ""
            say(f"  {waiting:,} records not yet in S3{why}")
        if self._failed:
            say(f"stopped by a failure: {self._failed}; the same command resumes")
        elif not over:
            say("the same command resumes")


def _fullness(server: Server) -> float:
    return len(server.flying) / server.slots


def _likeness(answer: Answer) -> Hashable:
    return hash((answer.content, answer.reasoning, bytes(answer.tool_calls or b"")))


def port(url: str) -> int:
    """The TCP port of a server's URL."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def say(text: str) -> None:
    """A line for people, at once."""
    print(text, flush=True)
