"""Swaps as they are asked for: planned, begun, decided on, gone on with by the next agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from msgspec.structs import replace

from remote.agent import epochs
from remote.agent.epochbook import EpochBook
from remote.agent.owner import Owner
from remote.agent.serve import RequestError
from remote.agent.target import chosen
from remote.agent.turns import Turns
from remote.fleet.fleet import Fleet, FleetError
from remote.fleet.plan import spent
from remote.protocol import (
    Decide,
    Done,
    Epoch,
    Flags,
    Plan,
    Restart,
    Result,
    Rollback,
    Swap,
)
from remote.verdict import expected_tokens


class Swaps:
    """The agent's swaps, one at a time."""

    def __init__(self, owner: Owner, turns: Turns, book: EpochBook) -> None:
        self._owner, self._turns, self._book = owner, turns, book
        self.last: Swap | None = None
        """The swap under way, or the last one."""

    async def _fleet_for(self, request: Restart | Rollback) -> Fleet:
        """The fleet with the request's target. What is under way goes on with its own: then a
        plan alone is made for that one, and anything else is refused."""
        if not request.dry_run:
            self._turns.refuse_if_taken()
        return await self._owner.fleet(request.spec if not self._turns.is_taken else None)

    async def restart(self, request: Restart, who: str) -> Result:
        """Begin a swap to changed flags, or plan it. Raises RequestError."""
        fleet = await self._fleet_for(request)
        await fleet.learn()
        try:
            wanted, renamed = fleet.new_flags(
                self._book.wanted(fleet, self._owner.known_spec.fleet),
                request.set_flags,
                request.unset_flags,
            )
        except FleetError as error:
            raise RequestError(str(error), error.code) from None
        gpus = chosen(request.gpus, request.spec)
        return await self._swap(fleet, wanted, request, who, request.why, gpus, renamed)

    async def rollback(self, request: Rollback, who: str) -> Result:
        """Begin a swap to an earlier epoch, or plan it. Raises RequestError."""
        fleet = await self._fleet_for(request)
        await fleet.learn()
        known = self._owner.journal.epochs
        now = epochs.current(fleet.infos(), known)
        earlier = epochs.before(now, known, self._owner.journal.swaps.values())
        if request.epoch is not None and request.epoch not in known:
            ids = ", ".join(map(str, sorted(known))) or "none"
            text = f"there is no epoch {request.epoch}; there is: {ids}"
            raise RequestError(text, "usage")
        if request.epoch is None and not earlier:
            raise RequestError(
                "there is no earlier epoch with other flags that worked, to go back to"
            )
        target = (
            known[request.epoch]
            if request.epoch is not None
            else max(earlier, key=lambda epoch: epoch.id)
        )
        why = f"rollback to epoch {target.id}"
        slower = epochs.slower(target, now)
        return await self._swap(
            fleet, target.flags, request, who, why, warnings=[slower] if slower else []
        )

    async def _swap(
        self,
        fleet: Fleet,
        wanted: Flags,
        request: Restart | Rollback,
        who: str,
        why: str,
        gpus: list[int] | None = None,
        warnings: Sequence[str] = (),
    ) -> Result:
        restart = request if isinstance(request, Restart) else Restart(spec=request.spec)
        old = epochs.current(fleet.infos(), self._owner.journal.epochs)
        base = old.flags if old is not None else self._owner.known_spec.fleet.flags
        set_flags, unset_flags = epochs.delta(base, wanted)
        try:
            plan = await fleet.plan(
                current=old,
                set_flags=set_flags,
                unset_flags=unset_flags,
                strategy=request.strategy,
                gpus=gpus,
                in_flight=request.in_flight,
                at_once=request.at_once,
                confirm_within_min=restart.confirm_within_min,
                expected_tokens=expected_tokens(
                    self._owner.run.progress, self._owner.known_spec.run.max_tokens
                )[0],
            )
        except FleetError as error:
            raise RequestError(str(error), error.code) from None
        plan = replace(plan, warnings=[*warnings, *plan.warnings])
        if request.dry_run or plan.swap is None:
            return plan
        if unasked := sorted({*plan.take_over} - {*request.take_over}):
            raise RequestError(
                f"not started by Stoker: pid {', '.join(map(str, unasked))}: a restart ends it "
                "only after the plan that names it was confirmed (`stoker restart`)",
                "take-over",
            )
        self._turns.refuse_if_taken()
        # In the names and with the meanings of the installed version. Servers that go on have
        # the epoch that the others are brought to, where that is still the newest.
        flags, _ = fleet.new_flags(base, set_flags, unset_flags)
        new = self._book.open(
            flags,
            self._owner.known_spec.fleet,
            who,
            why or "restart",
            always=bool(set_flags or unset_flags) and not plan.goes_on,
        )
        return await self._begin(fleet, plan, replace(plan.swap, who=who), old, new)

    async def _begin(
        self, fleet: Fleet, plan: Plan, planned: Swap, old: Epoch | None, new: Epoch
    ) -> Plan:
        """The plan as it is being carried out; durable when this returns."""
        swap = replace(
            planned,
            id=self._owner.journal.next_swap(),
            from_epoch=old.id if old else None,
            to_epoch=new.id,
            began=time.time(),
        )
        self.last = swap
        kept = asyncio.create_task(self._owner.journal.save_swap(swap))

        async def work() -> str:
            await kept
            return await self._run_swap(fleet, swap, old, new)

        # Nothing was waited for since it was seen that nobody else is at work.
        what = f"restart ({swap.strategy}), {', '.join(plan.diff) or 'same flags'}"
        if plan.goes_on:
            what += f"; GPU {', '.join(map(str, plan.goes_on))} have these flags and go on"
        await self._turns.take(what, swap.who, work, wait=0.0)
        await asyncio.shield(kept)
        return replace(plan, swap=swap)

    async def decide(self, request: Decide, who: str) -> Result:
        """Keep or take back the new flags of the swap under way: allowed because it is."""
        fleet = await self._owner.fleet()
        what = "keep the new flags" if request.keep else "take the new flags back"
        action = self._owner.journal.began(who, what)
        try:
            text = await fleet.decide(keep=request.keep, who=who)
        except FleetError as error:
            self._owner.journal.ended(action, f"refused: {error}")
            raise RequestError(str(error), error.code) from None
        self._owner.journal.ended(action, text)
        self._owner.emit("action", text, who=who)
        return Done(text)

    async def go_on(self) -> None:
        """Take up a swap that an earlier agent left unfinished, if none was begun after it."""
        swaps, known = self._owner.journal.swaps, self._owner.journal.epochs
        if not swaps:
            return
        newest = self.last = swaps[max(swaps)]
        for swap in list(swaps.values()):
            if swap.state != "doing" or (swap is newest and swap.to_epoch in known):
                continue
            why = f"epoch {swap.to_epoch} is lost" if swap is newest else "a later one was begun"
            await self._fail(swap, f"not gone on with: {why}")
        if self.last.state != "doing":
            return
        swap, new = newest, known[newest.to_epoch]
        old = known.get(swap.from_epoch) if swap.from_epoch is not None else None
        fleet = await self._owner.fleet()
        text = f"swap {swap.id} was unfinished: going on at its first open step"
        self._owner.emit("swap.resumed", text, who=swap.who)
        what = f"swap {swap.id}, taken up again"
        await self._turns.take(
            what, swap.who, lambda: self._run_swap(fleet, swap, old, new), wait=0.0
        )

    async def _fail(self, swap: Swap, text: str) -> None:
        """A swap that is gone on with no more, however far it is: the next agent leaves it too."""
        ended = replace(swap, state="failed", ended=time.time(), text=text)
        await self._owner.journal.save_swap(ended)
        if self.last is not None and self.last.id == swap.id:
            self.last = ended
        text = f"swap {swap.id}: {text}"
        self._owner.emit("swap.failed", text, level="error", who=swap.who)

    async def _run_swap(self, fleet: Fleet, swap: Swap, old: Epoch | None, new: Epoch) -> str:
        async def save(state: Swap) -> None:
            await self._owner.journal.save_swap(state)
            # Shown only now: between the last save and the end of this action nothing waits, so
            # that whoever sees a swap that is done can begin the next one.
            self.last = state

        def show(state: Swap) -> None:
            self.last = state

        self._owner.first_minute.not_now()
        try:
            done = await fleet.swap(swap, old=old, new=new, save=save, show=show)
        except Exception as error:
            text = f"broken off by a fault: {type(error).__name__}: {error}"
            await self._fail(self._owner.journal.swaps[swap.id], text)
            raise
        epoch = self._owner.journal.epochs.get(new.id, new)
        self._owner.journal.put_epoch(replace(epoch, cost=spent(done)))
        self._book.tell_soon()
        if done.state == "done" and self._owner.run.alive:
            self._owner.first_minute.soon("swap", old)
        return f"swap {done.id} {done.state}" + (f": {done.text}" if done.text else "")
