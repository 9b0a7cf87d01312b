"""One process of the run: from its opened directory to its exit code.

It starts the writer, the uploader and the dispatcher, listens to ``control.json``, signals and
the agent, keeps ``progress.json``, and knows when the end is reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from remote.generate import agentlink, announce, layout, limits, picture
from remote.generate.accounts import Accounts
from remote.generate.client import Client
from remote.generate.disk import Disk, DiskFullError
from remote.generate.dispatch import Dispatcher
from remote.generate.ledger import Entry
from remote.generate.opening import Opened, elapsed_hours, encode_run, gpu_hours
from remote.generate.outbox import Outbox
from remote.generate.records import Batch, RunFile
from remote.generate.settings import Settings
from remote.generate.show import Show
from remote.generate.steering import Steering
from remote.generate.trials import CHECK_S
from remote.generate.upload import Uploader
from remote.generate.writer import Writer
from remote.protocol import Progress, RunStatus
from remote.tasks import Tasks

TICK_S = 0.25
CONTROL_S = 0.05
"""How often ``control.json`` is looked at: a stat."""
POLL_S = 3.0
RUN_FILE_S = 30.0
"""How often the session's end in ``run.json`` is renewed."""
UPLOAD_S = 600.0
"""How long uploads may go on after the last prompt."""
PATIENT_S = 3.0
"""How long a first answer of the servers is waited for without a word."""
LEAVE_S = 10.0
"""How long they may go on when the run leaves with prompts left."""


class Run:
    """The run, in one event loop."""

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
        self._accounts = Accounts(opened)
        self._client = Client(headers)
        self._mode: RunStatus = "running"
        self._paused = False
        self._leave = 0
        """1: drain and leave; 2: break off and leave; 3: leave now."""
        self._stopping = False
        self._emptied: set[str] = set()
        """Servers to be emptied of which that was told."""
        self._version = 0
        """Of the ``control.json`` that is obeyed."""
        self._seal = False
        self._failed = ""
        self._started = False
        self._over = asyncio.Event()
        self._disk_problem = ""
        self._message = ""
        self._tasks = Tasks(self._fault)
        self._loop = asyncio.get_running_loop()
        self._show = Show()
        self._writer = Writer(
            opened.ledger,
            on_durable=self._from_thread(self._durable),
            on_problem=self._from_thread(self._set_disk_problem),
            on_broken=self._from_thread(self._broken),
        )
        self._outbox = Outbox(self._writer)
        self._dispatcher = Dispatcher(
            settings,
            self._run.params,
            self._client,
            opened.prompts,
            opened.recovered.status,
            self._outbox,
            self._accounts,
            spawn=self._tasks.start,
            changed=self._changed,
            learned=self._renew_run_file,
            say=self._show.say,
            broken=self._broken,
        )
        self._steering = Steering(
            settings, self._dispatcher, spawn=self._tasks.start, say=self._show.say
        )
        self._uploader = self._start_uploads(credentials) if settings.s3.bucket else None

    def _start_uploads(self, credentials: Callable[[], Mapping[str, str]]) -> Uploader:
        """With the batches that are there."""
        uploader = Uploader(
            self.settings.output,
            self.settings.s3,
            self._run.run_id,
            credentials=credentials,
            on_safe=self._from_thread(self._safe),
            on_note=self._from_thread(self._show.say),
            sparing=not self.settings.delete_uploaded,
        )
        uploader.start(self._accounts.batches.values())
        return uploader

    def _from_thread(self, call: Callable[..., None]) -> Callable[..., None]:
        def deliver(*args: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                self._loop.call_soon_threadsafe(call, *args)

        return deliver

    def _fault(self, error: BaseException) -> None:
        """A task failed that was not foreseen to."""
        self._broken(f"{type(error).__name__}: {error}")
        self._loop.call_exception_handler({"message": "a task failed", "exception": error})

    # --- life ---

    async def main(self) -> int:
        """Run to the end, or until told to leave; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._asked_to_leave)
        self._loop.add_signal_handler(signal.SIGHUP, lambda: None)
        dispatcher = self._dispatcher
        code = 1
        try:
            self._obey(first=True)
            dispatcher.most = limits.sockets()
            if self.settings.agent is not None:
                self._tasks.start(agentlink.follow(self.settings.agent, dispatcher.heard))
            dispatcher.take_back(self._opened.recovered.pending)
            taken = [job.partial.tokens for job in dispatcher.work.jobs() if job.partial]
            self._accounts.tokens_kept += sum(taken)
            await self._check_all()
            if not self._over.is_set():
                self._announce()
                self._started = True
                self._may_send()
                dispatcher.pump()
            await self._over.wait()
        finally:
            code = await self._end()
        return code

    async def _check_all(self) -> None:
        """One real completion from every server that may work; what is down is tried later."""
        dispatcher = self._dispatcher
        wanted = [s for s in dispatcher.servers.values() if s.dispatch == "run"]
        trials = [self._tasks.start(dispatcher.trials.try_out(server)) for server in wanted]
        self._tasks.start(self._tick_for_ever())
        self._tasks.start(self._follow_control())
        if trials:
            checked = asyncio.ensure_future(asyncio.wait(trials, timeout=CHECK_S + 2))
            left = asyncio.ensure_future(self._over.wait())
            either = (checked, left)
            done, _ = await asyncio.wait(either, timeout=PATIENT_S, return_when=FIRST_COMPLETED)
            if not done and self.settings.agent is None:
                self._show.aside(announce.waiting(wanted, CHECK_S))
            await asyncio.wait(either, return_when=FIRST_COMPLETED)
            checked.cancel()
            left.cancel()

    def _announce(self) -> None:
        servers = list(self._dispatcher.servers.values())
        say = self._show.say
        self._message = announce.standing(self._opened, self._accounts, servers)
        self._show.begin(announce.first_lines(servers))
        say(self._message)
        for text in announce.concerns(self.settings, self._opened, self._accounts, servers):
            say(text)
        self._dispatcher.remarks.at_start()

    def _asked_to_leave(self) -> None:
        self._leave += 1
        if self._leave == 1:
            self._show.say(
                "draining: what is in flight may end (again to break it off and keep it)"
            )
        elif self._leave == 2:
            self._show.say("breaking off what is in flight (again to leave at once)")
        self._may_send()
        self._look_for_end()

    def _may_send(self) -> None:
        self._dispatcher.sending = (
            self._started and not self._paused and not self._leave and not self._over.is_set()
        )

    def _broken(self, text: str) -> None:
        self._failed = self._failed or text
        self._over.set()

    def _durable(self, acked: list[Entry], sealed: list[Batch]) -> None:
        """The writer has made these lines durable, and sealed these batches."""
        self._outbox.unacked -= self._accounts.durable(acked)
        if self._dispatcher.durable(acked):
            self._tell()
        for batch in sealed:
            self._accounts.enter(batch)
            if self._uploader is not None:
                self._uploader.offer(batch)
        self._look_for_end()

    def _set_disk_problem(self, text: str) -> None:
        self._disk_problem = text
        self._show.say(text or "there is space again: going on")
        self._dispatcher.pump()

    def _changed(self) -> None:
        """A request has ended. Who waits for a server to become empty hears of it at once."""
        for server in self._dispatcher.servers.values():
            empty = not server.in_flight
            if server.breaks_off and empty and server.url not in self._emptied:
                self._emptied.add(server.url)
                self._tell()
            elif not (server.breaks_off and empty):
                self._emptied.discard(server.url)
        self._look_for_end()

    def _tell(self) -> None:
        """Renew ``progress.json`` now."""
        self._writer.file(layout.PROGRESS, msgspec.json.encode(self.progress()))
        self._writer.hurry()

    def _look_for_end(self) -> None:
        """Whether it is time to leave; at the end of a pass nothing waits for more answers."""
        dispatcher = self._dispatcher
        if self._leave >= 3 or (self._leave == 2 and not dispatcher.in_flight):
            self._over.set()
        elif self._leave == 2:
            if not self._stopping:
                self._stopping = True
                self._tasks.start(self._stop_now())
        elif self._leave:
            if not dispatcher.in_flight and not self._outbox.unacked:
                self._over.set()
        elif self._started and dispatcher.idle:
            for server in dispatcher.servers.values():
                dispatcher.settle(server)
            if not self._outbox.unacked:
                self._over.set()

    async def _stop_now(self) -> None:
        """Break off what is in flight and keep what there is of it; a few seconds at most."""
        servers = self._dispatcher.servers.values()
        await asyncio.gather(
            *(
                self._dispatcher.break_off(server, lambda: not self._over.is_set())
                for server in servers
                if server.flying
            )
        )
        await asyncio.to_thread(self._writer.flush, 10.0)
        self._over.set()

    def _is_over(self) -> bool:
        """Every prompt is done, given up or set aside, and that is on disk."""
        ended = self._dispatcher.idle and not self._outbox.unacked and not self._outbox.waiting
        return not self._failed and self._started and ended

    async def _end(self) -> int:
        over = self._is_over()
        if over and (lost := self._accounts.remaining):
            over = False
            self._failed = f"nothing is left to send, but {lost} prompts are in no file"
        self._over.set()
        self._may_send()
        for server in self._dispatcher.servers.values():
            self._dispatcher.recall(server)
        await self._tasks.close()
        await self._client.close()
        self._outbox.tidy(now=True)
        if over or self._seal:
            self._writer.seal()
        if self._uploader is not None:
            if not self._failed:
                await self._finish_uploads(self._uploader, over)
            await asyncio.to_thread(self._uploader.close)
        self._mode = "failed" if self._failed else "done" if over else "stopped"
        await asyncio.to_thread(self._writer.close, 30.0)
        await asyncio.sleep(0)  # what the writer's thread has just told
        self._write_last_files()
        progress, shifts = self.progress(), self._accounts.shifts
        reasons = self._accounts.reasons.summary(progress.failed)
        self._show.summary(progress, shifts, gpu_hours(self._run_now(), self._workers), reasons)
        if self._failed:
            self._show.say(
                f"stopped by a failure: {self._failed}; once that is mended the same command "
                "resumes"
            )
        elif not over:
            self._show.say("the same command resumes")
        self._opened.prompts.close()
        self._opened.lock.release()
        if not over:
            return 130
        wrong = self._accounts.failures or self._accounts.aside or self._not_uploaded()
        return 1 if wrong or (self._uploader is not None and self._uploader.lost) else 0

    def _write_last_files(self) -> None:
        disk = Disk()
        with contextlib.suppress(OSError, DiskFullError):
            disk.replace(self._folder / layout.RUN, encode_run(self._run_now()))
            progress = msgspec.json.encode(self.progress())
            disk.replace(self._folder / layout.PROGRESS, progress, durable=False)

    # --- uploads ---

    async def _finish_uploads(self, uploader: Uploader, over: bool) -> None:
        """The last batches have ten minutes, a drain ten seconds; the next start does the rest."""
        await asyncio.to_thread(self._writer.flush, 30.0)
        await asyncio.sleep(0)
        end = time.monotonic() + (UPLOAD_S if over else LEAVE_S)
        leave = self._leave
        while not uploader.done and time.monotonic() < end and self._leave == leave:
            self._writer.file(layout.PROGRESS, msgspec.json.encode(self.progress()))
            await asyncio.sleep(TICK_S)

    def _not_uploaded(self) -> int:
        """Records that should be in S3 and are not, the open batch's too."""
        if self._uploader is None:
            return 0
        unsealed = self._accounts.totals.completed - self._accounts.sealed.records
        return self._uploader.records_waiting + unsealed

    def _safe(self, batch: Batch) -> None:
        """A batch is in the bucket, seen there."""
        if batch != self._accounts.batches.get(batch.name):
            self._accounts.enter(batch)
            self._writer.list_batch(batch)
        if self.settings.delete_uploaded and batch.state == "uploaded":
            gone = msgspec.structs.replace(batch, state="local_deleted")
            self._accounts.enter(gone)
            self._writer.delete_local(gone)

    # --- control.json ---

    def _obey(self, *, first: bool = False) -> None:
        """Take over ``control.json`` when it changed."""
        if not self._steering.look(started=self._started):
            return
        wish = self._steering.wish
        self._seal = wish.seal
        self._paused = wish.dispatch == "pause"
        if wish.dispatch in ("drain", "stop"):
            self._leave = max(self._leave, 1 if wish.dispatch == "drain" else 2)
        self._may_send()
        self._dispatcher.pump()
        if not first and not self._leave:
            self._dispatcher.trials.try_due()
        if wish.version != self._version:
            self._version = wish.version
            self._tell()

    # --- the clock ---

    async def _tick_for_ever(self) -> None:
        second, poll, run_file = (round(s / TICK_S) for s in (1.0, POLL_S, RUN_FILE_S))
        ticks = 0
        while True:
            dispatcher = self._dispatcher
            if not self._leave:
                dispatcher.trials.try_due()
            if ticks % second == 0:
                dispatcher.check_silence()
                dispatcher.pace()
                self._accounts.tick(time.monotonic())
                progress = self.progress()
                self._writer.file(layout.PROGRESS, msgspec.json.encode(progress))
                self._show.tick(progress)
            if ticks % poll == 0:
                dispatcher.trials.sample_all()
            if ticks % run_file == 0:
                self._renew_run_file()
            dispatcher.pump()
            self._look_for_end()
            ticks += 1
            await asyncio.sleep(TICK_S)

    async def _follow_control(self) -> None:
        """Orders are obeyed soon: a server that comes back waits no longer than so for work."""
        while True:
            self._obey()
            await asyncio.sleep(CONTROL_S)

    def _renew_run_file(self) -> None:
        """The session's end, and the model once a server has named it."""
        self._writer.file(layout.RUN, encode_run(self._run_now()), durable=True)

    # --- what is said of it ---

    def _run_now(self) -> RunFile:
        session = self._run.sessions[-1]
        session.end = time.time()
        session.gpu_hours = self._workers * (session.end - session.start) / 3600
        return self._run

    @property
    def _workers(self) -> int:
        """Servers that have answered in this process."""
        return len({url for url, _ in self._accounts.shifts})

    def progress(self) -> Progress:
        """The run as of now."""
        progress = self._accounts.progress()
        progress.status = self._mode
        if self._mode == "running" and (self._leave or self._paused):
            progress.status = "draining" if self._leave else "paused"
        progress.elapsed_hours = round(elapsed_hours(self._run_now()), 4)
        progress.pid, progress.run_id = os.getpid(), self._run.run_id
        progress.control_version = self._version
        progress.message = self._message
        picture.queue_and_servers(progress, self._dispatcher)
        if (uploader := self._uploader) is not None:
            progress.s3_uploaded, progress.s3_bytes = uploader.files, uploader.bytes
            progress.s3_error = uploader.error or uploader.note
            progress.not_in_s3 = self._not_uploaded()
        progress.problem = self._failed or self._disk_problem
        if not progress.problem:
            progress.problem = picture.problem(self._dispatcher, leaving=bool(self._leave))
        return progress
