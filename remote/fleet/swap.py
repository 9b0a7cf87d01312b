"""Carries out a swap, step by step, each one saved before it begins.

Whoever dies in the middle, a new :class:`Swapper` given the saved plan goes on at the first
unfinished step: every step may be done twice. Requests that are queued in SGLang when they are
aborted stay on its books, and a SIGTERM then never ends; hence the order: nothing new, let run
where that is wished for, break off what is left (the run keeps it), and only then SIGTERM with a
short bound and SIGKILL for the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from msgspec.structs import replace

from remote.fleet import plan
from remote.fleet.conclusion import conclude
from remote.fleet.judging import Judging
from remote.fleet.operations import Operations
from remote.fleet.outside import Emit, FleetError
from remote.fleet.server import Server
from remote.protocol import Epoch, Flags, StepName, StepState, Swap, SwapStep

Save = Callable[[Swap], Awaitable[None]]


class Start(Protocol):
    """Starts one server that does not run."""

    def __call__(
        self, server: Server, flags: Flags, *, epoch: int | None, who: str, swap: int | None
    ) -> Awaitable[None]: ...


class Swapper:
    """One swap, from where it stands to its end."""

    def __init__(
        self,
        swap: Swap,
        old: Epoch | None,
        new: Epoch,
        *,
        server: Callable[[int], Server],
        lock: Callable[[int], asyncio.Lock],
        operations: Operations,
        may_begin: Callable[[Server], Awaitable[None]],
        start: Start,
        emit: Emit,
        save: Save,
        show: Callable[[Swap], None],
        rates: Callable[[], dict[int, float]],
        drain_seconds: float,
    ) -> None:
        self.swap = swap
        self._old, self._new = old, new
        self._server, self._lock = server, lock
        self._ops, self._start, self._emit, self._save = operations, start, emit, save
        self._may_begin = may_begin
        self._show = show
        self._drain_seconds = drain_seconds
        self._judging = Judging(
            lambda: self.swap,
            rates,
            old.tok_s_per_gpu if old is not None else None,
            operations.timing,
            self._hold_up,
        )
        self._counted = operations.run.tokens()
        self._ends = False

    async def decide(self, keep: bool, who: str) -> None:
        """Keep the new flags (end the judging or the wait for confirmation), or take them back;
        durable when it returns.

        Raises :class:`FleetError` where there is nothing to be kept yet, or where it is decided.
        """
        last = self._confirmation
        over = last is not None and last.state in plan.OVER
        if self._ends or self.swap.state != "doing" or over:
            raise FleetError("it is decided already: the swap is about to end")
        waits = any(s.name in ("judge", "confirm") and s.state == "doing" for s in self.swap.steps)
        if keep and not waits:
            raise FleetError("nothing waits to be kept: the swap goes on by itself")
        decision: Literal["keep", "take back"] = "keep" if keep else "take back"
        self.swap = replace(self.swap, decision=decision, decided_by=who)
        await self._save(self.swap)

    @property
    def _is_to_go(self) -> bool:
        """Whether it was decided to take the new flags back from every server."""
        return self.swap.decision == "take back"

    async def carry_out(self) -> Swap:
        """Everything that is left to do; returns the plan as it ended, which is saved too."""
        for group in plan.groups(self.swap):
            if self._trouble() or self._is_to_go:
                break
            await _together([self._one(gpu) for gpu in group])
        await self._settle_it()
        # Those of which an earlier agent had begun the way back.
        await _together([self._one(gpu) for gpu in self.swap.gpus if self._begun(gpu)])
        if self._is_to_go and not self._unwanted():  # decided while they were put back
            await self._settle_it()
        self._ends = True
        return await self._end(conclude(self.swap))

    async def _settle_it(self) -> None:
        """Wait for the confirmation where one is asked for; take back what is not to stay."""
        if self._is_to_go or (self.swap.confirm_s is not None and not self._trouble()):
            await self._confirm()
        if self._unwanted():
            for group in plan.groups(self.swap):
                await _together([self._take_back(gpu) for gpu in group])

    def _begun(self, gpu: int) -> bool:
        return not plan.untouched(self.swap, gpu) and not plan.finished(self.swap, gpu)

    def _trouble(self) -> bool:
        return any(plan.failed(self.swap, gpu) for gpu in self.swap.gpus)

    def _unwanted(self) -> bool:
        """Whether the new flags are to go from every server that has them."""
        step = self._confirmation
        return step is not None and step.state == "failed"

    @property
    def _confirmation(self) -> SwapStep | None:
        return plan.of(self.swap, self.swap.gpus[0], "confirm") if self.swap.gpus else None

    async def _end(self, swap: Swap) -> Swap:
        await self._ops.run.refresh()
        swap = self._count(swap)
        text = f"{swap.text}; {plan.spent(swap)}"
        self.swap = replace(swap, text=text, ended=time.time(), decision="")
        await self._save(self.swap)
        done = swap.state == "done"
        self._emit(
            "swap.done" if done else "swap.failed",
            f"swap {swap.id}: {text}",
            level="info" if done else "error",
            who=swap.who,
        )
        return self.swap

    def _count(self, swap: Swap) -> Swap:
        """The plan with the tokens added that the run has kept and lost since the last time."""
        before, now = self._counted, self._ops.run.tokens()
        self._counted = now
        if now[0] < before[0] or now[1] < before[1]:  # another process of the run: from 0 on
            before = (0, 0)
        return replace(
            swap,
            tokens_kept=swap.tokens_kept + now[0] - before[0],
            tokens_lost=swap.tokens_lost + now[1] - before[1],
        )

    def _hold_up(self, text: str) -> None:
        """Say what the swap waits for; worth showing, not worth making durable."""
        if text != self.swap.text:
            self.swap = replace(self.swap, text=text)
            self._show(self.swap)

    # --- Is it any better? ---

    async def _judge(self, server: Server) -> tuple[StepState, str]:
        state, text = await self._judging.canary(server, self._began(server.gpu, "judge"))
        if state == "done":
            await asyncio.to_thread(server.settle)
        # What was said of the canary is carried out: a confirmation is asked for by itself.
        if self.swap.decision == "keep" or state == "failed":
            self.swap = replace(self.swap, decision="")
        return state, text

    async def _confirm(self) -> None:
        first = self._server(self.swap.gpus[0])
        await self._step(first, "confirm", self._confirmed)
        self._hold_up("")

    async def _confirmed(self, server: Server) -> tuple[StepState, str]:
        return await self._judging.confirmation(self._began(server.gpu, "confirm"))

    def _began(self, gpu: int, name: StepName) -> float:
        """When a step was begun, be it by an earlier agent."""
        step = plan.of(self.swap, gpu, name)
        return step.began if step is not None and step.began is not None else time.time()

    async def _take_back(self, gpu: int) -> None:
        back = plan.of(self.swap, gpu, "put back")
        if plan.untouched(self.swap, gpu) or (back is not None and back.state == "done"):
            return
        server = self._server(gpu)
        async with self._lock(gpu):
            server.held = True
            try:
                await self._put_back(server)
            finally:
                server.let_go()

    # --- One server ---

    async def _one(self, gpu: int) -> None:
        if plan.finished(self.swap, gpu):
            return
        server = self._server(gpu)
        async with self._lock(gpu):
            server.held = True
            try:
                if plan.failed(self.swap, gpu) is None and not await self._forward(server):
                    self.swap = plan.skip_rest(self.swap, gpu)
                if plan.failed(self.swap, gpu) is not None:
                    await self._put_back(server)
            finally:
                server.let_go()

    async def _forward(self, server: Server) -> bool:
        doers: dict[StepName, Callable[[Server], Awaitable[tuple[StepState, str]]]] = {
            "pause": self._pause,
            "drain": self._drain,
            "abort": self._abort,
            "stop": self._stop,
            "start": self._bring_up,
            "ready": self._ready,
            "compare": self._compare,
            "resume": self._resume,
            "judge": self._judge,
        }
        for name, do in doers.items():
            if plan.of(self.swap, server.gpu, name) is None:
                continue  # a drain only where the pause has found one to be needed
            if not await self._step(server, name, do):
                return False
        return True

    async def _step(
        self,
        server: Server,
        name: StepName,
        do: Callable[[Server], Awaitable[tuple[StepState, str]]],
    ) -> bool:
        gpu = server.gpu
        step = plan.of(self.swap, gpu, name)
        if step is not None and step.state in plan.OVER:
            return True
        began = self._began(gpu, name)
        self.swap = plan.mark(self.swap, gpu, name, state="doing", began=began)
        await self._save(self.swap)
        try:
            state, text = await do(server)
        except FleetError as error:
            state, text = "failed", str(error)
        self.swap = plan.mark(
            self._count(self.swap),
            gpu,
            name,
            state=state,
            began=began,
            ended=time.time(),
            text=text,
        )
        await self._save(self.swap)
        if state != "skipped":
            self._emit(
                "swap.step",
                f"GPU {gpu}: {name}{': ' + text if text else ''}",
                gpu=gpu,
                level="error" if state == "failed" else "info",
                who=self.swap.who,
            )
        return state != "failed"

    async def _pause(self, server: Server) -> tuple[StepState, str]:
        await self._may_begin(server)
        if not server.alive:
            return "skipped", "it does not run"
        pid = server.main.pid if server.main is not None else None
        if server.foreign is not None and pid not in self.swap.take_over:
            raise FleetError(
                f"pid {pid} was not started by Stoker and the plan did not name it: plan anew"
            )
        slots = server.max_running
        await asyncio.to_thread(self._ops.want, server, "swap")
        await asyncio.to_thread(server.note_foreign)
        left = self._ops.left(server)
        self._ops.dispatch(server, "pause")
        mode, why = self._ops.feasible(server, self.swap.in_flight)
        if mode == "drain":
            self.swap = plan.drain_first(self.swap, server.gpu)
        text = (
            f"nothing new; {left if left is not None else '?'} in flight, "
            f"{slots if slots is not None else '?'} slots"
        )
        return "done", f"{text}; {why}" if why else text

    async def _drain(self, server: Server) -> tuple[StepState, str]:
        if not server.alive or self._is_new(server):
            return "skipped", ""
        began = self._began(server.gpu, "drain")
        if await self._ops.drain(server, began + self._drain_seconds):
            return "done", f"empty after {time.time() - began:.0f} s"
        left = self._ops.left(server)
        return "done", f"{left if left is not None else '?'} left after {time.time() - began:.0f} s"

    async def _abort(self, server: Server) -> tuple[StepState, str]:
        if not server.alive or self._is_new(server) or self._ops.left(server) == 0:
            return "skipped", ""
        mode = self.swap.in_flight
        had = await self._ops.break_off(server, keep=mode != "redo")
        return "done", self._ops.broken_off(had, mode)

    async def _stop(self, server: Server) -> tuple[StepState, str]:
        if self._is_new(server):
            return "skipped", ""
        began = time.time()
        if not server.alive:
            await self._ops.clear_away(server)
            return "skipped", "it does not run"
        await self._ops.end(server, "swap")
        return "done", f"gone after {time.time() - began:.0f} s"

    async def _bring_up(self, server: Server) -> tuple[StepState, str]:
        if self._is_new(server) and server.alive and await self._ops.has_come(server):
            return "done", "it had been started"
        await self._start(
            server,
            self._new.flags,
            epoch=self._new.id,
            who=self.swap.who,
            swap=self.swap.id,
        )
        return "done", f"pid {server.main.pid if server.main is not None else '?'}"

    async def _ready(self, server: Server) -> tuple[StepState, str]:
        return await _until_ready(server)

    async def _compare(self, server: Server) -> tuple[StepState, str]:
        before = await asyncio.to_thread(server.folder.previous)
        had = before.max_running if before is not None else None
        has = server.max_running
        text = f"{had if had is not None else '?'} → {has if has is not None else '?'} slots"
        if had is not None and has is not None and has < had:
            self._emit(
                "swap.fewer_slots",
                f"GPU {server.gpu}: {text}: the new flags admit fewer requests at once",
                gpu=server.gpu,
                level="warning",
                who=self.swap.who,
            )
        return "done", text

    async def _resume(self, server: Server) -> tuple[StepState, str]:
        if server.status != "ready":
            cause = server.cause.text if server.cause is not None else "it does not run any more"
            return "failed", cause
        if plan.of(self.swap, server.gpu, "judge") is None:
            await asyncio.to_thread(server.settle)  # a canary stays in the swap's hands
        self._ops.announce(server)
        self._ops.dispatch(server, "run")
        return "done", ""

    def _is_new(self, server: Server) -> bool:
        launch = server.launch
        return launch is not None and launch.swap == self.swap.id and launch.epoch == self._new.id

    # --- The way back ---

    async def _put_back(self, server: Server) -> None:
        self.swap = plan.skip_rest(self.swap, server.gpu)
        await self._step(server, "put back", self._restore)

    async def _restore(self, server: Server) -> tuple[StepState, str]:
        launch = server.launch
        is_back = launch is not None and launch.swap == self.swap.id and not self._is_new(server)
        said = ""
        if not is_back and not plan.was_stopped(self.swap, server.gpu):
            return "done", await self._leave(server)
        flags, epoch = await asyncio.to_thread(self._flags_before, server, is_back)
        if flags is None:
            return "failed", "there are no earlier flags to put back"
        if not (is_back and server.alive):
            if server.alive:
                drains = plan.of(self.swap, server.gpu, "drain") is not None
                until = time.time() + self._drain_seconds
                mode = "drain" if drains else self.swap.in_flight
                said = await self._ops.empty(server, mode, until)
                await self._ops.end(server, "swap")
            else:
                await self._ops.clear_away(server)
            await self._start(server, flags, epoch=epoch, who=self.swap.who, swap=self.swap.id)
        state, text = await _until_ready(server)
        if state == "failed":
            return state, text
        await asyncio.to_thread(server.settle)
        self._ops.announce(server)
        self._ops.dispatch(server, "run")
        number = f" (epoch {epoch})" if epoch is not None else ""
        return "done", f"the previous flags{number}, {text}{f'; {said}' if said else ''}"

    async def _leave(self, server: Server) -> str:
        """Nothing was done to it that could not be undone: it goes on as before."""
        paused = plan.of(self.swap, server.gpu, "pause")
        if paused is not None and paused.state == "failed":
            return "nothing was done to it"
        await asyncio.to_thread(server.settle)
        if not server.alive:
            return "it does not run, as before"
        server.let_go()
        if server.status in ("ready", "foreign"):
            self._ops.dispatch(server, "run")
        return "it runs on as it was"

    def _flags_before(self, server: Server, is_back: bool) -> tuple[Flags | None, int | None]:
        """What the server ran with before this swap. Blocking."""
        if is_back and server.launch is not None:  # an earlier agent had begun to put them back
            return server.launch.flags, server.launch.epoch
        # Until a launch of this swap is written down, what ran is not the one before yet.
        if (foreign := server.folder.ready("")) is not None:
            return foreign.flags, None
        launch = server.launch
        if launch is not None and launch.swap != self.swap.id and launch.epoch != self._new.id:
            return launch.flags, launch.epoch
        before = server.folder.previous()
        if before is not None and before.epoch != self._new.id:
            return before.flags, before.epoch
        if self._old is not None:
            return self._old.flags, self._old.id
        return None, None


async def _until_ready(server: Server) -> tuple[StepState, str]:
    while True:
        if server.status not in ("starting", "warming"):
            break
        await asyncio.sleep(0.05)
    if server.status != "ready":
        return "failed", server.cause.text if server.cause is not None else "it ended"
    seconds = server.ready.start_seconds if server.ready is not None else 0.0
    return "done", f"ready after {seconds:.0f} s"


async def _together(work: list[Awaitable[None]]) -> None:
    """All of them to their end, then the first error; all are cancelled with the caller."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        results = await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        raise
    for result in results:
        if isinstance(result, BaseException):
            raise result
