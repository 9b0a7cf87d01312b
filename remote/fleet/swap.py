"""Carries out a swap, step by step, each one saved before it begins.

Whoever dies in the middle, a new :class:`Swapper` given the saved plan goes on at the first
unfinished step: every step may be done twice. Requests that are queued in SGLang when they are
aborted stay on its books, and a SIGTERM then never ends; hence the order: nothing new, let run,
abort what is left, and only then SIGTERM with a short bound and SIGKILL for the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec.structs import replace

from remote.fleet import plan
from remote.fleet.operations import Operations
from remote.fleet.outside import Emit, FleetError
from remote.fleet.server import Server
from remote.protocol import Epoch, Flags, StepName, StepState, Swap

Save = Callable[[Swap], None]


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
        start: Start,
        emit: Emit,
        save: Save,
        drain_seconds: float,
    ) -> None:
        self.swap = swap
        self._old, self._new = old, new
        self._server, self._lock = server, lock
        self._ops, self._start, self._emit, self._save = operations, start, emit, save
        self._drain_seconds = drain_seconds

    async def carry_out(self) -> Swap:
        """Everything that is left to do; returns the plan as it ended, which is saved too."""
        for group in plan.groups(self.swap):
            if self._trouble():
                break
            await _together([self._one(gpu) for gpu in group])
        # Also those of which an earlier agent had begun the way back.
        await _together([self._one(gpu) for gpu in self.swap.gpus if self._begun(gpu)])
        return self._conclude()

    def _begun(self, gpu: int) -> bool:
        return not plan.untouched(self.swap, gpu) and not plan.finished(self.swap, gpu)

    def _trouble(self) -> bool:
        return any(plan.failed(self.swap, gpu) for gpu in self.swap.gpus)

    def _conclude(self) -> Swap:
        swap = self.swap
        wrong = [gpu for gpu in swap.gpus if plan.failed(swap, gpu)]
        if not wrong:
            slots = sorted({s.text for s in swap.steps if s.name == "compare" and s.text})
            text = f"{_gpus(swap.gpus)} on the new flags: {'; '.join(slots)}"
            return self._end(replace(swap, state="done", text=text))
        cause = next(step.text for gpu in wrong if (step := plan.failed(swap, gpu)) is not None)
        moved = [g for g in swap.gpus if g not in wrong and not plan.untouched(swap, g)]
        waiting = [g for g in swap.gpus if plan.untouched(swap, g)]
        for gpu in waiting:
            swap = plan.skip_rest(swap, gpu)
        lost = [
            gpu
            for gpu in wrong
            if (back := plan.of(swap, gpu, "put back")) is None or back.state != "done"
        ]
        text = f"{_gpus(wrong)} did not come up with the new flags: {cause}"
        if lost:
            text += f"; {_gpus(lost)} could not be put back either"
        else:
            text += "; the previous flags were put back"
        if moved:
            text += f"; {_gpus(moved)} keep the new flags"
        if waiting:
            text += f"; {_gpus(waiting)} not touched"
        return self._end(replace(swap, state="failed" if lost else "rolled back", text=text))

    def _end(self, swap: Swap) -> Swap:
        self.swap = replace(swap, ended=time.time())
        self._save(self.swap)
        kind = "swap.done" if swap.state == "done" else "swap.failed"
        level = "info" if swap.state == "done" else "error"
        self._emit(kind, f"swap {swap.id}: {swap.text}", level=level, who=swap.who)  # type: ignore[arg-type]
        return self.swap

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
                server.held = False

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
        }
        for name in plan.STEPS:
            if not await self._step(server, name, doers[name]):
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
        began = step.began if step is not None and step.began is not None else time.time()
        self.swap = plan.mark(self.swap, gpu, name, state="doing", began=began)
        self._save(self.swap)
        try:
            state, text = await do(server)
        except FleetError as error:
            state, text = "failed", str(error)
        self.swap = plan.mark(
            self.swap, gpu, name, state=state, began=began, ended=time.time(), text=text
        )
        self._save(self.swap)
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
        if not server.alive:
            return "skipped", "it does not run"
        slots = server.max_running
        await asyncio.to_thread(self._ops.want, server, "swap")
        self._ops.dispatch(server, "pause")
        left = self._ops.left(server)
        return "done", (
            f"nothing new; {left if left is not None else '?'} in flight, "
            f"{slots if slots is not None else '?'} slots"
        )

    async def _drain(self, server: Server) -> tuple[StepState, str]:
        if not server.alive or self._is_new(server):
            return "skipped", ""
        step = plan.of(self.swap, server.gpu, "drain")
        began = step.began if step is not None and step.began is not None else time.time()
        if await self._ops.drain(server, began + self._drain_seconds, self.swap.who):
            return "done", f"empty after {time.time() - began:.0f} s"
        left = self._ops.left(server)
        return "done", f"{left if left is not None else '?'} left after {time.time() - began:.0f} s"

    async def _abort(self, server: Server) -> tuple[StepState, str]:
        if not server.alive or self._is_new(server) or self._ops.left(server) == 0:
            return "skipped", ""
        had = await self._ops.abort(server)
        return "done", f"{had} requests go back to the queue"

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
        if self._is_new(server) and server.alive:
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
        await asyncio.to_thread(server.settle)
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
        before = await asyncio.to_thread(server.folder.previous)
        flags = before.flags if before is not None else None
        epoch = before.epoch if before is not None else None
        if flags is None and self._old is not None:
            flags, epoch = self._old.flags, self._old.id
        if flags is None:
            return "failed", "there are no earlier flags to put back"
        launch = server.launch
        is_back = launch is not None and launch.swap == self.swap.id and not self._is_new(server)
        if not (is_back and server.alive):
            if server.alive:
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
        return "done", f"the previous flags{number}, {text}"


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


def _gpus(gpus: list[int]) -> str:
    if len(gpus) == 1:
        return f"GPU {gpus[0]}"
    return "GPUs " + ", ".join(str(gpu) for gpu in gpus)
