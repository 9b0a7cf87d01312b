"""Requests that change something: one at a time, each told to the journal with its end.

What takes long (starting, stopping, swapping servers) is answered as soon as it is under way and
goes on by itself; meanwhile another such request is refused with a line that says what is going
on. Steering the run is always possible.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from msgspec.structs import replace

from remote.agent import epochs
from remote.agent.firstminute import FirstMinute
from remote.agent.run import Run
from remote.agent.serve import RequestError
from remote.fleet.fleet import Fleet, FleetError
from remote.fleet.plan import spent
from remote.generate import layout, recovery
from remote.generate.lock import LockedError
from remote.generate.mending import RecoveryError
from remote.journal import Journal
from remote.protocol import (
    Decide,
    Done,
    Down,
    Epoch,
    Flags,
    InFlight,
    Request,
    Restart,
    Result,
    RetryFailed,
    Rollback,
    RunControl,
    RunStart,
    Swap,
    TargetSpec,
    Up,
)
from remote.verdict import expected_tokens

CONFIGURED = "configured"
"""Under this name the journal keeps the configuration's flags as the last epoch found them."""
SOON_S = 2.0
"""What fails within this time is refused; what does not is under way."""


class Owner(Protocol):
    """What actions need of the agent."""

    journal: Journal
    run: Run
    spec: TargetSpec | None
    first_minute: FirstMinute

    async def fleet(self, spec: TargetSpec | None = None) -> Fleet: ...
    def emit(self, kind: str, text: str, *, level: str = "info", who: str = "") -> object: ...


@dataclass
class _Busy:
    what: str
    who: str
    since: float


class Actions:
    """The one who acts."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._busy: _Busy | None = None
        self._tasks: set[asyncio.Task[str]] = set()
        self._telling: set[asyncio.Task[None]] = set()
        self.swap: Swap | None = None
        """The swap under way, or the last one."""

    async def do(self, request: Request, who: str) -> Result:
        """Do it or get it under way. Raises RequestError."""
        match request:
            case Up():
                return await self._up(request, who)
            case Down():
                return await self._down(request, who)
            case Restart():
                return await self._restart(request, who)
            case Rollback():
                return await self._rollback(request, who)
            case Decide():
                return await self._decide(request, who)
            case RunStart():
                return await self._run_start(request, who)
            case RunControl():
                return await self._run_control(request, who)
            case RetryFailed():
                return await self._retry_failed(request, who)
        raise RequestError(f"{type(request).__name__}: not known here", "protocol")

    async def close(self) -> None:
        """Leave what is under way as it is; the next agent goes on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- servers ---

    async def _up(self, request: Up, who: str) -> Result:
        self._refuse_if_busy()
        fleet = await self._owner.fleet(request.spec)
        self._refuse_if_busy()  # nothing is waited for from here until it is this one's turn
        gpus = _gpus(request.gpus, request.spec)
        names = _names(gpus, request.spec)
        chosen = [s for s in fleet.states() if gpus is None or s.gpu in gpus]
        if all(s.state not in ("stopped", "failed") for s in chosen):
            return Done(f"nothing to start: {names}: {_counted(s.state for s in chosen)}")
        epoch = self._epoch_for(self._wanted(fleet), who, "up")

        async def work() -> str:
            await fleet.up(gpus, epoch=epoch, who=who)
            return f"{names} started, epoch {epoch.id}"

        return Done(await self._go(f"up {names}", who, work))

    async def _down(self, request: Down, who: str) -> Result:
        fleet = await self._owner.fleet()
        spec = self._known_spec()
        known = [info.gpu for info in fleet.infos()]  # also those that the target has no more
        gpus = _gpus(request.gpus, spec, known)
        names = _names(gpus, spec)

        async def work() -> str:
            await fleet.down(gpus, who=who)
            return f"{names} stopped"

        return Done(await self._go(f"down {names}", who, work))

    async def _fleet_for(self, request: Restart | Rollback) -> Fleet:
        """The fleet with the request's target. What is under way goes on with its own: then a
        plan alone is made for that one, and anything else is refused."""
        if not request.dry_run:
            self._refuse_if_busy()
        return await self._owner.fleet(request.spec if self._busy is None else None)

    async def _restart(self, request: Restart, who: str) -> Result:
        fleet = await self._fleet_for(request)
        await fleet.learn()
        try:
            wanted, renamed = fleet.new_flags(
                self._wanted(fleet), request.set_flags, request.unset_flags
            )
        except FleetError as error:
            raise RequestError(str(error)) from None
        gpus = _gpus(request.gpus, request.spec)
        return await self._swap(
            fleet,
            wanted,
            request.strategy,
            gpus,
            who,
            request.why,
            warnings=renamed,
            in_flight=request.in_flight,
            at_once=request.at_once,
            confirm_within_min=request.confirm_within_min,
            take_over=request.take_over,
            dry_run=request.dry_run,
        )

    async def _rollback(self, request: Rollback, who: str) -> Result:
        fleet = await self._fleet_for(request)
        await fleet.learn()
        known = self._owner.journal.epochs
        now = epochs.current(fleet.infos(), known)
        earlier = epochs.before(now, known, self._owner.journal.swaps.values())
        if request.epoch is not None and request.epoch not in known:
            ids = ", ".join(map(str, sorted(known))) or "none"
            raise RequestError(f"there is no epoch {request.epoch}; there is: {ids}")
        if request.epoch is None and not earlier:
            raise RequestError(
                "there is no earlier epoch with other flags that worked, to go back to"
            )
        target = known[request.epoch] if request.epoch is not None else max(earlier, key=_id)
        why = f"rollback to epoch {target.id}"
        return await self._swap(
            fleet,
            target.flags,
            request.strategy,
            None,
            who,
            why,
            in_flight=request.in_flight,
            at_once=request.at_once,
            dry_run=request.dry_run,
        )

    async def _swap(
        self,
        fleet: Fleet,
        wanted: Flags,
        strategy: Literal["rolling", "all", "canary"],
        gpus: list[int] | None,
        who: str,
        why: str,
        *,
        in_flight: InFlight,
        at_once: int,
        warnings: Sequence[str] = (),
        confirm_within_min: float | None = None,
        take_over: Sequence[int] = (),
        dry_run: bool = False,
    ) -> Result:
        old = epochs.current(fleet.infos(), self._owner.journal.epochs)
        base = old.flags if old is not None else self._known_spec().fleet.flags
        set_flags, unset_flags = epochs.delta(base, wanted)
        try:
            plan = await fleet.plan(
                current=old,
                set_flags=set_flags,
                unset_flags=unset_flags,
                strategy=strategy,
                gpus=gpus,
                in_flight=in_flight,
                at_once=at_once,
                confirm_within_min=confirm_within_min,
                expected_tokens=expected_tokens(
                    self._owner.run.progress, self._known_spec().run.max_tokens
                )[0],
            )
        except FleetError as error:
            raise RequestError(str(error)) from None
        plan = replace(plan, warnings=[*warnings, *plan.warnings])
        if dry_run or plan.swap is None:
            return plan
        if unasked := sorted({*plan.take_over} - {*take_over}):
            raise RequestError(
                f"not started by Stoker: pid {', '.join(map(str, unasked))}: a restart ends it "
                "only after the plan that names it was confirmed (`stoker restart`)",
                "take-over",
            )
        self._refuse_if_busy()
        # In the names and with the meanings of the installed version.
        flags, _ = fleet.new_flags(base, set_flags, unset_flags)
        new = self._epoch_for(flags, who, why or "restart", always=bool(set_flags or unset_flags))
        swap = replace(
            plan.swap,
            id=self._owner.journal.next_swap(),
            from_epoch=old.id if old else None,
            to_epoch=new.id,
            who=who,
            began=time.time(),
        )
        self.swap = swap
        kept = asyncio.create_task(self._owner.journal.save_swap(swap))

        async def work() -> str:
            await kept
            return await self._run_swap(fleet, swap, old, new)

        # Nothing was waited for since it was seen that nobody else is at work.
        what = f"restart ({strategy}), {', '.join(plan.diff) or 'same flags'}"
        await self._go(what, who, work, wait=0.0)
        await asyncio.shield(kept)
        return replace(plan, swap=swap)

    async def _decide(self, request: Decide, who: str) -> Result:
        """Keep or take back the new flags of the swap under way: allowed because it is."""
        fleet = await self._owner.fleet()
        what = "keep the new flags" if request.keep else "take the new flags back"
        action = self._owner.journal.began(who, what)
        try:
            text = await fleet.decide(keep=request.keep, who=who)
        except FleetError as error:
            self._owner.journal.ended(action, f"refused: {error}")
            raise RequestError(str(error)) from None
        self._owner.journal.ended(action, text)
        self._owner.emit("action", text, who=who)
        return Done(text)

    async def go_on(self) -> None:
        """Take up a swap that an earlier agent left unfinished, if none was begun after it."""
        swaps, known = self._owner.journal.swaps, self._owner.journal.epochs
        if not swaps:
            return
        newest = self.swap = swaps[max(swaps)]
        for swap in list(swaps.values()):
            if swap.state != "doing" or (swap is newest and swap.to_epoch in known):
                continue
            why = f"epoch {swap.to_epoch} is lost" if swap is newest else "a later one was begun"
            await self._fail(swap, f"not gone on with: {why}")
        if self.swap.state != "doing":
            return
        swap, new = newest, known[newest.to_epoch]
        old = known.get(swap.from_epoch) if swap.from_epoch is not None else None
        fleet = await self._owner.fleet()
        text = f"swap {swap.id} was unfinished: going on at its first open step"
        self._owner.emit("swap.resumed", text, who=swap.who)
        what = f"swap {swap.id}, taken up again"
        await self._go(what, swap.who, lambda: self._run_swap(fleet, swap, old, new), wait=0.0)

    async def _fail(self, swap: Swap, text: str) -> None:
        """A swap that is gone on with no more, however far it is: the next agent leaves it too."""
        ended = replace(swap, state="failed", ended=time.time(), text=text)
        await self._owner.journal.save_swap(ended)
        if self.swap is not None and self.swap.id == swap.id:
            self.swap = ended
        text = f"swap {swap.id}: {text}"
        self._owner.emit("swap.failed", text, level="error", who=swap.who)

    async def _run_swap(self, fleet: Fleet, swap: Swap, old: Epoch | None, new: Epoch) -> str:
        async def save(state: Swap) -> None:
            await self._owner.journal.save_swap(state)
            # Shown only now: between the last save and the end of this action nothing waits, so
            # that whoever sees a swap that is done can begin the next one.
            self.swap = state

        def show(state: Swap) -> None:
            self.swap = state

        self._owner.first_minute.not_now()
        try:
            done = await fleet.swap(swap, old=old, new=new, save=save, show=show)
        except Exception as error:
            text = f"broken off by a fault: {type(error).__name__}: {error}"
            await self._fail(self._owner.journal.swaps[swap.id], text)
            raise
        epoch = self._owner.journal.epochs.get(new.id, new)
        self._owner.journal.put_epoch(replace(epoch, cost=spent(done)))
        self._tell_run_soon()
        if done.state == "done" and self._owner.run.alive:
            self._owner.first_minute.soon("swap", old)
        return f"swap {done.id} {done.state}" + (f": {done.text}" if done.text else "")

    # --- the run ---

    async def _run_start(self, request: RunStart, who: str) -> Result:
        self._refuse_if_busy()
        fleet = await self._owner.fleet(request.spec)
        states = fleet.states()
        up = [s for s in states if s.state in ("ready", "foreign")]
        coming = [s for s in states if s.state in ("starting", "warming")]
        if not up:
            if coming:
                raise RequestError(
                    f"no server is ready yet, {len(coming)} are starting: wait for the first",
                    "no-servers",
                )
            raise RequestError("no server is up: start them first (u)", "no-servers")

        async def work() -> str:
            return await self._owner.run.start(
                request.spec,
                who=who,
                extend=request.extend,
                accept_params=request.accept_params,
            )

        text = await self._go("run start", who, work, wait=60.0)
        epoch = epochs.current(fleet.infos(), self._owner.journal.epochs)
        await self.tell_run()
        self._owner.first_minute.soon("start", epoch)
        return Done(text)

    async def _run_control(self, request: RunControl, who: str) -> Result:
        action = self._owner.journal.began(who, f"run {request.do}")
        run = self._owner.run
        try:
            if request.do == "resume" and not run.alive:
                return await self._run_start(RunStart(spec=self._known_spec()), who)
            text = await run.steer(request.do, seal=request.seal, concurrency=request.concurrency)
        except RequestError as error:
            self._owner.journal.ended(action, f"refused: {error}")
            raise
        self._owner.journal.ended(action, text)
        self._owner.emit("action", f"run {request.do}: {text}", who=who)
        if request.do == "resume":
            fleet = await self._owner.fleet()
            self._owner.first_minute.soon(
                "resume", epochs.current(fleet.infos(), self._owner.journal.epochs)
            )
        return Done(text)

    async def _retry_failed(self, request: RetryFailed, who: str) -> Result:
        if self._owner.run.alive:
            raise RequestError("the run is at work: stop it first, then retry, then start it again")

        async def work() -> str:
            try:
                return await asyncio.to_thread(
                    recovery.retry_failed, self._owner.run.output, set_aside=request.set_aside
                )
            except (LockedError, RecoveryError) as error:
                raise RequestError(str(error)) from None

        return Done(await self._go("run retry-failed", who, work, wait=30.0))

    # --- epochs ---

    def _wanted(self, fleet: Fleet) -> Flags:
        """The flags a start is to use: those of the present epoch, unless the configuration has
        changed since, which then says what is wanted."""
        now = epochs.current(fleet.infos(), self._owner.journal.epochs)
        spec = self._known_spec()
        said = self._owner.journal.noted(CONFIGURED, Flags)
        if now is None or (said is not None and said != spec.fleet.flags):
            return spec.fleet.flags
        return now.flags

    def _epoch_for(self, flags: Flags, who: str, why: str, *, always: bool = False) -> Epoch:
        """The newest epoch where it has these very flags, else a new one."""
        journal = self._owner.journal
        journal.note(CONFIGURED, self._known_spec().fleet.flags)
        newest = journal.epochs.get(max(journal.epochs, default=0))
        if newest is not None and newest.flags == flags and not always:
            return newest
        seen = [s.epoch for s in self._owner.run.control.servers if s.epoch is not None]
        epoch = Epoch(id=journal.next_epoch(seen), since=time.time(), flags=flags, who=who, why=why)
        journal.put_epoch(epoch)
        self._tell_run_soon()
        return epoch

    def _tell_run_soon(self) -> None:
        task = asyncio.create_task(self.tell_run())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def tell_run(self) -> None:
        """Note in the run directory what its epochs gave, and those that it has not heard of.

        Of an id that stands there twice the last line holds.
        """
        path = self._owner.run.output / layout.EPOCHS
        known = dict(self._owner.journal.epochs)

        def note() -> None:
            if not path.parent.is_dir():
                return
            there = epochs.read(path)
            for number, epoch in sorted(known.items()):
                if there.get(number) != epoch:
                    epochs.append(path, epoch)

        try:
            await asyncio.to_thread(note)
        except OSError as error:
            self._owner.emit("run.epochs", f"{path}: {error.strerror}", level="warning")

    # --- one at a time ---

    def _refuse_if_busy(self) -> None:
        if self._busy is not None:
            busy = self._busy
            ago = time.time() - busy.since
            by = f" by {busy.who}" if busy.who else ""
            raise RequestError(f"busy: {busy.what}{by} for {ago:.0f} s: wait for its end", "busy")

    async def _go(
        self, what: str, who: str, work: Callable[[], Awaitable[str]], *, wait: float = SOON_S
    ) -> str:
        """Begin work that only one may do at a time. Returns how it ended, or that it goes on."""
        self._refuse_if_busy()
        self._busy = busy = _Busy(what, who, time.time())
        action = self._owner.journal.began(who, what)
        self._owner.emit("action", what, who=who)
        told = asyncio.Event()

        async def whole() -> str:
            try:
                result = await work()
            except (FleetError, RequestError) as error:
                self._owner.journal.ended(action, f"failed: {error}")
                if told.is_set():
                    self._owner.emit("action.failed", f"{what}: {error}", level="error", who=who)
                raise RequestError(str(error)) from None
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._owner.journal.ended(action, f"failed: {type(error).__name__}: {error}")
                text = f"{what}: {type(error).__name__}: {error}"
                self._owner.emit("action.failed", text, level="error", who=who)
                raise
            else:
                self._owner.journal.ended(action, result)
                if told.is_set():
                    self._owner.emit("action.done", result, who=who)
                return result
            finally:
                if self._busy is busy:
                    self._busy = None

        task = asyncio.create_task(whole())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if wait > 0:
            await asyncio.wait({task}, timeout=wait)
        if task.done():
            return task.result()
        told.set()
        return f"{what}: under way"

    def _ended(self, task: asyncio.Task[str]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told already

    def _known_spec(self) -> TargetSpec:
        if self._owner.spec is None:
            raise RequestError("this agent has not been told of a target yet")
        return self._owner.spec


def _id(thing: Epoch | Swap) -> int:
    return thing.id


def _gpus(gpus: list[int] | None, spec: TargetSpec, known: Sequence[int] = ()) -> list[int] | None:
    if gpus is None:
        return None
    wrong = [g for g in gpus if not 0 <= g < spec.fleet.gpus and g not in known]
    if wrong or not gpus:
        raise RequestError(f"no GPU {', '.join(map(str, wrong))}: 0 to {spec.fleet.gpus - 1}")
    return sorted(set(gpus))


def _counted(states: Iterable[str]) -> str:
    """``7 ready, 1 starting``."""
    return ", ".join(f"{n} {state}" for state, n in Counter(states).most_common())


def _names(gpus: list[int] | None, spec: TargetSpec) -> str:
    if gpus is None or len(gpus) == spec.fleet.gpus:
        return f"all {spec.fleet.gpus} servers"
    return f"GPU {', '.join(map(str, gpus))}"
