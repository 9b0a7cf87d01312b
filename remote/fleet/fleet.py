"""The fleet: one SGLang server a GPU, found, watched, started, stopped and swapped.

Servers do not depend on this object: they live under holders of their own. A new :class:`Fleet`
over the same workspace finds them again (:meth:`Fleet.adopt`) and goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp

from remote.fleet import showing
from remote.fleet.adoption import Adoption, recorded
from remote.fleet.background import Background
from remote.fleet.ends import Ends
from remote.fleet.knowledge import Knowledge
from remote.fleet.launcher import Launcher
from remote.fleet.operations import Operations
from remote.fleet.outside import Emit, FleetError, Report, RunSide, UsageError
from remote.fleet.planning import Planner, Wish, refuse_take_over
from remote.fleet.probe import Probe
from remote.fleet.records import Folder
from remote.fleet.restarts import Restarts
from remote.fleet.server import Server
from remote.fleet.starting import Starter
from remote.fleet.stopping import Stopper
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
    Strategy,
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
        self._background = Background(emit)
        self.launcher = Launcher(workspace, self.timing)
        self.knowledge = Knowledge(self.launcher, emit, self._card_name)
        self.operations = Operations(self.launcher, run, emit, self.timing, self._memory)
        self._starter = Starter(
            spec=lambda: self._spec,
            servers=self._all,
            lock=self._lock,
            knowledge=self.knowledge,
            operations=self.operations,
            background=self._background,
        )
        self._watch = Watch(
            servers=self._all,
            lock=self._lock,
            operations=self.operations,
            start_again=self._starter.again,
            set_key=self._starter.set_key,
            catalogue=lambda: self.knowledge.catalogue,
            background=self._background,
            reported=reported,
        )
        self._stopper = Stopper(
            self._lock,
            self.operations,
            self._starter.cold,
            lambda: self._spec.fleet.drain_seconds,
            emit,
        )
        self._adoption = Adoption(
            server=self.server,
            lock=self._lock,
            operations=self.operations,
            watch=self._watch,
            stop=self._stopper,
            background=self._background,
            emit=emit,
        )
        self._planner = Planner(lambda: self._spec, self._all, self.knowledge, self.operations)

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
                ends=Ends(folder),
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
                raise UsageError(
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
        return [
            showing.info(server, self.knowledge.sizes(server, self._memory))
            for server in self._all()
        ]

    def states(self) -> list[ServerState]:
        """What moves, one entry a GPU."""
        now = time.time()
        return [showing.state(server, now) for server in self._all()]

    def readings(self) -> list[Reading]:
        """The run's view of every server."""
        return [showing.reading(server) for server in self._all()]

    # --- Finding and watching ---

    async def adopt(self) -> list[str]:
        """Find the servers that earlier agents started, alive or ended meanwhile; a line each.

        Foreign servers on our ports are found too. Nothing is changed by looking; a stop that
        an earlier agent had begun is gone on with.
        """
        lines: list[str] = []
        found = await asyncio.to_thread(recorded, self.workspace, self._spec.fleet.gpus)
        for gpu in found:
            server = self.server(gpu)
            launch = await asyncio.to_thread(server.folder.launch)
            await asyncio.to_thread(server.ends.read_back)
            if launch is not None:
                await self._starter.set_key(server)
                lines.append(await self._adoption.take(server, launch))
        self._adoption.wait_for_swap()
        return lines + await self._watch.find_foreign()

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

    async def up(self, gpus: list[int] | None, *, epoch: Epoch, who: str) -> None:
        """Start servers with the epoch's flags; returns once every start is under way.

        Those that run already are left alone. Where kernels have to be compiled first, one goes
        ahead and the others follow by themselves. Raises :class:`FleetError` with a line on those
        that could not be started; the others have been.
        """
        await self._starter.up(self._chosen(gpus), epoch=epoch, who=who)

    async def down(self, gpus: list[int] | None, *, who: str) -> None:
        """Empty and stop servers; returns when they are gone. Foreign ones are not touched.

        Answers under way are broken off, to be continued, or drained where the run cannot.

        Raises :class:`FleetError` where something of a server cannot be ended.
        """
        servers = self._known(gpus)
        try:
            await self._stopper.down(servers, who=who)
        finally:
            for server in servers:
                if server.gpu >= self._spec.fleet.gpus and not server.alive:
                    self._servers.pop(server.gpu, None)

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

    def checked(self, flags: Flags) -> tuple[Flags, list[str]]:
        """Flags as the installed SGLang takes them, and a line for each that had to be renamed.

        Raises :class:`FleetError` where it would refuse them.
        """
        return self.knowledge.checked(flags)

    async def plan(
        self,
        *,
        current: Epoch | None,
        set_flags: Flags,
        unset_flags: list[str],
        strategy: Strategy,
        gpus: list[int] | None,
        in_flight: InFlight = "continue",
        at_once: int = 1,
        confirm_within_min: float | None = None,
        expected_tokens: float | None = None,
    ) -> Plan:
        """What a swap would do; nothing is done.

        ``swap`` of the answer has id and ``to_epoch`` 0: the caller gives them with ``who`` and
        ``began``. With ``gpus`` None, servers that run these very flags already go on where others
        do not. ``expected_tokens`` is the mean length of the run's answers, for the costs.
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
        return await self._planner.plan(current, servers, wish, named=gpus is not None)

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
            start=self._starter.start,
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
