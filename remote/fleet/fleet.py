"""The fleet: one SGLang server a GPU, found, watched, started, stopped and swapped.

Servers do not depend on this object: they live under holders of their own. A new :class:`Fleet`
over the same workspace finds them again (:meth:`Fleet.adopt`) and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import aiohttp

from remote.fleet import plan as swap_plan
from remote.fleet.adoption import Adoption
from remote.fleet.background import Background
from remote.fleet.cold import ColdStart, NotItsTurnError
from remote.fleet.knowledge import Knowledge
from remote.fleet.launcher import Launcher, api_key, describe
from remote.fleet.operations import Operations
from remote.fleet.outside import Emit, FleetError, InVainError, Report, RunSide
from remote.fleet.planning import Planner, Wish, refuse_take_over
from remote.fleet.probe import Probe
from remote.fleet.records import Folder, Launch
from remote.fleet.restarts import Restarts
from remote.fleet.server import Server
from remote.fleet.swap import Swapper
from remote.fleet.timing import Timing
from remote.fleet.watching import Watch
from remote.paths import Workspace
from remote.protocol import (
    Epoch,
    Flags,
    GpuState,
    InFlight,
    Plan,
    Reading,
    ServerInfo,
    ServerState,
    Swap,
    TargetSpec,
)

__all__ = ["Fleet", "FleetError"]


class Fleet:
    """All servers of one workspace.

    ``spec`` may be assigned at any time: the next start uses it. ``gpus`` gives the latest
    ``nvidia-smi`` reading, where there is one: a card's memory must be free before a start.
    ``reported`` gives what the driver told of a card just now, where that can be known.
    """

    def __init__(
        self,
        workspace: Workspace,
        spec: TargetSpec,
        *,
        run: RunSide,
        emit: Emit,
        gpus: Callable[[], list[GpuState]] | None = None,
        reported: Callable[[int], Report | None] = lambda _: None,
        timing: Timing | None = None,
    ) -> None:
        self.workspace = workspace
        self.timing = timing or Timing()
        self._emit, self._cards = emit, gpus or list[GpuState]
        self._spec = spec
        self._servers: dict[int, Server] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._session: aiohttp.ClientSession | None = None
        self._swapper: Swapper | None = None
        self._shown: list[str] | None = None
        self._background = Background(emit)
        self.launcher = Launcher(workspace, self.timing)
        self.knowledge = Knowledge(self.launcher, emit, self._card_name)
        self.operations = Operations(self.launcher, run, emit, self.timing, self._memory)
        self._watch = Watch(
            servers=self._all,
            lock=self._lock,
            operations=self.operations,
            start_again=self._start_again,
            catalogue=lambda: self.knowledge.catalogue,
            background=self._background,
            reported=reported,
            run=run,
            emit=emit,
            timing=self.timing,
        )
        self._adoption = Adoption(
            server=self.server,
            lock=self._lock,
            operations=self.operations,
            watch=self._watch,
            down=lambda server: self._down_one(server, who="stoker"),
            background=self._background,
            emit=emit,
        )
        self._planner = Planner(lambda: self._spec, self._all, self.knowledge, self.operations)
        self._cold = ColdStart(self._all, emit, self.timing.tick)

    # --- What it is about ---

    @property
    def spec(self) -> TargetSpec:
        """The target as the last action brought it."""
        return self._spec

    @spec.setter
    def spec(self, spec: TargetSpec) -> None:
        self._spec = spec
        for server in list(self._servers.values()):
            gone = server.gpu >= spec.fleet.gpus
            moved = server.port != spec.fleet.base_port + server.gpu
            if not server.alive and not server.held and (gone or moved):
                del self._servers[server.gpu]

    def server(self, gpu: int) -> Server:
        """The server of a GPU, whether it runs or not. Needs a running event loop."""
        if gpu not in self._servers:
            folder = Folder(self.workspace.server(gpu))
            made = self._servers[gpu] = Server(
                gpu=gpu,
                port=0,
                url="",
                folder=folder,
                probe=Probe(self._http(), ""),
                timing=self.timing,
                start_seconds=self._spec.fleet.start_seconds,
                restarts=Restarts(folder),
            )
            made.listens(self._spec.fleet.base_port + gpu, self._spec.fleet.flags)
        return self._servers[gpu]

    def url(self, gpu: int) -> str:
        """Where server ``gpu`` is asked."""
        return self.server(gpu).url

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            # A new connection each time: SGLang closes idle ones after 5 s, under the next poll.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self._session

    def _all(self) -> list[Server]:
        wanted = {*range(self._spec.fleet.gpus), *self._servers}
        return [self.server(gpu) for gpu in sorted(wanted)]

    def _chosen(self, gpus: list[int] | None) -> list[Server]:
        if gpus is None:
            return [self.server(gpu) for gpu in range(self._spec.fleet.gpus)]
        for gpu in gpus:
            if not 0 <= gpu < self._spec.fleet.gpus:
                raise FleetError(
                    f"there is no GPU {gpu}: this target has 0 to {self._spec.fleet.gpus - 1}"
                )
        return [self.server(gpu) for gpu in sorted(set(gpus))]

    def _known(self, gpus: list[int] | None) -> list[Server]:
        """Like the chosen ones, those that the target has no more but that still run included."""
        if gpus is None:
            return self._all()
        known = [gpu for gpu in gpus if gpu in self._servers]
        rest = self._chosen([gpu for gpu in gpus if gpu not in known])
        return sorted([*map(self.server, set(known)), *rest], key=lambda server: server.gpu)

    def _memory(self, gpu: int) -> tuple[int, int] | None:
        for card in self._cards():
            if card.gpu == gpu and card.memory_used_mib is not None and card.memory_total_mib:
                return card.memory_used_mib, card.memory_total_mib
        return None

    def _card_name(self) -> str | None:
        return next((card.name for card in self._cards() if card.name), None)

    def _lock(self, gpu: int) -> asyncio.Lock:
        return self._locks.setdefault(gpu, asyncio.Lock())

    # --- What is known ---

    def infos(self) -> list[ServerInfo]:
        """What changes only at a (re)start, one entry a GPU."""
        return [server.info() for server in self._all()]

    def states(self) -> list[ServerState]:
        """What moves, one entry a GPU."""
        return [server.state() for server in self._all()]

    def readings(self) -> list[Reading]:
        """The run's view of every server."""
        return [server.reading() for server in self._all()]

    # --- Finding and watching ---

    async def adopt(self) -> list[str]:
        """Find the servers that earlier agents started, alive or ended meanwhile; a line each.

        Foreign servers on our ports are found too. Nothing is changed by looking; a stop that
        an earlier agent had begun is gone on with.
        """
        lines: list[str] = []
        for gpu in await asyncio.to_thread(self._recorded):
            server = self.server(gpu)
            launch = await asyncio.to_thread(server.folder.launch)
            if launch is not None:
                await self._set_key(server)
                lines.append(await self._adoption.take(server, launch))
        self._adoption.wait_for_swap()
        return lines + await self._watch.find_foreign()

    def _recorded(self) -> list[int]:
        """GPUs of the target, and others with a living server: it had more once. Blocking."""
        gpus = set(range(self._spec.fleet.gpus))
        folders = self.workspace.server(0).parent.glob("[0-9]*")
        for gpu in {int(f.name) for f in folders if f.name.isdecimal()} - gpus:
            folder = Folder(self.workspace.server(gpu))
            launch = folder.launch()
            running = folder.running(launch.launch) if launch is not None else None
            main = running.identity if running is not None else None
            if main is not None and main.alive:
                gpus.add(gpu)
        return sorted(gpus)

    async def watch(self) -> None:
        """Look at every server for ever. Ends only by being cancelled, or by :meth:`close`."""
        self._background.start(self.learn())
        await self._watch.go()

    def hurt(self, gpu: int) -> None:
        """The driver has reported something of a card: it may be why its server failed."""
        if gpu in self._servers:
            self._watch.explain(self._servers[gpu])

    async def close(self) -> None:
        """Stop looking; the servers go on."""
        await self._background.close()
        if self._session is not None:
            await self._session.close()

    # --- Starting and stopping ---

    async def _set_key(self, server: Server) -> None:
        with contextlib.suppress(FleetError):
            server.probe.api_key = api_key(await self.launcher.environment(self._spec))

    async def _start(
        self,
        server: Server,
        flags: Flags,
        *,
        epoch: int | None,
        who: str,
        swap: int | None = None,
    ) -> None:
        await self.learn()
        env = await self._show_environment()
        await self._set_key(server)
        server.listens(self._spec.fleet.base_port + server.gpu, flags)
        async with self._cold.turn(server, env):
            await self.operations.start(
                server,
                self._spec,
                flags,
                epoch=epoch,
                who=who,
                swap=swap,
                catalogue=self.knowledge.catalogue,
                version=self.knowledge.version,
            )

    async def _start_again(self, server: Server, launch: Launch) -> None:
        if server.gpu >= self._spec.fleet.gpus:
            raise InVainError(f"this target has no GPU {server.gpu} any more")
        await self._start(server, launch.flags, epoch=launch.epoch, who="stoker")

    async def _show_environment(self) -> dict[str, str]:
        """The servers' environment; says once what the env script makes of it."""
        env = await self.launcher.environment(self._spec)
        names = self.launcher.sourced
        if self._spec.env_script and names != self._shown:
            self._shown = list(names)
            what = ", ".join(names) if names else "nothing"
            self._emit("fleet.environment", f"{self._spec.env_script} sets {what}")
        return env

    async def up(self, gpus: list[int] | None, *, epoch: Epoch, who: str) -> None:
        """Start servers with the epoch's flags; returns once every start is under way.

        Those that run already are left alone. Where kernels have to be compiled first, one goes
        ahead and the others follow by themselves. Raises :class:`FleetError` with a line on those
        that could not be started; the others have been.
        """
        servers = self._chosen(gpus)
        await self.learn()
        flags, renamed = self.knowledge.checked(epoch.flags)
        for text in renamed:
            self._emit("fleet.flags", text, level="warning")

        async def one(server: Server) -> str | None:
            async with self._lock(server.gpu):
                if server.foreign is not None and server.alive:
                    pid = server.main.pid if server.main is not None else None
                    what = await asyncio.to_thread(describe, pid)
                    return (
                        f"GPU {server.gpu}: port {server.port} belongs to {what}, not started by "
                        "Stoker: take it over by a restart"
                    )
                if server.alive:
                    return None
                server.held = False
                await asyncio.to_thread(server.restarts.forget)
                try:
                    await self._start(server, flags, epoch=epoch.id, who=who)
                except NotItsTurnError:
                    return None  # it has been told why
                except FleetError as error:
                    return str(error)
                return None

        leader, followers = await self._leader(servers)
        if leader is not None:
            if (line := await one(leader)) is not None:
                raise FleetError(f"{line} (the others were to follow)")
            self._background.start(self._follow(followers, one))
            return
        told = [line for line in await asyncio.gather(*map(one, servers)) if line]
        if told:
            rest = len(servers) - len(told)
            lines = "; ".join(dict.fromkeys(told))
            raise FleetError(lines + (f" (the other {rest} go ahead)" if rest else ""))

    async def _leader(self, servers: list[Server]) -> tuple[Server | None, list[Server]]:
        """The server that goes ahead alone where kernels have to be compiled first."""
        stopped = [s for s in servers if not s.alive]
        if len(stopped) < 2:
            return None, []
        env = await self.launcher.environment(self._spec)
        if not await self._cold.applies(env):
            return None, []
        return stopped[0], stopped[1:]

    async def _follow(
        self, followers: list[Server], start: Callable[[Server], Awaitable[str | None]]
    ) -> None:
        for line in await asyncio.gather(*map(start, followers)):
            if line:
                self._emit("server.set_aside", line, level="error")

    async def down(self, gpus: list[int] | None, *, who: str) -> None:
        """Empty and stop servers; returns when they are gone. Foreign ones are not touched.

        Answers under way are broken off, to be continued, or drained where the run cannot.

        Raises :class:`FleetError` where something of a server cannot be ended.
        """
        servers = self._known(gpus)
        results = await asyncio.gather(
            *(self._down_one(server, who=who) for server in servers), return_exceptions=True
        )
        for server in servers:
            if server.gpu >= self._spec.fleet.gpus and not server.alive:
                self._servers.pop(server.gpu, None)
        wrong = [r for r in results if isinstance(r, BaseException)]
        for error in wrong:
            if not isinstance(error, FleetError):
                raise error
        if wrong:
            raise FleetError("; ".join(str(error) for error in wrong))

    async def _down_one(self, server: Server, *, who: str) -> None:
        self._cold.call_off(server.gpu)
        async with self._lock(server.gpu):
            self._cold.may_wait(server.gpu)
            if server.foreign is not None and server.alive:
                raise FleetError(
                    f"GPU {server.gpu}: pid {server.main.pid if server.main else '?'} was not "
                    "started by Stoker: take it over by a restart, or end it yourself"
                )
            server.held = True
            try:
                await asyncio.to_thread(self.operations.want, server, "down")
                if not server.alive:
                    server.status = "stopped"
                    return
                until = time.time() + self._spec.fleet.drain_seconds
                if said := await self.operations.empty(server, "continue", until):
                    text = f"GPU {server.gpu}: {said}"
                    self._emit("server.aborted", text, gpu=server.gpu, who=who)
                await self.operations.end(server, "down")
            finally:
                server.let_go()
            self._emit("server.stopped", f"GPU {server.gpu}: stopped", gpu=server.gpu, who=who)

    # --- Swaps ---

    async def learn(self) -> None:
        """Ask which SGLang is installed now: a plan is checked against what was last learned."""
        await self.knowledge.ask(self._spec)

    def new_flags(
        self, old: Flags, set_flags: Flags, unset_flags: list[str]
    ) -> tuple[Flags, list[str]]:
        """The flags after a change, under the names and types that the installed SGLang takes,
        and a line for each one that had to be renamed.

        Raises :class:`FleetError` where SGLang would refuse them, and for a flag to unset that is
        not set.
        """
        return self.knowledge.changed(old, set_flags, unset_flags)

    async def plan(
        self,
        *,
        current: Epoch | None,
        set_flags: Flags,
        unset_flags: list[str],
        strategy: swap_plan.Strategy,
        gpus: list[int] | None,
        in_flight: InFlight = "continue",
        at_once: int = 1,
        confirm_within_min: float | None = None,
        expected_tokens: float | None = None,
    ) -> Plan:
        """What a swap would do; nothing is done.

        ``swap`` of the answer has id and ``to_epoch`` 0: the caller gives them with ``who`` and
        ``began``. ``expected_tokens`` is the mean length of the run's answers, for the costs.
        Raises :class:`FleetError` for flags that SGLang would refuse or that are known to fail on
        this card, where no server is up to be swapped, and where one could not be started again.
        """
        servers = self._chosen(gpus)
        if gpus is None:
            servers = [s for s in servers if s.alive or s.status == "failed"]
            if not servers:
                raise FleetError("no server is up: start them with `up`")
        wish = Wish(
            set_flags=set_flags,
            unset_flags=unset_flags,
            strategy=strategy,
            in_flight=in_flight,
            at_once=at_once,
            confirm_within_min=confirm_within_min,
            expected_tokens=expected_tokens,
        )
        return await self._planner.plan(current, servers, wish)

    async def _may_begin(self, server: Server) -> None:
        """What stands in the way of a server's swap, just before it gets nothing more to do."""
        refuse_take_over(server)
        await self.launcher.possible(self._spec, server.gpu)

    async def swap(
        self,
        swap: Swap,
        *,
        old: Epoch | None,
        new: Epoch,
        save: Callable[[Swap], Awaitable[None]],
        show: Callable[[Swap], None] | None = None,
    ) -> Swap:
        """Carry a swap out, or on from its first unfinished step; returns it as it ended.

        ``save`` must have made the plan durable when it returns; it is called before and after
        each step. ``show`` gets what need not be durable: what the swap waits for, each second.
        Cancelling leaves the plan where it is, to be gone on with.
        """
        self._adoption.swap_goes_on()
        swapper = Swapper(
            swap,
            old,
            new,
            server=self.server,
            lock=self._lock,
            operations=self.operations,
            may_begin=self._may_begin,
            start=self._start,
            emit=self._emit,
            save=save,
            show=show or (lambda _: None),
            rates=self._full_rates,
            drain_seconds=self._spec.fleet.drain_seconds,
        )
        self._swapper = swapper
        try:
            return await swapper.carry_out()
        except Exception:
            for gpu in swap.gpus:
                self._background.start(self._adoption.release(gpu))
            raise
        finally:
            self._swapper = None

    async def decide(self, *, keep: bool, who: str) -> str:
        """Promote the canary or confirm the swap under way, or take the new flags back.

        What was decided is durable when this returns, with a line on what happens now. Raises
        :class:`FleetError` where no swap is under way.
        """
        if self._swapper is None:
            raise FleetError("no swap is under way")
        await self._swapper.decide(keep, who)
        return "the new flags are kept" if keep else "the previous flags come back"

    def _full_rates(self) -> dict[int, float]:
        """Tokens a second of the servers that are as busy as they are meant to be."""
        now = time.time()
        rates: dict[int, float] = {}
        for server in self._all():
            rate = server.gen_tok_s(now) if server.status in ("ready", "foreign") else None
            if rate is not None and server.is_full:
                rates[server.gpu] = rate
        return rates
