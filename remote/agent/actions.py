"""Requests that change something: one at a time, each told to the journal with its end.

What takes long (starting, stopping, swapping servers) is answered as soon as it is under way and
goes on by itself; meanwhile another such request is refused with a line that says what is going
on. Steering the run is always possible.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from remote.agent import epochs
from remote.agent.epochbook import EpochBook
from remote.agent.owner import Owner
from remote.agent.serve import RequestError
from remote.agent.swaps import Swaps
from remote.agent.target import chosen
from remote.agent.turns import Turns
from remote.generate import recovery
from remote.generate.lock import LockedError
from remote.generate.mending import RecoveryError
from remote.protocol import (
    Decide,
    Done,
    Down,
    Request,
    Restart,
    Result,
    RetryFailed,
    Rollback,
    RunControl,
    RunStart,
    Swap,
    TakeSettings,
    TargetSpec,
    Up,
    differing,
    in_words,
    taken,
)


class Actions:
    """The one who acts."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._turns = Turns(owner)
        self._book = EpochBook(owner.journal, owner.run, owner.emit)
        self._swaps = Swaps(owner, self._turns, self._book)

    @property
    def swap(self) -> Swap | None:
        """The swap under way, or the last one."""
        return self._swaps.last

    async def tell_run(self) -> None:
        """Note in the run directory what its epochs gave."""
        await self._book.tell()

    async def go_on(self) -> None:
        """Take up what an earlier agent left unfinished."""
        await self._swaps.go_on()

    async def do(self, request: Request, who: str) -> Result:
        """Do it or get it under way. Raises RequestError."""
        match request:
            case Up():
                return await self._up(request, who)
            case Down():
                return await self._down(request, who)
            case Restart():
                return await self._swaps.restart(request, who)
            case Rollback():
                return await self._swaps.rollback(request, who)
            case Decide():
                return await self._swaps.decide(request, who)
            case RunStart():
                return await self._run_start(request, who)
            case RunControl():
                return await self._run_control(request, who)
            case TakeSettings():
                return await self._take_settings(request, who)
            case RetryFailed():
                return await self._retry_failed(request, who)
        raise RequestError(f"{type(request).__name__}: not known here", "protocol")

    async def close(self) -> None:
        """Leave what is under way as it is; the next agent goes on."""
        await self._turns.close()

    # --- servers ---

    async def _up(self, request: Up, who: str) -> Result:
        self._turns.refuse_if_taken()
        fleet = await self._owner.fleet(request.spec)
        self._turns.refuse_if_taken()  # from here to its turn nothing is waited for
        gpus = chosen(request.gpus, request.spec)
        names = _names(gpus, request.spec)
        states = [s.state for s in fleet.states() if gpus is None or s.gpu in gpus]
        if all(state not in ("stopped", "failed") for state in states):
            return Done(f"nothing to start: {names}: {_counted(states)}")

        async def work() -> str:
            wanted = self._book.wanted(fleet, request.spec.fleet)
            await fleet.learn()
            fleet.checked(wanted)  # before there is an epoch of flags that nothing can run with
            epoch = self._book.open(wanted, request.spec.fleet, who, "up")
            await fleet.up(gpus, epoch=epoch, who=who)
            return f"{names} started, epoch {epoch.id}"

        return Done(await self._turns.take(f"up {names}", who, work))

    async def _down(self, request: Down, who: str) -> Result:
        fleet = await self._owner.fleet()
        spec = self._owner.known_spec
        known = [info.gpu for info in fleet.infos()]  # also those that the target has no more
        gpus = chosen(request.gpus, spec, known)
        names = _names(gpus, spec)

        async def work() -> str:
            await fleet.down(gpus, who=who)
            return f"{names} stopped"

        return Done(await self._turns.take(f"down {names}", who, work))

    # --- the run ---

    async def _run_start(self, request: RunStart, who: str) -> Result:
        self._turns.refuse_if_taken()
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
            raise RequestError(
                "no server is up: start them first (u, or `stoker up`)", "no-servers"
            )

        async def work() -> str:
            return await self._owner.run.start(
                request.spec,
                who=who,
                extend=request.extend,
                accept_params=request.accept_params,
            )

        text = await self._turns.take("run start", who, work, wait=60.0)
        epoch = epochs.current(fleet.infos(), self._owner.journal.epochs)
        await self._book.tell()
        self._owner.first_minute.soon("start", epoch)
        return Done(text)

    async def _run_control(self, request: RunControl, who: str) -> Result:
        run = self._owner.run
        turned = request.concurrency is not None and run.does(request.do)
        what = "run concurrency" if turned else f"run {request.do}"
        action = self._owner.journal.began(who, what)
        try:
            if request.do == "resume" and not run.alive:
                return await self._run_start(RunStart(spec=self._owner.known_spec), who)
            text = await run.steer(request.do, seal=request.seal, concurrency=request.concurrency)
        except RequestError as error:
            self._owner.journal.ended(action, f"refused: {error}")
            raise
        self._owner.journal.ended(action, text)
        self._owner.emit("action", f"{what}: {text}", who=who)
        if request.do == "resume":
            fleet = await self._owner.fleet()
            why = "a change of requests at once" if turned else "resume"
            self._owner.first_minute.soon(
                why, epochs.current(fleet.infos(), self._owner.journal.epochs)
            )
        return Done(text)

    async def _take_settings(self, request: TakeSettings, who: str) -> Result:
        """What differs and needs no restart; never a value, since some are secrets."""
        known = self._owner.spec
        if known is None:
            await self._owner.fleet(request.spec)
            return Done("settings sent")
        text = in_words(differing(known, request.spec))
        new = taken(known, request.spec)
        if new != known:
            await self._owner.fleet(new)
            self._owner.emit("action", text, who=who)
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

        return Done(await self._turns.take("run retry-failed", who, work, wait=30.0))


def _counted(states: Iterable[str]) -> str:
    """``7 ready, 1 starting``."""
    return ", ".join(f"{n} {state}" for state, n in Counter(states).most_common())


def _names(gpus: list[int] | None, spec: TargetSpec) -> str:
    if gpus is None or len(gpus) == spec.fleet.gpus:
        return f"all {spec.fleet.gpus} servers" if spec.fleet.gpus > 1 else "the server"
    return f"GPU {', '.join(map(str, gpus))}"
