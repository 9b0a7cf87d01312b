"""What a swap would do to which servers, and what that would cost. Nothing is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from remote.fleet import plan as swap_plan
from remote.fleet import processes
from remote.fleet.foreign import Foreign
from remote.fleet.knowledge import Knowledge
from remote.fleet.launcher import describe, one_line
from remote.fleet.operations import Operations
from remote.fleet.outside import FleetError, UsageError
from remote.fleet.records import Launch
from remote.fleet.server import Server
from remote.protocol import Epoch, Flags, InFlight, Plan, Strategy, Swap, TargetSpec
from remote.sglang import dialect
from remote.sglang import flags as sglang_flags
from remote.sglang.catalogue import FlagError
from remote.sglang.refusals import doubts

_LONGEST_CONFIRM_MIN = 60 * 24 * 7


@dataclass(frozen=True)
class Wish:
    """What is asked of a swap."""

    set_flags: Flags = field(default_factory=dict)
    unset_flags: list[str] = field(default_factory=list)
    strategy: Strategy = "rolling"
    in_flight: InFlight = "continue"
    at_once: int = 1
    confirm_within_min: float | None = None
    expected_tokens: float | None = None
    """Mean length of the run's answers, for the costs."""


@dataclass(frozen=True)
class Planner:
    """Plans swaps of one fleet."""

    spec: Callable[[], TargetSpec]
    servers: Callable[[], list[Server]]
    knowledge: Knowledge
    operations: Operations

    async def plan(
        self, current: Epoch | None, servers: list[Server], wish: Wish, *, named: bool
    ) -> Plan:
        """The swap of these servers, which has id and ``to_epoch`` 0.

        Unless they were ``named`` one by one, those that would only lose time by it are left out.
        Raises :class:`FleetError` for flags that SGLang would refuse, and where something is
        known to stand in the way.
        """
        spec, operations = self.spec(), self.operations
        old = current.flags if current is not None else spec.fleet.flags
        new, warnings = self.knowledge.changed(old, wish.set_flags, wish.unset_flags)
        _check_bounds(wish, len(self.servers()))
        if short := self.knowledge.shortage(new, self.servers(), operations.memory):
            raise UsageError(short)
        goes_on = [] if named else self._going_on(servers, new)
        servers = [server for server in servers if server not in goes_on]
        for server in servers:
            refuse_take_over(server)
            await operations.launcher.possible(spec, server.gpu)
        foreign = [s for s in servers if s.foreign is not None and s.alive and s.main is not None]
        warnings += dialect.changed_meanings(new, self.knowledge.is_new) + doubts(new)
        warnings += [self._taking_over(server, new) for server in foreign]
        why = operations.run.unable() or self._other_answers(servers, old, new)
        busy = any(s.alive and operations.left(s) != 0 for s in servers)
        drains = wish.in_flight == "drain" or (wish.in_flight == "continue" and busy and bool(why))
        if drains and wish.in_flight == "continue":
            warnings.append(f"answers under way are drained, not continued: {why}")
        prediction = self.knowledge.predict(new, self.servers(), operations.memory)
        numbers = [server.gpu for server in servers]
        pids = [s.main.pid for s in foreign if s.main is not None]
        swap = Swap(
            id=0,
            strategy=wish.strategy,
            gpus=numbers,
            from_epoch=current.id if current is not None else None,
            to_epoch=0,
            who="",
            began=time.time(),
            steps=swap_plan.steps(numbers, wish.strategy, drains=drains),
            in_flight=wish.in_flight,
            at_once=wish.at_once,
            set_flags=wish.set_flags,
            unset_flags=wish.unset_flags,
            confirm_s=None if wish.confirm_within_min is None else 60 * wish.confirm_within_min,
            take_over=pids,
        )
        return Plan(
            swap=swap,
            diff=self._difference(servers, foreign, old, new, partly=bool(goes_on)),
            warnings=warnings,
            predicted_max_running=prediction.max_running if prediction is not None else None,
            predicted=prediction.told() if prediction is not None else None,
            costs=self._costs(servers, wish, continues=not why),
            take_over=pids,
            goes_on=[server.gpu for server in goes_on],
        )

    def _going_on(self, servers: list[Server], new: Flags) -> list[Server]:
        """Those that are well and just as a start would make them, where others are not; none
        where all are: then the restart itself is what is wanted."""
        alike = [server for server in servers if self._is_as_started(server, new)]
        if len(alike) == len(servers):
            return []
        now = time.time()
        return [s for s in alike if s.status == "ready" and s.silent_since(now) is None]

    def _is_as_started(self, server: Server, new: Flags) -> bool:
        """Whether a start would give a server what its last one gave it: the flags, and the
        Python, SGLang, model and port."""
        launch, spec = server.launch, self.spec()
        if launch is None or launch.sglang not in (None, self.knowledge.version):
            return False
        head = sglang_flags.server_argv(spec.python, spec.fleet, server.gpu, {})
        flags = self._begun_with(launch)
        return launch.argv[: len(head)] == head and not sglang_flags.difference(flags, new)

    def _own_flags(self, server: Server) -> Flags | None:
        """What a living server runs with, in the names of the installed SGLang."""
        begun = server.launch or server.foreign
        return self._begun_with(begun) if server.alive and begun is not None else None

    def _begun_with(self, begun: Launch | Foreign) -> Flags:
        """The flags of a start, in the names of the installed SGLang."""
        if self.knowledge.catalogue is None:
            return begun.flags
        try:
            return dialect.translate(begun.flags, self.knowledge.catalogue)[0]
        except FlagError:
            return begun.flags

    def _difference(
        self, servers: list[Server], foreign: list[Server], old: Flags, new: Flags, *, partly: bool
    ) -> list[str]:
        """Against the present flags, and for servers started by hand against their own.

        ``partly``: others, with the new flags, go on.
        """
        lines: list[str] = []
        ours = [server for server in servers if server not in foreign]
        if ours:
            lines = self._of_ours(ours, old, new, partly=partly)
        for server in foreign:
            own = sglang_flags.difference(self._own_flags(server) or {}, new)
            lines += [f"GPU {server.gpu}: {line}" for line in own]
        return lines

    def _of_ours(self, servers: list[Server], old: Flags, new: Flags, *, partly: bool) -> list[str]:
        """Against the present flags; after a swap that stopped half-way servers run different
        ones, and each line says of which it is."""
        found: dict[tuple[str, ...], list[str]] = {}
        for server in servers:
            own = self._own_flags(server)
            lines = tuple(sglang_flags.difference(old if own is None else own, new))
            found.setdefault(lines, []).append(str(server.gpu))
        if len(found) < 2 and not partly:
            return sglang_flags.difference(old, new)
        return [
            f"GPU {', '.join(gpus)}: {line}"
            for lines, gpus in found.items()
            for line in lines or ("the same flags",)
        ]

    def _other_answers(self, servers: list[Server], old: Flags, new: Flags) -> str:
        """Why an answer that one of these servers has begun cannot be continued."""
        for server in servers:
            own = self._own_flags(server)
            if why := sglang_flags.other_answers(old if own is None else own, new):
                return why if server.foreign is None else f"GPU {server.gpu}: {why}"
            if server.foreign is not None and server.foreign.model != self.spec().fleet.model:
                return f"GPU {server.gpu} serves another model"
        return ""

    def _taking_over(self, server: Server, new: Flags) -> str:
        """What to know before a foreign server is ended."""
        assert server.foreign is not None
        assert server.main is not None
        text = (
            f"GPU {server.gpu}: pid {server.main.pid} was not started by Stoker and will be "
            "ended; the next server there is Stoker's"
        )
        model = server.foreign.model
        if model != self.spec().fleet.model:
            text += f", with another model than its {one_line(model or '?')}"
        own = self._own_flags(server) or {}
        if gone := [name for name in own if own[name] is not False and name not in new]:
            text += f"; it goes on without {', '.join(map(one_line, gone))}"
        return text

    def _costs(self, servers: list[Server], wish: Wish, *, continues: bool) -> list[str]:
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
            self.spec().fleet.drain_seconds,
            wish.expected_tokens or 0.0,
            together=len(servers) if wish.strategy == "all" else wish.at_once,
            continues=continues,
        )


def refuse_take_over(server: Server) -> None:
    """Raise :class:`FleetError` where what holds a server's port is not to be ended from here."""
    if server.foreign is None or not server.alive or server.main is None:
        return
    what = f"GPU {server.gpu}: port {server.port} belongs to {describe(server.main.pid)}"
    if not server.foreign.is_sglang:
        raise FleetError(f"{what}, which is no SGLang server: end it, or move base_port")
    if not processes.may_end(server.main.pid):
        raise FleetError(f"{what}: {server.foreign.owner} must end it, or move base_port")


def _check_bounds(wish: Wish, count: int) -> None:
    if wish.at_once < 1:
        raise UsageError(f"at once: 1 server or more, not {wish.at_once}")
    if wish.at_once > count:
        raise UsageError(f"at once: {count} servers at most, not {wish.at_once}")
    minutes = wish.confirm_within_min
    if minutes is not None and not 0 < minutes <= _LONGEST_CONFIRM_MIN:
        raise UsageError(f"confirm within: minutes from above 0 to a week, not {minutes:g}")
