"""Who gets what, and what becomes of it: the parts of the dispatcher, put together.

All decisions fall in the event loop and without waiting: :mod:`.seats` fills the slots,
:mod:`.asking` sends, and what comes of a request goes to :mod:`.verdicts`, :mod:`.failures` (with
:mod:`.refusals`, :mod:`.overload` and :mod:`.crashes`) or :mod:`.interruptions`. They share one
state, the :mod:`.floor`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any

from remote.generate import context, returning
from remote.generate.accounts import Accounts
from remote.generate.asking import Asking
from remote.generate.client import Client
from remote.generate.crashes import Crashes
from remote.generate.failures import Failures
from remote.generate.floor import Floor
from remote.generate.interruptions import Interruptions
from remote.generate.job import Job
from remote.generate.keeper import Keeper
from remote.generate.ledger import Entry
from remote.generate.native import Native
from remote.generate.outbox import Outbox
from remote.generate.overload import Overload
from remote.generate.partial import Partial
from remote.generate.prompts import Prompts
from remote.generate.records import Pending
from remote.generate.refusals import Refusals
from remote.generate.remarks import Remarks
from remote.generate.seats import Seats
from remote.generate.server import Server
from remote.generate.settings import Settings
from remote.generate.trials import Trials
from remote.generate.trouble import TroubleError
from remote.generate.verdicts import Verdicts
from remote.generate.work import Work
from remote.protocol import Reading


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
        self._prompts = prompts
        self._status = status
        self.floor = Floor(
            settings=settings,
            session=secrets.token_hex(4),
            servers={url: Server(url, wanted=settings.concurrency) for url in settings.servers},
            work=Work(status),
            client=client,
            native=Native(client),
            outbox=outbox,
            accounts=accounts,
            keeper=Keeper(outbox, accounts),
            spawn=spawn,
            changed=changed,
            say=say,
        )
        self.remarks = Remarks(settings, say)
        fit = context.Fit()
        self.seats = Seats(self.floor, prompts, self._ask, broken=broken)
        self.asking = Asking(self.floor, fit)
        self.verdicts = Verdicts(self.floor, fit, self.seats.send)
        self.refusals = Refusals(self.floor, self.verdicts.note)
        self.crashes = Crashes(self.floor, self.verdicts.settle)
        self.overload = Overload(self.floor, prompts, status)
        self.failures = Failures(
            self.floor,
            self.refusals,
            self.overload,
            self.crashes,
            try_due=lambda: self.trials.try_due(),
        )
        self.interruptions = Interruptions(self.floor, self.failures)
        self.trials = Trials(
            settings,
            params,
            client,
            self.floor.native,
            self.floor.servers,
            self.floor.session,
            spawn=spawn,
            learned=learned,
            lost=self.crashes.lost,
            works=self._works,
            fails=self.refusals.fails,
            pump=self.seats.pump,
        )

    # --- what others ask ---

    @property
    def servers(self) -> dict[str, Server]:
        """By URL; more may be added."""
        return self.floor.servers

    @property
    def work(self) -> Work:
        """The queue."""
        return self.floor.work

    @property
    def in_flight(self) -> int:
        """Requests that are open, or whose partial answer is not durable yet."""
        return self.floor.in_flight

    @property
    def suspected(self) -> int:
        """Prompts that are to be tried alone on a server, or are being tried."""
        return self.floor.suspected

    @property
    def partial(self) -> int:
        """Interrupted answers that wait to be continued."""
        return sum(job.partial is not None for job in self.floor.work.jobs())

    @property
    def idle(self) -> bool:
        """Nothing to send now or later, nothing in flight."""
        return self.floor.idle

    # --- orders ---

    @property
    def sending(self) -> bool:
        """New requests may be sent."""
        return self.floor.sending

    @sending.setter
    def sending(self, may: bool) -> None:
        self.floor.sending = may

    @property
    def most(self) -> int:
        """Requests that may be open at once on all servers together."""
        return self.floor.most

    @most.setter
    def most(self, most: int) -> None:
        self.floor.most = most

    def pump(self) -> None:
        """Fill every slot that may be filled."""
        self.seats.pump()

    def recall(self, server: Server) -> None:
        """Take back what is in flight; none of it counts as an attempt."""
        self.floor.recall(server)

    def settle(self, server: Server) -> None:
        """Every answer held back goes where its own outcome says."""
        self.verdicts.settle(server)

    async def break_off(self, server: Server, wanted: Callable[[], bool]) -> None:
        """Have the server return what it has, as long as that is ``wanted``."""
        await self.interruptions.break_off(server, wanted)

    def replaced(self, server: Server, process: str, *, vouched: bool) -> None:
        """Another process stands behind a URL; ``vouched``: the agent has just tried it."""
        self.verdicts.settle(server)
        server.new_process(process)
        server.vouched = vouched
        self.crashes.forgive(server)  # if it died, it was by Stoker's will
        self.refusals.fails(server)
        server.breaker.open(time.monotonic())
        self.floor.recall(server)

    def take_back(self, entries: list[Pending]) -> None:
        """Answers that waited for a verdict, and conversations that were under way."""
        returning.take_back(self.floor, self._prompts, self._status, entries)

    def durable(self, acked: list[Entry]) -> bool:
        """These lines are on disk; whether a server that was to be emptied is empty now."""
        return any(server.breaks_off for server in self.floor.keeper.durable(acked))

    # --- one request ---

    async def _ask(self, server: Server, job: Job, base: Partial | None) -> None:
        began = time.monotonic()
        process = server.process
        try:
            answer = await self.asking.answer(server, job, base)
        except TroubleError as trouble:
            alone = server.guest is job
            if self.floor.landed(server, job):
                latency = time.monotonic() - began
                if trouble.cause == "abort":
                    self.interruptions.interrupted(server, job, base, trouble, latency, process)
                else:
                    self.failures.trouble(server, job, trouble, alone=alone, base=base)
        else:
            if self.floor.landed(server, job):
                latency = time.monotonic() - began
                self.remarks.look(server.url, answer, job.prompt.params)
                self.verdicts.answered(server, job, answer, latency, process, base)
                self.refusals.answered(server, job)
        self.seats.pump()
        self.floor.changed()

    def _works(self, server: Server) -> None:
        """A trial was answered."""
        self.crashes.survived(server)
        self.refusals.works(server)

    # --- signs of life ---

    def heard(self, reading: Reading) -> None:
        """A reading of the agent."""
        at = self.trials.read_at = time.monotonic()
        server = self.servers.get(reading.url.rstrip("/"))
        if server is None:
            return
        if not reading.alive:
            self.crashes.ended(server, at)
            return
        server.heard(
            at,
            running=reading.running,
            queued=reading.queued,
            max_running=reading.max_running,
            tokens=reading.tokens,
        )
        self.seats.pump()

    def check_silence(self) -> None:
        """Servers that gave no sign of life for too long lose what they have in flight."""
        floor = self.floor
        at = time.monotonic()
        for server in floor.servers.values():
            window = server.silence_window(floor.settings.patience, floor.settings.max_tokens)
            if server.flying and at - server.sign_at > window:
                server.problem = f"no sign of life for {window:.0f} s with requests in flight"
                floor.say(f"{server.url}: {server.problem}; they go elsewhere")
                floor.accounts.retries["silence"] += len(server.flying)
                server.breaker.open(at)
                server.sign_at = at
                server.silences += 1
                floor.spawn(self.interruptions.give_back(server))

    def pace(self) -> None:
        """Once a second: whether full servers do what they used to, or could do more; whether those
        that refused prompts are to be tried; and what is still to be judged."""
        at = time.monotonic()
        self.refusals.check()
        self.overload.check()
        self.crashes.check(at)
        for server in self.servers.values():
            server.tick(at, sending=self.floor.sending)
