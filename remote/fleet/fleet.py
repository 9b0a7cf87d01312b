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

from remote.fleet import finding, kernels
from remote.fleet import plan as swap_plan
from remote.fleet.background import Background
from remote.fleet.knowledge import Knowledge
from remote.fleet.launcher import Launcher, api_key, describe, one_line
from remote.fleet.operations import Operations
from remote.fleet.outside import Emit, FleetError, Report, RunSide
from remote.fleet.probe import Probe
from remote.fleet.records import Folder, Launch
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
from remote.sglang import dialect
from remote.sglang import flags as sglang_flags
from remote.sglang.refusals import doubts

__all__ = ["Fleet", "FleetError"]

_SWAP_GOES_ON = 60.0
"""Seconds after an adoption within which a swap that was under way must have been taken up."""


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
        self._in_a_swap: set[int] = set()
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
            self._servers[gpu] = Server(
                gpu=gpu,
                port=self._spec.fleet.base_port + gpu,
                url=self.url(gpu),
                folder=Folder(self.workspace.server(gpu)),
                probe=Probe(self._http(), self.url(gpu)),
                timing=self.timing,
                start_seconds=self._spec.fleet.start_seconds,
            )
        return self._servers[gpu]

    def url(self, gpu: int) -> str:
        """Where server ``gpu`` is asked: loopback, unless its ``host`` flag names one address."""
        host = self._spec.fleet.flags.get("host")
        if not isinstance(host, str) or host in ("0.0.0.0", "::", "localhost"):
            host = "127.0.0.1"
        return f"http://{host}:{self._spec.fleet.base_port + gpu}"

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
        for server in self._all():
            launch = await asyncio.to_thread(server.folder.launch)
            if launch is not None:
                await self._set_key(server)
                lives = await asyncio.to_thread(finding.take_up, server, launch)
                lines.append(self._living(server, launch) if lives else self._ended(server, launch))
        if self._in_a_swap:
            self._background.start(self._release())
        return lines + await self._watch.find_foreign()

    def _living(self, server: Server, launch: Launch) -> str:
        pid = server.main.pid if server.main is not None else "?"
        epoch = f", epoch {launch.epoch}" if launch.epoch is not None else ""
        if server.status == "ready":
            self.operations.announce(server)
        if launch.wanted == "down":
            self._background.start(self._down_one(server, who="stoker"))
            return f"GPU {server.gpu}: was being stopped, pid {pid}; stopping goes on"
        if launch.wanted == "swap" or launch.swap is not None:
            server.held = True
            self._in_a_swap.add(server.gpu)
        return f"GPU {server.gpu}: runs, pid {pid}, {server.status}{epoch}"

    def _ended(self, server: Server, launch: Launch) -> str:
        if launch.wanted != "up":
            server.status = "stopped"
            if launch.wanted == "swap":
                server.held = True
                self._in_a_swap.add(server.gpu)
            return f"GPU {server.gpu}: stopped, as it was meant to be"
        ago = f"{time.time() - server.exit.ended:.0f} s ago, " if server.exit else ""
        if server.judge_end() == "failed":
            self._watch.failed(server)
        cause = server.cause.text if server.cause is not None else ""
        return f"GPU {server.gpu}: ended {ago}while no agent ran: {cause}"

    async def _release(self) -> None:
        """Let go of servers that an unfinished swap had in hand, where nobody goes on with it."""
        await asyncio.sleep(_SWAP_GOES_ON)
        for gpu in sorted(self._in_a_swap):
            server = self.server(gpu)
            async with self._lock(gpu):
                if gpu not in self._in_a_swap:
                    continue
                server.held = False
                text = "it is left stopped: `up` starts it"
                if server.alive:
                    await asyncio.to_thread(server.settle)
                    text = "it runs on as it is"
                    if server.status == "ready":
                        self.operations.dispatch(server, "run")
            line = f"GPU {gpu}: nobody went on with its swap; {text}"
            self._emit("swap.lost", line, gpu=gpu, level="warning")
        self._in_a_swap.clear()

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
        await self._show_environment()
        await self._set_key(server)
        server.port = self._spec.fleet.base_port + server.gpu
        server.url = server.probe.url = self.url(server.gpu)
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
        await self._start(server, launch.flags, epoch=launch.epoch, who="stoker")

    async def _show_environment(self) -> None:
        """Say once what the env script makes of the servers' environment."""
        await self.launcher.environment(self._spec)
        names = self.launcher.sourced
        if self._spec.env_script and names != self._shown:
            self._shown = list(names)
            what = ", ".join(names) if names else "nothing"
            self._emit("fleet.environment", f"{self._spec.env_script} sets {what}")

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
                server.restarts.forget()
                try:
                    await self._start(server, flags, epoch=epoch.id, who=who)
                except FleetError as error:
                    return str(error)
                return None

        leader, followers = await self._leader(servers)
        if leader is not None:
            if (line := await one(leader)) is not None:
                raise FleetError(f"{line} (the others were to follow)")
            self._background.start(self._follow(leader, followers, one))
            return
        told = [line for line in await asyncio.gather(*map(one, servers)) if line]
        if told:
            rest = len(servers) - len(told)
            lines = "; ".join(dict.fromkeys(told))
            raise FleetError(lines + (f" (the other {rest} go ahead)" if rest else ""))

    async def _leader(self, servers: list[Server]) -> tuple[Server | None, list[Server]]:
        """The server that goes ahead alone where kernels have to be compiled first."""
        stopped = [s for s in servers if not s.alive]
        if len(stopped) < 2 or any(s.status == "ready" for s in self._all()):
            return None, []
        env = await self.launcher.environment(self._spec)
        if not await asyncio.to_thread(kernels.is_cold, env):
            return None, []
        return stopped[0], stopped[1:]

    async def _follow(
        self,
        leader: Server,
        followers: list[Server],
        start: Callable[[Server], Awaitable[str | None]],
    ) -> None:
        first = f"GPU {leader.gpu}"
        self._emit(
            "fleet.cold",
            f"no kernels are compiled here yet: {first} goes ahead alone, "
            f"{len(followers)} more follow once it is ready",
            gpu=leader.gpu,
        )
        launch = leader.launch
        for server in followers:
            server.doing = f"waits for {first} to compile the kernels"
        while leader.launch is launch:
            if leader.status not in ("starting", "warming"):
                break
            await asyncio.sleep(self.timing.tick)
        for server in followers:
            server.doing = ""
        if leader.launch is not launch or leader.status != "ready":
            text = f"{first} did not get ready: the others were not started"
            self._emit("fleet.cold", text, gpu=leader.gpu, level="error")
            return
        for line in await asyncio.gather(*map(start, followers)):
            if line:
                self._emit("server.set_aside", line, level="error")

    async def down(self, gpus: list[int] | None, *, who: str) -> None:
        """Empty and stop servers; returns when they are gone. Foreign ones are not touched.

        Answers under way are broken off, to be continued, or drained where the run cannot.

        Raises :class:`FleetError` where something of a server cannot be ended.
        """
        servers = self._chosen(gpus)
        results = await asyncio.gather(
            *(self._down_one(server, who=who) for server in servers), return_exceptions=True
        )
        wrong = [r for r in results if isinstance(r, BaseException)]
        for error in wrong:
            if not isinstance(error, FleetError):
                raise error
        if wrong:
            raise FleetError("; ".join(str(error) for error in wrong))

    async def _down_one(self, server: Server, *, who: str) -> None:
        async with self._lock(server.gpu):
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

    def plan(
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
        this card, and where no server is up to be swapped.
        """
        old = current.flags if current is not None else self._spec.fleet.flags
        new, warnings = self.new_flags(old, set_flags, unset_flags)
        if at_once < 1:
            raise FleetError(f"at once: 1 server or more, not {at_once}")
        if confirm_within_min is not None and not 0 < confirm_within_min < 60 * 24 * 7:
            raise FleetError(
                f"confirm within: minutes from above 0 to a week, not {confirm_within_min:g}"
            )
        servers = self._chosen(gpus)
        if gpus is None:
            servers = [s for s in servers if s.alive or s.status == "failed"]
            if not servers:
                raise FleetError("no server is up: start them with `up`")
        warnings += dialect.changed_meanings(new, self.knowledge.is_new) + doubts(new)
        for server in servers:
            warnings += self._taking_over(server)
        foreign = [s.main.pid for s in servers if s.foreign and s.alive and s.main is not None]
        why = self.operations.run.unable() or sglang_flags.other_answers(old, new)
        busy = any(s.alive and self.operations.left(s) != 0 for s in servers)
        drains = in_flight == "drain" or (in_flight == "continue" and busy and bool(why))
        if drains and in_flight == "continue":
            warnings.append(f"answers under way are drained, not continued: {why}")
        prediction = self.knowledge.predict(new, self._all(), self._memory)
        numbers = [server.gpu for server in servers]
        swap = Swap(
            id=0,
            strategy=strategy,
            gpus=numbers,
            from_epoch=current.id if current is not None else None,
            to_epoch=0,
            who="",
            began=time.time(),
            steps=swap_plan.steps(numbers, strategy, drains=drains),
            in_flight=in_flight,
            at_once=at_once,
            set_flags=set_flags,
            unset_flags=unset_flags,
            confirm_s=None if confirm_within_min is None else 60 * confirm_within_min,
        )
        return Plan(
            swap=swap,
            diff=sglang_flags.difference(old, new),
            warnings=warnings,
            predicted_max_running=prediction.max_running if prediction is not None else None,
            predicted=prediction.told() if prediction is not None else None,
            costs=self._costs(
                servers,
                together=len(servers) if strategy == "all" else at_once,
                continues=not why,
                mean_tokens=expected_tokens,
            ),
            take_over=foreign,
        )

    def _taking_over(self, server: Server) -> list[str]:
        """What to know before a foreign server is ended; FleetError where it is none of SGLang."""
        if server.foreign is None or not server.alive or server.main is None:
            return []
        if not server.foreign.is_sglang:
            raise FleetError(
                f"GPU {server.gpu}: port {server.port} belongs to {describe(server.main.pid)}, "
                "which is no SGLang server: end it, or move base_port"
            )
        model = server.foreign.model
        other = ""
        if model != self._spec.fleet.model:
            other = f", with another model than its {one_line(model or '?')}"
        text = (
            f"GPU {server.gpu}: pid {server.main.pid} was not started by Stoker and will be "
            f"ended; the next server there is Stoker's{other}"
        )
        return [text]

    def _costs(
        self, servers: list[Server], *, together: int, continues: bool, mean_tokens: float | None
    ) -> list[str]:
        loads = [
            swap_plan.Load(
                in_flight=self.operations.left(server) or 0 if server.alive else 0,
                tok_s=server.gen_tok_s(time.time()),
                reload_s=server.ready.start_seconds if server.ready is not None else None,
            )
            for server in servers
        ]
        return swap_plan.cost_lines(
            loads,
            self._spec.fleet.drain_seconds,
            mean_tokens or 0.0,
            together=together,
            continues=continues,
        )

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
        self._in_a_swap.clear()
        swapper = Swapper(
            swap,
            old,
            new,
            server=self.server,
            lock=self._lock,
            operations=self.operations,
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
        finally:
            self._swapper = None

    def decide(self, *, keep: bool, who: str) -> str:
        """Promote the canary or confirm the swap under way, or take the new flags back.

        Returns a line on what happens now. Raises :class:`FleetError` where no swap is under way.
        """
        if self._swapper is None:
            raise FleetError("no swap is under way")
        self._swapper.decide(keep, who)
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
