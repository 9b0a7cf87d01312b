"""The fleet: one SGLang server a GPU, found, watched, started, stopped and swapped.

Servers do not depend on this object: they live under holders of their own. A new :class:`Fleet`
over the same workspace finds them again (:meth:`Fleet.adopt`) and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp

from remote.fleet import identity, installed, processes
from remote.fleet import plan as swap_plan
from remote.fleet.identity import Process
from remote.fleet.launcher import Launcher, api_key, describe
from remote.fleet.operations import Operations
from remote.fleet.outside import Emit, FleetError, RunSide
from remote.fleet.probe import Probe
from remote.fleet.processes import Identity
from remote.fleet.records import Folder
from remote.fleet.server import Change, Foreign, Server
from remote.fleet.swap import Swapper
from remote.fleet.timing import Timing
from remote.paths import Workspace
from remote.protocol import (
    Epoch,
    Flags,
    GpuState,
    Plan,
    Reading,
    ServerInfo,
    ServerState,
    Swap,
    TargetSpec,
)
from remote.sglang import capacity, dialect
from remote.sglang import flags as sglang_flags
from remote.sglang.catalogue import Catalogue, FlagError, check
from remote.sglang.refusals import refusals

__all__ = ["Fleet", "FleetError"]

_SGLANG_KNOWN_FOR = 30.0
"""Seconds for which the answer about the installed SGLang is taken as still true."""


class Fleet:
    """All servers of one workspace.

    ``spec`` may be assigned at any time: the next start uses it. ``gpus`` gives the latest
    ``nvidia-smi`` reading, where there is one: a card's memory must be free before a start.
    """

    def __init__(
        self,
        workspace: Workspace,
        spec: TargetSpec,
        *,
        run: RunSide,
        emit: Emit,
        gpus: Callable[[], list[GpuState]] | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.workspace = workspace
        self.timing = timing or Timing()
        self._run, self._emit = run, emit
        self._gpus = gpus
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._proofs: dict[int, asyncio.Task[None]] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._servers: dict[int, Server] = {}
        self._catalogue: Catalogue | None = None
        self._installed: installed.Installed | None = None
        self._asking = asyncio.Lock()
        self._asked, self._ask_again = "", 0.0
        self._read_model: capacity.Model | None = None
        self.launcher = Launcher(workspace, self.timing)
        self.operations = Operations(self.launcher, run, emit, self.timing, self._memory)
        self._swapper: Swapper | None = None
        self._spec = spec

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
            port = self._spec.fleet.base_port + gpu
            self._servers[gpu] = Server(
                gpu=gpu,
                port=port,
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
        for card in self._gpus() if self._gpus is not None else []:
            if card.gpu == gpu and card.memory_used_mib is not None and card.memory_total_mib:
                return card.memory_used_mib, card.memory_total_mib
        return None

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

    @property
    def catalogue(self) -> Catalogue | None:
        """The installed SGLang's flags; None until they were asked, or where they cannot be."""
        return self._catalogue

    @property
    def version(self) -> str | None:
        """The installed SGLang's version."""
        return self._installed.version if self._installed is not None else None

    async def know_sglang(self) -> None:
        """Ask the servers' Python for version and flags, unless that was done a moment ago.

        Raises nothing: where it cannot be asked, flags go unchecked and an event says so.
        """
        async with self._asking:
            python = self._spec.python
            if not python or (python == self._asked and time.monotonic() < self._ask_again):
                return
            self._asked, self._ask_again = python, time.monotonic() + _SGLANG_KNOWN_FOR
            model = self._spec.fleet.model
            self._read_model = await asyncio.to_thread(_read_model, model)
            try:
                env = await self.launcher.environment(self._spec)
            except FleetError:
                return  # a start will say it
            found = await installed.find(python, env)
            if found is None or self._installed == found:
                return
            self._installed, self._catalogue = found, None
            if found.version is None:
                return
            try:
                self._catalogue = await installed.flags(python, env, found, self.workspace.stoker)
            except FlagError as error:
                self._emit("fleet.flags", f"{error}; flags go unchecked", level="warning")

    # --- Finding what runs already ---

    async def adopt(self) -> list[str]:
        """Find the servers that earlier agents started, alive or ended meanwhile; a line each.

        Foreign servers on our ports are found too. Nothing is changed by looking.
        """
        lines: list[str] = []
        table = await asyncio.to_thread(identity.table)
        for server in self._all():
            launch = await asyncio.to_thread(server.folder.launch)
            if launch is None:
                continue
            lines.append(await self._adopt_one(server, table))
        lines += await self._find_foreign()
        return lines

    async def _adopt_one(self, server: Server, table: dict[int, Process]) -> str:
        launch = await asyncio.to_thread(server.folder.launch)
        assert launch is not None
        server.port = launch.port
        server.start_seconds = self._spec.fleet.start_seconds
        await self._set_key(server)
        server.begin(launch, adopted=True)
        await asyncio.to_thread(server.read_log)
        if server.main is not None and processes.members(server.main, table)[:1]:
            head = processes.members(server.main, table)[0]
            if head.pid == server.main.pid:
                return await self._adopt_living(server)
        server.exit = server.folder.exit(launch.launch)
        if launch.wanted != "up":
            server.status = "stopped"
            return f"GPU {server.gpu}: stopped as it was meant to be"
        ago = f"{time.time() - server.exit.ended:.0f} s ago, " if server.exit else ""
        change = server.ended_unseen()
        text = server.cause.text if server.cause is not None else ""
        if change == "failed":
            self._failed(server)
        return f"GPU {server.gpu}: ended {ago}while no agent ran: {text}"

    async def _adopt_living(self, server: Server) -> str:
        assert server.main is not None
        launch = server.launch
        assert launch is not None
        epoch = f", epoch {launch.epoch}" if launch.epoch is not None else ""
        if server.status == "ready":
            await asyncio.to_thread(lambda: server.note_core(identity.table()))
            self.operations.announce(server)
        server.held = launch.wanted == "swap" or launch.swap is not None
        if launch.wanted == "down":
            self._spawn(self._down_one(server, who="stoker"))
            return f"GPU {server.gpu}: was being stopped, pid {server.main.pid}; stopping goes on"
        return f"GPU {server.gpu}: runs, pid {server.main.pid}, {server.status}{epoch}"

    async def _find_foreign(self) -> list[str]:
        lines: list[str] = []
        free = [s for s in self._all() if not s.alive and not s.held]
        found = await asyncio.to_thread(_who_serves, [s.port for s in free]) if free else {}
        for server in free:
            pid = found.get(server.port)
            main = processes.identify(pid) if pid is not None else None
            if main is None or server.held or server.alive:
                continue
            about = await asyncio.to_thread(_look_at, main, self._catalogue)
            server.begin_foreign(main, about)
            what = f"SGLang with {about.model}" if about.is_sglang else "no SGLang server"
            line = (
                f"GPU {server.gpu}: port {server.port} belongs to {describe(main.pid)}, "
                f"{what}, not started by Stoker"
            )
            self._emit("server.foreign", line, gpu=server.gpu, level="warning")
            lines.append(line)
        return lines

    # --- Watching ---

    async def watch(self) -> None:
        """Look at every server for ever: each second its processes and log, more rarely by HTTP.

        Ends only by being cancelled, or by :meth:`close`.
        """
        self._spawn(self.know_sglang())
        for server in self._all():
            self._spawn(self._poll(server))
        next_ports = 0.0
        while True:
            began = time.monotonic()
            await self._look()
            if began >= next_ports:
                next_ports = began + self.timing.ports
                await self._find_foreign()
            await asyncio.sleep(max(self.timing.tick - (time.monotonic() - began), 0.01))

    async def _look(self) -> None:
        servers = [s for s in self._all() if s.alive]
        if not servers:
            return

        def read() -> dict[int, Process]:
            for server in servers:
                server.read_log()
            return identity.table()

        table = await asyncio.to_thread(read)
        for server in servers:
            server.in_flight = self._run.in_flight(server.gpu)
            change = server.look(table, time.time())
            if change is not None:
                self._act(server, change)

    def _act(self, server: Server, change: Change) -> None:
        gpu = server.gpu
        if change == "fired up":
            proof = self._proofs.get(gpu)
            if proof is None or proof.done():
                self._proofs[gpu] = self._spawn(self._prove(server))
        elif change == "failed":
            self._failed(server)
        elif change == "ended" and not server.held:
            why = f": {server.cause.text}" if server.cause is not None else ""
            self._emit("server.stopped", f"GPU {gpu}: stopped{why}", gpu=gpu)
        elif change == "stalled":
            cause = server.cause.text if server.cause is not None else ""
            self._emit("server.stalled", f"GPU {gpu}: {cause}", gpu=gpu, level="error")
            if not server.held:
                self.operations.dispatch(server, "pause")
                self._spawn(self._after_stall(server))
        elif change == "moves again":
            self._emit("server.ready", f"GPU {gpu}: tokens flow again", gpu=gpu)
            if not server.held:
                self.operations.dispatch(server, "run")

    async def _prove(self, server: Server) -> None:
        if not await self.operations.prove(server) and server.status == "failed":
            self._failed(server)

    async def _after_stall(self, server: Server) -> None:
        launch = server.launch
        deadline = time.monotonic() + self.timing.stalled_restart
        while server.status == "stalled" and server.launch is launch and not server.held:
            if time.monotonic() > deadline:
                assert server.cause is not None
                server.fail(server.cause)
                self._failed(server)
                return
            await asyncio.sleep(self.timing.tick)

    def _failed(self, server: Server) -> None:
        cause = server.cause.text if server.cause is not None else "nobody knows why"
        self._emit("server.failed", f"GPU {server.gpu}: {cause}", gpu=server.gpu, level="error")
        self.operations.dispatch(server, "abort")
        self._spawn(self._after_failure(server))

    async def _after_failure(self, server: Server) -> None:
        launch = server.launch
        async with self._lock(server.gpu):
            if server.launch is launch and server.status == "failed":
                await self.operations.clear_away(server)
        if launch is None or launch.wanted != "up" or launch.swap is not None or server.held:
            return
        gpu = server.gpu
        if server.cause is not None and not server.cause.again:
            self._emit(
                "server.set_aside",
                f"GPU {gpu}: not started again by itself: the same flags would fail the same way",
                gpu=gpu,
                level="error",
            )
            return
        wait = server.restarts.wait(time.time(), self.timing)
        if wait is None:
            self._emit(
                "server.set_aside",
                f"GPU {gpu}: failed {self.timing.restarts_an_hour} times within an hour: "
                "left stopped; `up` starts it again",
                gpu=gpu,
                level="error",
            )
            return
        self._emit("server.restart", f"GPU {gpu}: starting again in {wait:.0f} s", gpu=gpu)
        await asyncio.sleep(wait)
        async with self._lock(gpu):
            if server.launch is not launch or server.status != "failed" or server.held:
                return
            server.restarts.note(time.time())
            try:
                await self._start(server, launch.flags, epoch=launch.epoch, who="stoker")
            except FleetError as error:
                self._emit("server.set_aside", str(error), gpu=gpu, level="error")

    async def _poll(self, server: Server) -> None:
        """Ask one server over and over: each kind of question has its own rhythm."""
        next_at = {"loads": 0.0, "metrics": 0.0, "info": 0.0}
        every = {
            "loads": self.timing.loads,
            "metrics": self.timing.metrics,
            "info": self.timing.info,
        }
        await asyncio.sleep(self.timing.loads * (server.gpu % 8) / 8)
        while True:
            now = time.monotonic()
            stranger = server.foreign is not None and not server.foreign.is_sglang
            if server.status in ("ready", "stalled", "foreign", "warming") and not stranger:
                for kind in every:
                    if kind == "metrics" and server.probe.metrics_off:
                        continue
                    if kind == "info" and server.status == "warming":
                        continue
                    if now >= next_at[kind]:
                        slower = min(2.0 ** max(server.loads_failing - 1, 0), 4.0)
                        next_at[kind] = now + every[kind] * slower
                        self._spawn(self._ask(server, kind))
            await asyncio.sleep(min(every.values()) / 4)

    async def _ask(self, server: Server, kind: str) -> None:
        launch, main = server.launch, server.main
        if kind == "loads":
            loads = await server.probe.loads()
            if server.main is main:
                server.took_loads(loads, time.time())
        elif kind == "metrics":
            metrics = await server.probe.metrics()
            if server.main is main:
                server.took_metrics(metrics, time.time())
        else:
            facts = await server.probe.server_info()
            if facts is not None and server.launch is launch and server.main is main:
                server.facts = facts

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            kind = "fleet" if isinstance(error, FleetError) else "fleet.fault"
            self._emit(kind, str(error) if kind == "fleet" else text, level="error")

    async def close(self) -> None:
        """Stop looking; the servers go on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    # --- Acting ---

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
        await self.know_sglang()
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
            catalogue=self._catalogue,
            version=self.version,
        )

    async def up(self, gpus: list[int] | None, *, epoch: Epoch, who: str) -> None:
        """Start servers with the epoch's flags; returns once every start is under way.

        Those that run already are left alone. Raises :class:`FleetError` with a line on those
        that could not be started; the others have been.
        """
        servers = self._chosen(gpus)
        await self.know_sglang()
        flags = self._checked(epoch.flags)

        async def one(server: Server) -> str | None:
            async with self._lock(server.gpu):
                if server.foreign is not None and server.alive:
                    return (
                        f"GPU {server.gpu}: port {server.port} belongs to pid "
                        f"{server.main.pid if server.main else '?'}, not started by Stoker"
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

        told = [line for line in await asyncio.gather(*map(one, servers)) if line]
        if told:
            rest = len(servers) - len(told)
            raise FleetError("; ".join(told) + (f" (the other {rest} go ahead)" if rest else ""))

    def _checked(self, flags: Flags) -> Flags:
        """The flags as the installed SGLang takes them; what had to be renamed is said."""
        try:
            sglang_flags.refuse_own(flags)
            if self._catalogue is not None:
                flags, renamed = dialect.translate(flags, self._catalogue)
                flags = check(self._catalogue, flags)
                for line in renamed:
                    self._emit("fleet.flags", line, level="warning")
        except FlagError as error:
            raise FleetError(str(error)) from error
        if refused := self._refused(flags):
            raise FleetError("; ".join(refused))
        return flags

    def _refused(self, flags: Flags) -> list[str]:
        is_new = dialect.is_new(self.version, self._catalogue)
        hybrid = self._model.hybrid if self._model is not None else None
        return refusals(flags, is_new, card=self._card_name(), hybrid=hybrid)

    async def down(self, gpus: list[int] | None, *, who: str) -> None:
        """Drain and stop servers; returns when they are gone. Foreign ones are not touched.

        Raises :class:`FleetError` where something of a server cannot be ended.
        """
        servers = self._chosen(gpus)
        results = await asyncio.gather(
            *(self._down_one(server, who=who) for server in servers), return_exceptions=True
        )
        wrong = [r for r in results if isinstance(r, BaseException)]
        if any(not isinstance(r, FleetError) for r in wrong):
            raise next(r for r in wrong if not isinstance(r, FleetError))
        if wrong:
            raise FleetError("; ".join(str(r) for r in wrong))

    async def _down_one(self, server: Server, *, who: str) -> None:
        async with self._lock(server.gpu):
            if server.foreign is not None and server.alive:
                raise FleetError(
                    f"GPU {server.gpu}: pid {server.main.pid if server.main else '?'} was not "
                    "started by Stoker: take it over by a restart, or end it yourself"
                )
            if not server.alive:
                server.held = True
                await asyncio.to_thread(self.operations.want, server, "down")
                server.status = "stopped" if server.status == "failed" else server.status
                return
            server.held = True
            await asyncio.to_thread(self.operations.want, server, "down")
            until = time.time() + self._spec.fleet.drain_seconds
            if not await self.operations.drain(server, until, who):
                aborted = await self.operations.abort(server)
                if aborted:
                    self._emit(
                        "server.aborted",
                        f"GPU {server.gpu}: {aborted} requests aborted after the drain's bound",
                        gpu=server.gpu,
                        who=who,
                    )
            await self.operations.end(server, "down")
            server.held = False
            self._emit("server.stopped", f"GPU {server.gpu}: stopped", gpu=server.gpu, who=who)

    # --- Swaps ---

    def new_flags(
        self, current: Epoch | None, set_flags: Flags, unset_flags: list[str]
    ) -> tuple[Flags, list[str]]:
        """The flags after a change, under the names and types that the installed SGLang takes,
        and a line for each one that had to be renamed.

        Raises :class:`FleetError` where SGLang would refuse them.
        """
        old = current.flags if current is not None else self._spec.fleet.flags
        said: list[str] = []
        try:
            sglang_flags.refuse_own(set_flags)
            if self._catalogue is not None:
                # An old epoch may be of another release: its names are brought up to date too.
                old, renamed = dialect.translate(old, self._catalogue)
                set_flags, more = dialect.translate(set_flags, self._catalogue)
                said = [*renamed, *more]
                set_flags = check(self._catalogue, set_flags)
                unset_flags = list(
                    dialect.translate(dict.fromkeys(unset_flags, True), self._catalogue)[0]
                )
            else:
                set_flags = {name: sglang_flags.typed(v) for name, v in set_flags.items()}
            new = sglang_flags.changed(old, set_flags, unset_flags)
            if self._catalogue is not None:
                new = check(self._catalogue, new)
        except FlagError as error:
            raise FleetError(str(error)) from error
        return new, said

    def plan(
        self,
        *,
        current: Epoch | None,
        set_flags: Flags,
        unset_flags: list[str],
        strategy: swap_plan.Strategy,
        gpus: list[int] | None,
        confirm_within_min: float | None = None,
        expected_tokens: float | None = None,
    ) -> Plan:
        """What a swap would do; nothing is done.

        ``swap`` of the answer has id and ``to_epoch`` 0: the caller gives them with ``who`` and
        ``began``. ``expected_tokens`` is the mean length of the run's answers, for the costs.
        Raises :class:`FleetError` for flags that SGLang would refuse or that are known
        to fail on this card, and where no server is up to be swapped.
        """
        new, warnings = self.new_flags(current, set_flags, unset_flags)
        old = current.flags if current is not None else self._spec.fleet.flags
        servers = self._chosen(gpus)
        if gpus is None:
            servers = [s for s in servers if s.alive or s.status == "failed"]
            if not servers:
                raise FleetError("no server is up: start them with `up`")
        if refused := self._refused(new):
            raise FleetError("; ".join(refused))
        is_new = dialect.is_new(self.version, self._catalogue)
        warnings += dialect.changed_meanings(new, is_new)
        for server in servers:
            if server.foreign is not None and server.alive and server.main is not None:
                other = server.foreign.model not in (None, self._spec.fleet.model)
                warnings.append(
                    f"GPU {server.gpu}: pid {server.main.pid} was not started by Stoker and will "
                    "be ended; the next server there is Stoker's"
                    + (f", with another model than its {server.foreign.model}" if other else "")
                )
                if not server.foreign.is_sglang:
                    raise FleetError(
                        f"GPU {server.gpu}: port {server.port} belongs to "
                        f"{describe(server.main.pid)}, which is no SGLang server: end it, or move "
                        "base_port"
                    )
        prediction = self._predict(new, is_new)
        swap = Swap(
            id=0,
            strategy=strategy,
            gpus=[server.gpu for server in servers],
            from_epoch=current.id if current is not None else None,
            to_epoch=0,
            who="",
            began=time.time(),
            steps=swap_plan.steps([server.gpu for server in servers], strategy),
            set_flags=set_flags,
            unset_flags=unset_flags,
            confirm_s=None if confirm_within_min is None else 60 * confirm_within_min,
        )
        return Plan(
            swap=swap,
            diff=sglang_flags.difference(old, new),
            warnings=warnings,
            predicted_max_running=prediction.max_running if prediction is not None else None,
            costs=self._costs(servers, strategy, expected_tokens),
        )

    def _costs(
        self, servers: list[Server], strategy: swap_plan.Strategy, mean_tokens: float | None
    ) -> list[str]:
        loads = [
            swap_plan.Load(
                in_flight=self.operations.left(server) or 0 if server.alive else 0,
                tok_s=server.gen_tok_s(time.time()),
                reload_s=server.ready.start_seconds if server.ready is not None else None,
            )
            for server in servers
        ]
        drain = self._spec.fleet.drain_seconds
        mean = mean_tokens or 0.0
        drained = swap_plan.cost(loads, drain, mean)
        lines = [f"{drained.gpu_seconds:,.0f} GPU-seconds without tokens"]
        if strategy == "rolling" and len(servers) > 1:
            lines[0] += f", on one of {len(servers)} servers at a time"
        if mean and any(load.in_flight for load in loads):
            at_once = swap_plan.cost(loads, 0.0, mean)
            lines.append(
                f"drain for {drain:.0f} s at most: about {drained.aborted:.0f} answers aborted, "
                f"{drained.tokens:,.0f} tokens made again"
            )
            lines.append(
                f"abort at once: about {at_once.aborted:.0f} answers aborted, "
                f"{at_once.tokens:,.0f} tokens made again"
            )
        return lines

    def _card_name(self) -> str | None:
        cards = self._gpus() if self._gpus is not None else []
        return next((card.name for card in cards if card.name), None)

    @property
    def _model(self) -> capacity.Model | None:
        known = capacity.known_model(self._spec.fleet.model)
        return known[0] if known is not None else self._read_model

    def _predict(self, flags: Flags, is_new: bool) -> capacity.Prediction | None:
        """From what a running server's start has printed; None until one has."""
        for server in self._all():
            facts, launch = server.reader.facts, server.launch
            if launch is None or facts.avail_before is None or facts.avail_after is None:
                continue
            memory = self._memory(server.gpu)
            total = memory[1] / 1024 if memory is not None else facts.avail_before / 0.985
            card = capacity.Card(total, facts.avail_before, facts.avail_after)
            model = capacity.learn(facts, launch.flags, is_new, self._model)
            return capacity.predict(flags, is_new, card, model) if model is not None else None
        return None

    async def swap(
        self,
        swap: Swap,
        *,
        old: Epoch | None,
        new: Epoch,
        save: Callable[[Swap], None],
        show: Callable[[Swap], None] | None = None,
    ) -> Swap:
        """Carry a swap out, or on from its first unfinished step; returns it as it ended.

        ``save`` must have made the plan durable when it returns; it is called before and after
        each step. ``show`` gets what need not be durable: what the swap waits for, each second.
        Cancelling leaves the plan where it is, to be gone on with.
        """
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


def _look_at(main: Identity, catalogue: Catalogue | None) -> Foreign:
    argv = processes.command(main.pid)
    model, _ = sglang_flags.model_and_port(argv)
    return Foreign(
        argv=sglang_flags.masked(argv),
        owner=processes.owner(main.pid),
        flags=sglang_flags.own_flags(argv, catalogue),
        model=model,
        log=processes.log_file(main.pid),
        is_sglang=sglang_flags.is_server_argv(argv),
        started_at=processes.started_at(main.pid),
    )


def _who_serves(ports: list[int]) -> dict[int, int | None]:
    """Who has each of these ports, or is an SGLang server that will have it once it is loaded."""
    loading = {
        sglang_flags.model_and_port(argv)[1]: pid
        for pid, argv in processes.commands(sglang_flags.is_server_argv).items()
    }
    return {**{p: loading[p] for p in ports if p in loading}, **processes.listeners(ports)}


def _read_model(path: str) -> capacity.Model | None:
    try:
        config = json.loads((Path(path) / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return capacity.read_config(config) if isinstance(config, dict) else None
